"""Run the stock strategies as plugins: each asks for the evictions that its decision finds.

Source: behaviour/descheduler 12.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

from koordinator.api.core import Pod
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.node_fit import NodeFree, Rooms, fits_as_upstream
from koordinator.descheduler.plugin import (
    Actions,
    BalancePlugin,
    DeschedulePlugin,
    EvictAction,
    Handle,
    LiveHandle,
    Plugin,
)
from koordinator.descheduler.plugins.stock import common, placement, pod_state, spread, utilization
from koordinator.descheduler.plugins.stock.placement import Fits


class StockPlugin(Plugin):
    """Base of all: unknown arguments are ignored, as upstream does with these."""

    is_lax = True
    check: ClassVar[Any] = staticmethod(lambda _: None)
    """Raises: ProtocolError for arguments that make no sense."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self._args = args
        self._may_evict = handle.may_evict

    @classmethod
    def check_args(cls, args: Any) -> None:
        """Raises: ProtocolError."""
        if isinstance(args, common.CommonArgs):
            common.check(args)
        cls.check(args)


def evicting(pods: Iterable[Pod]) -> Actions[int]:
    """Ask for the eviction of each; one that is refused does not stop the others. Gives how many were accepted."""
    count = 0
    for pod in pods:
        count += yield EvictAction(pod)
    return count


def fits_of(seen: Observation) -> Fits:
    """Return whether a pod fits a node, by what is free when it is first asked."""
    rooms = Rooms(seen.nodes, seen.pods_of)
    return lambda pod, node: fits_as_upstream(pod, rooms[node.metadata.name])


def _pods(seen: Observation) -> list[Pod]:
    return [pod for node in seen.nodes for pod in seen.pods_of.get(node.metadata.name, ())]


class PodLifeTime(StockPlugin, DeschedulePlugin):
    """Evicts pods that are old or in a given state."""

    name = "PodLifeTime"
    args = pod_state.PodLifeTimeArgs
    check = staticmethod(pod_state.check_pod_life_time)

    def __init__(self, args: pod_state.PodLifeTimeArgs, handle: LiveHandle) -> None:
        super().__init__(args, handle)
        if args.conditions:
            handle.caches.need_conditions()
        if any(one.min_time_since_last_transition_seconds is not None for one in args.conditions):
            handle.caches.need_times()

    def deschedule(self, seen: Observation) -> Actions[int]:
        """Evict oldest first, across nodes."""
        found = pod_state.old_pods(self._args, _pods(seen), self._may_evict, seen.now_s)
        return (yield from evicting(found))


class RemoveFailedPods(StockPlugin, DeschedulePlugin):
    """Evicts pods that failed a while ago."""

    name = "RemoveFailedPods"
    args = pod_state.RemoveFailedPodsArgs

    def deschedule(self, seen: Observation) -> Actions[int]:
        """Evict node by node."""
        found = pod_state.failed_pods(self._args, _pods(seen), self._may_evict, seen.now_s)
        return (yield from evicting(found))


class RemovePodsHavingTooManyRestarts(StockPlugin, DeschedulePlugin):
    """Evicts pods whose containers restart again and again."""

    name = "RemovePodsHavingTooManyRestarts"
    args = pod_state.TooManyRestartsArgs
    check = staticmethod(pod_state.check_too_many_restarts)

    def deschedule(self, seen: Observation) -> Actions[int]:
        """Evict node by node, those with the most restarts first."""
        count = 0
        for node in seen.nodes:
            pods = seen.pods_of.get(node.metadata.name, ())
            found = pod_state.restarting_pods(self._args, pods, self._may_evict)
            count += yield from evicting(found)
        return count


class RemovePodsViolatingInterPodAntiAffinity(StockPlugin, DeschedulePlugin):
    """Evicts pods next to pods that they want to be away from."""

    name = "RemovePodsViolatingInterPodAntiAffinity"
    args = common.CommonArgs

    def deschedule(self, seen: Observation) -> Actions[int]:
        """Evict node by node, the least important first."""
        evicted = yield from placement.anti_affinity_evictions(
            self._args, seen.nodes, seen.pods_of, self._may_evict
        )
        return len(evicted)


