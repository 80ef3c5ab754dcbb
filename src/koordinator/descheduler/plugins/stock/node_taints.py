"""RemovePodsViolatingNodeTaints: evicts pods that no longer bear their node. Pure. Source: behaviour/descheduler 12."""

from collections.abc import Iterable

from koordinator.api import tolerations
from koordinator.api.affinity import Taint
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.descheduler import facts, node_fit
from koordinator.descheduler.plugins.stock import common
from koordinator.descheduler.plugins.stock.common import MayEvict


class NodeTaintsArgs(common.CommonArgs, frozen=True, kw_only=True):
    """Taints are told as `key` or `key=value`; only one of the two lists may be set."""

    include_prefer_no_schedule: bool = False
    excluded_taints: list[str] = []
    included_taints: list[str] = []


def check(args: NodeTaintsArgs) -> None:
    """Raises: ProtocolError."""
    if args.excluded_taints and args.included_taints:
        name = "RemovePodsViolatingNodeTaints"
        raise ProtocolError(name, "includedTaints", "cannot be set together with excludedTaints")


def victims(args: NodeTaintsArgs, node: Node, pods: Iterable[Pod], may_evict: MayEvict) -> list[Pod]:
    """Return the active pods of the node to evict. `args` are checked."""
    selected = common.selection(args, may_evict)
    taints = [taint for taint in node.spec.taints if _counts(args, taint)]
    return [
        pod
        for pod in pods
        if facts.is_active(pod) and not node_fit.tolerates_all(pod, taints) and selected(pod)
    ]


def _counts(args: NodeTaintsArgs, taint: Taint) -> bool:
    effects = [tolerations.NO_SCHEDULE]
    if args.include_prefer_no_schedule:
        effects.append(tolerations.PREFER_NO_SCHEDULE)
    names = {taint.key, f"{taint.key}={taint.value}"}
    is_excluded = not names.isdisjoint(args.excluded_taints)
    is_included = not args.included_taints or not names.isdisjoint(args.included_taints)
    return taint.effect in effects and not is_excluded and is_included
