"""RemovePodsViolatingNodeAffinity: evicts pods that would be placed elsewhere now. Pure.

Source: behaviour/descheduler 12.
"""

from collections.abc import Callable, Sequence

from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.descheduler import facts, node_fit
from koordinator.descheduler.plugins.stock import common
from koordinator.descheduler.plugins.stock.common import MayEvict

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Fits = Callable[[Pod, Node], bool]


class NodeAffinityArgs(common.CommonArgs, frozen=True, kw_only=True):
    """The options that say which kinds of affinity count."""

    node_affinity_type: list[str] = []


def check(args: NodeAffinityArgs) -> None:
    """Raises: ProtocolError."""
    name = "RemovePodsViolatingNodeAffinity"
    if not args.node_affinity_type:
        raise ProtocolError(name, "nodeAffinityType", "is empty")
    if unknown := [kind for kind in args.node_affinity_type if kind not in (REQUIRED, PREFERRED)]:
        raise ProtocolError(name, "nodeAffinityType", f"{unknown[0]!r} is unknown")


def victims(
    args: NodeAffinityArgs,
    node: Node,
    pods: Sequence[Pod],
    nodes: Sequence[Node],
    fits: Fits,
    may_evict: MayEvict,
) -> list[Pod]:
    """Return the active pods of `node` to evict; `fits`: the node fit of the stock strategies. `args` are checked."""
    selected = common.selection(args, may_evict)

    def violates(pod: Pod) -> bool:
        required = REQUIRED in args.node_affinity_type and _violates_required(pod, node)
        preferred = PREFERRED in args.node_affinity_type and _prefers_other(pod, node, nodes)
        return required or preferred

    return [
        pod
        for pod in pods
        if facts.is_active(pod)
        and violates(pod)
        and any(fits(pod, other) for other in nodes)
        and selected(pod)
    ]


def preference(pod: Pod, node: Node) -> int:
    """Sum of the weights of the preferred terms that the node matches."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    terms = affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else []
    return sum(term.weight for term in terms if node_fit.term_matches(term.preference, node))


def _violates_required(pod: Pod, node: Node) -> bool:
    return node_fit.required_affinity(pod) is not None and not node_fit.selects(pod, node)


def _prefers_other(pod: Pod, node: Node, nodes: Sequence[Node]) -> bool:
    return max((preference(pod, other) for other in nodes), default=0) > preference(pod, node)
