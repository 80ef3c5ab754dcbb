"""Keeps on every node what its plugins say: gathers what changed, decides for all of it at once, has it written.

Reports of many nodes arrive together; all that wait are calculated in one go over arrays, and only what differs
enough is handed to the writer. Nodes of a pool agree in the labels that count and share one strategy: a changed
configuration costs one merge per kind of node, and per node one look at its labels. Events on nodes and the log tell
once per change why a node lends what it lends, or nothing.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator

from koordinator.api import duration, resources
from koordinator.api.core import Node
from koordinator.clock import Clock
from koordinator.cluster.backoff import Backoff, BackoffPolicy, Rate, TokenBucket
from koordinator.cluster.controller import RetryPolicy, WorkQueue
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.supervise import Guard, supervise
from koordinator.manager.config import colocation_config
from koordinator.manager.config.colocation_config import ColocationState, NodeStrategy, StrategyTable
from koordinator.manager.config.node_entries import REMEMBERED_MAX, Signature
from koordinator.manager.config.slo_configs import ConfigSection
from koordinator.manager.metrics import FAILED, SUCCEEDED
from koordinator.manager.noderesource import decide, plugins
from koordinator.manager.noderesource import target as targets
from koordinator.manager.noderesource.decide import Withdrawal
from koordinator.manager.noderesource.fleet import NodeFleet
from koordinator.manager.noderesource.ledger_answers import LentAnswers
from koordinator.manager.noderesource.ledger_history import MEBI, MINUTE_S, LedgerHistory
from koordinator.manager.noderesource.rows import CLOCK_SKEW_S, NodeRow, zones_need_write
from koordinator.manager.noderesource.target import NodeTarget, Note
from koordinator.manager.noderesource.writer import NodePatch, NodeWriter
from koordinator.manager.parts import ManagerContext

log = logging.getLogger(__name__)


EVENT_RATE = Rate(per_s=1.0, burst=50)
"""A change of the whole cluster is told of some nodes at once, of the others over minutes while it lasts."""
PATIENCE_S = 300.0
"""Time that a patient note must hold before it is told."""
RESTORED = "NodeResourceRestored"

_DEGRADED = frozenset(reason.value for reason in Withdrawal if reason not in decide.BY_DESIGN)


class NodeEventRecorder:
    """Remembers what was told of each node."""

    def __init__(self, events: EventRecorder, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._bucket: TokenBucket | None = None
        self._reported: dict[str, frozenset[str]] = {}
        self._since_s: dict[str, dict[str, float]] = {}

    def report(self, row: NodeRow, notes: Iterable[Note]) -> None:
        """`notes` are all that hold for the node now; what is not told yet, is, as far as the rate allows."""
        name = row.name
        current = {note.reason: note for note in notes}
        if not current and name not in self._reported:
            self._since_s.pop(name, None)
            return
        reported = self._reported.get(name, frozenset())
        kept = reported & current.keys()
        now_s = self._clock.now()
        before = self._since_s.get(name, {})
        since_s = self._since_s[name] = {reason: before.get(reason, now_s) for reason in current}
        for reason, note in current.items():
            if reason in kept or (note.is_patient and now_s - since_s[reason] < PATIENCE_S):
                continue
            if self._may_report():
                kept |= {reason}
                self._record(row, note)
        if reported & _DEGRADED and row.withdrawal is Withdrawal.NONE and self._may_report():
            message = "the node agent's reports are in order again: Batch and Mid resources are back"
            self._record(row, Note(RESTORED, message, is_warning=False))
        if kept:
            self._reported[name] = kept
        else:
            self._reported.pop(name, None)

    def forget(self, name: str) -> None:
        """Note that the node is gone."""
        self._reported.pop(name, None)
        self._since_s.pop(name, None)

    def _may_report(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        if self._bucket is None:
            self._bucket = TokenBucket(EVENT_RATE, now_s)
        return self._bucket.try_take(now_s)

    def _record(self, row: NodeRow, note: Note) -> None:
        assert row.node is not None
        level = logging.WARNING if note.is_warning else logging.INFO
        log.log(level, "node %s: %s", row.name, note.message, extra={"node": row.name, "reason": note.reason})
        if note.is_warning:
            self._events.warning(row.node, note.reason, note.message)
        else:
            self._events.normal(row.node, note.reason, note.message)


DEGRADED = "degrade node resource because of abnormal nodeMetric, reason: degradedByBatchResource"
SKEWED = "NodeClockSkewed"

_LENT = (*resources.BATCH_RESOURCES, *resources.MID_RESOURCES, *resources.BATCH_GPU_RESOURCES)


def withdrawal_of(row: NodeRow, now_s: float) -> Withdrawal:
    """Return whether a node with facts and a strategy may lend anything, and if not, why."""
    assert row.node is not None and row.strategy is not None
    return decide.withdrawal(
        is_enabled=row.strategy.enabled,
        degrade_s=row.strategy.degrade_s,
        reported_s=row.reported_s,
        now_s=now_s,
        problem=row.reading.problem,
        has_node=row.reading.report.has_node,
        is_lent_whole=decide.is_in_batch_phase(row.node),
    )


def report_notes(row: NodeRow, now_s: float) -> list[Note]:
    """Return the notes about the node's report."""
    found = []
    if note := _withdrawal_note(row, now_s):
        found.append(note)
    if row.skew_s > CLOCK_SKEW_S and row.is_enabled:
        ahead = duration.text_of(round(row.skew_s))
        message = (
            f"the NodeMetric is dated {ahead} ahead of its arrival and counts as made then: "
            "mind the clock of the node (or of koord-manager)"
        )
        found.append(Note(SKEWED, message))
    return found


