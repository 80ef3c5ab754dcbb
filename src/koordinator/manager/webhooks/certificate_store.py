"""Keep certificates between restarts and among replicas: in a Secret, or in files (behaviour/manager 12.1)."""

import base64
import binascii
import logging
from pathlib import Path
from typing import Any, Protocol

from koordinator.api.core import Secret
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.manager.webhooks import certificate_files, certificates
from koordinator.manager.webhooks.certificates import SECRET_KEYS, CertificateSet, Renewal

log = logging.getLogger(__name__)

TRIES_MAX = 5
"""Of several replicas that renew at the same time one wins; who loses so often has another problem."""


class Store(Protocol):
    """Keeps one set of certificates."""

    name: str
    """For people: which store it is."""

    async def load(self) -> "Kept":
        """Return what is kept now. Raises: ApiError, CertificateDirError."""
        ...

    async def save(self, certs: CertificateSet, instead_of: "Kept") -> bool:
        """Replace what was loaded; False when somebody else was faster. Raises: ApiError, CertificateDirError."""
        ...


class Kept:
    """A set as it was loaded; `version` is None when there is no object yet."""

    def __init__(self, certs: CertificateSet | None, version: str | None = None) -> None:
        self.certs = certs
        self.version = version


class SecretStore:
    """A Secret that all replicas share."""

    def __init__(self, cluster: Cluster, namespace: str, secret: str) -> None:
        self.name = f"Secret {namespace}/{secret}"
        self._cluster = cluster
        self._namespace, self._secret = namespace, secret

    async def load(self) -> Kept:
        """See `Store`."""
        try:
            secret = await self._cluster.get(Secret, self._secret, self._namespace)
        except errors.NotFound:
            return Kept(None)
        return Kept(_decoded(secret), secret.metadata.resource_version)

    async def save(self, certs: CertificateSet, instead_of: Kept) -> bool:
        """See `Store`."""
        data = {name: base64.b64encode(content).decode() for name, content in certs.secret_data().items()}
        try:
            if instead_of.version is None:
                body: dict[str, Any] = {"metadata": {"name": self._secret}, "data": data, "type": "Opaque"}
                await self._cluster.create(Secret, body, self._namespace)
            else:
                patch = {"metadata": {"resourceVersion": instead_of.version}, "data": data}
                await self._cluster.patch(Secret, self._secret, patch, self._namespace)
        except (errors.AlreadyExists, errors.Conflict):
            return False
        except errors.NotFound:
            if instead_of.version is None:
                raise  # it is the namespace that is missing
            return False
        return True


class FileStore:
    """The certificate directory itself: one replica, or a volume that several share."""

    def __init__(self, folder: Path) -> None:
        self.name = f"directory {folder}"
        self._folder = folder

    async def load(self) -> Kept:
        """See `Store`."""
        return Kept(certificate_files.read(self._folder))

    async def save(self, certs: CertificateSet, instead_of: Kept) -> bool:
        """See `Store`."""
        certificate_files.write(self._folder, certs)
        return True


async def ensure(store: Store, host: str, clock: Clock) -> CertificateSet:
    """Good certificates for `host`: those of the store, or new ones that are in the store from now on.

    Raises: ApiError, CertificateDirError; Conflict when others were faster again and again.
    """
    for _ in range(TRIES_MAX):
        kept = await store.load()
        why = certificates.why_renew(kept.certs, host, clock.now())
        if why is Renewal.NONE:
            assert kept.certs is not None, why
            return kept.certs
        log.info(
            "webhook certificates renewed", extra={"store": store.name, "host": host, "reason": why.value}
        )
        certs = certificates.renewed(kept.certs, host, clock.now())
        if await store.save(certs, kept):
            return certs
    raise errors.Conflict(
        f"{store.name}: changed by others {TRIES_MAX} times while new certificates were made"
    )


def _decoded(secret: Secret) -> CertificateSet | None:
    """None when a key is missing; what is no base64 cannot be read later on either."""
    try:
        return CertificateSet(*(base64.b64decode(secret.data[name]) for name in SECRET_KEYS))
    except (KeyError, binascii.Error, ValueError):
        return None
