"""The extension points of LoadAwareScheduling. Source: behaviour/scheduler part I.

Everything that Filter and Score need of a node is in columns that change with events: they add the pod's
estimate to the right view of the existing usage and compare.
"""

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator

import msgspec
import numpy as np

from koordinator.api import pod_labels, priority
from koordinator.api.core import Node, Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.node_metric import NodeMetric
from koordinator.api.priority import PriorityClass
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.capabilities import ApiAnswer, ApiProvider, ApiRequest, Endpoint
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent, newest
from koordinator.scheduler.plugin.framework import (
    FilterPlugin,
    Handle,
    PreFilterPlugin,
    PreFilterResult,
    ReasonCodes,
    Relief,
    ReservePlugin,
    ScorePlugin,
    Scores,
    Watch,
    passes,
)
from koordinator.scheduler.plugin.status import Status, unschedulable
from koordinator.scheduler.plugins.load_aware import interference_levels, judgement, load
from koordinator.scheduler.plugins.load_aware.args import LoadAwareArgs, LoadAwarePolicy, vector
from koordinator.scheduler.plugins.load_aware.interference_levels import InterferenceLevels, Neighbour
from koordinator.scheduler.plugins.load_aware.judgement import NodeLoadRules, NodeLoadRulesTable
from koordinator.scheduler.plugins.load_aware.load import NEVER_S, NodeLoad, estimate, kind_key
from koordinator.scheduler.table.columns import ColumnSpec, Recent, RowChange, Rows, at, no_points
from koordinator.scheduler.table.nodes import RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

RECENT_MAX = 16_384
"""Pods whose estimate is remembered: more than that rarely wait at once."""

Facts = tuple[tuple[int, ...], bool]
"""Amounts that a pod will use, and whether it is prod."""

EXPIRED = unschedulable("node(s) nodeMetric expired")
UNLIMITED = load.LIMIT_MAX
"""Room where no threshold applies: more than anything that pods ask for."""
_EXPIRED_CODE = 1
_FIRST_OVER_CODE = 2  # + 2 × index of the resource, + 1 when by a percentile


class LoadState(msgspec.Struct, frozen=True):
    """The expected use of a pod, as a column (resources, 1), and the rules by which it is judged."""

    amounts: I64
    is_prod: bool
    is_daemon: bool
    neighbour: Neighbour


METRIC_EVENTS = (
    ClusterEvent.NODE_METRIC_ADDED,
    ClusterEvent.NODE_METRIC_UPDATED,
    ClusterEvent.NODE_METRIC_DELETED,
)


