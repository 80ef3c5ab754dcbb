"""`LowNodeLoadArgs`. Source: behaviour/descheduler 6.1."""

import math

import msgspec

from koordinator.api import duration, resources
from koordinator.api.affinity import LabelSelector
from koordinator.api.meta import ViewPart
from koordinator.descheduler.config import checks
from koordinator.descheduler.pod_filter import check_namespaces

DEFAULT_POOL = "__default_node_pool__"
ANOMALY_TIMEOUT_S = 60.0
ABNORMALITIES = 5
NORMALITIES = 3

Thresholds = dict[str, float]
"""Resource name → percent."""


class AnomalyCondition(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time for which a node must be hot before it counts; a counter of 0 is one that was not given."""

    timeout: str | None = None
    consecutive_abnormalities: int = 0
    consecutive_normalities: int = 0

    @property
    def timeout_s(self) -> float:
        """Return how long an anomaly lasts at most; 60 unless more than 0 is said."""
        given_s = checks.seconds(self.timeout, "anomalyCondition.timeout") if self.timeout else 0.0
        return given_s if given_s > 0 else ANOMALY_TIMEOUT_S


class NodePool(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that are balanced among each other, and by which thresholds."""

    name: str = ""
    node_selector: LabelSelector | None = None
    use_deviation_thresholds: bool = False
    low_thresholds: Thresholds | None = None
    high_thresholds: Thresholds | None = None
    prod_low_thresholds: Thresholds | None = None
    prod_high_thresholds: Thresholds | None = None
    resource_weights: dict[str, int] | None = None
    anomaly_condition: AnomalyCondition | None = None


class PlanArgs(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plan mode: the pods of a cycle are chosen together, and moved to nodes that the scheduler accepts for them.

    `scheduler_url` is where the scheduler answers; in `koordinator up` it is known. `scheduler_ca_file` has the
    authorities that its certificate is checked by, empty: those of the system.
    """

    scheduler_url: str = msgspec.field(name="schedulerURL", default="")
    scheduler_ca_file: str = msgspec.field(name="schedulerCAFile", default="")


class LowNodeLoadArgs(checks.MovingArgs, frozen=True, kw_only=True):
    """The options that say when nodes are hot or cold, and which pods may move."""

    number_of_nodes: int = 0
    node_metric_expiration_seconds: int = 180
    use_deviation_thresholds: bool = False
    low_thresholds: Thresholds | None = None
    high_thresholds: Thresholds | None = None
    prod_low_thresholds: Thresholds | None = None
    prod_high_thresholds: Thresholds | None = None
    resource_weights: dict[str, int] = {}
    anomaly_condition: AnomalyCondition | None = None
    detector_cache_timeout: str = "5m0s"
    node_pools: list[NodePool] = []
    plan: PlanArgs | None = None


def complete(args: LowNodeLoadArgs) -> LowNodeLoadArgs:
    """Return the arguments with defaults, pools filled up from the top level."""
    weights = dict(args.resource_weights)
    for name in (
        resources.CPU,
        resources.MEMORY,
        *(args.low_thresholds or {}),
        *(args.high_thresholds or {}),
    ):
        if weights.get(name, 0) <= 0:
            weights[name] = 1
    anomaly = args.anomaly_condition or AnomalyCondition(timeout="1m0s")
    anomaly = _with_counters(anomaly, ABNORMALITIES, NORMALITIES)
    filled = msgspec.structs.replace(args, resource_weights=weights, anomaly_condition=anomaly)
    pools = [_complete_pool(pool, filled, anomaly) for pool in args.node_pools]
    return msgspec.structs.replace(filled, node_pools=pools)


def pools(args: LowNodeLoadArgs) -> list[NodePool]:
    """Return the pools in processing order: first the one that the top level forms. `args` are completed."""
    implicit = NodePool(
        name=DEFAULT_POOL,
        node_selector=args.node_selector,
        use_deviation_thresholds=args.use_deviation_thresholds,
        low_thresholds=args.low_thresholds,
        high_thresholds=args.high_thresholds,
        prod_low_thresholds=args.prod_low_thresholds,
        prod_high_thresholds=args.prod_high_thresholds,
        resource_weights=args.resource_weights,
        anomaly_condition=args.anomaly_condition,
    )
    return [implicit, *args.node_pools]


def remembered_for(args: LowNodeLoadArgs, interval_s: float) -> LowNodeLoadArgs:
    """Return the arguments with detectors kept at least from one cycle to the next. `args` are checked."""
    if duration.parse(args.detector_cache_timeout) >= interval_s:
        return args
    return msgspec.structs.replace(args, detector_cache_timeout=duration.text_of(interval_s))


def check(args: LowNodeLoadArgs) -> None:
    """Raises: ProtocolError."""
    checks.require(args.number_of_nodes >= 0, "numberOfNodes", f"{args.number_of_nodes} is below 0")
    expiration_s = args.node_metric_expiration_seconds
    checks.require(expiration_s > 0, "nodeMetricExpirationSeconds", f"{expiration_s} is not above 0")
    check_namespaces(args.evictable_namespaces, "evictableNamespaces")
    checks.pod_selectors(args.pod_selectors)
    checks.seconds(args.detector_cache_timeout, "detectorCacheTimeout")
    if args.plan is not None and (url := args.plan.scheduler_url):
        checks.require(url.startswith(("http://", "https://")), "plan.schedulerURL", f"{url!r} is no URL")
    for index, pool in enumerate(pools(args)):
        _check_pool(pool, f"nodePools[{index - 1}]." if index else "")


def _complete_pool(pool: NodePool, top: LowNodeLoadArgs, anomaly: AnomalyCondition) -> NodePool:
    own = pool.anomaly_condition
    if own is not None:
        anomaly = _with_counters(own, anomaly.consecutive_abnormalities, anomaly.consecutive_normalities)
    return msgspec.structs.replace(
        pool,
        low_thresholds=top.low_thresholds if pool.low_thresholds is None else pool.low_thresholds,
        high_thresholds=top.high_thresholds if pool.high_thresholds is None else pool.high_thresholds,
        prod_low_thresholds=(
            top.prod_low_thresholds if pool.prod_low_thresholds is None else pool.prod_low_thresholds
        ),
        prod_high_thresholds=(
            top.prod_high_thresholds if pool.prod_high_thresholds is None else pool.prod_high_thresholds
        ),
        resource_weights=top.resource_weights if pool.resource_weights is None else pool.resource_weights,
        anomaly_condition=anomaly,
    )


def _with_counters(own: AnomalyCondition, abnormal: int, normal: int) -> AnomalyCondition:
    return msgspec.structs.replace(
        own,
        consecutive_abnormalities=own.consecutive_abnormalities or abnormal,
        consecutive_normalities=own.consecutive_normalities or normal,
    )


def _check_pool(pool: NodePool, prefix: str) -> None:
    checks.selector(pool.node_selector, f"{prefix}nodeSelector")
    low, high = pool.low_thresholds or {}, pool.high_thresholds or {}
    prod_low, prod_high = pool.prod_low_thresholds or {}, pool.prod_high_thresholds or {}
    for field, thresholds in (
        ("lowThresholds", low),
        ("highThresholds", high),
        ("prodLowThresholds", prod_low),
        ("prodHighThresholds", prod_high),
    ):
        for name, percent in thresholds.items():
            where = f"{prefix}{field}.{name}"
            checks.require(0 <= percent < math.inf, where, f"{percent} is not a number from 0")
    _check_order(low, high, f"{prefix}lowThresholds", "highThresholds")
    _check_order(prod_low, prod_high, f"{prefix}prodLowThresholds", "prodHighThresholds")
    _check_order(prod_high, high, f"{prefix}prodHighThresholds", "highThresholds")
    anomaly = pool.anomaly_condition
    if anomaly is not None:
        field = f"{prefix}anomalyCondition"
        checks.require(
            anomaly.consecutive_abnormalities > 0, field, "consecutiveAbnormalities is not above 0"
        )
        checks.require(anomaly.consecutive_normalities > 0, field, "consecutiveNormalities is not above 0")
        checks.seconds(anomaly.timeout or "0s", f"{field}.timeout")


def _check_order(small: Thresholds, large: Thresholds, field: str, other: str) -> None:
    for name, percent in small.items():
        most = large.get(name)
        checks.require(
            most is None or percent <= most, f"{field}.{name}", f"{percent} is above {most} in {other}"
        )