def _withdrawal_note(row: NodeRow, now_s: float) -> Note | None:
    reason = row.withdrawal
    match reason:
        case Withdrawal.NONE:
            return None
        case Withdrawal.DISABLED | Withdrawal.LENT_WHOLE:
            if not any(name in row.have for name in _LENT):
                return None
            why = "a TidalPool lends the whole node"
            if reason is Withdrawal.DISABLED:
                why = "colocation is disabled for the node (colocation-config)"
            return Note(reason.value, f"Batch and Mid resources are withdrawn: {why}", is_warning=False)
        case Withdrawal.MISSING:
            why = "there is no report in NodeMetric.status: does koordlet run on the node?"
            return Note(reason.value, f"{DEGRADED}: {why}", is_patient=not row.have)
        case Withdrawal.EXPIRED:
            assert row.reported_s is not None and row.strategy is not None
            age = duration.text_of(round(now_s - row.reported_s))
            limit = duration.text_of(row.strategy.degrade_s)
            why = f"the last report is {age} old, degradeTimeMinutes allows {limit}"
            if row.reading.updated_s is not None and row.skew_s > CLOCK_SKEW_S:
                why += " (it was dated ahead of its arrival)"
            return Note(reason.value, f"{DEGRADED}: {why}")
        case Withdrawal.REJECTED:
            return Note(reason.value, f"{DEGRADED}: the report cannot be true, {row.reading.problem}")
        case Withdrawal.EMPTY:
            why = "status.nodeMetric of the report is empty"
            return Note(reason.value, f"{DEGRADED}: {why}", is_patient=not row.have)
    raise AssertionError(reason)


ROUND_NODES_MAX = 256  # nodes decided in one go; bounds the pause of the event loop to some 10 ms
GATHER_S = 0.1
"""Time that a round waits for more: of 10,000 nodes some 17 report meanwhile, and a round costs as much as 8 nodes."""
SWEEP_S = 30.0  # how often expired reports are looked for; small against degradeTimeMinutes
RETRY = BackoffPolicy(initial_s=1.0, max_s=30.0)
# Not client-go's 1,000 s: what a silent node lends must go soon after the API is back.
WRITE_RETRIES = RetryPolicy(max_s=30.0)

_GAUGES = (
    # Divided, so that both CPU gauges count cores (the reference has mid-cpu in milli-cores).
    (resources.BATCH_CPU, "integer", 1000),
    (resources.BATCH_MEMORY, "byte", 1),
    (resources.MID_CPU, "integer", 1000),
    (resources.MID_MEMORY, "byte", 1),
)
_GPU_GAUGES = ((resources.BATCH_GPU_CORE, "integer"), (resources.BATCH_GPU_MEMORY, "byte"))


