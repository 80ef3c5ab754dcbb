"""All webhooks of the manager: what each is asked about, and how a cluster does without it (behaviour/manager 12).

The one place that says so: configurations (`configuration`), handlers (`all`), manifests and checks read it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api import labels, unready

MUTATE_POD = "/mutate-pod"
MUTATE_RESERVATION = "/mutate-reservation"
MUTATE_NODE_STATUS = "/mutate-node-status"
MUTATE_QUOTA = "/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota"
VALIDATE_POD = "/validate-pod"
VALIDATE_POD_BINDING = "/validate-pod-binding"
VALIDATE_QUOTA = "/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota"
VALIDATE_NODE = "/validate-node"
VALIDATE_CONFIG_MAP = "/validate-configmap"
VALIDATE_TIDAL_POOL = "/validate-tidalpool"
WARN_UNREADY = "/warn-unready"

FRAMEWORK_GATE = "WebhookFramework"
"""Off: no webhook at all."""

FAIL, IGNORE = "Fail", "Ignore"

_OUTSIDE_CONTROL_PLANE = {
    "matchExpressions": [{"key": labels.NAMESPACE_CONTROL_PLANE, "operator": "DoesNotExist"}]
}
"""Pods of the control plane start without us: the manager's own pod among them."""


class WebhookEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a webhook configuration. Served when all of `gates` (and the framework's) are on."""

    name: str
    path: str
    mutating: bool
    gates: tuple[str, ...]
    group: str = ""
    version: str = "v1"
    resource: str
    """Name in rules: plural, or `plural/subresource`."""
    operations: tuple[str, ...]
    failure_policy: str = FAIL
    only_warns: bool = False
    """Whether it refuses nothing, ever: then nobody need be able to choose its failure policy."""
    namespace_selector: Mapping[str, Any] = {}
    object_selector: Mapping[str, Any] = {}


def _entry(name: str, path: str, gates: str, resource: str, operations: str, **others: Any) -> WebhookEntry:
    """Return an entry; gates and operations with spaces between."""
    return WebhookEntry(
        name=f"{name}.koordinator.sh",
        path=path,
        mutating=path.startswith("/mutate"),
        gates=tuple(gates.split()),
        resource=resource,
        operations=tuple(operations.split()),
        **others,
    )


WEBHOOKS: tuple[WebhookEntry, ...] = (
    _entry(
        "mpod-create",
        MUTATE_POD,
        "PodMutatingWebhook",
        "pods",
        "CREATE",
        namespace_selector=_OUTSIDE_CONTROL_PLANE,
    ),
    _entry(
        "mpod-update",
        MUTATE_POD,
        "PodMutatingWebhook",
        "pods",
        "UPDATE",
        namespace_selector=_OUTSIDE_CONTROL_PLANE,
        object_selector={"matchLabels": {labels.POD_MUTATING_UPDATE: "true"}},
    ),
    _entry(
        "mreservation-create",
        MUTATE_RESERVATION,
        "ReservationMutatingWebhook",
        "reservations",
        "CREATE",
        group="scheduling.koordinator.sh",
        version="v1alpha1",
    ),
    _entry(
        "mnode-status",
        MUTATE_NODE_STATUS,
        "NodeMutatingWebhook",
        "nodes/status",
        "CREATE UPDATE",
        failure_policy=IGNORE,
    ),
    _entry(
        "melasticquota",
        MUTATE_QUOTA,
        "ElasticMutatingWebhook",
        "elasticquotas",
        "CREATE",
        group="scheduling.sigs.k8s.io",
        version="v1alpha1",
    ),
    _entry(
        "vpod",
        VALIDATE_POD,
        "PodValidatingWebhook",
        "pods",
        "CREATE UPDATE",
        namespace_selector=_OUTSIDE_CONTROL_PLANE,
    ),
    # Amounts of containers change in place through here, past the rules for pods.
    _entry(
        "vpodresize",
        VALIDATE_POD,
        "PodValidatingWebhook",
        "pods/resize",
        "UPDATE",
        namespace_selector=_OUTSIDE_CONTROL_PLANE,
    ),
    # With the second gate off every binding would be allowed, so nobody need ask.
    _entry(
        "vpodbinding",
        VALIDATE_POD_BINDING,
        "PodValidatingWebhook BindingAdmissionWebhook",
        "pods/binding",
        "CREATE",
        failure_policy=IGNORE,
    ),
    _entry(
        "velasticquota",
        VALIDATE_QUOTA,
        "ElasticValidatingWebhook",
        "elasticquotas",
        "CREATE UPDATE DELETE",
        group="scheduling.sigs.k8s.io",
        version="v1alpha1",
    ),
    _entry("vnode", VALIDATE_NODE, "NodeValidatingWebhook", "nodes", "CREATE UPDATE", failure_policy=IGNORE),
    _entry(
        "vconfigmap",
        VALIDATE_CONFIG_MAP,
        "ConfigMapValidatingWebhook",
        "configmaps",
        "CREATE UPDATE DELETE",
        object_selector={"matchLabels": {labels.CONFIGMAP_TYPE: "slo-controller-config"}},
    ),
    _entry(
        "vtidalpool",
        VALIDATE_TIDAL_POOL,
        "TidalPool",
        "tidalpools",
        "CREATE UPDATE",
        group="scheduling.koordinator.sh",
        version="v1alpha1",
        failure_policy=IGNORE,
    ),
    *(
        WebhookEntry(
            name=f"w{view.resource.kind.lower()}.koordinator.sh",
            path=WARN_UNREADY,
            mutating=False,
            gates=(),
            group=view.resource.group,
            version=view.resource.version,
            resource=view.resource.plural,
            operations=("CREATE",),
            failure_policy=IGNORE,
            only_warns=True,
        )
        for view in unready.KINDS
    ),
)

GATES_BY_PATH: Mapping[str, tuple[str, ...]] = {
    webhook.path: (FRAMEWORK_GATE, *webhook.gates) for webhook in WEBHOOKS
}
"""Path of a webhook → the gates that must be on for it to be served."""
