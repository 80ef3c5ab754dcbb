"""The two webhook configurations: as they are installed (behaviour/api 14.3), and as they should be, given what they
say (behaviour/manager 12.1).

At run time the manager (`sync`) adds the CA and drops webhooks whose feature gate is off. The list as it was
installed is kept in annotation `template`, and every wanted list is made from it: a list edited by hand is put
right, and what a feature gate dropped comes back when the gate is on again.
Environment variables say where the webhooks are served and found (behaviour/manager 2.2).
"""

import base64
import binascii
import enum
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.cluster.config import is_loopback
from koordinator.manager.webhooks.table import WEBHOOKS, WebhookEntry

MUTATING_NAME = "koordinator-mutating-webhook-configuration"
VALIDATING_NAME = "koordinator-validating-webhook-configuration"
NAMES = (MUTATING_NAME, VALIDATING_NAME)
TEMPLATE = "template"
"""Annotation that keeps the list as it was installed, in JSON."""
TIMEOUT_S = 10
"""The API server's own default."""

Json = dict[str, Any]


class WebhookService(msgspec.Struct, frozen=True, kw_only=True):
    """The Service of the manager's webhook port."""

    name: str = "koordinator-webhook-service"
    namespace: str = "koordinator-system"
    port: int = 443


def configurations(
    where: WebhookService | str,
    *,
    ca_cert: bytes | None = None,
    paths: Collection[str] | None = None,
    failure_policies: Mapping[str, str] | None = None,
    timeout_s: int = TIMEOUT_S,
) -> tuple[Json, Json]:
    """Return the mutating and the validating configuration, complete in the sense that an API server adds no
    defaults.

    `where`: the Service, or the server's URL (`https://host:port`). `ca_cert` is PEM; installed manifests have
    none, the manager adds it. `paths`: only these, all by default. `failure_policies`: webhook name -> policy,
    where it differs from the table's.
    """
    chosen = [webhook for webhook in WEBHOOKS if paths is None or webhook.path in paths]
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    mutating, validating = (
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": name},
            "webhooks": [
                _entry(
                    webhook, client_config(where, webhook.path, ca_cert), failure_policies or {}, timeout_s
                )
                for webhook in chosen
                if webhook.mutating == is_mutating
            ],
        }
        for kind, name, is_mutating in zip(kinds, NAMES, (True, False), strict=True)
    )
    return mutating, validating


def with_template(configuration: Json, *, is_dormant: bool = False) -> Json:
    """Return a configuration to be installed (again): what it lists is what the manager keeps from now on.

    `is_dormant` leaves the list itself to the manager, so that nothing is refused before it runs.
    """
    template = msgspec.json.encode(configuration["webhooks"]).decode()
    annotations = {**configuration["metadata"].get("annotations", {}), TEMPLATE: template}
    return {
        **configuration,
        "metadata": {**configuration["metadata"], "annotations": annotations},
        "webhooks": [] if is_dormant else configuration["webhooks"],
    }


def client_config(where: WebhookService | str, path: str, ca_cert: bytes | None) -> Json:
    """Return how the API server reaches one path. `ca_cert` is PEM."""
    if isinstance(where, str):
        client: Json = {"url": f"{where}{path}"}
    else:
        service = {"namespace": where.namespace, "name": where.name, "path": path, "port": where.port}
        client = {"service": service}
    if ca_cert is not None:
        client["caBundle"] = base64.b64encode(ca_cert).decode()
    return client


def _entry(webhook: WebhookEntry, client: Json, policies: Mapping[str, str], timeout_s: int) -> Json:
    entry: Json = {
        "name": webhook.name,
        "clientConfig": client,
        "rules": [
            {
                "operations": list(webhook.operations),
                "apiGroups": [webhook.group],
                "apiVersions": [webhook.version],
                "resources": [webhook.resource],
                "scope": "*",
            }
        ],
        "failurePolicy": policies.get(webhook.name, webhook.failure_policy),
        "matchPolicy": "Equivalent",
        "namespaceSelector": dict(webhook.namespace_selector),
        "objectSelector": dict(webhook.object_selector),
        "sideEffects": "None",
        "timeoutSeconds": timeout_s,
        "admissionReviewVersions": ["v1", "v1beta1"],
    }
    if webhook.mutating:
        entry["reinvocationPolicy"] = "Never"
    return entry


class DesiredWebhooks(msgspec.Struct, frozen=True):
    """`webhooks` is the list that should be there; `template` its source, for the annotation.

    `problem` says why the annotation could not be used, empty when it could.
    """

    webhooks: list[Json]
    template: str
    problem: str = ""


def wanted(
    annotations: Mapping[str, str],
    present: list[Json],
    *,
    where: WebhookService | str,
    ca_bundle: bytes,
    paths: Collection[str],
) -> DesiredWebhooks:
    """Return the list for a server at `where` (a Service, or `https://host:port`) that answers `paths`.

    Without a template (or with a broken one) the present list is the template from now on.
    """
    entries, problem = _template(annotations.get(TEMPLATE))
    if entries is None:
        entries = [_without_bundle(entry) for entry in present]
        template = msgspec.json.encode(entries).decode()
    else:
        template = annotations[TEMPLATE]
    webhooks = []
    for entry in entries:
        path = path_of(entry)
        if path in paths:
            own = _own_port(where, entry)
            webhooks.append({**entry, "clientConfig": client_config(own, path, ca_bundle)})
    return DesiredWebhooks(webhooks, template, problem)


