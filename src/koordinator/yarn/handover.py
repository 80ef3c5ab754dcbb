"""Decide what the ResourceManager is told and what a node records now, so that room changes sides in order. Pure.

The two schedulers learn of a change at different times. Where a policy lends everything once, room is taken from one
side, seen to be taken, and only then given to the other. Source: behaviour/yarn 1.1 and 3.4.
"""

import msgspec

from koordinator.yarn import amounts
from koordinator.yarn.amounts import BatchAmount, YarnResource
from koordinator.yarn.node_sync import Policy, SyncPlan

SETTLED_S = 3.0
"""Time that a record stands before Kubernetes goes by it for sure: the manager may still write for an earlier one."""


class SchedulerTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The state of both schedulers. `total` is the ResourceManager's own figure (None: it does not know the node); one
    that `is_capped` is told no more. The rest counts where everything is lent once: `granted` what it may believe to
    have, seen or not; `kube_total` what the node says that pods may have, `recorded` our entry on it, which stands for
    `recorded_for_s` seconds."""

    total: YarnResource | None
    is_capped: bool = False
    granted: YarnResource = YarnResource()
    pool: BatchAmount = BatchAmount()
    taken: BatchAmount = BatchAmount()
    kube_total: BatchAmount = BatchAmount()
    recorded: BatchAmount | None = None
    recorded_for_s: float = 0.0


class Thresholds(msgspec.Struct, frozen=True):
    """Differences of a total that are not worth a call."""

    vcores: int = 0
    memory_mb: int = 0


class Handover(msgspec.Struct, frozen=True):
    """`send` is the total to tell, `record` the entry that the node should have; None: neither changes."""

    send: YarnResource | None = None
    record: BatchAmount | None = None


def hand_over(made: SyncPlan, at: SchedulerTotals, policy: Policy, thresholds: Thresholds) -> Handover:
    """Return what to do now for a plan."""
    if made.total is None:
        return Handover(None, made.allocation)
    wanted, record = made.total, made.allocation
    if policy.lends_once:
        record = _reserved(wanted, record, at)
        wanted = _raised_in_order(wanted, at)
    if at.total is None:
        return Handover(None, record)
    if at.is_capped:
        wanted = _smaller(wanted, at.total)
    return Handover(wanted if _differs(at.total, wanted, thresholds) else None, record)


def _reserved(wanted: YarnResource, used: BatchAmount | None, at: SchedulerTotals) -> BatchAmount | None:
    """Return what Kubernetes must do without: what YARN uses, is about to be offered, or may still believe to have."""
    if used is None:
        return None
    return amounts.larger(used, amounts.to_batch(amounts.larger_yarn(wanted, at.granted)))


def _raised_in_order(wanted: YarnResource, at: SchedulerTotals) -> YarnResource:
    """Return the total as far as it is no more than YARN has, or pods can have it no more."""
    has = at.total or YarnResource()
    is_settled = at.recorded is not None and at.recorded_for_s >= SETTLED_S
    if not is_settled or at.recorded is None:
        return _smaller(wanted, has)
    others = amounts.larger(at.kube_total, at.taken)
    free = amounts.to_yarn(amounts.view_total(at.pool, others), amounts.Rounding.EXACT)
    free = _smaller(free, amounts.to_yarn(at.recorded, amounts.Rounding.EXACT))
    return _smaller(wanted, amounts.larger_yarn(has, free))


def _smaller(one: YarnResource, other: YarnResource) -> YarnResource:
    return YarnResource(min(one.vcores, other.vcores), min(one.memory_mb, other.memory_mb))


def _differs(total: YarnResource, wanted: YarnResource, thresholds: Thresholds) -> bool:
    return (
        abs(total.vcores - wanted.vcores) > thresholds.vcores
        or abs(total.memory_mb - wanted.memory_mb) > thresholds.memory_mb
    )
