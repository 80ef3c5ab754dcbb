"""The built-in kinds that are served, and the facts about each that its life depends on.

Source: the strategies of the Kubernetes API server (which kinds have a generation, which accept an update
without resourceVersion, what a fresh status holds, whose dependents are orphaned by default).
"""

from typing import Any

import msgspec

from koordinator.api.meta import Resource


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """How objects of one kind live.

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
    "certificatesigningrequests.certificates.k8s.io": Facts(fresh_status={}),
}
"""By qualified name; kinds that are not listed are `PLAIN`."""

CUSTOM = Facts(has_generation=True, blind_update=False)
"""Custom resources."""


def _table(text: str) -> tuple[Resource, ...]:
    return tuple(_row(line.split()) for line in text.strip().splitlines())


def _row(words: list[str]) -> Resource:
    """A line of the table below: api version, kind, plural, scope, then `-` or comma-separated lists."""
    api_version, kind, plural, scope, short_names, categories, subresources = words
    group, _, version = api_version.rpartition("/")
    lists = [
        tuple(word.split(",")) if word != "-" else () for word in (short_names, categories, subresources)
    ]
    return Resource(
        group=group,
        version=version,
        kind=kind,
        plural=plural,
        namespaced=scope == "namespaced",
        short_names=lists[0],
        categories=lists[1],
        subresources=lists[2],
    )


BUILTIN: tuple[Resource, ...] = _table("""
v1 Namespace namespaces cluster ns - status,finalize
v1 Node nodes cluster no - status
v1 Pod pods namespaced po all status,binding,eviction
v1 Service services namespaced svc all status
v1 Endpoints endpoints namespaced ep - -
v1 ConfigMap configmaps namespaced cm - -
v1 Secret secrets namespaced - - -
v1 ServiceAccount serviceaccounts namespaced sa - -
v1 Event events namespaced ev - -
v1 LimitRange limitranges namespaced limits - -
v1 ResourceQuota resourcequotas namespaced quota - status
v1 PersistentVolume persistentvolumes cluster pv - status
v1 PersistentVolumeClaim persistentvolumeclaims namespaced pvc - status
v1 PodTemplate podtemplates namespaced - - -
v1 ReplicationController replicationcontrollers namespaced rc all status,scale
apps/v1 Deployment deployments namespaced deploy all status,scale
apps/v1 ReplicaSet replicasets namespaced rs all status,scale
apps/v1 StatefulSet statefulsets namespaced sts all status,scale
apps/v1 DaemonSet daemonsets namespaced ds all status
apps/v1 ControllerRevision controllerrevisions namespaced - - -
batch/v1 Job jobs namespaced - all status
batch/v1 CronJob cronjobs namespaced cj all status
autoscaling/v2 HorizontalPodAutoscaler horizontalpodautoscalers namespaced hpa all status
policy/v1 PodDisruptionBudget poddisruptionbudgets namespaced pdb - status
networking.k8s.io/v1 Ingress ingresses namespaced ing - status
networking.k8s.io/v1 NetworkPolicy networkpolicies namespaced netpol - -
networking.k8s.io/v1 IngressClass ingressclasses cluster - - -
discovery.k8s.io/v1 EndpointSlice endpointslices namespaced - - -
events.k8s.io/v1 Event events namespaced ev - -
coordination.k8s.io/v1 Lease leases namespaced - - -
scheduling.k8s.io/v1 PriorityClass priorityclasses cluster pc - -
node.k8s.io/v1 RuntimeClass runtimeclasses cluster - - -
storage.k8s.io/v1 StorageClass storageclasses cluster sc - -
storage.k8s.io/v1 CSINode csinodes cluster - - -
storage.k8s.io/v1 CSIDriver csidrivers cluster - - -
storage.k8s.io/v1 CSIStorageCapacity csistoragecapacities namespaced - - -
storage.k8s.io/v1 VolumeAttachment volumeattachments cluster - - status
rbac.authorization.k8s.io/v1 Role roles namespaced - - -
rbac.authorization.k8s.io/v1 RoleBinding rolebindings namespaced - - -
rbac.authorization.k8s.io/v1 ClusterRole clusterroles cluster - - -
rbac.authorization.k8s.io/v1 ClusterRoleBinding clusterrolebindings cluster - - -
certificates.k8s.io/v1 CertificateSigningRequest certificatesigningrequests cluster csr - status
admissionregistration.k8s.io/v1 MutatingWebhookConfiguration mutatingwebhookconfigurations \
  cluster - api-extensions -
admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration validatingwebhookconfigurations \
  cluster - api-extensions -
apiextensions.k8s.io/v1 CustomResourceDefinition customresourcedefinitions \
  cluster crd,crds api-extensions status
apiregistration.k8s.io/v1 APIService apiservices cluster - api-extensions status
""")
