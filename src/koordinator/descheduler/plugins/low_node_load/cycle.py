"""One cycle of LowNodeLoad over its pools, whether a node has been hot for long enough, and what nodes will use.

An eviction is worth it where a node stays hot and its destination stays cool. A node that is above its limit by little,
or for moments, comes down by itself, and so does one whose whole pool ebbs; one that is cool for moments only is a bad
destination. Usage is smoothed exponentially, so that a node counts the sooner the further it is above its limit, and
moved on by the growth of the whole pool, whose sum has far less noise than a node.
Source: behaviour/descheduler 6.2 and 6.7."""

import enum
import math
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import duration
from koordinator.cluster import proof
from koordinator.cluster.proof import ProofError, Prove
from koordinator.descheduler import plan_input, pod_filter
from koordinator.descheduler.config import API_VERSION, low_node_load
from koordinator.descheduler.config.low_node_load import (
    AnomalyCondition,
    LowNodeLoadArgs,
    NodePool,
    PlanArgs,
    pools,
)
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.plugin import (
    BalancePlugin,
    EvictAction,
    Evictions,
    Handle,
    LiveHandle,
)
from koordinator.descheduler.plugins.low_node_load import planned, usage
from koordinator.descheduler.plugins.low_node_load.evict import Balance, EvictOptions
from koordinator.descheduler.plugins.low_node_load.planned import LeftNodes, PlanOutcome
from koordinator.descheduler.plugins.low_node_load.usage import Classified, Columns, NodeClass

Floats = npt.NDArray[np.float64]

SOURCE_S_MIN, SOURCE_S_MAX = 180.0, 900.0
"""Time constant of the level that makes a node a source. At 180 s one that was as far below its limit as it is above it
now counts after two minutes; shorter ones cost evictions and cool little more (docs/performance.md)."""
CYCLES = 2
"""The time constant is so many times that for which a node must be hot by the pool's anomaly condition."""
TARGET_S = 1_800.0
"""Time constant of the level that a target is expected to come back to: longer, so that no chance low counts."""
TIDE_SHORT_S, TIDE_LONG_S = 900.0, 3_600.0
"""Time constants of both levels of a pool that its growth is measured by."""
AHEAD_S = 3_600.0
"""Horizon: moves made now should be right for that long."""
TIDE_MAX = 0.25
"""The most that a pool may be expected to grow, or to shrink, by then."""


class _Level(msgspec.Struct):
    """Usage of the nodes of a pool, (nodes, resources) amounts of `usage` and `prod_usage` side by side: as sources and
    as targets; `pool` (2, resources) is the part of all capacity that is used, over a short and a long time."""

    names: tuple[str, ...]
    source: Floats
    target: Floats
    pool: Floats


class UsageForecast:
    """Remembers the levels of nodes between cycles, by pool."""

    def __init__(self) -> None:
        self._levels: list[_Level] = []
        self._seen_s = 0.0

    def see(self, pools: Sequence[Classified], cycles: Sequence[int], now_s: float) -> None:
        """Take what is measured now; `cycles` says by pool for how many a node must be hot. A clock that went back
        counts as no time."""
        passed_s = max(now_s - self._seen_s, 0.0)
        self._seen_s = now_s
        before = self._levels if len(self._levels) == len(pools) else [None] * len(pools)
        self._levels = [
            _follow(old, each, count, passed_s)
            for old, each, count in zip(before, pools, cycles, strict=True)
        ]

    def sources(self, pools: Sequence[Classified], hot: Iterable[str]) -> set[str]:
        """Return the nodes of `hot` that are expected to stay so. `pools` are those that were seen last."""
        stays: set[str] = set()
        for each, level in zip(pools, self._levels, strict=True):
            found = (level.source * _tide(level) > _limits(each)).any(axis=1)
            stays.update(level.names[row] for row in np.flatnonzero(found).tolist())
        return stays.intersection(hot)

    def as_targets(self, pools: Sequence[Classified], sources: set[str]) -> list[Classified]:
        """Return the pools with what is expected of all nodes but the sources, where that is more than they use now.
        No node becomes hot by that."""
        return [_raised(each, level, sources) for each, level in zip(pools, self._levels, strict=True)]


