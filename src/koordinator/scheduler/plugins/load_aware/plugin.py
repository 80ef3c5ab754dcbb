"""The extension points of LoadAwareScheduling. Source: spec 03, part I.

Everything that Filter and Score need of a node is in columns that change with events: they add the pod's
estimate to the right view of the existing usage and compare.
"""

import logging
from collections.abc import Hashable

import msgspec
import numpy as np

from koordinator.api import priority
from koordinator.api.annotations import node as node_annotations
from koordinator.api.core import Node
from koordinator.api.errors import KoordinatorError
from koordinator.api.node_metric import NodeMetric
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import ResourceList
from koordinator.api.resource_vector import I64
from koordinator.scheduler.changes import Change
from koordinator.scheduler.events import ClusterEvent, Happening
from koordinator.scheduler.framework import (
    FilterPlugin,
    Handle,
    PreFilterPlugin,
    PreFilterResult,
    ReasonCodes,
    ReservePlugin,
    ScorePlugin,
    Scores,
    Watch,
)
from koordinator.scheduler.nodes import ColumnSpec, RowKeeper, Rows, at
from koordinator.scheduler.plugins.load_aware import load, usage
from koordinator.scheduler.plugins.load_aware.args import Aggregation, LoadAwareArgs, LoadAwarePolicy, vector
from koordinator.scheduler.plugins.load_aware.estimate import estimate
from koordinator.scheduler.plugins.load_aware.load import NEVER_S, NodeLoad
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.status import Status, unschedulable

log = logging.getLogger(__name__)

RECENT_MAX = 16_384
"""Pods whose estimate is remembered: more than that are rarely between queue and node."""

EXPIRED = unschedulable("node(s) nodeMetric expired")
_EXPIRED_CODE = 1
_FIRST_OVER_CODE = 2  # + 2 × index of the resource, + 1 when by a percentile


class LoadState(msgspec.Struct, frozen=True):
    """What a pod will use, as a column (resources, 1), and by which rules it is judged."""

    estimate: I64
    is_prod: bool
    is_daemon: bool


