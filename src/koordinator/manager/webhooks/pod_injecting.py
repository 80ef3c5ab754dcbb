"""What `/mutate-pod` does after colocation profiles: nodes of the pod's quota tree, GPU requests in one form.

Pure, JSON in, JSON out, the input is kept; `PodInjector` feeds it from caches. Source: spec 02 §14.4, §14.5.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import msgspec

from koordinator.api import labels, quantity, quota_labels, resources
from koordinator.api.affinity import LabelSelector
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.quota_group import ElasticQuotaProfile
from koordinator.api.sigs import ElasticQuota
from koordinator.cluster.informer import InformerFactory
from koordinator.manager.webhooks.quota_topology import QuotaTopology

_GPU_RESOURCES = frozenset(
    (
        resources.GPU,
        resources.GPU_CORE,
        resources.GPU_MEMORY,
        resources.GPU_MEMORY_RATIO,
        resources.GPU_SHARED,
    )
)
_WHOLE_GPU_PERCENT = 100
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

QuotaLookup = Callable[[str], ElasticQuota | None]


def inject_quota_tree(
    pod: dict[str, Any],
    namespace: str,
    *,
    quota_by_name: QuotaLookup,
    quota_by_namespace: QuotaLookup,
    profiles: Sequence[ElasticQuotaProfile],
) -> dict[str, Any]:
    """The pod bound to the nodes of its quota's tree; itself when the quota has no tree or nobody says where.

    `namespace` is that of the request. Feature gate MultiQuotaTree.
    """
    pod_labels = (pod.get("metadata") or {}).get("labels") or {}
    quota = quota_by_name(pod_labels.get(labels.QUOTA_NAME) or namespace) or quota_by_namespace(namespace)
    tree = quota_labels.tree_id(quota.metadata.labels) if quota is not None else ""
    selector = _nodes_of_tree(tree, profiles) if tree else None
    return pod if selector is None else with_required_nodes(pod, _requirements(selector))


def _nodes_of_tree(tree: str, profiles: Sequence[ElasticQuotaProfile]) -> LabelSelector | None:
    """The nodes of the first profile of the tree, by namespace and name."""
    of_tree = [profile for profile in profiles if quota_labels.tree_id(profile.metadata.labels) == tree]
    first = min(of_tree, key=lambda profile: profile.key, default=None)
    return None if first is None else first.spec.node_selector


def _requirements(selector: LabelSelector) -> list[dict[str, Any]]:
    """The selector as node affinity says it, labels in the order of their keys."""
    found: list[dict[str, Any]] = [
        {"key": key, "operator": "In", "values": [value]}
        for key, value in sorted(selector.match_labels.items())
    ]
    for expression in selector.match_expressions:
        requirement: dict[str, Any] = {"key": expression.key, "operator": expression.operator}
        if expression.values:
            requirement["values"] = list(expression.values)
        found.append(requirement)
    return found


def with_required_nodes(pod: dict[str, Any], requirements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The pod that also requires these of its node, in every alternative that it already has."""
    if not requirements:
        return pod  # a term without conditions would match no node
    spec = pod.get("spec") or {}
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get(_REQUIRED) or {}
    terms = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or []), *requirements]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    required = {**required, "nodeSelectorTerms": terms}
    affinity = {**affinity, "nodeAffinity": {**node_affinity, _REQUIRED: required}}
    return {**pod, "spec": {**spec, "affinity": affinity}}


def normalize_gpus(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod whose app containers say gpu-core, gpu-memory-ratio and gpu.shared; itself without GPUs.

    Feature gate DisableDeviceResourceSpec switches this off. Raises: quantity.QuantityError.
    """
    spec = pod.get("spec") or {}
    containers = spec.get("containers") or []
    changed = [_with_gpu_resources(container) for container in containers]
    if all(new is old for new, old in zip(changed, containers, strict=True)):
        return pod
    return {**pod, "spec": {**spec, "containers": changed}}


def _with_gpu_resources(container: dict[str, Any]) -> dict[str, Any]:
    needs = container.get("resources") or {}
    requests, limits = needs.get("requests") or {}, needs.get("limits") or {}
    if _GPU_RESOURCES.isdisjoint(requests) and _GPU_RESOURCES.isdisjoint(limits):
        return container
    added: dict[str, Any] = {}
    if resources.GPU in requests:
        added = dict.fromkeys((resources.GPU_CORE, resources.GPU_MEMORY_RATIO), requests[resources.GPU])
    if resources.GPU_SHARED not in requests:
        added[resources.GPU_SHARED] = str(_gpu_count({**requests, **added}))
    dropped = {resources.GPU} if resources.GPU in requests else set()
    sides = {
        side: {name: amount for name, amount in amounts.items() if name not in dropped} | added
        for side, amounts in (("requests", requests), ("limits", limits))
        if amounts or added
    }
    return container if not added else {**container, "resources": {**needs, **sides}}


def _gpu_count(requests: Mapping[str, Any]) -> int:
    """How many cards a request is spread over: one, unless it is for several whole ones."""
    for name in (resources.GPU_MEMORY_RATIO, resources.GPU_CORE):
        if name in requests:
            percent = quantity.value(requests[name])
            is_whole = percent > _WHOLE_GPU_PERCENT and percent % _WHOLE_GPU_PERCENT == 0
            return percent // _WHOLE_GPU_PERCENT if is_whole else 1
    return 1


class InjectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which steps are on."""

    quota_trees: bool = False
    gpus: bool = True

    @classmethod
    def of(cls, gates: FeatureGates) -> Self:
        """The steps of a manager's gates."""
        return cls(
            quota_trees=gates.is_on("MultiQuotaTree"), gpus=not gates.is_on("DisableDeviceResourceSpec")
        )


class PodInjector:
    """Both steps, for a pod that is being created."""

    def __init__(self, factory: InformerFactory, topology: QuotaTopology, options: InjectOptions) -> None:
        self._profiles = factory.informer(ElasticQuotaProfile) if options.quota_trees else None
        self._topology = topology
        self._options = options

    def inject(self, pod: dict[str, Any], namespace: str) -> dict[str, Any]:
        """The pod after the steps that are on. Raises: quantity.QuantityError."""
        if self._profiles is not None:
            pod = inject_quota_tree(
                pod,
                namespace,
                quota_by_name=self._topology.find,
                quota_by_namespace=self._topology.find_bound,
                profiles=list(self._profiles.objects.values()),
            )
        return normalize_gpus(pod) if self._options.gpus else pod