def _follow(old: _Level | None, seen: Classified, cycles: int, passed_s: float) -> _Level:
    """Return the levels after what is seen; a node, or a pool, that was not known begins as it is."""
    names = tuple(load.name for load in seen.loads)
    used = np.concatenate([seen.usage, seen.prod_usage], axis=1).astype(np.float64)
    whole = np.concatenate([seen.capacity, seen.capacity], axis=1).sum(axis=0)
    part = used.sum(axis=0) / np.maximum(whole, 1)
    if old is None or not old.names or old.source.shape[1] != used.shape[1]:
        return _Level(names, used, used, np.stack([part, part]))
    source, target = old.source, old.target
    if old.names != names:
        row_of = {name: row for row, name in enumerate(old.names)}
        rows = np.array([row_of.get(name, -1) for name in names], np.intp)
        is_new = (rows < 0)[:, None]
        source, target = np.where(is_new, used, source[rows]), np.where(is_new, used, target[rows])
    source_s = min(max(CYCLES * cycles * passed_s, SOURCE_S_MIN), SOURCE_S_MAX)
    return _Level(
        names,
        source + _share(passed_s, source_s) * (used - source),
        target + _share(passed_s, TARGET_S) * (used - target),
        np.stack(
            [
                old.pool[0] + _share(passed_s, TIDE_SHORT_S) * (part - old.pool[0]),
                old.pool[1] + _share(passed_s, TIDE_LONG_S) * (part - old.pool[1]),
            ]
        ),
    )


def _share(passed_s: float, constant_s: float) -> float:
    return -math.expm1(-passed_s / constant_s)


def _tide(level: _Level) -> Floats:
    """Return (resources,) by which factor a pool's usage grows until `AHEAD_S`: what rises or falls evenly is seen by
    two exponential means with delays that differ by their time constants."""
    short, long = level.pool
    growth = (short - long) / np.maximum(short, 1e-9) * AHEAD_S / (TIDE_LONG_S - TIDE_SHORT_S)
    return np.asarray(1 + np.clip(growth, -TIDE_MAX, TIDE_MAX))


def _limits(seen: Classified) -> Columns:
    return np.concatenate([seen.limits.high, seen.limits.prod_high], axis=1)


def _raised(seen: Classified, level: _Level, sources: set[str]) -> Classified:
    used = np.concatenate([seen.usage, seen.prod_usage], axis=1)
    expected = np.maximum(used, level.target) * np.maximum(_tide(level), 1.0)
    expected = np.maximum(np.minimum(expected, _limits(seen)), used).astype(np.int64)
    stays = np.array([name in sources for name in level.names], np.bool_)
    expected = np.where(stays[:, None], used, expected)
    count = seen.usage.shape[1]
    return msgspec.structs.replace(seen, usage=expected[:, :count], prod_usage=expected[:, count:])


class Detector:
    """Counts abnormal and normal marks of one node: more than `consecutive_abnormalities` start an anomaly, `timeout_s`
    or `consecutive_normalities` end it."""

    def __init__(self, rule: AnomalyCondition) -> None:
        self._rule = rule
        self._abnormal = 0
        self._normal = 0
        self._anomaly_until_s: float | None = None

    def is_anomalous(self, now_s: float) -> bool:
        """Return whether the node is in the state of anomaly, after ending one that is over."""
        until_s = self._anomaly_until_s
        if until_s is not None and (until_s < now_s or self._normal > self._rule.consecutive_normalities):
            self._change(None)
        return self._anomaly_until_s is not None

    def mark_abnormal(self, now_s: float) -> bool:
        """Note that the node looks abnormal; return whether it is in anomaly then. Marks during an anomaly do not make
        it longer."""
        is_anomalous = self.is_anomalous(now_s)
        self._abnormal += 1
        self._normal = 0
        if not is_anomalous and self._abnormal > self._rule.consecutive_abnormalities:
            self._change(now_s + self._rule.timeout_s)
        return self._anomaly_until_s is not None

    def mark_normal(self, now_s: float) -> None:
        is_anomalous = self.is_anomalous(now_s)
        self._normal += 1
        self._abnormal = 0
        if is_anomalous and self._normal > self._rule.consecutive_normalities:
            self._change(None)

    def reset(self, now_s: float) -> None:
        """End an anomaly. Without one the counters stay, as in the reference."""
        if self.is_anomalous(now_s):
            self._change(None)

    def _change(self, until_s: float | None) -> None:
        self._anomaly_until_s = until_s
        self._abnormal = self._normal = 0


