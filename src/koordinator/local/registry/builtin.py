"""Facts about the built-in kinds (`api.kinds.BUILT_IN`) that the life of their objects depends on.

Source: the strategies of the Kubernetes API server (which kinds have a generation, which accept an update
without resourceVersion, what a fresh status holds, whose dependents are orphaned by default).
"""

from typing import Any

import msgspec


class Facts(msgspec.Struct, frozen=True, kw_only=True):
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


PLAIN = Facts()
_GUARDED = Facts(blind_update=False)
_GUARDED_COUNTED = Facts(blind_update=False, has_generation=True)
_REPLICATED = Facts(has_generation=True, fresh_status={"replicas": 0})
_BUDGET_STATUS = {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}
_DAEMON_STATUS = {
    "currentNumberScheduled": 0,
    "desiredNumberScheduled": 0,
    "numberMisscheduled": 0,
    "numberReady": 0,
}
_PENDING = {"phase": "Pending"}

FACTS: dict[str, Facts] = {
    "pods": Facts(has_generation=True, fresh_status=_PENDING, status_writes_labels=True),
    "nodes": Facts(keeps_status=True, status_writes_labels=True),
    "namespaces": Facts(immortal=("default", "kube-system", "kube-public")),
    "services": Facts(fresh_status={"loadBalancer": {}}),
    "persistentvolumes": Facts(fresh_status=_PENDING),
    "persistentvolumeclaims": Facts(fresh_status=_PENDING),
    "replicationcontrollers": Facts(
        has_generation=True, fresh_status={"replicas": 0}, orphans_by_default=True
    ),
    "resourcequotas": Facts(fresh_status={}),
    "deployments.apps": Facts(has_generation=True, fresh_status={}),
    "replicasets.apps": _REPLICATED,
    "statefulsets.apps": Facts(has_generation=True, fresh_status={"availableReplicas": 0, "replicas": 0}),
    "daemonsets.apps": Facts(has_generation=True, fresh_status=_DAEMON_STATUS),
    "jobs.batch": Facts(has_generation=True, fresh_status={}, orphans_by_default=True),
    "cronjobs.batch": Facts(has_generation=True, fresh_status={}),
    "horizontalpodautoscalers.autoscaling": Facts(
        fresh_status={"currentMetrics": None, "desiredReplicas": 0}
    ),
    "poddisruptionbudgets.policy": Facts(
        has_generation=True, blind_update=False, fresh_status=_BUDGET_STATUS
    ),
    "ingresses.networking.k8s.io": Facts(has_generation=True, fresh_status={"loadBalancer": {}}),
    "networkpolicies.networking.k8s.io": _GUARDED_COUNTED,
    "ingressclasses.networking.k8s.io": Facts(has_generation=True),
    "endpointslices.discovery.k8s.io": Facts(has_generation=True),
    "priorityclasses.scheduling.k8s.io": Facts(has_generation=True),
    "runtimeclasses.node.k8s.io": _GUARDED,
    "leases.coordination.k8s.io": _GUARDED,
    "csinodes.storage.k8s.io": _GUARDED,
    "csidrivers.storage.k8s.io": _GUARDED,
    "volumeattachments.storage.k8s.io": _GUARDED,
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": _GUARDED_COUNTED,
    "validatingwebhookconfigurations.admissionregistration.k8s.io": _GUARDED_COUNTED,
    "customresourcedefinitions.apiextensions.k8s.io": _GUARDED_COUNTED,
    "apiservices.apiregistration.k8s.io": _GUARDED,
    "resourceclaims.resource.k8s.io": Facts(blind_update=False, fresh_status={}),
    "resourceclaimtemplates.resource.k8s.io": _GUARDED,
    "deviceclasses.resource.k8s.io": Facts(has_generation=True, blind_update=False),
    "resourceslices.resource.k8s.io": Facts(has_generation=True, blind_update=False),
    "certificatesigningrequests.certificates.k8s.io": Facts(fresh_status={}),
}
"""By qualified name; kinds that are not listed are `PLAIN`."""

CUSTOM = Facts(has_generation=True, blind_update=False)
"""Custom resources."""
