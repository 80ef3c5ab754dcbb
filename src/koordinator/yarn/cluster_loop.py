"""One YARN cluster: poll what its nodes report, tell their totals, find what is to be recorded on them.

The ResourceManagers may be away, refuse, or change; the loop goes on and gives nothing back that YARN may still use.
Source: behaviour/yarn 3.4, 3.5 and 6.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.clock import Clock
from koordinator.cluster.backoff import Backoff
from koordinator.yarn import amounts, handover, node_sync
from koordinator.yarn.amounts import YarnResource
from koordinator.yarn.connection import CallRefused, Unreachable
from koordinator.yarn.hadoop_config import YarnCluster
from koordinator.yarn.handover import Handover, SchedulerTotals, Thresholds
from koordinator.yarn.metrics import OperatorMetrics
from koordinator.yarn.node_sync import HeldFigure, NodeId, NodeManagerReport, Policy, SyncOutcome, SyncPlan
from koordinator.yarn.resource_managers import ResourceManagers
from koordinator.yarn.rpc import NEVER_KILL, NodeUpdate
from koordinator.yarn.table import NOTHING, NodeManagerKey, NodeRow, NodeTable

log = logging.getLogger(__name__)

SETTLE_S = 0.2
"""The least between two passes: what changes together is told together."""
POLL_S, POLL_S_MAX = 1.0, 5.0
POLL_SHARE = 50.0
"""A poll that takes long makes the next one wait so many times as long, up to `POLL_S_MAX`."""
RECOVERY_S = 15.0
"""Time for which a ResourceManager that has just begun to lead may not know all containers."""
RESEND_S = 3.0
"""Time that a told total may take to be reported before it is told again."""
DENIED_S = 30.0
"""Between two tries to tell totals after the ResourceManager said that we may not."""

_TOLD_STATES = ("RUNNING", "UNHEALTHY", "DECOMMISSIONING")


class SyncRules(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings for all YARN clusters."""

    policy: Policy = Policy()
    thresholds: Thresholds = Thresholds()
    hold_s: float = node_sync.HOLD_S
    over_commit_timeout_ms: int = NEVER_KILL
    resync_s: float = 60.0


class LoopCallbacks(msgspec.Struct, frozen=True):
    """The calls of a loop: to have a node recorded, to take back what a node's last NodeManager was offered (maybe by
    another cluster), to tell people of a problem of a node or the cluster, to ask whether it may act at all, and
    whether it may give YARN more, by what it knows of Kubernetes."""

    record: Callable[[NodeRow], None]
    withdraw: Callable[[NodeManagerKey], None]
    node_problem: Callable[[NodeRow, str, str], None]
    cluster_problem: Callable[[str, str, str], None]
    may_act: Callable[[], bool]
    may_raise: Callable[[], bool] = lambda: True