def differs(found: DesiredWebhooks, annotations: Mapping[str, str], present: list[Json]) -> bool:
    """Return whether a configuration must be written; defaults that the API server fills in are no difference."""
    if annotations.get(TEMPLATE) != found.template:
        return True
    return [_defaulted(entry) for entry in found.webhooks] != [_defaulted(entry) for entry in present]


def path_of(entry: Json) -> str:
    """Return the path that an entry calls, empty when it names none."""
    client = entry.get("clientConfig") or {}
    service = client.get("service")
    if service:
        return str(service.get("path") or "")
    return urlsplit(str(client.get("url") or "")).path


def bundle_of(present: list[Json]) -> bytes:
    """Return all CAs that the entries trust (PEM), each once, in order."""
    bundles: dict[bytes, None] = {}
    for entry in present:
        text = (entry.get("clientConfig") or {}).get("caBundle") or ""
        try:
            bundles[base64.b64decode(text, validate=True)] = None
        except (binascii.Error, ValueError):
            continue
    return b"\n".join(bundle for bundle in bundles if bundle)


def _template(text: str | None) -> tuple[list[Json] | None, str]:
    if text is None:
        return None, ""
    try:
        return msgspec.json.decode(text, type=list[dict[str, Any]]), ""
    except (msgspec.DecodeError, RecursionError) as error:
        return None, f"annotation {TEMPLATE!r} is no JSON list of webhooks: {error}"


def _without_bundle(entry: Json) -> Json:
    client = {key: value for key, value in (entry.get("clientConfig") or {}).items() if key != "caBundle"}
    return {**entry, "clientConfig": client}


def _own_port(where: WebhookService | str, entry: Json) -> WebhookService | str:
    """The port of a Service is the installation's choice."""
    port = ((entry.get("clientConfig") or {}).get("service") or {}).get("port")
    if isinstance(where, str) or not isinstance(port, int):
        return where
    return msgspec.structs.replace(where, port=port)


_DEFAULTS: Json = {
    "failurePolicy": "Fail",
    "matchPolicy": "Equivalent",
    "namespaceSelector": {},
    "objectSelector": {},
    "timeoutSeconds": 10,
    "reinvocationPolicy": "Never",  # of mutating webhooks only; harmless in a comparison
}


def _defaulted(entry: Json) -> Json:
    """Return an entry as API servers complete it (admissionregistration.k8s.io/v1)."""
    rules = [{"scope": "*", **rule} for rule in entry.get("rules") or () if isinstance(rule, dict)]
    return {**_DEFAULTS, **entry, "rules": rules}


PORT = 9876
CERT_DIR = "/tmp/koordinator-webhook-certs"  # the reference's; certificates in it are readable by us only
SECRET_NAME = "koordinator-webhook-certs"  # the name of an object


class CertWriter(enum.StrEnum):
    """The keeper of the certificates: a Secret that all replicas share, or the files of this process."""

    SECRET = "secret"
    FS = "fs"


class SettingsError(KoordinatorError, ValueError):
    """An environment variable cannot be used; the manager must not start."""

    def __init__(self, variable: str, value: str, reason: str) -> None:
        super().__init__(variable, value, reason)
        self.variable, self.value, self.reason = variable, value, reason

    def __str__(self) -> str:
        return f"{self.variable}={self.value!r}: {self.reason}"


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`host` is WEBHOOK_HOST: API servers call this address instead of the Service. Where it is this machine's own
    (loopback), nobody else needs to reach us, and nobody else can."""

    mutating_name: str = MUTATING_NAME
    validating_name: str = VALIDATING_NAME
    host: str = ""
    port: int = PORT
    """The port to listen on; 0 lets the system choose (local clusters)."""
    service: WebhookService = WebhookService()
    secret_name: str = SECRET_NAME
    cert_dir: Path = Path(CERT_DIR)
    writer: CertWriter = CertWriter.SECRET

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Return the settings of a process. An empty variable counts as a missing one. Raises: SettingsError."""

        def read(variable: str, default: str) -> str:
            return environment.get(variable) or default

        host = read("WEBHOOK_HOST", "")
        return cls(
            mutating_name=read("MUTATING_WEBHOOK_NAME", MUTATING_NAME),
            validating_name=read("VALIDATING_WEBHOOK_NAME", VALIDATING_NAME),
            host=host,
            port=_port(read("WEBHOOK_PORT", str(PORT))),
            service=WebhookService(
                name=read("SERVICE_NAME", WebhookService().name),
                namespace=read("POD_NAMESPACE", WebhookService().namespace),
            ),
            secret_name=read("SECRET_NAME", SECRET_NAME),
            cert_dir=Path(read("WEBHOOK_CERT_DIR", CERT_DIR)),
            writer=_writer(read("WEBHOOK_CERT_WRITER", CertWriter.FS if host else CertWriter.SECRET)),
        )

    @property
    def listen_host(self) -> str | None:
        """Return the address to listen on; None for all of this machine: a Service, or a name that others resolve."""
        return self.host if is_loopback(self.host) else None

    @property
    def dns_name(self) -> str:
        """Return the name (or address) that the certificate is for."""
        return self.host or f"{self.service.name}.{self.service.namespace}.svc"


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 65_536:
        raise SettingsError("WEBHOOK_PORT", text, "expected a port number from 1 to 65535")
    return int(text)


def _writer(text: str) -> CertWriter:
    try:
        return CertWriter(text)
    except ValueError:
        raise SettingsError("WEBHOOK_CERT_WRITER", text, "expected secret or fs") from None
