"""Read what a TidalPool says: shares, windows, limits, and which pods are online. Pure. Source: behaviour/tidal 3."""

from collections.abc import Callable, Iterator

import msgspec

from koordinator.api import cron, duration, label_selector, labels, priority
from koordinator.api.affinity import LabelSelector
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import Predicate
from koordinator.api.priority import PriorityClass
from koordinator.api.scalars import ScalarError
from koordinator.api.tidal_pool import (
    BATCH_SIDE,
    COOLDOWN,
    DRAIN_TIMEOUT,
    GRACE_PERIOD,
    KILL,
    LEAD_TIME,
    LOAD_WINDOW,
    MAX_NODES_PER_STEP,
    MAX_UNAVAILABLE,
    ONLINE_SIDE,
    SCALE_IN_BELOW_PERCENT,
    SCALE_OUT_ABOVE_PERCENT,
    SURGE,
    TIME_ZONE,
    TidalPool,
    TidalPoolSpec,
)
from koordinator.manager.tidal.nodes import Side
from koordinator.manager.tidal.plan import OVERLOAD_PERCENT
from koordinator.manager.tidal.target import LoadRule, PoolShare, Window

_ONLINE_CLASSES = (PriorityClass.PROD, PriorityClass.MID, PriorityClass.NONE)
_KATALYST_ONLINE_CLASSES = (PriorityClass.PROD, PriorityClass.MID)
"""There a pod is online by its label; one without label and class is batch."""
_STARTS_MAX = 100
"""Starts within one duration that are counted singly: only the last one matters."""


class ScheduledWindow(msgspec.Struct, frozen=True):
    """A window that comes again."""

    next_after: cron.Next
    duration_s: float
    batch_nodes: PoolShare

    def open_at(self, now_s: float) -> Window | None:
        """Return the window that is open, the one that opened last."""
        start_s, _ = cron.latest(self.next_after, now_s - self.duration_s, now_s, _STARTS_MAX)
        return None if start_s is None else Window(start_s, start_s + self.duration_s, self.batch_nodes)


class PoolPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A TidalPool's spec, checked. `schedule` is None without a schedule, `rule` without a load rule, `forced` unless
    all nodes are to be on one side, `adopts_katalyst` where Katalyst's labels are read and kept."""

    selects: Predicate
    is_online: Callable[[Pod], bool]
    online_reserve: PoolShare
    batch_reserve: PoolShare
    schedule: tuple[ScheduledWindow, ...] | None
    rule: LoadRule | None
    load_window_s: float
    lead_s: float
    grace_s: float
    is_kill: bool
    surges: bool
    max_unavailable: int
    timeout_s: float
    per_step: PoolShare
    cooldown_s: float
    suspended: bool
    forced: Side | None
    adopts_katalyst: bool

    @property
    def load_max_percent(self) -> float:
        """Return the online load that lending must not exceed."""
        return self.rule.return_above_percent if self.rule is not None else OVERLOAD_PERCENT

    def windows(self, now_s: float) -> list[Window] | None:
        """Return the windows that are open now; None without a schedule."""
        if self.schedule is None:
            return None
        return [window for each in self.schedule if (window := each.open_at(now_s)) is not None]

    def next_change_s(self, now_s: float) -> float | None:
        """Return when a window opens, begins to end or ends next; None when none ever does."""
        times: list[float] = []
        for each in self.schedule or ():
            if (opens_s := each.next_after(now_s)) is not None:
                times.append(opens_s)
            if (window := each.open_at(now_s)) is not None:
                times += [window.end_s - self.lead_s, window.end_s]
        return min((time_s for time_s in times if time_s > now_s), default=None)


