"""SchedulingHint: nodes that a pod must, or would best, go to, as another scheduler advised.

Source: behaviour/scheduler D4.

The advice is an annotation: `nodeNames` are the only nodes that come into question, `preferredNodeNames` are
tried in their order before all others.
"""

from typing import Annotated, Any

import msgspec

from koordinator.api import labels
from koordinator.api.annotations import placement
from koordinator.api.errors import ProtocolError
from koordinator.scheduler.plugin import status
from koordinator.scheduler.plugin.capabilities import PreferNodesPlugin, PreferredNodes
from koordinator.scheduler.plugin.framework import Handle, PreFilterPlugin, PreFilterResult
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Status
from koordinator.scheduler.table import pod_info
from koordinator.scheduler.table.pod_info import PodInfo


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