class LoadAwareScheduling(
    PreFilterPlugin[LoadState],
    FilterPlugin[LoadState],
    ScorePlugin[LoadState],
    ReservePlugin[LoadState],
    RowKeeper,
):
    """Reserve and Unreserve need no code of their own: the table tells about every pod that counts on a
    row, assumed ones included."""

    name = "LoadAwareScheduling"
    args = LoadAwareArgs
    reads = Change.NODE | Change.PODS | Change.USAGE
    in_trials = False  # eviction does not lower what was measured
    wakes_on = (
        ClusterEvent.ASSIGNED_POD_DELETED,
        ClusterEvent.NODE_METRIC_ADDED,
        ClusterEvent.NODE_METRIC_UPDATED,
        ClusterEvent.NODE_METRIC_DELETED,
        # Upstream does not listen to these, and leaves pods waiting for minutes.
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_ALLOCATABLE,
        ClusterEvent.NODE_ANNOTATIONS,
    )

    def __init__(self, args: LoadAwareArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self.policy = LoadAwarePolicy.of(args)
        self._loads: dict[int, NodeLoad] = {}
        self._recent: dict[str, tuple[PodInfo, tuple[int, ...], bool]] = {}
        self._metrics: dict[str, NodeMetric] = {}
        self._updated_s: dict[str, float] = {}
        self._aggregations: dict[int, Aggregation | None] = {}
        self._next_expiry_s = float("inf")
        columns = handle.columns
        self._capacity = columns["capacity"]
        self._existing = columns["existing"]
        self._existing_prod = columns["existingProd"]
        self._existing_filter = columns["existingFilter"]
        self._existing_score = columns["existingScore"]
        self._thresholds = columns["thresholds"]
        self._prod_thresholds = columns["prodThresholds"]
        self._is_aggregated = columns["isAggregated"]
        self._has_metric = columns["hasMetric"]
        self._has_usage = columns["hasUsage"]
        self._expires_s = columns["expires"]
        self._is_expired = columns["isExpired"]
        handle.watch(
            Watch(
                NodeMetric,
                on_add=lambda metric: self.set_metric(metric, ClusterEvent.NODE_METRIC_ADDED),
                on_update=lambda _, metric: self.set_metric(metric, ClusterEvent.NODE_METRIC_UPDATED),
                on_delete=self.remove_metric,
            )
        )

    @classmethod
    def columns_of(cls, args: LoadAwareArgs) -> tuple[ColumnSpec, ...]:
        width = len(LoadAwarePolicy.of(args).names)
        vectors = (
            "capacity",
            "existing",
            "existingProd",
            "existingFilter",
            "existingScore",
            "thresholds",
            "prodThresholds",
        )
        flags = ("isAggregated", "hasMetric", "hasUsage", "isExpired")
        return (
            *(ColumnSpec(name, np.int64, width) for name in vectors),
            *(ColumnSpec(name, np.bool_, fill=False) for name in flags),
            ColumnSpec("expires", np.float64, fill=np.inf),
        )

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        estimated, is_prod = self._facts(pod)
        return estimated, is_prod, _is_daemon(pod)

    def prepare(self, pod: PodInfo) -> LoadState:
        estimated, is_prod = self._facts(pod)
        return LoadState(
            estimate=np.array(estimated, np.int64)[:, np.newaxis],
            is_prod=is_prod,
            is_daemon=_is_daemon(pod),
        )

    def _facts(self, pod: PodInfo) -> tuple[tuple[int, ...], bool]:
        """The pod's estimate and whether it is prod; remembered from queueing to assigning."""
        known = self._recent.get(pod.uid)
        if known is not None and known[0] is pod:
            return known[1], known[2]
        cls, allow_custom = priority.default(pod.pod), self.policy.args.allow_customize_estimation
        try:
            found = estimate(pod.pod, cls, self.policy.factors, allow_custom=allow_custom)
        except KoordinatorError as error:
            log.warning("pod counts as idle: %s", error, extra={"pod": pod.key})
            found = {}
        estimated = vector(self.policy.names, found)
        is_prod = cls is PriorityClass.PROD
        if len(self._recent) >= RECENT_MAX:
            del self._recent[next(iter(self._recent))]
        self._recent[pod.uid] = (pod, estimated, is_prod)
        return estimated, is_prod

    def pre_filter(self, state: LoadState) -> PreFilterResult:
        return PreFilterResult()

    def filter(self, state: LoadState, rows: Rows) -> ReasonCodes:
        if state.is_daemon:
            return np.zeros(rows.size, np.uint16)
        thresholds = at(self._thresholds.values, rows)
        existing = at(self._existing_filter.values, rows)
        is_aggregated = at(self._is_aggregated.values, rows)
        if state.is_prod:
            prod_thresholds = at(self._prod_thresholds.values, rows)
            by_prod = prod_thresholds.any(axis=0)
            thresholds = np.where(by_prod, prod_thresholds, thresholds)
            existing = np.where(by_prod, at(self._existing_prod.values, rows), existing)
            is_aggregated = is_aggregated & ~by_prod
        is_judged = thresholds.any(axis=0) & at(self._has_metric.values, rows)
        over = usage.first_over_threshold(
            existing + state.estimate, at(self._capacity.values, rows), thresholds
        )
        codes = np.where(over >= 0, _FIRST_OVER_CODE + 2 * over + is_aggregated, 0)
        codes[~at(self._has_usage.values, rows)] = 0
        if self.policy.args.filter_expired_node_metrics:
            passes_expired = self.policy.args.enable_schedule_when_node_metrics_expired
            codes[at(self._is_expired.values, rows)] = 0 if passes_expired else _EXPIRED_CODE
        codes[~is_judged] = 0
        return codes.astype(np.uint16)

    def refusal(self, state: LoadState, code: int) -> Status:
        if code == _EXPIRED_CODE:
            return EXPIRED
        index, is_aggregated = divmod(code - _FIRST_OVER_CODE, 2)
        how = "aggregated usage" if is_aggregated else "usage"
        return unschedulable(f"node(s) {self.policy.names[index]} {how} exceed threshold")

    def score(self, state: LoadState, rows: Rows) -> Scores:
        existing = self._existing.values
        if state.is_prod and self.policy.args.score_according_prod_usage:
            existing = self._existing_prod.values
        elif self.policy.score_aggregation is not None:
            existing = self._existing_score.values
        scores = usage.usage_score(
            at(existing, rows) + state.estimate,
            at(self._capacity.values, rows),
            self.policy.weights,
            self.policy.args.dominant_resource_weight,
        )
        is_known = at(self._has_usage.values, rows) & ~at(self._is_expired.values, rows)
        return np.where(is_known, scores, 0)

    # Time

    def refresh(self, now_s: float) -> None:
        """Reports grow old without any event."""
        if now_s < self._next_expiry_s:
            return
        expires_s = self._expires_s.values
        due = (expires_s <= now_s) & ~self._is_expired.values
        self._is_expired.values[due] = True
        later = expires_s[(expires_s > now_s) & np.isfinite(expires_s)]
        self._next_expiry_s = float(later.min(initial=np.inf))
        for row in np.flatnonzero(due).tolist():
            self.handle.table.changes.add(row, Change.USAGE)
            if self.policy.args.enable_schedule_when_node_metrics_expired:
                self.handle.happened(Happening(ClusterEvent.NODE_METRIC_UPDATED, row))

    # NodeMetrics

    def set_metric(self, metric: NodeMetric, event: ClusterEvent) -> None:
        """A node was reported on."""
        name = metric.metadata.name
        self._metrics[name] = metric
        row = self.handle.table.row_of(name)
        if row is not None:
            self._apply_metric(row, metric)
            self.handle.happened(Happening(event, row, None, metric))

    def remove_metric(self, metric: NodeMetric) -> None:
        """The node is not reported on any more."""
        name = metric.metadata.name
        self._metrics.pop(name, None)
        self._updated_s.pop(name, None)
        row = self.handle.table.row_of(name)
        if row is not None:
            self._load_at(row).set_report(None, include_system=False)
            self._write_usage(row)
            self.handle.happened(Happening(ClusterEvent.NODE_METRIC_DELETED, row, metric, None))

    def _apply_metric(self, row: int, metric: NodeMetric) -> None:
        name = metric.metadata.name
        try:
            report = load.read_report(metric, self.policy.names, self._updated_s.get(name, NEVER_S))
        except (KoordinatorError, ValueError) as error:
            # The last readable report stays, and will expire.
            log.warning("NodeMetric not readable: %s", error, extra={"node": name, "error": str(error)})
            return
        self._updated_s[name] = report.updated_s
        self._load_at(row).set_report(report, include_system=self.policy.args.prod_usage_include_sys)
        self._write_usage(row)

    # The table's rows

    def node_changed(self, row: int, node: Node) -> None:
        thresholds = _own_thresholds(node)
        names, policy = self.policy.names, self.policy
        usage_thresholds = policy.usage_thresholds
        if thresholds.usage_thresholds:
            usage_thresholds = vector(names, thresholds.usage_thresholds)
        prod_thresholds = policy.prod_thresholds
        if thresholds.prod_usage_thresholds:
            prod_thresholds = vector(names, thresholds.prod_usage_thresholds)
        aggregated, aggregation = policy.aggregated_thresholds, policy.filter_aggregation
        own = thresholds.aggregated_usage
        if own is not None and own.usage_thresholds and own.usage_aggregation_type:
            aggregated = vector(names, own.usage_thresholds)
            aggregation = Aggregation(own.usage_aggregation_type, own.usage_aggregated_duration or 0.0)
        self._aggregations[row] = aggregation
        self._thresholds.values[:, row] = usage_thresholds if aggregated is None else aggregated
        self._prod_thresholds.values[:, row] = prod_thresholds
        self._is_aggregated.values[row] = aggregated is not None
        self._capacity.values[:, row] = load.read_vector(node_capacity(node), names)
        metric, report = self._metrics.get(node.metadata.name), self._load_at(row).report
        if metric is not None and report is None:
            self._apply_metric(row, metric)
            return
        if metric is None and report is not None:
            self._load_at(row).set_report(None, include_system=False)  # it went while the node was away
        self._write_usage(row)

    def row_freed(self, row: int) -> None:
        self._loads.pop(row, None)
        self._aggregations.pop(row, None)

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        self._count_pod(row, pod, self.handle.clock.now())

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        known = self._load_at(row).pod(new.uid)
        if known is not None and _is_same_to_us(old, new):
            return
        now_s = self.handle.clock.now()
        self._count_pod(row, new, known.since_s if known is not None else now_s)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        if self._load_at(row).remove_pod(pod.uid):
            self._write_usage(row)

    def _count_pod(self, row: int, pod: PodInfo, assigned_s: float) -> None:
        estimated, is_prod = self._facts(pod)
        found = load.assigned_pod(pod.pod, estimated, is_prod, self.policy.args, assigned_s)
        if self._load_at(row).set_pod(pod.uid, found):
            self._write_usage(row)

    def _load_at(self, row: int) -> NodeLoad:
        found = self._loads.get(row)
        if found is None:
            found = self._loads[row] = NodeLoad(len(self.policy.names))
        return found

    def load_of(self, node_name: str) -> NodeLoad | None:
        """The bookkeeping of a node, for explanations."""
        row = self.handle.table.row_of(node_name)
        return None if row is None else self._loads.get(row)

    def _write_usage(self, row: int) -> None:
        """The columns that follow from a node's load."""
        node_load = self._load_at(row)
        report = node_load.report
        existing = node_load.existing()
        self._existing.values[:, row] = existing
        self._existing_prod.values[:, row] = node_load.existing_prod()
        aggregation = self._aggregations.get(row)
        self._existing_filter.values[:, row] = (
            existing if aggregation is None else node_load.existing_aggregated(aggregation)
        )
        if self.policy.score_aggregation is not None:
            self._existing_score.values[:, row] = node_load.existing_aggregated(self.policy.score_aggregation)
        self._has_metric.values[row] = report is not None
        self._has_usage.values[row] = report is not None and report.node_usage is not None
        expires_s = np.inf
        if report is not None:
            expires_s = report.updated_s + self.policy.args.node_metric_expiration_seconds
        self._expires_s.values[row] = expires_s
        self._is_expired.values[row] = expires_s <= self.handle.clock.now()
        if not self._is_expired.values[row]:
            self._next_expiry_s = min(self._next_expiry_s, expires_s)
        self.handle.table.changes.add(row, Change.USAGE)


def node_capacity(node: Node) -> ResourceList:
    """Allocatable as it was before amplification, so that a node is not believed larger than it is."""
    try:
        raw = node_annotations.RAW_ALLOCATABLE.read(node.metadata.annotations)
    except KoordinatorError:
        raw = None  # malformed: the plain amounts count, as documented
    return {**node.status.allocatable, **raw} if raw else node.status.allocatable


def _own_thresholds(node: Node) -> node_annotations.UsageThresholds:
    """What the node's annotation says; a malformed one is ignored, as documented."""
    try:
        found = node_annotations.USAGE_THRESHOLDS.read(node.metadata.annotations, f"Node {node.key}")
    except KoordinatorError as error:
        log.warning("annotation ignored: %s", error, extra={"node": node.key})
        found = None
    return found or node_annotations.UsageThresholds()


def _is_daemon(pod: PodInfo) -> bool:
    return any(owner.kind == "DaemonSet" for owner in pod.pod.metadata.owner_references)


def _is_same_to_us(old: PodInfo, new: PodInfo) -> bool:
    """Whether nothing changed that estimates, deadlines or the class depend on."""
    a, b = old.pod, new.pod
    return (
        a.spec == b.spec
        and a.status.conditions == b.status.conditions
        and a.metadata.labels == b.metadata.labels
        and a.metadata.annotations == b.metadata.annotations
    )
