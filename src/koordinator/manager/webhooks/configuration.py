"""The two webhook configurations as they are installed: all webhooks of the table (behaviour/api 14.3).

The manager does the rest at run time (`sync`): it adds the CA and drops webhooks whose feature gate is off.
"""

import base64
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from koordinator.manager.webhooks.table import WEBHOOKS, WebhookEntry

MUTATING_NAME = "koordinator-mutating-webhook-configuration"
VALIDATING_NAME = "koordinator-validating-webhook-configuration"
NAMES = (MUTATING_NAME, VALIDATING_NAME)
TEMPLATE = "template"
"""Annotation that keeps the list as it was installed, in JSON."""
TIMEOUT_S = 10
"""The API server's own default."""

Json = dict[str, Any]


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """The Service of the manager's webhook port."""

    name: str = "koordinator-webhook-service"
    namespace: str = "koordinator-system"
    port: int = 443


def configurations(
    where: Service | str,
    *,
    ca_cert: bytes | None = None,
    paths: Collection[str] | None = None,
    failure_policies: Mapping[str, str] | None = None,
    timeout_s: int = TIMEOUT_S,
    names: tuple[str, str] = NAMES,
) -> tuple[Json, Json]:
    """The mutating and the validating configuration, complete in the sense that an API server adds no defaults.

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
        for kind, name, is_mutating in zip(kinds, names, (True, False), strict=True)
    )
    return mutating, validating


def with_template(configuration: Json, *, is_dormant: bool = False) -> Json:
    """A configuration to be installed (again): what it lists is what the manager keeps from now on.

    `is_dormant` leaves the list itself to the manager, so that nothing is refused before it runs.
    """
    template = msgspec.json.encode(configuration["webhooks"]).decode()
    annotations = {**configuration["metadata"].get("annotations", {}), TEMPLATE: template}
    return {
        **configuration,
        "metadata": {**configuration["metadata"], "annotations": annotations},
        "webhooks": [] if is_dormant else configuration["webhooks"],
    }


def client_config(where: Service | str, path: str, ca_cert: bytes | None) -> Json:
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