class LoadAwareScheduling(
    PreFilterPlugin[LoadState],
    FilterPlugin[LoadState],
    ScorePlugin[LoadState],
    ReservePlugin[LoadState],
    ApiProvider[LoadState],
    RowKeeper,
):
    """Reserve and Unreserve need no code of their own: the table tells about every pod that counts on a
    row, assumed ones included."""

    name = "LoadAwareScheduling"
    args = LoadAwareArgs
    reads = RowChange.NODE | RowChange.PODS | RowChange.USAGE
    in_trials = in_takes = False  # eviction does not lower what was measured
    wakes_on = (
        ClusterEvent.ASSIGNED_POD_DELETED,
        *METRIC_EVENTS,
        # Upstream does not listen to these, and leaves pods waiting for minutes.
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_ALLOCATABLE,
        ClusterEvent.NODE_ANNOTATIONS,
    )

    def __init__(self, args: LoadAwareArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.policy = LoadAwarePolicy.of(args)
        self._loads: dict[int, NodeLoad] = {}
        # Not a dict: that walks over all it dropped to find what is oldest.
        self._recent: OrderedDict[str, tuple[PodInfo, Facts]] = OrderedDict()
        self._kinds: Recent[Facts] = Recent(RECENT_MAX)
        self._metrics: dict[str, NodeMetric] = {}
        # The metric that each row was last given: one that comes while its node is away is taken in when that is back.
        self._taken: dict[int, NodeMetric] = {}
        self._updated_s: dict[str, float] = {}
        self._next_expiry_s = float("inf")
        self._rules: dict[int, NodeLoadRules] = {}
        self._rules_by_node = NodeLoadRulesTable(self.policy)
        self._nobody = self._rules_by_node.of(Node())
        columns = handle.columns
        # Pairs: by the rules of all pods, and by those of prod pods.
        self._room = columns["room"], columns["prodRoom"]
        self._left = columns["left"], columns["prodLeft"]
        self._is_aggregated = columns["isAggregated"], columns["prodIsAggregated"]
        self._is_judged = columns["isJudged"], columns["prodIsJudged"]
        self._capacity = columns["capacity"]
        self._expires_s = columns["expires"]
        self._is_expired = columns["isExpired"]
        self._interference = InterferenceLevels(columns, handle.table)
        handle.watch(Watch.changes(NodeMetric, self.set_metric))
        handle.watch(Watch(Pod, lambda _: None, lambda _, __: None, self._forget))

    @classmethod
    def columns_of(cls, args: LoadAwareArgs) -> tuple[ColumnSpec, ...]:
        width = len(LoadAwarePolicy.of(args).names)
        flags = ("isAggregated", "prodIsAggregated", "isJudged", "prodIsJudged", "isExpired")
        return (
            # How much more may be used before a threshold is passed, by the two sets of rules.
            ColumnSpec("room", np.int64, width, fill=UNLIMITED),
            ColumnSpec("prodRoom", np.int64, width, fill=UNLIMITED),
            # Capacity less usage, for the score; whole numbers, 0 where nothing is known.
            ColumnSpec("left", np.float64, width),
            ColumnSpec("prodLeft", np.float64, width),
            ColumnSpec("capacity", np.float64, width, fill=1.0),
            *(ColumnSpec(name, np.bool_, fill=False) for name in flags),
            ColumnSpec("expires", np.float64, fill=np.inf),
            *interference_levels.COLUMNS,
        )

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        estimated, is_prod = self._facts(pod)
        return estimated, is_prod, load.is_daemon(pod)

    def live_key(self, pod: PodInfo) -> Hashable:
        return self._interference.key(pod)

    def looks_further(self) -> bool:
        return False  # whom a pod should not meet is counted row by row

    def prepare(self, pod: PodInfo) -> LoadState:
        estimated, is_prod = self._facts(pod)
        amounts = np.array(estimated, np.int64)[:, np.newaxis]
        return LoadState(amounts, is_prod, load.is_daemon(pod), self._interference.neighbour(pod))

    def _facts(self, pod: PodInfo) -> Facts:
        """Return the pod's estimate and whether it is prod; remembered until it is assigned or gone."""
        known = self._recent.get(pod.uid)
        if known is not None and (known[0] is pod or load.is_estimated_alike(known[0], pod)):
            return known[1]
        if self.policy.args.allow_customize_estimation:
            found = self._new_facts(pod)
        else:
            found = self._kinds.get(kind_key(pod.pod), lambda: self._new_facts(pod))
        if len(self._recent) >= RECENT_MAX:
            self._recent.popitem(last=False)
        self._recent[pod.uid] = (pod, found)
        return found

    def _last_facts(self, pod: PodInfo) -> Facts:
        """Return the facts of an assigned pod: nobody asks again, and what is remembered would outlive the pod."""
        found = self._facts(pod)
        self._recent.pop(pod.uid, None)
        return found

    def _forget(self, pod: Pod) -> None:
        """Note that a pod is gone, maybe before it was assigned."""
        self._recent.pop(pod.metadata.uid or pod.key, None)

    def _new_facts(self, pod: PodInfo) -> Facts:
        cls, allow_custom = priority.default(pod.pod), self.policy.args.allow_customize_estimation
        try:
            found = estimate(pod.pod, cls, self.policy.factors, allow_custom=allow_custom)
        except KoordinatorError as error:
            log.warning("pod counts as idle: %s", error, extra={"pod": pod.key})
            found = {}
        amounts = [max(0, min(each, load.ESTIMATE_MAX)) for each in vector(self.policy.names, found)]
        return tuple(amounts), cls is PriorityClass.PROD

    def pre_filter(self, state: LoadState) -> PreFilterResult:
        return PreFilterResult()

    def foresees(self, state: LoadState) -> bool:
        return True

    def filter(self, state: LoadState, rows: Rows) -> ReasonCodes:
        return self.filter_ahead(state, rows, 0)

    def filter_ahead(self, state: LoadState, rows: Rows, ahead: int | I64) -> ReasonCodes:
        if state.is_daemon or rows.size == 0 or not self._metrics:
            return passes(rows)  # where nothing is reported, nothing is limited
        room = at(self._room[state.is_prod].values, rows)
        over = load.is_over(room, state.amounts, ahead)
        codes: ReasonCodes | None = None
        if np.count_nonzero(over):
            first = over.argmax(axis=0)
            codes = np.where(over.any(axis=0), _FIRST_OVER_CODE + 2 * first, 0).astype(np.uint16)
            codes[(codes != 0) & at(self._is_aggregated[state.is_prod].values, rows)] += 1
        if self.policy.args.filter_expired_node_metrics:
            is_expired = at(self._is_expired.values, rows)
            if np.count_nonzero(is_expired):
                is_judged = at(self._is_judged[state.is_prod].values, rows)
                codes = np.zeros(rows.size, np.uint16) if codes is None else codes
                passes_expired = self.policy.args.enable_schedule_when_node_metrics_expired
                codes[is_expired & is_judged] = 0 if passes_expired else _EXPIRED_CODE
        codes = self._interference.refuse(state.neighbour, rows, codes)
        return passes(rows) if codes is None else codes

    def refusal(self, state: LoadState, code: int) -> Status:
        if code == _EXPIRED_CODE:
            return EXPIRED
        if (found := self._interference.refusal(code)) is not None:
            return found
        index, is_aggregated = divmod(code - _FIRST_OVER_CODE, 2)
        how = "aggregated usage" if is_aggregated else "usage"
        return unschedulable(f"node(s) {self.policy.names[index]} {how} exceed threshold")

    def facts(self, state: LoadState, row: int) -> tuple[str, ...]:
        if state.is_daemon:
            return ("pods of DaemonSets are not judged",)
        found, interference = self._judged(state, row), self._interference.facts(state.neighbour, row)
        if found is None:
            return ("its usage is not known", *interference)
        old = ("the report is expired",) if self._is_expired.values[row] else ()
        return (*old, *judgement.facts(found), *interference)

    def reliefs(self, state: LoadState, rows: Rows) -> list[Relief]:
        name_of = self.handle.table.name_of
        if self.policy.args.filter_expired_node_metrics:
            rows = rows[~self._is_expired.values[rows]]  # these wait for a report
        nodes = ((row, name_of(row), self._judged(state, row)) for row in rows.tolist())
        by_usage = judgement.reliefs((row, name, found) for row, name, found in nodes if found is not None)
        return [*by_usage, *self._interference.reliefs(state.neighbour, rows)]

    def _judged(self, state: LoadState, row: int) -> judgement.JudgedNode | None:
        estimated = tuple(state.amounts[:, 0].tolist())
        node_load, rules = self._load_at(row), self._rules_at(row)
        return judgement.judged(self.policy.names, node_load, rules, estimated, is_prod=state.is_prod)

    def score(self, state: LoadState, rows: Rows) -> Scores:
        return self.score_ahead(state, rows, 0)

    def score_ahead(self, state: LoadState, rows: Rows, ahead: int | I64) -> Scores:
        if not self._metrics:
            return no_points(rows)  # nothing is known to be left on any node
        by_prod = state.is_prod and self.policy.args.score_according_prod_usage
        left = at(self._left[by_prod].values, rows)
        divisor = at(self._capacity.values, rows)
        free = left - state.amounts * (ahead + 1)
        weights, dominant = self.policy.weights, self.policy.args.dominant_resource_weight
        scores = load.usage_score(free, divisor, weights, dominant)
        is_expired = at(self._is_expired.values, rows)
        if np.count_nonzero(is_expired):
            scores[is_expired] = 0
        return self._interference.lower(state.neighbour, rows, scores)

    # Time

    def refresh(self, now_s: float) -> None:
        """Reports grow old, and the interference that they say fades, without any event."""
        self._interference_changed(self._interference.refresh(now_s))
        if now_s < self._next_expiry_s:
            return
        expires_s = self._expires_s.values
        due = (expires_s <= now_s) & ~self._is_expired.values
        self._is_expired.values[due] = True
        later = expires_s[(expires_s > now_s) & np.isfinite(expires_s)]
        self._next_expiry_s = float(later.min(initial=np.inf))
        for row in np.flatnonzero(due).tolist():
            self.handle.table.changes.add(row, RowChange.USAGE)
            if self.policy.args.enable_schedule_when_node_metrics_expired:
                self.handle.happened(QueueingEvent(ClusterEvent.NODE_METRIC_UPDATED, row))

    # NodeMetrics

    def set_metric(self, old: NodeMetric | None, new: NodeMetric | None) -> None:
        """Take in what is reported of a node; None when nothing was before, or is any more."""
        name = newest(old, new).metadata.name
        row = self.handle.table.row_of(name)
        if new is not None:
            self._metrics[name] = new
            if row is not None:
                self._apply_metric(row, new)
        else:
            self._metrics.pop(name, None)
            self._updated_s.pop(name, None)
            self._drop_metric(row, name)
        if row is not None:
            self.handle.changed(METRIC_EVENTS, old, new, row)

    def _interference_changed(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.handle.table.changes.add(row, RowChange.USAGE)
            self.handle.happened(QueueingEvent(ClusterEvent.NODE_METRIC_UPDATED, row))

    def _drop_metric(self, row: int | None, name: str) -> None:
        self._interference_changed(self._interference.forget(row, name, self.handle.clock.now()))
        if row is not None:
            self._taken.pop(row, None)
            self._load_at(row).set_report(None, include_system=False)
            self._write_usage(row)

    def _apply_metric(self, row: int, metric: NodeMetric) -> None:
        self._taken[row] = metric
        name = metric.metadata.name
        self._interference_changed(self._interference.reported(row, metric, self.handle.clock.now()))
        try:
            report = load.read_report(metric, self.policy.names, self._updated_s.get(name, NEVER_S))
        except (KoordinatorError, ValueError) as error:
            # The last readable report stays, and will expire.
            log.warning("NodeMetric invalid: %s", error, extra={"node": name, "error": str(error)})
            return
        self._updated_s[name] = report.updated_s
        self._load_at(row).set_report(report, include_system=self.policy.args.prod_usage_include_sys)
        self._write_usage(row)

    # The table's rows

    def node_changed(self, row: int, node: Node) -> None:
        rules = self._rules[row] = self._rules_by_node.of(node)
        is_aggregated = rules.aggregation is not None
        self._is_aggregated[False].values[row] = is_aggregated
        self._is_aggregated[True].values[row] = is_aggregated and not rules.has_prod_limits
        self._capacity.values[:, row] = [max(amount, 1) for amount in rules.capacity]
        metric, taken = self._metrics.get(node.metadata.name), self._taken.get(row)
        if metric is None and taken is not None:
            self._drop_metric(row, node.metadata.name)  # it went while the node was away
            return
        if metric is not None and metric is not taken:
            self._apply_metric(row, metric)
        self._write_usage(row)

    def row_freed(self, row: int) -> None:
        self._loads.pop(row, None)
        self._rules.pop(row, None)
        self._taken.pop(row, None)

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        """Add the pod to its row; do not log what an evaluation foresees, as the table logs the pod itself."""
        self._interference.count(row, pod, 1)
        if pod_labels.is_reserve_pod(pod.pod.metadata.annotations):
            self.handle.table.changes.add(row, RowChange.USAGE)  # less than was foreseen: it uses nothing
            return
        estimated, is_prod = self._last_facts(pod)
        found = load.assigned_pod(pod.pod, estimated, is_prod, self.policy.args, self.handle.clock.now())
        node_load = self._load_at(row)
        if (share := node_load.set_pod(pod.uid, found)) is not None:
            self._write_sums(row, node_load)
            if not node_load.counts_in_full(found, share):
                self.handle.table.changes.add(row, RowChange.USAGE)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        if pod_labels.is_reserve_pod(new.pod.metadata.annotations):
            return
        known = self._load_at(row).pod(new.uid)
        if known is not None and load.is_same_to_us(old, new):
            return
        assigned_s = known.since_s if known is not None else self.handle.clock.now()
        estimated, is_prod = self._last_facts(new)
        found = load.assigned_pod(new.pod, estimated, is_prod, self.policy.args, assigned_s)
        if self._load_at(row).set_pod(new.uid, found) is not None:
            self._write_usage(row)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        self._interference.count(row, pod, -1)
        if self._load_at(row).remove_pod(pod.uid):
            self._write_usage(row)

    @contextlib.contextmanager
    def aside(self, pod: PodInfo, row: int) -> Iterator[str]:
        """Without what was measured of the pod, and without its estimate."""
        node_load = self._loads.get(row)
        if node_load is None or node_load.pod(pod.uid) is None:
            yield ""
            return
        rules = self._rules_at(row)
        by_percentile = rules.aggregation is not None or self.policy.score_aggregation is not None
        self._loads[row], rest = node_load.without(
            pod.uid, include_system=self.policy.args.prod_usage_include_sys, by_percentile=by_percentile
        )
        self._write_usage(row)
        try:
            yield rest
        finally:
            self._loads[row] = node_load
            self._write_usage(row)

    def _load_at(self, row: int) -> NodeLoad:
        found = self._loads.get(row)
        if found is None:
            found = self._loads[row] = NodeLoad(len(self.policy.names))
        return found

    def load_of(self, node_name: str) -> NodeLoad | None:
        """Return the bookkeeping of a node, for explanations."""
        row = self.handle.table.row_of(node_name)
        return None if row is None else self._loads.get(row)

    def endpoints(self) -> tuple[Endpoint, ...]:
        def node(request: ApiRequest) -> ApiAnswer:
            name = request.path["name"]
            row, found = self.handle.table.row_of(name), self.load_of(name)
            if row is None or found is None:
                return ApiAnswer({})
            return ApiAnswer(judgement.describe(found, self.handle.table.pods_at(row), self.policy.names))

        return (Endpoint("node/{name}", node),)

    def _write_usage(self, row: int) -> None:
        """Update the columns that follow from a node's rules, report and pods."""
        node_load = self._load_at(row)
        if node_load.report is not None or self._expires_s.values.item(row) != np.inf:
            self._write_report(
                row, node_load
            )  # else there never was one, and the columns are as they were made
        self.handle.table.changes.add(row, RowChange.USAGE)

    def _write_report(self, row: int, node_load: NodeLoad) -> None:
        rules, report = self._rules_at(row), node_load.report
        self._write_sums(row, node_load)
        self._is_judged[False].values[row] = report is not None and rules.has_limits
        self._is_judged[True].values[row] = report is not None and (rules.has_limits or rules.has_prod_limits)
        expires_s = np.inf
        if report is not None:
            updated_s = report.updated_s if report.is_dated else NEVER_S
            expires_s = updated_s + self.policy.args.node_metric_expiration_seconds
        self._expires_s.values[row] = expires_s
        self._is_expired.values[row] = expires_s <= self.handle.clock.now()
        if not self._is_expired.values[row]:
            self._next_expiry_s = min(self._next_expiry_s, expires_s)

    def _write_sums(self, row: int, node_load: NodeLoad) -> None:
        """Update the columns that change with each pod."""
        rules, report = self._rules_at(row), node_load.report
        if report is None or report.node_usage is None:
            for column in self._room:
                column.values[:, row] = UNLIMITED
            for column in self._left:
                column.values[:, row] = 0
            return
        existing = node_load.existing()
        judged = existing if rules.aggregation is None else node_load.existing_aggregated(rules.aggregation)
        scored = existing
        if self.policy.score_aggregation is not None:
            scored = node_load.existing_aggregated(self.policy.score_aggregation)
        room, prod_room, left = self._room[False].values, self._room[True].values, self._left[False].values
        for index, limit in enumerate(rules.limits):
            own_room = _room(limit, judged[index])
            room[index, row] = own_room
            if not rules.has_prod_limits:
                prod_room[index, row] = own_room
            # Usage below zero, which only a faulty report says, would score more than 100.
            left[index, row] = rules.capacity[index] - max(0, scored[index])
        if rules.has_prod_limits or self.policy.args.score_according_prod_usage:
            self._write_prod_sums(row, node_load.existing_prod(), rules)

    def _write_prod_sums(self, row: int, existing: list[int], rules: NodeLoadRules) -> None:
        for index, limit in enumerate(rules.prod_limits):
            if rules.has_prod_limits:
                self._room[True].values[index, row] = _room(limit, existing[index])
            self._left[True].values[index, row] = rules.capacity[index] - max(0, existing[index])

    def _rules_at(self, row: int) -> NodeLoadRules:
        """Return the rules of a row; those of a node without capacity where only pods are known."""
        found = self._rules.get(row)
        return self._nobody if found is None else found


def _room(limit: int | None, used: int) -> int:
    """Return what is left within a limit, within 64 bits: many pods may each count as much as can be."""
    return UNLIMITED if limit is None else max(limit - used, -UNLIMITED)