class RemovePodsViolatingNodeAffinity(StockPlugin, DeschedulePlugin):
    """Evicts pods that would be placed elsewhere now."""

    name = "RemovePodsViolatingNodeAffinity"
    args = placement.NodeAffinityArgs
    check = staticmethod(placement.check_node_affinity)

    def deschedule(self, seen: Observation) -> Actions[int]:
        """Evict node by node, for one kind of affinity after the other."""
        fits, best = fits_of(seen), placement.Preferences(seen.nodes)
        selected = common.selection(self._args, self._may_evict)
        gone: set[str] = set()
        for kind in self._args.node_affinity_type:
            for node in seen.nodes:
                pods = seen.pods_of.get(node.metadata.name, ())
                for pod in placement.misplaced_by_affinity(kind, node, pods, best, fits, selected):
                    if pod.key not in gone and (yield EvictAction(pod)):
                        gone.add(pod.key)
        return len(gone)


class RemovePodsViolatingNodeTaints(StockPlugin, DeschedulePlugin):
    """Evicts pods that do not bear a taint of their node."""

    name = "RemovePodsViolatingNodeTaints"
    args = placement.NodeTaintsArgs
    check = staticmethod(placement.check_node_taints)

    def deschedule(self, seen: Observation) -> Actions[int]:
        """Evict node by node."""
        count = 0
        for node in seen.nodes:
            if node.spec.taints:
                pods = seen.pods_of.get(node.metadata.name, ())
                found = placement.misplaced_by_taints(self._args, node, pods, self._may_evict)
                count += yield from evicting(found)
        return count


class RemoveDuplicates(StockPlugin, BalancePlugin):
    """Evicts pods of one owner that crowd a node."""

    name = "RemoveDuplicates"
    args = placement.RemoveDuplicatesArgs
    check = staticmethod(placement.check_duplicates)

    def balance(self, seen: Observation) -> Actions[int]:
        """Evict what is beyond an even share."""
        found = placement.duplicates(self._args, seen.nodes, seen.pods_of, self._may_evict)
        return (yield from evicting(found))


class RemovePodsViolatingTopologySpreadConstraint(StockPlugin, BalancePlugin):
    """Evicts pods from topology domains that hold too many of them."""

    name = "RemovePodsViolatingTopologySpreadConstraint"
    args = spread.SpreadArgs
    check = staticmethod(spread.check)

    def balance(self, seen: Observation) -> Actions[int]:
        """Evict from the large domains."""
        found = spread.surplus_pods(self._args, seen.nodes, seen.pods_of, self._may_evict)
        return (yield from evicting(pod for pod in found if self._may_evict(pod)))


class LowNodeUtilization(StockPlugin, BalancePlugin):
    """Evicts pods from nodes with many requests as long as nodes with few have room."""

    name = "LowNodeUtilization"
    args = utilization.LowNodeUtilizationArgs
    check = staticmethod(utilization.check_low)

    def balance(self, seen: Observation) -> Actions[int]:
        """Evict from the fullest nodes first."""
        return (yield from utilization.relieve(self._args, _rooms(seen), self._may_evict))


class HighNodeUtilization(StockPlugin, BalancePlugin):
    """Evicts pods from nodes with few requests, so that these can be given up."""

    name = "HighNodeUtilization"
    args = utilization.HighNodeUtilizationArgs
    check = staticmethod(utilization.check_high)

    def balance(self, seen: Observation) -> Actions[int]:
        """Evict from the emptiest nodes first."""
        return (yield from utilization.empty_out(self._args, _rooms(seen), self._may_evict))


def _rooms(seen: Observation) -> list[NodeFree]:
    rooms = Rooms(seen.nodes, seen.pods_of)
    return [rooms[node.metadata.name] for node in seen.nodes]


STRATEGIES: tuple[type[StockPlugin], ...] = (
    PodLifeTime,
    RemoveFailedPods,
    RemovePodsHavingTooManyRestarts,
    RemovePodsViolatingInterPodAntiAffinity,
    RemovePodsViolatingNodeAffinity,
    RemovePodsViolatingNodeTaints,
    RemoveDuplicates,
    RemovePodsViolatingTopologySpreadConstraint,
    LowNodeUtilization,
    HighNodeUtilization,
)
