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
    """As rules name it: plural, or `plural/subresource`."""
    operations: tuple[str, ...]
    failure_policy: str = FAIL
    only_warns: bool = False
    """Whether it refuses nothing, ever: then nobody need be able to choose its failure policy."""
    namespace_selector: Mapping[str, Any] = {}
    object_selector: Mapping[str, Any] = {}


WEBHOOKS: tuple[WebhookEntry, ...] = (
    WebhookEntry(
        name="mpod-create.koordinator.sh",
        path=MUTATE_POD,
        mutating=True,
        gates=("PodMutatingWebhook",),
        resource="pods",
        operations=("CREATE",),
        namespace_selector=_OUTSIDE_CONTROL_PLANE,
    ),
    WebhookEntry(
        name="mpod-update.koordinator.sh",
        path=MUTATE_POD,
        mutating=True,
        gates=("PodMutatingWebhook",),
        resource="pods",
        operations=("UPDATE",),
        namespace_selector=_OUTSIDE_CONTROL_PLANE,
        object_selector={"matchLabels": {labels.POD_MUTATING_UPDATE: "true"}},
    ),
    WebhookEntry(
        name="mreservation-create.koordinator.sh",
        path=MUTATE_RESERVATION,
        mutating=True,
        gates=("ReservationMutatingWebhook",),
        group="scheduling.koordinator.sh",
        version="v1alpha1",
        resource="reservations",
        operations=("CREATE",),
    ),
    WebhookEntry(
        name="mnode-status.koordinator.sh",
        path=MUTATE_NODE_STATUS,
        mutating=True,
        gates=("NodeMutatingWebhook",),
        resource="nodes/status",
        operations=("CREATE", "UPDATE"),
        failure_policy=IGNORE,
    ),
    WebhookEntry(
        name="melasticquota.koordinator.sh",
        path=MUTATE_QUOTA,
        mutating=True,
        gates=("ElasticMutatingWebhook",),
        group="scheduling.sigs.k8s.io",
        version="v1alpha1",
        resource="elasticquotas",
        operations=("CREATE",),
    ),
    WebhookEntry(
        name="vpod.koordinator.sh",
        path=VALIDATE_POD,
        mutating=False,
        gates=("PodValidatingWebhook",),
        resource="pods",
        operations=("CREATE", "UPDATE"),
        namespace_selector=_OUTSIDE_CONTROL_PLANE,
    ),
    WebhookEntry(
        name="vpodresize.koordinator.sh",
        path=VALIDATE_POD,
        mutating=False,
        gates=("PodValidatingWebhook",),
        # Amounts of containers change in place through here, past the rules for pods.
        resource="pods/resize",
        operations=("UPDATE",),
        namespace_selector=_OUTSIDE_CONTROL_PLANE,
    ),
    WebhookEntry(
        name="vpodbinding.koordinator.sh",
        path=VALIDATE_POD_BINDING,
        mutating=False,
        # With the second gate off every binding would be allowed, so nobody need ask.
        gates=("PodValidatingWebhook", "BindingAdmissionWebhook"),
        resource="pods/binding",
        operations=("CREATE",),
        failure_policy=IGNORE,
    ),
    WebhookEntry(
        name="velasticquota.koordinator.sh",
        path=VALIDATE_QUOTA,
        mutating=False,
        gates=("ElasticValidatingWebhook",),
        group="scheduling.sigs.k8s.io",
        version="v1alpha1",
        resource="elasticquotas",
        operations=("CREATE", "UPDATE", "DELETE"),
    ),
    WebhookEntry(
        name="vnode.koordinator.sh",
        path=VALIDATE_NODE,
        mutating=False,
        gates=("NodeValidatingWebhook",),
        resource="nodes",
        operations=("CREATE", "UPDATE"),
        failure_policy=IGNORE,
    ),
    WebhookEntry(
        name="vconfigmap.koordinator.sh",
        path=VALIDATE_CONFIG_MAP,
        mutating=False,
        gates=("ConfigMapValidatingWebhook",),
        resource="configmaps",
        operations=("CREATE", "UPDATE", "DELETE"),
        object_selector={"matchLabels": {labels.CONFIGMAP_TYPE: "slo-controller-config"}},
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
"""What must be on for a path to be served."""
