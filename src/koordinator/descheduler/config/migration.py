"""`MigrationControllerArgs`. Source: behaviour/descheduler 7.1."""

import enum
from collections.abc import Mapping

import msgspec

from koordinator.api import duration, label_selector
from koordinator.api.affinity import LabelSelector
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import compile_selector
from koordinator.api.meta import ViewPart
from koordinator.api.pod_migration import DeleteOptions
from koordinator.api.scalars import ScalarError, parse_float
from koordinator.api.schema import IntOrString
from koordinator.descheduler.config import checks
from koordinator.descheduler.migration import object_limiter
from koordinator.descheduler.pod_filter import SYSTEM_CRITICAL_PRIORITY, Namespaces, check_namespaces

RESERVATION_FIRST = "ReservationFirst"
EVICT_DIRECTLY = "EvictDirectly"
MODES = (RESERVATION_FIRST, EVICT_DIRECTLY)

EVICTION = "Eviction"
DELETE = "Delete"
SOFT_EVICTION = "SoftEviction"
EVICTION_POLICIES = (EVICTION, DELETE, SOFT_EVICTION)


class SkippableGate(enum.StrEnum):
    """Names in `skipEvictionGates`."""

    MAX_MIGRATING_GLOBALLY = "MaxMigratingGlobally"
    MAX_MIGRATING_PER_NODE = "MaxMigratingPerNode"
    MAX_MIGRATING_PER_NAMESPACE = "MaxMigratingPerNamespace"
    MAX_MIGRATING_PER_WORKLOAD = "MaxMigratingPerWorkload"
    MAX_UNAVAILABLE_PER_WORKLOAD = "MaxUnavailablePerWorkload"
    EXPECTED_REPLICAS = "ExpectedReplicas"
    NAMESPACES = "Namespaces"
    LABEL_SELECTOR = "LabelSelector"
    PRIORITY_THRESHOLD = "PriorityThreshold"
    BARE_PODS = "BarePods"
    LOCAL_STORAGE = "LocalStorage"
    SYSTEM_CRITICAL = "SystemCritical"
    PVC = "PVC"
    NODE_FIT = "NodeFit"