def policy_of(pool: TidalPool) -> PoolPolicy:
    """Return the policy of a pool. Raises: ProtocolError for the first field that cannot be read."""
    spec = pool.spec
    reader = _Reader(f"TidalPool {pool.metadata.name}")
    rule, load_window_s = None, 0.0
    if spec.load is not None:
        low, high = spec.load.scale_in_below_percent, spec.load.scale_out_above_percent
        rule = LoadRule(
            SCALE_IN_BELOW_PERCENT if low is None else low, SCALE_OUT_ABOVE_PERCENT if high is None else high
        )
        if rule.lend_below_percent >= rule.return_above_percent:
            raise reader.error(
                "spec.load.scaleInBelowPercent",
                f"{rule.lend_below_percent:g} must be below scaleOutAbovePercent {rule.return_above_percent:g}",
            )
        load_window_s = reader.seconds("spec.load.window", spec.load.window or LOAD_WINDOW)
    return PoolPolicy(
        selects=reader.selector("spec.nodeSelector", spec.node_selector),
        is_online=_online_rule(reader, spec),
        online_reserve=reader.share("spec.onlineReserve", spec.online_reserve),
        batch_reserve=reader.share("spec.batchReserve", spec.batch_reserve),
        # No schedule at all leaves the number of nodes to the load rule, if there is one.
        schedule=tuple(_windows(reader, spec)) if spec.schedule else None,
        rule=rule,
        load_window_s=load_window_s,
        lead_s=reader.seconds("spec.leadTime", spec.lead_time or LEAD_TIME),
        grace_s=reader.seconds("spec.drain.gracePeriod", spec.drain.grace_period or GRACE_PERIOD),
        is_kill=spec.drain.batch_policy == KILL,
        surges=spec.drain.online_budget == SURGE,
        max_unavailable=spec.drain.max_unavailable or MAX_UNAVAILABLE,
        timeout_s=reader.seconds("spec.drain.timeout", spec.drain.timeout or DRAIN_TIMEOUT),
        per_step=reader.share("spec.maxNodesPerStep", spec.max_nodes_per_step or MAX_NODES_PER_STEP),
        cooldown_s=reader.seconds("spec.cooldown", spec.cooldown or COOLDOWN),
        suspended=spec.suspend,
        forced={ONLINE_SIDE: Side.ONLINE, BATCH_SIDE: Side.BATCH}.get(spec.drain_all),
        adopts_katalyst=spec.katalyst_labels,
    )


class _Reader:
    """Reads fields of one object. Raises: ProtocolError naming both."""

    def __init__(self, obj: str) -> None:
        self._obj = obj

    def error(self, field: str, reason: str) -> ProtocolError:
        return ProtocolError(self._obj, field, reason)

    def share(self, field: str, raw: int | str) -> PoolShare:
        try:
            return PoolShare.of(raw, field)
        except ProtocolError as error:
            raise self.error(field, error.reason) from error

    def seconds(self, field: str, text: str) -> float:
        try:
            found_s = duration.parse(text)
        except ScalarError as error:
            raise self.error(field, str(error)) from error
        if found_s < 0:
            raise self.error(field, f"{text} is negative")
        return found_s

    def selector(self, field: str, selector: LabelSelector) -> Predicate:
        try:
            return label_selector.compile_selector(selector)
        except ProtocolError as error:
            raise self.error(f"{field} {error.field}".strip(), error.reason) from error


def _online_rule(reader: _Reader, spec: TidalPoolSpec) -> Callable[[Pod], bool]:
    if spec.online_pod_selector is None and spec.katalyst_labels:
        return lambda pod: (
            pod.metadata.labels.get(labels.KATALYST_POD_TYPE) == "online"
            or priority.raw(pod) in _KATALYST_ONLINE_CLASSES
        )
    if spec.online_pod_selector is None:
        return lambda pod: priority.raw(pod) in _ONLINE_CLASSES
    matches = reader.selector("spec.onlinePodSelector", spec.online_pod_selector)
    return lambda pod: matches(pod.metadata.labels)


def _windows(reader: _Reader, spec: TidalPoolSpec) -> Iterator[ScheduledWindow]:
    for number, window in enumerate(spec.schedule):
        where = f"spec.schedule[{number}]"
        try:
            next_after = cron.parse(window.start, spec.time_zone or TIME_ZONE)
        except ProtocolError as error:
            field = "spec.timeZone" if error.field == "spec.timeZone" else f"{where}.start"
            raise reader.error(field, error.reason) from error
        length_s = reader.seconds(f"{where}.duration", window.duration)
        if length_s <= 0:
            raise reader.error(f"{where}.duration", "a window must last longer than no time")
        yield ScheduledWindow(next_after, length_s, reader.share(f"{where}.batchNodes", window.batch_nodes))
