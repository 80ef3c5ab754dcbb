"""Answer the questions of pod handlers about quotas: which one, whether it may be, where its nodes are, is there room.

After colocation profiles, `/mutate-pod` completes pods with the nodes of their quota tree and GPU requests in one form:
pure, JSON in, JSON out, the input is kept; `PodQuotas` knows the nodes from caches. Source: behaviour/manager 14.4,
14.5.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from koordinator.api import labels, quantity, quota_labels, resources
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.groups import ElasticQuotaProfile
from koordinator.api.quantity import QuantityError
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster
from koordinator.manager.options import QuotaUpdateOptions
from koordinator.manager.quota import evaluation
from koordinator.manager.quota.evaluation import PodQuotaRules, QuotaLookupError, QuotaUseVerdict
from koordinator.manager.quota.evaluator import QuotaEvaluationError, QuotaEvaluator
from koordinator.manager.quota.tree import QuotaTree
from koordinator.manager.webhooks.quota_topology import QuotaTopology
from koordinator.manager.webhooks.review import ALLOWED, AdmissionVerdict, denied

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

ProfilesOfTree = Callable[[str], Sequence[ElasticQuotaProfile]]
"""Tree id -> the profiles that make the tree."""


def nodes_of_quota(
    tree: QuotaTree, pod_labels: Mapping[str, str], namespace: str, profiles_of_tree: ProfilesOfTree
) -> LabelSelector | None:
    """Return the nodes that a new pod must be placed on since its quota belongs to a tree (behaviour/manager 14.4).

    None when it belongs to none, or when no profile says which nodes the tree has. `namespace` is that of
    the request.
    """
    quota = tree.get(pod_labels.get(labels.QUOTA_NAME) or namespace) or tree.bound_to(namespace)
    if quota is None or not quota.tree_id:
        return None
    # The first of the tree, by namespace and name, so that replicas agree.
    first = min(profiles_of_tree(quota.tree_id), key=lambda profile: profile.key, default=None)
    return None if first is None else first.spec.node_selector


def inject_nodes(pod: dict[str, Any], nodes: LabelSelector | None) -> dict[str, Any]:
    """Return the pod bound to these nodes; itself when there are none to be bound to. Feature gate MultiQuotaTree."""
    return pod if nodes is None else with_required_nodes(pod, _requirements(nodes))


def _requirements(selector: LabelSelector) -> list[dict[str, Any]]:
    """Return the selector as node affinity says it, labels in the order of their keys."""
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
    """Return the pod that also requires these of its node, in every alternative that it already has."""
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
    """Return the pod whose app containers say gpu-core, gpu-memory-ratio and gpu.shared; itself without GPUs.

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
        percent = str(quantity.value(requests[resources.GPU]))
        added = dict.fromkeys((resources.GPU_CORE, resources.GPU_MEMORY_RATIO), percent)
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
    """Return how many cards a request is spread over: one, unless it is for several whole ones."""
    for name in (resources.GPU_MEMORY_RATIO, resources.GPU_CORE):
        if name in requests:
            percent = quantity.value(requests[name])
            is_whole = percent > _WHOLE_GPU_PERCENT and percent % _WHOLE_GPU_PERCENT == 0
            return percent // _WHOLE_GPU_PERCENT if is_whole else 1
    return 1


_BY_TREE = "tree"


def _trees_of(profile: ElasticQuotaProfile) -> Iterable[str]:
    tree = quota_labels.tree_id(profile.metadata.labels)
    return (tree,) if tree else ()


class PodQuotas:
    """Quotas as pods see them; everything but the reservation of room comes from caches."""

    def __init__(
        self,
        cluster: Cluster,
        factory: InformerFactory,
        topology: QuotaTopology,
        gates: FeatureGates,
        options: QuotaUpdateOptions,
        rng: random.Random,
    ) -> None:
        self._topology = topology
        self._rules = PodQuotaRules.of(gates)
        self._evaluates = gates.is_on("EnableQuotaAdmission")
        self._evaluates_updates = self._evaluates and gates.is_on("EnableQuotaAdmissionOnUpdate")
        self._replaces_resources = gates.is_on("ElasticQuotaEvaluationTransformPod") and gates.is_on(
            "ReplaceResourcesTransformer"
        )
        self._profiles = factory.informer(ElasticQuotaProfile) if gates.is_on("MultiQuotaTree") else None
        if self._profiles is not None:
            self._profiles.add_index(_BY_TREE, _trees_of)
        self._evaluator = QuotaEvaluator(cluster, factory, options, rng)

    def check(self, pod: Pod, old: Pod | None, namespace: str) -> QuotaUseVerdict:
        """Return whether a pod may be created, or changed from `old`, as far as its quota goes (behaviour/manager
        17.5)."""
        return evaluation.check_quota_use(self._topology.tree, pod, old, namespace, self._rules)

    def nodes_of(self, own_labels: Mapping[str, str], namespace: str) -> LabelSelector | None:
        """Return the nodes that a new pod must be placed on since its quota belongs to a tree (behaviour/manager
        14.4).

        None when it belongs to none, when no profile says which nodes the tree has, or while the feature gate
        MultiQuotaTree is off.
        """
        if self._profiles is None:
            return None
        profiles = self._profiles
        return nodes_of_quota(
            self._topology.tree, own_labels, namespace, lambda tree: profiles.by_index(_BY_TREE, tree)
        )

    async def evaluate(self, pod: Pod, old: Pod | None, dry_run: bool) -> AdmissionVerdict:
        """Reserve room in the pod's quota, last of all checks: refused with code 400 when there is none.

        Code 500 when the quota could not be asked. With `old`, only a change of the quota is looked at.
        """
        if not (self._evaluates if old is None else self._evaluates_updates):
            return ALLOWED
        name = self._quota_of(pod)
        if old is not None and self._quota_of(old) == name:
            return ALLOWED
        try:
            request = evaluation.pod_request(pod, replaces_resources=self._replaces_resources)
            decision = await self._evaluator.admit(name, request, dry_run=dry_run)
        except QuotaEvaluationError as error:
            return denied(str(error), 500)
        except (QuotaLookupError, ProtocolError, QuantityError) as error:
            return denied(str(error))
        return ALLOWED if decision.allowed else denied(decision.message)

    def _quota_of(self, pod: Pod) -> str:
        metadata = pod.metadata
        tree = self._topology.tree
        return evaluation.quota_name(
            tree, metadata.labels, metadata.namespace, label_only=self._rules.label_only
        )
