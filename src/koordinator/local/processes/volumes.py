"""Fill a pod's volumes with what they are to hold now: objects are looked up, tokens asked for, and kept until
their renewal.
"""

import binascii
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from koordinator.api.core import ConfigMap, Secret
from koordinator.api.meta import Object
from koordinator.clock import parse_rfc3339
from koordinator.cluster import errors
from koordinator.local.processes import payloads
from koordinator.local.processes.environment import EnvironmentSources, Services
from koordinator.local.processes.payloads import MountError, Payload, VolumeSources
from koordinator.local.processes.pod_spec import KubeletPod, TokenFile

T = TypeVar("T", bound=Object)

REFRESH_S = 60.0
"""How often volumes are brought up to date, as the kubelet's sync loop does it."""
_LIFE_USED = 0.8
"""A token is renewed when this share of its life is over ..."""
_AGE_S_MAX = 24 * 3600.0
"""... or it is a day old. Source: pkg/kubelet/token/token_manager.go of kubernetes/kubernetes."""


class _Token(msgspec.Struct, frozen=True):
    text: str
    renew_at_s: float


class Volumes:
    """The volumes of one pod."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tokens: dict[TokenFile, _Token] = {}

    async def payloads(self, pod: KubeletPod, around: EnvironmentSources) -> Mapping[str, Payload]:
        """Volume → its files, for the volumes that are made of what the API knows.

        Raises: MountError, ApiError.
        """
        wanted = [volume for volume in pod.spec.volumes if volume.projection is not None]
        namespace = pod.raw.metadata.namespace
        config_maps, secrets, tokens = payloads.references(wanted)
        known = VolumeSources(
            config_maps={name: await self._found(ConfigMap, name, namespace) for name in sorted(config_maps)},
            secrets={name: await self._found(Secret, name, namespace) for name in sorted(secrets)},
            tokens={each: await self._token(pod, each) for each in sorted(tokens, key=repr)},
        )
        found = {}
        for volume in wanted:
            try:
                found[volume.name] = payloads.of_volume(volume, pod, around, known)
            except (binascii.Error, ValueError) as error:
                raise MountError(volume.name, f"a value is no base64: {error}") from error
        return found

    async def _found(self, kind: type[T], name: str, namespace: str) -> T | None:
        try:
            return await self._services.cluster.get(kind, name, namespace)
        except errors.NotFound:
            return None

    async def _token(self, pod: KubeletPod, wanted: TokenFile) -> str:
        now_s = self._services.clock.now()
        kept = self._tokens.get(wanted)
        if kept is None or now_s >= kept.renew_at_s:
            kept = self._tokens[wanted] = await self._new_token(pod, wanted, now_s)
        return kept.text

    async def _new_token(self, pod: KubeletPod, wanted: TokenFile, now_s: float) -> _Token:
        meta = pod.raw.metadata
        account = pod.spec.service_account_name or "default"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [wanted.audience] if wanted.audience else [],
                "expirationSeconds": wanted.expiration_seconds,
                "boundObjectRef": bound,
            },
        }
        path = f"/api/v1/namespaces/{meta.namespace}/serviceaccounts/{account}/token"
        status = (await self._services.cluster.request("POST", path, body))["status"]
        life_s = parse_rfc3339(status["expirationTimestamp"]) - now_s
        return _Token(status["token"], now_s + min(life_s * _LIFE_USED, _AGE_S_MAX))
