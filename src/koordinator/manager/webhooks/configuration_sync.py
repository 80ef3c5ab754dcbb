"""Decide what the webhook configurations of a cluster should say, given what they say (behaviour/manager 12.1).

Pure. The list as it was installed is kept in annotation `template`, and every wanted list is made from it: a list
edited by hand is put right, and what a feature gate dropped comes back when the gate is on again.
"""

import base64
import binascii
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from koordinator.manager.webhooks.configuration import TEMPLATE, Json, Service, client_config


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
    where: Service | str,
    ca_bundle: bytes,
    paths: Collection[str],
) -> DesiredWebhooks:
    """The list for a server at `where` (a Service, or `https://host:port`) that answers `paths`.

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
    """The path that an entry calls, empty when it names none."""
    client = entry.get("clientConfig") or {}
    service = client.get("service")
    if service:
        return str(service.get("path") or "")
    return urlsplit(str(client.get("url") or "")).path


def bundle_of(present: list[Json]) -> bytes:
    """All CAs that the entries trust (PEM), each once, in order."""
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


def _own_port(where: Service | str, entry: Json) -> Service | str:
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
    """An entry as API servers complete it (admissionregistration.k8s.io/v1)."""
    rules = [{"scope": "*", **rule} for rule in entry.get("rules") or () if isinstance(rule, dict)]
    return {**_DEFAULTS, **entry, "rules": rules}