class ClusterLoop:
    """The loop of one YARN cluster; `step` is for `supervise`."""

    def __init__(
        self,
        configured: YarnCluster,
        managers: ResourceManagers,
        table: NodeTable,
        rules: SyncRules,
        callbacks: LoopCallbacks,
        metrics: OperatorMetrics,
        backoff: Backoff,
        clock: Clock,
    ) -> None:
        self.configured = configured
        self.cluster = configured.id
        self.reports: dict[NodeId, NodeManagerReport] = {}
        self.polled_s: float | None = None
        """Time at which the reports were read, by the event loop's clock."""
        self.wake = asyncio.Event()
        self._managers = managers
        self._table = table
        self._rules = rules
        self._callbacks = callbacks
        self._metrics = metrics
        self._backoff = backoff
        self._clock = clock
        self._leader = ""
        self._led_since_s = 0.0
        self._answers_since_s: float | None = None
        """Since when polls succeed without a break, None: the last one failed."""
        self._poll_due_s = 0.0
        self._resync_due_s = 0.0
        self._tell_not_before_s = 0.0
        self._open: dict[str, None] = {}
        """Nodes that are to be looked at after each poll, though nothing of them changes."""
        self._withdrawn: dict[NodeId, None] = {}

    def close(self) -> None:
        """Close all connections."""
        self._managers.close()

    async def step(self) -> float:
        """Poll when it is time, settle what changed, wait for the next of both; seconds to pause."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._poll_due_s:
            try:
                await self._poll(loop.time())
            except (Unreachable, CallRefused) as error:
                self._answers_since_s = None
                self._poll_due_s = loop.time() + self._backoff.next_s()
                self._metrics.led_by(self.cluster, "")
                self._complain(error)
        changed = self._table.take_changed(self.cluster)
        await self.settle([row for row in changed if row.known.cluster == self.cluster])
        if not self._table.changed.get(self.cluster):
            self.wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._poll_due_s):
                    await self.wake.wait()
        return SETTLE_S

    def withdraw(self, node: NodeId) -> None:
        """Take back what a NodeManager was offered that no pod announces any more."""
        if self._is_offered(node):
            self._withdrawn[node] = None

    def _is_offered(self, node: NodeId) -> bool:
        report = self.reports.get(node)
        return report is not None and report.total not in (None, YarnResource())

    def _complain(self, error: Unreachable | CallRefused) -> None:
        log.warning("ResourceManager did not serve", extra={"cluster": self.cluster, "error": str(error)})
        reason = "YarnAccessDenied" if error.is_denied else "YarnUnreachable"
        self._callbacks.cluster_problem(self.cluster, reason, f"YARN cluster {self.cluster}: {error}")

    async def _poll(self, now_s: float) -> None:
        """Read all reports; have nodes looked at whose report is another one. Raises: Unreachable, CallRefused."""
        loop, mark = asyncio.get_running_loop(), self._table.mark
        poll = await self._managers.poll()
        self._backoff.reset()
        was_recovering = self._is_recovering(self.polled_s or 0.0)
        before, self.reports, self.polled_s = self.reports, poll.reports, loop.time()
        if self._answers_since_s is None:
            self._answers_since_s = self.polled_s
        if poll.leader != self._leader or not before:
            self._leader, self._led_since_s = poll.leader, self.polled_s
            self._metrics.led_by(self.cluster, poll.leader)
            self._table.mark_cluster(self.cluster)
        for node, report in poll.reports.items():
            if before.get(node) is not report:
                self._mark(node)
        for node in before.keys() - poll.reports.keys():
            self._mark(node)
        for name in self._open:
            mark(name)
        self._open.clear()
        if self.polled_s >= self._resync_due_s or was_recovering != self._is_recovering(self.polled_s):
            self._resync_due_s = self.polled_s + self._rules.resync_s
            self._table.mark_cluster(self.cluster)
        took_s = self.polled_s - now_s
        self._poll_due_s = self.polled_s + min(max(POLL_S, took_s * POLL_SHARE), POLL_S_MAX)

    def _is_recovering(self, now_s: float) -> bool:
        return now_s - self._led_since_s < RECOVERY_S

    def _mark(self, node: NodeId) -> None:
        for name in self._table.nodes_of.get((self.cluster, node), ()):
            self._table.mark(name)

    # Nodes

    async def settle(self, rows: Sequence[NodeRow]) -> None:
        """Tell the ResourceManager what these nodes may give out, then have recorded what they use."""
        now_s, wall_s = asyncio.get_running_loop().time(), self._clock.now()
        usual_ms, timeout_ms = self._rules.over_commit_timeout_ms, node_sync.over_commit_timeout_ms
        may_raise = self._callbacks.may_raise()
        plans = [(row, *self._planned(row, now_s, may_raise=may_raise)) for row in rows]
        updates = {
            row.name: NodeUpdate(row.known.node, told.send, timeout_ms(row.known, usual_ms, wall_s))
            for row, _, told in plans
            if told.send is not None and row.known.node is not None and told.send != row.sent
        }
        failure = await self._tell(updates, rows)
        for row, made, told in plans:
            error = failure.get(row.name)
            if error is not None:
                told = Handover(record=node_sync.when_refused(made.allocation, row.recorded or NOTHING))
            row.record = told.record
            if row.record is not None and row.record != row.recorded:
                self._callbacks.record(row)
            if error is not None or self._is_open(row, made, told):
                self._open[row.name] = None
        self._metrics.mismatch.set(len(self._open), self.cluster)

    def _planned(self, row: NodeRow, now_s: float, *, may_raise: bool) -> tuple[SyncPlan, Handover]:
        """Return the plan of a node and what to do of it now; notes in the row what is known."""
        node, rules = row.known.node, self._rules
        report = None if node is None else self.reports.get(node)
        if row.manager is not None and row.manager != row.belonged:
            if row.belonged is not None:
                self._callbacks.withdraw(row.belonged)
            row.belonged, row.sent = row.manager, None
        is_recovering = self._is_recovering(now_s)
        use = node_sync.use_to_count(
            report, self._held(row, now_s), self.polled_s is not None, now_s, rules.hold_s, is_recovering
        )
        row.held, row.used = use.held, use.used
        row.total = report.total if report is not None and report.state in _TOLD_STATES else None
        if row.total is not None:
            before = row.granted if is_recovering else None
            row.granted = row.total if before is None else amounts.larger_yarn(before, row.total)
        elif row.held is None:
            row.granted = None
        if row.sent is not None and (row.total == row.sent or now_s - row.sent_s > RESEND_S):
            row.sent = None
        rival = self._table.rival_of(row)
        if rival:
            made = SyncPlan(SyncOutcome.BAD_NODE_ID, reason=f"node {rival} announces the same NodeManager")
        else:
            made = node_sync.plan(row.known, use, rules.policy)
        problem, reason = made.outcome, made.reason
        if problem is SyncOutcome.SYNCED and (twin := self._table.twin_of(row)):
            # This one is served; the pod that is to blame may be either.
            problem = SyncOutcome.BAD_NODE_ID
            reason = f"node {twin} announces the same NodeManager"
        self._callbacks.node_problem(row, problem.name, reason)
        totals = SchedulerTotals(
            total=row.total, is_capped=not (node_sync.may_raise_total(report) and may_raise)
        )
        if rules.policy.lends_once and row.node is not None:
            totals = msgspec.structs.replace(
                totals,
                granted=amounts.larger_yarn(row.granted or YarnResource(), row.sent or YarnResource()),
                pool=row.known.pool,
                taken=row.known.taken,
                kube_total=node_sync.kube_total(row.node),
                recorded=row.recorded,
                recorded_for_s=now_s - row.recorded_s,
            )
        return made, handover.hand_over(made, totals, rules.policy, rules.thresholds)

    def _held(self, row: NodeRow, now_s: float) -> HeldFigure | None:
        """Return what is remembered of a NodeManager. While no ResourceManager answers it grows no older: whoever comes
        back does not know at once who is there, and NodeManagers bring along the totals that they had."""
        since_s = self._answers_since_s if self._answers_since_s is not None else now_s
        if row.held is None or row.held.at_s >= since_s:
            return row.held
        return HeldFigure(row.held.used, since_s)

    def _is_open(self, row: NodeRow, made: SyncPlan, told: Handover) -> bool:
        """Return whether time alone, or the next report, may change what is to be done."""
        if told.send is not None or row.sent is not None or (row.total is None and row.held is not None):
            return True
        wants_more = made.total is not None and row.total is not None and made.total != row.total
        return wants_more and self._rules.policy.lends_once

    async def _tell(
        self, updates: dict[str, NodeUpdate], rows: Iterable[NodeRow]
    ) -> dict[str, KoordinatorError]:
        """Tell totals; return why nodes were not told, by name."""
        loop = asyncio.get_running_loop()
        self._withdrawn = {
            node: None
            for node in self._withdrawn
            if (self.cluster, node) not in self._table.nodes_of and self._is_offered(node)
        }
        withdrawals = [
            NodeUpdate(node, YarnResource(), self._rules.over_commit_timeout_ms) for node in self._withdrawn
        ]
        if not (updates or withdrawals):
            return {}
        if loop.time() < self._tell_not_before_s or not self._callbacks.may_act():
            return dict.fromkeys(updates, _NotNow())
        try:
            refused = await self._managers.update([*updates.values(), *withdrawals])
        except (Unreachable, CallRefused) as error:
            self._tell_not_before_s = loop.time() + (DENIED_S if error.is_denied else POLL_S)
            self._complain(error)
            return dict.fromkeys(updates, error)
        for each in withdrawals:
            self._withdrawn.pop(each.node, None)
        now_s = loop.time()
        for row in rows:
            if (update := updates.get(row.name)) is not None and update.node not in refused:
                row.sent, row.sent_s = update.total, now_s
        if told := len(updates) - len(refused):
            log.info("totals told", extra={"cluster": self.cluster, "nodes": told})
        return {name: refused[update.node] for name, update in updates.items() if update.node in refused}


class _NotNow(KoordinatorError):
    """A total is not told now; it stays wanted."""