class Detectors:
    """Detectors by node name, each forgotten `ttl_s` after its last abnormal mark (0: never)."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._known: dict[str, Detector] = {}
        self._marked_s: dict[str, float] = {}

    def mark_abnormal(self, node: str, rule: AnomalyCondition, now_s: float) -> bool:
        """Note that the node looks abnormal; return whether it is in anomaly then. `rule` counts if its detector is
        new."""
        self._forget(now_s)
        detector = self._known.setdefault(node, Detector(rule))
        self._marked_s[node] = now_s
        return detector.mark_abnormal(now_s)

    def mark_normal(self, node: str, now_s: float) -> None:
        self._forget(now_s)
        if (detector := self._known.get(node)) is not None:
            detector.mark_normal(now_s)

    def reset(self, nodes: Iterable[str], now_s: float) -> None:
        self._forget(now_s)
        for node in nodes:
            if (detector := self._known.get(node)) is not None:
                detector.reset(now_s)

    def _forget(self, now_s: float) -> None:
        if self._ttl_s <= 0:
            return
        for node in [node for node, at_s in self._marked_s.items() if now_s - at_s > self._ttl_s]:
            del self._known[node], self._marked_s[node]


class BalanceOutcome(enum.StrEnum):
    """The end of a pass over a pool."""

    NO_NODES = "no-nodes"
    NO_SOURCE = "no-source"
    NOT_ABNORMAL_YET = "not-abnormal-yet"
    NO_TARGET = "no-target"
    TOO_FEW_TARGETS = "too-few-targets"
    BALANCED = "balanced"


class PoolReport(msgspec.Struct, frozen=True):
    """The report of a pass over a pool; `found` is None when it ended before it looked at usage. `stuck` says of nodes
    why a plan does not cool them."""

    pool: str
    outcome: BalanceOutcome
    evicted: list[EvictAction] = []
    found: Classified | None = None
    stuck: dict[str, str] = {}


class LowNodeLoad(BalancePlugin):
    """The plugin with its memory between cycles: which nodes have been hot, for how long, and who left them.

    The filter is asked again right before each eviction.
    """

    name = "LowNodeLoad"
    args = LowNodeLoadArgs
    api_version = API_VERSION
    complete = staticmethod(low_node_load.complete)
    check_args = staticmethod(low_node_load.check)

    def __init__(self, args: LowNodeLoadArgs, handle: Handle) -> None:
        self._args = args
        self._handle = handle
        self._forecast, self._left = UsageForecast(), LeftNodes()
        self._planned: tuple[PlanOutcome, list[tuple[NodePool, Classified]]] | None = None
        self._pools = pools(args)
        self._may_evict = pod_filter.compose(args.evictable_namespaces, args.pod_selectors, handle.may_evict)
        ttl_s = duration.parse(args.detector_cache_timeout)
        self._node_detectors = Detectors(ttl_s)
        self._prod_detectors = Detectors(ttl_s)

    @property
    def is_planning(self) -> bool:
        """Return whether pods are chosen together, by a plan."""
        return self._args.plan is not None

    async def prepare_balance(self, seen: Observation) -> str:
        """Plan, where that is asked for; why there is no plan, such as that the scheduler does not answer."""
        self._planned = None
        if self._args.plan is None or self._args.paused:
            return ""
        found = plan_input.classified(seen, self._args)
        sources: set[str] = set()
        for pool, each in found:
            high, prod_high = each.rows(NodeClass.HIGH), each.rows(NodeClass.PROD_HIGH)
            for rows in self._abnormal(pool, each, high, prod_high, seen.now_s):
                sources.update(each.loads[row].name for row in rows)
            self._gate(each, seen.now_s)
        handle = self._handle
        assert isinstance(handle, LiveHandle), "plans are made in a process"
        prove = _prove_by(self._args.plan, handle)
        if prove is None:
            return "plan mode needs plan.schedulerURL: there is no scheduler in this process"
        rules = planned.rules_of(self._args, handle, self._left.known(seen.now_s))
        pools_found = [each for _, each in found]
        self._forecast.see(pools_found, [_cycles_of(pool) for pool, _ in found], seen.now_s)
        sources = self._forecast.sources(pools_found, sources)
        expected = self._forecast.as_targets(pools_found, sources)
        try:
            outcome = await planned.planned(seen, expected, sources, rules, prove)
        except ProofError as error:
            return str(error)
        self._planned = outcome, found
        return ""

    def balance(self, seen: Observation) -> Evictions[list[PoolReport]]:
        """Pass over each pool in order, or evict as planned."""
        if self._args.paused:
            return []
        if self._args.plan is not None:
            return (yield from self._as_planned(seen.now_s))
        reports = []
        processed: set[str] = set()
        for pool in self._pools:
            report = yield from self.balance_pool(pool, seen, processed)
            if report.outcome is BalanceOutcome.BALANCED and report.found is not None:
                processed.update(report.found.names(NodeClass.HIGH))
            reports.append(report)
        return reports

    def _as_planned(self, now_s: float) -> Evictions[list[PoolReport]]:
        """Evict what was planned; where one eviction is refused, the rest for its node is left."""
        if self._planned is None:
            return []
        outcome, found = self._planned
        evicted, given_up = [], set()
        for move in outcome.moves:
            if move.cools in given_up:
                continue
            reason = f"node {move.cools} is overutilized; it is planned to run on {move.target}"
            wanted = EvictAction(move.pod, reason, move.target)
            if not self._args.dry_run and not (yield wanted):
                given_up.add(move.cools)
                continue
            evicted.append(wanted)
            self._left.add(move.pod, now_s)
        cooled = {move.cools for move in outcome.moves} - given_up
        for name in sorted(cooled):
            self._node_detectors.mark_normal(name, now_s)
            self._prod_detectors.mark_normal(name, now_s)
        return [_report_of(pool, each, evicted, outcome) for pool, each in found]

    def balance_pool(
        self, pool: NodePool, seen: Observation, processed: set[str] | frozenset[str] = frozenset()
    ) -> Evictions[PoolReport]:
        """One pass. `processed`: nodes that earlier pools relieved, left out if the pool has a selector."""
        nodes = usage.pool_nodes(pool, seen.nodes, processed)
        if not nodes:
            return PoolReport(pool.name, BalanceOutcome.NO_NODES)
        found = usage.measure(pool, nodes, seen, self._args.node_metric_expiration_seconds)
        high, prod_high = found.rows(NodeClass.HIGH), found.rows(NodeClass.PROD_HIGH)
        if not high and not prod_high:
            return PoolReport(pool.name, BalanceOutcome.NO_SOURCE, [], found)
        high, prod_high = self._abnormal(pool, found, high, prod_high, seen.now_s)
        if not high and not prod_high:
            return PoolReport(pool.name, BalanceOutcome.NOT_ABNORMAL_YET, [], found)
        outcome = self._gate(found, seen.now_s)
        if outcome is not BalanceOutcome.BALANCED:
            return PoolReport(pool.name, outcome, [], found)
        options = EvictOptions(
            may_evict=self._may_evict,
            weights=pool.resource_weights or {},
            needs_fit=self._args.node_fit,
            is_dry_run=self._args.dry_run,
        )
        balance = Balance(found, options, self._recovery(seen.now_s))
        evicted = yield from balance.run(high, prod_high)
        for detectors, rows in ((self._node_detectors, high), (self._prod_detectors, prod_high)):
            for row in rows:
                detectors.mark_normal(found.loads[row].name, seen.now_s)
        return PoolReport(pool.name, outcome, evicted, found)

    def _abnormal(
        self, pool: NodePool, found: Classified, high: list[int], prod_high: list[int], now_s: float
    ) -> tuple[list[int], list[int]]:
        """Sources that have been hot for long enough."""
        condition = pool.anomaly_condition
        if condition is None or condition.consecutive_abnormalities == 1:
            return high, prod_high
        node, prod = self._node_detectors, self._prod_detectors
        return (
            [row for row in high if node.mark_abnormal(found.loads[row].name, condition, now_s)],
            [row for row in prod_high if prod.mark_abnormal(found.loads[row].name, condition, now_s)],
        )

    def _gate(self, found: Classified, now_s: float) -> BalanceOutcome:
        """Return whether there are enough targets; those found are known to be fine."""
        low, prod_low = found.names(NodeClass.LOW), found.names(NodeClass.PROD_LOW)
        both_low = found.names(NodeClass.BOTH_LOW)
        count = len(low) + len(prod_low) + len(both_low)
        if not count:
            return BalanceOutcome.NO_TARGET
        self._node_detectors.reset([*low, *both_low], now_s)
        self._prod_detectors.reset(prod_low, now_s)
        return (
            BalanceOutcome.TOO_FEW_TARGETS if count <= self._args.number_of_nodes else BalanceOutcome.BALANCED
        )

    def _recovery(self, now_s: float) -> Callable[[str, bool], None]:
        def recovered(node: str, prod: bool) -> None:
            (self._prod_detectors if prod else self._node_detectors).reset([node], now_s)

        return recovered


def _cycles_of(pool: NodePool) -> int:
    """Return for how many cycles in a row a node must be hot."""
    condition = pool.anomaly_condition
    return 1 if condition is None else condition.consecutive_abnormalities


def _prove_by(args: PlanArgs, handle: LiveHandle) -> Prove | None:
    """Return who is asked about moves, None when nobody is known."""
    if not args.scheduler_url:
        return handle.prove
    return proof.over_http(args.scheduler_url, handle.credentials, args.scheduler_ca_file)


def _report_of(
    pool: NodePool, found: Classified, evicted: list[EvictAction], outcome: PlanOutcome
) -> PoolReport:
    names = {load.name for load in found.loads}
    own = [one for one in evicted if one.pod.spec.node_name in names]
    stuck = {name: why for name, why in outcome.stuck.items() if name in names}
    is_hot = bool(found.rows(NodeClass.HIGH) or found.rows(NodeClass.PROD_HIGH))
    said = (
        BalanceOutcome.BALANCED
        if own
        else BalanceOutcome.NO_TARGET
        if stuck
        else BalanceOutcome.NOT_ABNORMAL_YET
    )
    return PoolReport(pool.name, said if is_hot else BalanceOutcome.NO_SOURCE, own, found, stuck)
