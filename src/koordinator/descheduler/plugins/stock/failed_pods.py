"""RemoveFailedPods: evicts pods that failed a while ago. Pure. Source: behaviour/descheduler 12."""

from collections.abc import Iterable

from koordinator.api.core import Pod
from koordinator.descheduler.plugins.stock import common
from koordinator.descheduler.plugins.stock.common import MayEvict


class RemoveFailedPodsArgs(common.CommonArgs, frozen=True, kw_only=True):
    """Empty lists ask for nothing; an owner of an excluded kind protects."""

    min_pod_lifetime_seconds: int = 3600
    reasons: list[str] = []
    exit_codes: list[int] = []
    exclude_owner_kinds: list[str] = []
    including_init_containers: bool = False


def victims(args: RemoveFailedPodsArgs, pods: Iterable[Pod], may_evict: MayEvict, now_s: float) -> list[Pod]:
    """Return the pods to evict, in the order given. Raises: ProtocolError for a bad selector."""
    selected = common.selection(args, may_evict)
    return [pod for pod in pods if _meets(args, pod, now_s) and selected(pod)]


def _meets(args: RemoveFailedPodsArgs, pod: Pod, now_s: float) -> bool:
    if pod.status.phase != "Failed" or common.age_s(pod, now_s) < args.min_pod_lifetime_seconds:
        return False
    if any(owner.kind in args.exclude_owner_kinds for owner in pod.metadata.owner_references):
        return False
    statuses = list(common.container_statuses(pod, args.including_init_containers))
    reasons = {pod.status.reason} | common.state_reasons(statuses)
    if args.reasons and not reasons.intersection(args.reasons):
        return False
    return not args.exit_codes or bool(common.exit_codes(statuses).intersection(args.exit_codes))