class PriorityThreshold(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pods of this priority and above are spared; `name` is of a PriorityClass."""

    value: int | None = None
    name: str = ""


class LimiterArgs(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of `objectLimiters`; duration 0 switches it off."""

    duration: str = "0s"
    max_migrating: IntOrString | None = None
    burst: int = 0


class ArbitrationArgs(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`enabled` is accepted and never consulted, as in the reference."""

    enabled: bool = True
    interval: str = "500ms"


class MigrationControllerArgs(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of migration; see behaviour/descheduler 7.1, for each member."""

    dry_run: bool = False
    max_concurrent_reconciles: int = 1
    evict_failed_bare_pods: bool = False
    evict_all_bare_pods: bool = False
    evict_local_storage_pods: bool = False
    evict_system_critical_pods: bool = False
    ignore_pvc_pods: bool = False
    priority_threshold: PriorityThreshold | None = None
    label_selector: LabelSelector | None = None
    namespaces: Namespaces | None = None
    node_fit: bool = False
    node_selector: str = ""
    skip_eviction_gates: list[str] = []
    max_migrating_globally: int | None = None
    max_migrating_per_node: int | None = 2
    max_migrating_per_namespace: int | None = None
    max_migrating_per_workload: IntOrString | None = None
    max_unavailable_per_workload: IntOrString | None = None
    skip_check_expected_replicas: bool = False
    object_limiters: dict[str, LimiterArgs] = {}
    default_job_mode: str = ""
    default_job_ttl: str = "5m0s"
    scheduler_names: list[str] = []
    evict_qps: int | float | str = 10
    evict_burst: int = 1
    eviction_policy: str = ""
    default_delete_options: DeleteOptions | None = None
    arbitration_args: ArbitrationArgs = ArbitrationArgs()


DEFAULT_LIMITERS: Mapping[str, LimiterArgs] = {object_limiter.WORKLOAD: LimiterArgs(duration="5m0s")}


def complete(args: MigrationControllerArgs) -> MigrationControllerArgs:
    """Return the arguments with defaults where an empty member counts as absent."""
    return msgspec.structs.replace(
        args,
        object_limiters=args.object_limiters or dict(DEFAULT_LIMITERS),
        default_job_mode=args.default_job_mode or RESERVATION_FIRST,
        scheduler_names=args.scheduler_names or ["koord-scheduler"],
        eviction_policy=args.eviction_policy or EVICTION,
    )


def allowances(args: MigrationControllerArgs) -> dict[str, object_limiter.Allowance]:
    """Return the object limiters in seconds. `args` are checked."""
    return {
        kind: object_limiter.Allowance(
            duration_s=duration.parse(one.duration), max_migrating=one.max_migrating, burst=one.burst
        )
        for kind, one in args.object_limiters.items()
    }


def qps(args: MigrationControllerArgs) -> float:
    """Evictions per second over all. Raises: ScalarError."""
    return parse_float(args.evict_qps) if isinstance(args.evict_qps, str) else float(args.evict_qps)


def check(args: MigrationControllerArgs) -> None:
    """Raises: ProtocolError."""
    _check_numbers(args)
    check_namespaces(args.namespaces, "namespaces")
    checks.selector(args.label_selector, "labelSelector")
    try:
        compile_selector(label_selector.of_text(args.node_selector))
    except ProtocolError as error:
        raise ProtocolError("", "nodeSelector", error.reason) from error
    known = set(SkippableGate)
    for gate in args.skip_eviction_gates:
        checks.require(
            gate in known, "skipEvictionGates", f"{gate!r} is no gate ({', '.join(sorted(known))})"
        )
    checks.require(args.default_job_mode in MODES, "defaultJobMode", f"expected one of {', '.join(MODES)}")
    policies = ", ".join(EVICTION_POLICIES)
    checks.require(args.eviction_policy in EVICTION_POLICIES, "evictionPolicy", f"expected one of {policies}")
    for kind, one in args.object_limiters.items():
        field = f"objectLimiters.{kind}"
        checks.require(kind in object_limiter.TYPES, field, "expected workload or namespace")
        checks.require(checks.seconds(one.duration, f"{field}.duration") >= 0, field, "duration is below 0")
        checks.require(one.burst >= 0, f"{field}.burst", "is below 0")
        _check_percent(one.max_migrating, f"{field}.maxMigrating")


def _check_numbers(args: MigrationControllerArgs) -> None:
    for field, number in (
        ("maxConcurrentReconciles", args.max_concurrent_reconciles),
        ("evictBurst", args.evict_burst),
    ):
        checks.require(number > 0, field, f"{number} is not above 0")
    for field, limit in (
        ("maxMigratingGlobally", args.max_migrating_globally),
        ("maxMigratingPerNode", args.max_migrating_per_node),
        ("maxMigratingPerNamespace", args.max_migrating_per_namespace),
    ):
        checks.require(limit is None or limit >= 0, field, f"{limit} is below 0")
    _check_percent(args.max_migrating_per_workload, "maxMigratingPerWorkload")
    _check_percent(args.max_unavailable_per_workload, "maxUnavailablePerWorkload")
    checks.require(checks.seconds(args.default_job_ttl, "defaultJobTTL") >= 0, "defaultJobTTL", "is below 0")
    interval_s = checks.seconds(args.arbitration_args.interval, "arbitrationArgs.interval")
    checks.require(interval_s > 0, "arbitrationArgs.interval", "is not above 0")
    try:
        checks.require(qps(args) > 0, "evictQPS", f"{args.evict_qps} is not above 0")
    except ScalarError as error:
        checks.require(False, "evictQPS", str(error))
    threshold = args.priority_threshold
    if threshold is not None and threshold.value is not None and not args.evict_system_critical_pods:
        is_low = threshold.value <= SYSTEM_CRITICAL_PRIORITY
        checks.require(is_low, "priorityThreshold.value", f"is above {SYSTEM_CRITICAL_PRIORITY}")


def _check_percent(given: IntOrString | None, field: str) -> None:
    if isinstance(given, str):
        checks.require(object_limiter.percent(given, field) >= 0, field, f"{given} is below 0")
