"""Plugins that look at a pod alone: its place in the queue, its gates, and the annotations that name nodes or demand a
reservation. Source: behaviour/scheduler B1, B5 and D4."""

from typing import Annotated, Any

import msgspec

from koordinator.api import labels
from koordinator.api.annotations import placement
from koordinator.api.errors import ProtocolError
from koordinator.scheduler.plugin import status
from koordinator.scheduler.plugin.capabilities import PreferNodesPlugin, PreferredNodes
from koordinator.scheduler.plugin.events import ClusterEvent
from koordinator.scheduler.plugin.framework import (
    Handle,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreFilterResult,
    QueueSortPlugin,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Status, unresolvable
from koordinator.scheduler.table import pod_info
from koordinator.scheduler.table.pod_info import PodInfo


class PrioritySort(QueueSortPlugin[None]):
    name = "PrioritySort"

    def sort_key(self, pod: PodInfo, queued_s: float) -> tuple[Any, ...]:
        return priority_key(pod.priority, queued_s)


def priority_key(priority: int, queued_s: float) -> tuple[int, float]:
    """Sorts the more important first, then who was queued first (seconds of the queue's clock)."""
    return -priority, queued_s


class SchedulingGates(PreEnqueuePlugin[None]):
    name = "SchedulingGates"
    wakes_on = (ClusterEvent.POD_UPDATED,)

    def pre_enqueue(self, pod: PodInfo) -> Status:
        gates = [gate.name for gate in pod.pod.spec.scheduling_gates]
        return unresolvable(f"waiting for scheduling gates: [{' '.join(gates)}]") if gates else SUCCESS


NEEDED = unresolvable(
    f"the pod requires a reservation (annotation {labels.RESERVATION_AFFINITY}), "
    "and the plugin Reservation does not run in this scheduler profile"
)


class RequiredReservation(PreFilterPlugin[bool]):
    """The state is whether the pod requires a reservation; an empty annotation requires one, too."""

    name = "RequiredReservation"
    keyed_by = (pod_info.annotations(labels.RESERVATION_AFFINITY),)
    wakes_on = (ClusterEvent.POD_UPDATED,)

    def prepare(self, pod: PodInfo) -> bool:
        return labels.RESERVATION_AFFINITY in pod.pod.metadata.annotations

    def pre_filter(self, state: bool) -> PreFilterResult:
        return PreFilterResult(NEEDED if state else SKIP)


class SchedulingHintArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`max_hint_nodes`: preferred nodes that are tried at most; each costs a look at its verdict."""

    max_hint_nodes: Annotated[int, msgspec.Meta(gt=0)] = 100


class HintState(msgspec.Struct, frozen=True):
    """The advice for a pod, or why it cannot be read."""

    required: frozenset[str] = frozenset()
    preferred: tuple[str, ...] = ()
    failure: Status = SUCCESS


class SchedulingHint(PreFilterPlugin[HintState | None], PreferNodesPlugin[HintState | None]):
    """Pods without the annotation have no state, so that they cost nothing."""

    name = "SchedulingHint"
    keyed_by = (pod_info.annotations(labels.SCHEDULING_HINT, labels.DEPRECATED_SCHEDULING_HINT),)
    args = SchedulingHintArgs

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._nodes_max: int = args.max_hint_nodes

    def prepare(self, pod: PodInfo) -> HintState | None:
        annotations = pod.pod.metadata.annotations
        if labels.SCHEDULING_HINT not in annotations and labels.DEPRECATED_SCHEDULING_HINT not in annotations:
            return None
        try:
            hint = placement.scheduling_hint(annotations, f"Pod {pod.key}")
        except ProtocolError as failure:
            return HintState(failure=status.error(str(failure)))
        if hint is None:
            return None
        preferred = tuple(hint.preferred_node_names[: self._nodes_max])
        return HintState(frozenset(hint.node_names), preferred)

    def pre_filter(self, state: HintState | None) -> PreFilterResult:
        if state is None:
            return PreFilterResult(SKIP)
        return PreFilterResult(state.failure, state.required or None)

    def prefer_nodes(self, state: HintState | None, pod: PodInfo, result: PreFilterResult) -> PreferredNodes:
        if state is None:
            return PreferredNodes(SKIP)
        names = state.preferred
        if result.node_names is not None:
            names = tuple(name for name in names if name in result.node_names)
        return PreferredNodes(SUCCESS, names) if names else PreferredNodes(SKIP)
