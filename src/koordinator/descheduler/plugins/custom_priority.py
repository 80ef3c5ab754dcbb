"""CustomPriority: moves pods from node classes that are given up first to later ones. Pure.

Source: behaviour/descheduler 9.

Two differences from the reference: a dry run cordons nothing, and a node that was cordoned before stays so.
"""

from collections.abc import Sequence

from koordinator.api import quantity, resources
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Node, Pod
from koordinator.api.label_selector import compile_selector
from koordinator.descheduler import node_fit, pod_filter
from koordinator.descheduler.config import API_VERSION, node_plugins
from koordinator.descheduler.config.node_plugins import DRAIN_NODE, CustomPriorityArgs
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.node_fit import NodeFree
from koordinator.descheduler.plugin import Actions, BalancePlugin, EvictAction, Evictions, Handle, SetCordon

MISSES_MAX = 5
"""So many pods in a row that fit nowhere end the walk over a node."""

_RESERVED = (resources.CPU, resources.MEMORY)


class CustomPriority(BalancePlugin):
    """The plugin. Raises: ProtocolError for selectors."""

    name = "CustomPriority"
    args = CustomPriorityArgs
    api_version = API_VERSION
    complete = staticmethod(node_plugins.complete_custom_priority)
    check_args = staticmethod(node_plugins.check_custom_priority)

    def __init__(self, args: CustomPriorityArgs, handle: Handle) -> None:
        self._args = args
        self._takes_part = compile_selector(args.node_selector or LabelSelector())
        self._selectors = [
            (level.name, compile_selector(level.node_selector or LabelSelector()))
            for level in args.eviction_order
        ]
        self._may_evict = pod_filter.compose(args.evictable_namespaces, args.pod_selectors, handle.may_evict)

    def balance(self, seen: Observation) -> Actions[list[EvictAction]]:
        """One cycle; gives what was evicted (in a dry run: would have been)."""
        evicted: list[EvictAction] = []
        levels, pods_of = self.levels(seen.nodes), seen.pods_of
        if self._args.paused or len(levels) < 2:
            return evicted
        for index, (name, sources) in enumerate(levels[:-1]):
            later = [node for _, level in levels[index + 1 :] for node in level]
            targets = [node_fit.room_of(node, pods_of.get(node.metadata.name, ())) for node in later]
            left = [{name: room.free_milli.get(name, 0) for name in _RESERVED} for room in targets]
            for source in sources:
                pods = self._candidates(pods_of.get(source.metadata.name, ()))
                if self._args.mode == DRAIN_NODE:
                    after = self._place_all(pods, targets, left) if pods else None
                    if after is not None:
                        done, is_begun = yield from self._drain(source, name, pods)
                        evicted, left = evicted + done, after if is_begun else left
                else:
                    evicted += yield from self._relieve(name, pods, targets)
        return evicted

    def levels(self, nodes: Sequence[Node]) -> list[tuple[str, list[Node]]]:
        """Return the levels that have nodes, each node at the first one whose selector matches."""
        by_level: list[list[Node]] = [[] for _ in self._selectors]
        for node in nodes:
            own = node.metadata.labels
            if self._takes_part(own):
                matching = (i for i, (_, matches) in enumerate(self._selectors) if matches(own))
                if (found := next(matching, None)) is not None:
                    by_level[found].append(node)
        return [(name, level) for (name, _), level in zip(self._selectors, by_level, strict=True) if level]

    def _candidates(self, pods: Sequence[Pod]) -> list[Pod]:
        """Evictable pods, small ones first, so that as many as possible find a place."""
        return sorted(filter(self._may_evict, pods), key=_size)

    def _fits(self, pod: Pod, room: NodeFree) -> bool:
        return not self._args.node_fit or node_fit.fits(pod, room)

    def _relieve(self, level: str, pods: list[Pod], targets: list[NodeFree]) -> Evictions[list[EvictAction]]:
        """Evict each pod that fits a target; one that cannot be evicted does not stop the others."""
        found: list[Pod] = []
        misses = 0
        for pod in pods:
            if any(self._fits(pod, room) for room in targets):
                found.append(pod)
                misses = 0
            elif (misses := misses + 1) == MISSES_MAX:
                break
        reason = f"evicting from {level} priority resource to lower priority resource"
        evicted = []
        for pod in found:
            wanted = EvictAction(pod, reason)
            if self._args.dry_run or (yield wanted):
                evicted.append(wanted)
        return evicted

    def _drain(self, source: Node, level: str, pods: list[Pod]) -> Actions[tuple[list[EvictAction], bool]]:
        """Evict the pods of the node, those that the filter still lets go; also whether that was begun."""
        evicted: list[EvictAction] = []
        name = source.metadata.name
        cordons = self._args.auto_cordon and not self._args.dry_run and not source.spec.unschedulable
        if cordons and not (yield SetCordon(name, True)):
            return evicted, False
        for pod in pods:
            if not self._may_evict(pod):  # as others are on their way: it goes in a later cycle
                continue
            wanted = EvictAction(pod, f"drain node {name} (sourcePriority={level})")
            if not self._args.dry_run and not (yield wanted):
                if cordons:
                    yield SetCordon(name, False)
                break
            evicted.append(wanted)
        return evicted, True

    def _place_all(
        self, pods: list[Pod], targets: list[NodeFree], left: list[dict[str, int]]
    ) -> list[dict[str, int]] | None:
        """Return what is left of the targets after all pods were placed, each on the first that takes it; None if one
        has none."""
        after = [dict(free) for free in left]
        for pod in pods:
            need = _requested(pod)
            for room, free in zip(targets, after, strict=True):
                if all(need[n] <= free[n] for n in need) and self._fits(pod, room):
                    free.update({name: free[name] - amount for name, amount in need.items()})
                    break
            else:
                return None
        return after


def _requested(pod: Pod) -> dict[str, int]:
    """Plain sums over containers in thousandths, of resources that some container asks for."""
    found: dict[str, int] = {}
    for container in pod.spec.containers:
        for name in _RESERVED:
            if (amount := container.resources.requests.get(name)) is not None:
                found[name] = found.get(name, 0) + quantity.milli(amount)
    return found


def _size(pod: Pod) -> tuple[int, int, str, str]:
    """Plain sums over containers: cpu in milli-cores, memory in bytes; then namespace and name."""
    requests = [container.resources.requests for container in pod.spec.containers]
    cpu_milli = sum(quantity.milli(one.get(resources.CPU, 0)) for one in requests)
    memory = sum(quantity.value(one.get(resources.MEMORY, 0)) for one in requests)
    return cpu_milli, memory, pod.metadata.namespace, pod.metadata.name
