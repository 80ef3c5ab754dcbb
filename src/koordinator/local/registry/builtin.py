"""Facts about the built-in kinds (`api.kinds.BUILT_IN`) that the life of their objects depends on.

Source: the strategies of the Kubernetes API server (which kinds have a generation, which accept an update
without resourceVersion, what a fresh status holds, whose dependents are orphaned by default).
"""

from typing import Any

import msgspec


class KindFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for the life of one kind's objects.

    has_generation: `metadata.generation` counts changes outside metadata and status.
    blind_update: an update may leave `metadata.resourceVersion` out.
    keeps_status: a status sent with a create is kept (nodes register with theirs).
    fresh_status: the status of a new object, when the main resource does not write it.
    status_writes_labels: labels and annotations sent with a status update are taken.
    orphans_by_default: a delete that names no policy leaves the dependents alone.
    immortal: names that cannot be deleted.
    """

    has_generation: bool = False
    blind_update: bool = True
    keeps_status: bool = False
    fresh_status: dict[str, Any] | None = None
    status_writes_labels: bool = False
    orphans_by_default: bool = False
    immortal: tuple[str, ...] = ()


PLAIN = KindFacts()
_GUARDED = KindFacts(blind_update=False)
_GUARDED_COUNTED = KindFacts(blind_update=False, has_generation=True)
_REPLICATED = KindFacts(has_generation=True, fresh_status={"replicas": 0})
_BUDGET_STATUS = {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}
_DAEMON_STATUS = {
    "currentNumberScheduled": 0,
    "desiredNumberScheduled": 0,
    "numberMisscheduled": 0,
    "numberReady": 0,
}
_PENDING = {"phase": "Pending"}

FACTS: dict[str, KindFacts] = {
    "pods": KindFacts(has_generation=True, fresh_status=_PENDING, status_writes_labels=True),
    "nodes": KindFacts(keeps_status=True, status_writes_labels=True),
    "namespaces": KindFacts(immortal=("default", "kube-system", "kube-public")),
    "services": KindFacts(fresh_status={"loadBalancer": {}}),
    "persistentvolumes": KindFacts(fresh_status=_PENDING),
    "persistentvolumeclaims": KindFacts(fresh_status=_PENDING),
    "replicationcontrollers": KindFacts(
        has_generation=True, fresh_status={"replicas": 0}, orphans_by_default=True
    ),
    "resourcequotas": KindFacts(fresh_status={}),
    "deployments.apps": KindFacts(has_generation=True, fresh_status={}),
    "replicasets.apps": _REPLICATED,
    "statefulsets.apps": KindFacts(has_generation=True, fresh_status={"availableReplicas": 0, "replicas": 0}),
    "daemonsets.apps": KindFacts(has_generation=True, fresh_status=_DAEMON_STATUS),
    "jobs.batch": KindFacts(has_generation=True, fresh_status={}, orphans_by_default=True),
    "cronjobs.batch": KindFacts(has_generation=True, fresh_status={}),
    "horizontalpodautoscalers.autoscaling": KindFacts(
        fresh_status={"currentMetrics": None, "desiredReplicas": 0}
    ),
    "poddisruptionbudgets.policy": KindFacts(
        has_generation=True, blind_update=False, fresh_status=_BUDGET_STATUS
    ),
    "ingresses.networking.k8s.io": KindFacts(has_generation=True, fresh_status={"loadBalancer": {}}),
    "networkpolicies.networking.k8s.io": _GUARDED_COUNTED,
    "ingressclasses.networking.k8s.io": KindFacts(has_generation=True),
    "endpointslices.discovery.k8s.io": KindFacts(has_generation=True),
    "priorityclasses.scheduling.k8s.io": KindFacts(has_generation=True),
    "runtimeclasses.node.k8s.io": _GUARDED,
    "leases.coordination.k8s.io": _GUARDED,
    "csinodes.storage.k8s.io": _GUARDED,
    "csidrivers.storage.k8s.io": _GUARDED,
    "volumeattachments.storage.k8s.io": _GUARDED,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _GUARDED_COUNTED,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _GUARDED_COUNTED,
    "customresourcedefinitions.apiextensions.k8s.io": _GUARDED_COUNTED,
    "apiservices.apiregistration.k8s.io": _GUARDED,
    "resourceclaims.resource.k8s.io": KindFacts(blind_update=False, fresh_status={}),
    "resourceclaimtemplates.resource.k8s.io": _GUARDED,
    "deviceclasses.resource.k8s.io": KindFacts(has_generation=True, blind_update=False),
    "resourceslices.resource.k8s.io": KindFacts(has_generation=True, blind_update=False),
    "certificatesigningrequests.certificates.k8s.io": KindFacts(fresh_status={}),
}
"""By qualified name; kinds that are not listed are `PLAIN`."""

CUSTOM = KindFacts(has_generation=True, blind_update=False)
"""Custom resources."""