class NodeResourceController:
    """The loop of the leader."""

    def __init__(self, shared: ManagerContext) -> None:
        self.guard = Guard("controller noderesource")
        self.calculate_count = 0
        self._clock = shared.clock
        self._metrics = shared.metrics
        self._backoff = Backoff(RETRY, shared.rng)
        self._queue: WorkQueue[str] = WorkQueue(WRITE_RETRIES)
        shared.metrics.queues.watch("noderesource", self._queue)
        self._strategies = Strategies(lambda: shared.configs.colocation)
        self._plugins = plugins.chosen(
            shared.options.node_resource_plugins,
            normalization=lambda: shared.configs.cpu_normalization,
            amplified=lambda: shared.configs.amplification,
        )
        for plugin in self._plugins:
            self._metrics.plugin_runs.inc(plugin.name, SUCCEEDED, "Setup")
        self._events_recorder = NodeEventRecorder(shared.events, shared.clock)
        self._started_s = shared.clock.now()
        self._written_s: dict[str, float] = {}
        self._zones_written_s: dict[str, float] = {}
        self.history = LedgerHistory(
            hours=shared.options.lent_ledger_hours, bytes_max=shared.options.lent_ledger_mebibytes * MEBI
        )
        self.fleet = NodeFleet(
            shared.factory,
            shared.clock,
            publishes_shared=shared.gates.is_on("EnableSyncGPUSharedResource"),
            changed=self._queue.add,
            gone=self._on_gone,
        )
        self.answers = LentAnswers(self.history, self.fleet.rows, shared.clock.now)
        self.writer = NodeWriter(
            shared.cluster,
            shared.metrics.noderesource_reconciles,
            self.guard,
            row=self.fleet.rows.get,
            written=self._on_written,
            zones_written=self._on_zones_written,
            again=self._again,
        )
        shared.configs.on_change(ConfigSection.COLOCATION, self._on_colocation)
        shared.configs.on_change(ConfigSection.CPU_NORMALIZATION, self.enqueue_all)
        shared.configs.on_change(ConfigSection.AMPLIFICATION, self.enqueue_all)

    def enqueue_all(self) -> None:
        """Look at every node again."""
        for name in self.fleet.rows:
            self._queue.add(name)

    def _on_colocation(self) -> None:
        for row in self.fleet.rows.values():
            row.strategy = None
        self.enqueue_all()

    def _on_gone(self, name: str) -> None:
        self._written_s.pop(name, None)
        self._zones_written_s.pop(name, None)
        self._events_recorder.forget(name)
        self.history.forget(name)
        self.writer.plan(name, None)

    # Working

    async def run(self) -> None:
        """Work until cancelled."""
        await self.fleet.wait_synced()
        self._started_s = self._clock.now()
        async with asyncio.TaskGroup() as group:
            group.create_task(supervise(self._step, self._backoff, self.guard), name="noderesource")
            group.create_task(supervise(self._sweep, self._backoff, self.guard), name="noderesource sweep")
            group.create_task(self.writer.run(), name="noderesource writers")
            if self.history.is_on:
                keeping = supervise(self._keep_minute, self._backoff, self.guard)
                group.create_task(keeping, name="noderesource ledger")

    async def _step(self) -> float:
        names = [await self._queue.get()]
        try:
            if len(self._queue) < ROUND_NODES_MAX:
                await asyncio.sleep(GATHER_S)
            while len(self._queue) and len(names) < ROUND_NODES_MAX:
                names.append(await self._queue.get())
            self.look_at(names)
        finally:
            for name in names:
                self._queue.done(name)
        return 0.0

    async def _sweep(self) -> float:
        """Queue the nodes whose last report has become too old, or of which something is still to be told."""
        now_s = self._clock.now()
        for row in self.fleet.rows.values():
            if row.strategy is None or row.node is None:
                continue
            if row.withdrawal is not Withdrawal.NONE:
                if row.withdrawal not in decide.BY_DESIGN:
                    self._queue.add(row.name)
            elif row.reported_s is None or now_s > row.reported_s + row.strategy.degrade_s:
                self._queue.add(row.name)
        return SWEEP_S

    async def _keep_minute(self) -> float:
        """File away where what stands on the nodes comes from, at each full minute."""
        minute = round(self._clock.now()) // MINUTE_S
        for _ in self.history.keep(self.fleet.rows, minute):
            await asyncio.sleep(0)
        self._metrics.ledger_bytes.set(self.history.byte_count)
        return MINUTE_S - self._clock.now() % MINUTE_S

    def look_at(self, names: Iterable[str]) -> None:
        """Decide about these nodes and have written what must be."""
        now_s = self._clock.now()
        decided = list(self.decide(names, now_s))
        self.history.take([row for row, _ in decided], [target for _, target in decided])
        for row, target in decided:
            self._settle(row, target, now_s)

    def decide(self, names: Iterable[str], now_s: float) -> Iterator[tuple[NodeRow, NodeTarget]]:
        """Return what each node should say now; nodes that are gone or cannot be read, or while no config is known, are
        left out."""
        rows = [
            row
            for name in names
            if (row := self.fleet.rows.get(name)) is not None and self._is_ready(row, now_s)
        ]
        wanted = [NodeTarget() for _ in rows]
        self.calculate_count += len(rows)
        if rows:
            for plugin in self._plugins:
                failures = plugin.calculate(rows, wanted)
                runs = self._metrics.plugin_runs
                if failures:
                    runs.inc(plugin.name, FAILED, "ResourceCalculate", by=failures)
                if failures < len(rows):
                    runs.inc(plugin.name, SUCCEEDED, "ResourceCalculate", by=len(rows) - failures)
        return zip(rows, wanted, strict=True)

    def _is_ready(self, row: NodeRow, now_s: float) -> bool:
        """Work out the node's strategy and whether it may lend anything; return whether the node can be decided
        about."""
        node = row.node
        if node is None:
            return False
        if row.facts is None or not node.status.allocatable or not node.status.capacity:
            self._events_recorder.report(row, row.node_notes)
            return False
        if row.strategy is None:
            row.strategy = self._strategies.of(node)
            if row.strategy is None:
                return False
        row.withdrawal = withdrawal_of(row, now_s)
        return True

    def _settle(self, row: NodeRow, target: NodeTarget, now_s: float) -> None:
        """Hand to the writer what differs enough, or has differed for long enough."""
        node, strategy, name = row.node, row.strategy, row.name
        assert node is not None and strategy is not None
        self._events_recorder.report(row, (*row.node_notes, *report_notes(row, now_s), *target.notes))
        self._gauge(row, target)
        with_status = (
            self._is_due(self._written_s, row, now_s)
            or targets.needs_status(row.have, target, strategy.diff_threshold)
            or targets.lends_other_gpus(node, target)
            or targets.shares_less(node, row.have, row.taken, target, strategy.diff_threshold)
        )
        zone_threshold = self._zone_threshold(row, target, now_s)
        if with_status or zone_threshold is not None or targets.needs_metadata(node, target):
            is_urgent = with_status and row.withdrawal is not Withdrawal.NONE
            self.writer.plan(name, NodePatch(target, with_status, zone_threshold, is_urgent))
        else:
            self.writer.plan(name, None)
            self._queue.forget(name)
            self._metrics.noderesource_reconciles.inc(SUCCEEDED, "")

    def _zone_threshold(self, row: NodeRow, target: NodeTarget, now_s: float) -> float | None:
        """By how much a zone's amount must differ to be written now; None when no zone is to be."""
        if row.topology is None or not target.zones:
            return None
        assert row.strategy is not None
        if self._is_due(self._zones_written_s, row, now_s):
            return 0.0
        threshold = row.strategy.diff_threshold
        return threshold if zones_need_write(row.topology.zones, target.zones, threshold) else None

    def _is_due(self, written_s: dict[str, float], row: NodeRow, now_s: float) -> bool:
        """Return whether small differences are to be written, too. Nodes that a process has never written have their
        turns spread over the first period: a new leader must not write all nodes at once."""
        assert row.strategy is not None
        period_s = row.strategy.update_threshold_s
        last_s = written_s.get(row.name)
        if last_s is None:
            last_s = self._started_s - period_s * zlib.crc32(row.name.encode()) / 2**32
        return now_s - last_s > period_s

    def _gauge(self, row: NodeRow, target: NodeTarget) -> None:
        """Tell what the node lends; of GPUs only where it does or did."""
        gauge = self._metrics.node_allocatable
        for name, unit, parts in _GAUGES:
            if name in target.amounts:
                gauge.set((target.amounts[name] or 0) / parts, row.name, name, unit)
        for name, unit in _GPU_GAUGES:
            amount = target.amounts.get(name)
            if amount is not None or (row.name, name, unit) in gauge.values:
                gauge.set(amount or 0, row.name, name, unit)

    # What the writer tells

    def _on_written(self, name: str, node: Node | None, with_status: bool) -> None:
        if with_status:
            self._written_s[name] = self._clock.now()
            self.history.written(name, self._clock.now())
        if node is not None:
            self.fleet.see_node(node)
        self._queue.forget(name)

    def _on_zones_written(self, name: str) -> None:
        self._zones_written_s[name] = self._clock.now()

    def _again(self, name: str, pause_s: float) -> None:
        if pause_s > 0:
            self._queue.add_after(name, pause_s)
        else:
            self._queue.add_rate_limited(name)


class Strategies:
    """Colocation strategies. `state` gives the configuration in force."""

    def __init__(self, state: Callable[[], ColocationState]) -> None:
        self._state = state
        self._table: StrategyTable | None = None
        self._known: dict[Signature, NodeStrategy] = {}

    def of(self, node: Node) -> NodeStrategy | None:
        """None while no configuration was ever understood."""
        state = self._state()
        if not state.available:
            return None
        table = self._table
        if table is None or table.config is not state.config:
            table = self._table = StrategyTable(state.config)
            self._known.clear()
        signature = table.signature(node)
        found = self._known.get(signature)
        if found is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            found = colocation_config.resource_strategy(state.config, table.of(node))
            self._known[signature] = found
        return found
