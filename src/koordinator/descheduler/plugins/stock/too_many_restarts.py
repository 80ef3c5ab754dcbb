"""RemovePodsHavingTooManyRestarts. Pure. Source: behaviour/descheduler 12."""

from collections.abc import Iterable

from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.descheduler.plugins.stock import common
from koordinator.descheduler.plugins.stock.common import MayEvict

STATES = ("Running", "CrashLoopBackOff")


class TooManyRestartsArgs(common.CommonArgs, frozen=True, kw_only=True):
    """`states` are phases or reasons why a container waits; none asks for nothing."""

    pod_restart_threshold: int = 0
    including_init_containers: bool = False
    states: list[str] = []


def check(args: TooManyRestartsArgs) -> None:
    """Raises: ProtocolError."""
    name = "RemovePodsHavingTooManyRestarts"
    if args.pod_restart_threshold < 1:
        raise ProtocolError(name, "podRestartThreshold", f"{args.pod_restart_threshold} is not above 0")
    if unknown := [state for state in args.states if state not in STATES]:
        raise ProtocolError(name, "states", f"{unknown[0]!r} is none of {', '.join(STATES)}")


def victims(args: TooManyRestartsArgs, pods: Iterable[Pod], may_evict: MayEvict) -> list[Pod]:
    """Return the pods of one node to evict, those with the most restarts first. `args` are checked."""
    selected = common.selection(args, may_evict)
    counted = [(restarts(args, pod), pod) for pod in pods if _is_in_state(args, pod) and selected(pod)]
    found = [one for one in counted if one[0] >= args.pod_restart_threshold]
    return [pod for _, pod in sorted(found, key=lambda one: -one[0])]


def restarts(args: TooManyRestartsArgs, pod: Pod) -> int:
    return sum(one.restart_count for one in common.container_statuses(pod, args.including_init_containers))


def _is_in_state(args: TooManyRestartsArgs, pod: Pod) -> bool:
    if not args.states or pod.status.phase in args.states:
        return True
    waiting = (one.state.waiting for one in common.container_statuses(pod, args.including_init_containers))
    return any(one is not None and one.reason in args.states for one in waiting)
