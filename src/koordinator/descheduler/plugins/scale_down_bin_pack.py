"""ScaleDownBinPack: ranks pods so that scale-down empties whole nodes. Pure. Source: behaviour/descheduler 11."""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koordinator.api import labels, pod_labels, pod_resources, quantity
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Node, Pod
from koordinator.api.label_selector import compile_selector
from koordinator.descheduler import facts, pod_filter
from koordinator.descheduler.config import API_VERSION, node_plugins
from koordinator.descheduler.config.node_plugins import EVICT_DIRECTLY, ScaleDownBinPackArgs
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.plugin import Actions, BalancePlugin, EvictAction, Handle, SetDeletionCost

SKIPPED_COST = pod_labels.EVICTION_COST_NEVER
REASON = "scale-down binpack"


class NodePods(msgspec.Struct, frozen=True):
    """The active pods of a node: those to rank, those that only the filter spares, and the rest."""

    node: Node
    eligible: list[Pod]
    skipped: list[Pod]
    others: list[Pod]


class Ranked(msgspec.Struct, frozen=True):
    """A pod with its rank over all nodes, which is also its deletion cost."""

    pod: Pod
    rank: int
    node_score: float


class ScaleDownBinPack(BalancePlugin):
    """The plugin. Raises: ProtocolError for selectors."""

    name = "ScaleDownBinPack"
    args = ScaleDownBinPackArgs
    api_version = API_VERSION
    complete = staticmethod(node_plugins.complete_scale_down_bin_pack)
    check_args = staticmethod(node_plugins.check_scale_down_bin_pack)

    def __init__(self, args: ScaleDownBinPackArgs, handle: Handle) -> None:
        self._args = args
        self._takes_part = compile_selector(args.node_selector or LabelSelector())
        self._may_evict = pod_filter.compose(args.evictable_namespaces, args.pod_selectors, handle.may_evict)
        has_null = any(one.selector is None for one in args.pod_selectors)
        self._is_target = pod_filter.matches_some([] if has_null else args.pod_selectors)

    def split(self, nodes: Iterable[Node], pods_of: Mapping[str, Sequence[Pod]]) -> list[NodePods]:
        """Return pods of the nodes that have something to rank."""
        found = []
        for node in nodes:
            if not self._takes_part(node.metadata.labels):
                continue
            groups = NodePods(node, [], [], [])
            for pod in filter(facts.is_active, pods_of.get(node.metadata.name, ())):
                is_skipped = self._is_target(pod)
                rest = groups.skipped if is_skipped else groups.others
                (groups.eligible if self._may_evict(pod) else rest).append(pod)
            if groups.eligible:
                found.append(groups)
        return found

    def balance(self, seen: Observation) -> Actions[list[Ranked]]:
        """Write ranks as deletion costs, or evict in their order until enough were; gives the ranks."""
        if self._args.paused:
            return []
        found = self.split(seen.nodes, seen.pods_of)
        ranked = rank(found, self._args.resource_weights)
        if self._args.strategy == EVICT_DIRECTLY:
            evicted = 0
            for one in ranked:
                if evicted >= (self._args.max_pods_to_evict or 0):
                    break
                evicted += yield EvictAction(one.pod, REASON)
        else:
            for wanted in costs(found, ranked):
                _ = yield wanted
        return ranked


def costs(found: Sequence[NodePods], ranked: Sequence[Ranked]) -> list[SetDeletionCost]:
    """Return deletion costs to write; pods that have theirs already are left out."""
    wanted = [SetDeletionCost(one.pod, one.rank) for one in ranked]
    wanted += [SetDeletionCost(pod, SKIPPED_COST) for node in found for pod in node.skipped]
    key = labels.POD_DELETION_COST
    return [one for one in wanted if one.pod.metadata.annotations.get(key) != str(one.cost)]


def rank(found: Iterable[NodePods], weights: Mapping[str, float]) -> list[Ranked]:
    """Return pods of the node that is emptied most easily first; there the largest first."""
    scored = [(node_score(one, weights), one) for one in found if one.eligible]
    scored.sort(key=lambda pair: (pair[0], len(pair[1].eligible), pair[1].node.metadata.name))
    ranked: list[Ranked] = []
    for score, one in scored:
        for pod in sorted(one.eligible, key=lambda pod: _place(pod, one.node, weights)):
            ranked.append(Ranked(pod, len(ranked), score))
    return ranked


def node_score(found: NodePods, weights: Mapping[str, float]) -> float:
    """Return what stays on the node in relation to what can go."""
    stays = _size([*found.skipped, *found.others], found.node, weights)
    goes = _size(found.eligible, found.node, weights)
    if goes == 0:
        return math.inf if stays > 0 else 0.0
    return stays / goes


def _place(pod: Pod, node: Node, weights: Mapping[str, float]) -> tuple[float, float, str, str]:
    return (-_size([pod], node, weights), -facts.created_s(pod), pod.metadata.namespace, pod.metadata.name)


def _size(pods: Iterable[Pod], node: Node, weights: Mapping[str, float]) -> float:
    """Weighted sum of requested parts of the node."""
    requests = [pod_resources.requests(pod) for pod in pods]
    total = 0.0
    for name, weight in weights.items():
        capacity = quantity.of(node.status.allocatable.get(name)).milli
        if capacity > 0:
            total += weight * sum(one.get(name, quantity.ZERO).milli for one in requests) / capacity
    return total
