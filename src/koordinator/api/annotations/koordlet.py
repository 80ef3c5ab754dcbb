"""Annotations by which pods configure the node agent: bursting, QoS, network, cache, out-of-memory score, eviction,
latency."""

import re
from collections.abc import Mapping

import msgspec

from koordinator.api import labels, quantity, scalars
from koordinator.api.annotations.codec import Annotation, Empty, Payload, Time
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import ResourceList
from koordinator.api.slo_qos import CPUQOS, BlockConfig, MemoryQOS


class ContainerResources(Payload, frozen=True, kw_only=True):
    """Batch requests and limits of one container."""

    limits: ResourceList = {}
    requests: ResourceList = {}


class ExtendedResourceSpec(Payload, frozen=True, kw_only=True):
    """Container name → its batch amounts."""

    containers: dict[str, ContainerResources] = {}


EXTENDED_RESOURCE_SPEC = Annotation(labels.EXTENDED_RESOURCE_SPEC, ExtendedResourceSpec)


GROUP_IDENTITY_MIN, GROUP_IDENTITY_MAX = -1, 2
OOM_SCORE_ADJ_MIN, OOM_SCORE_ADJ_MAX = -1000, 1000


class PodCPUBurst(Payload, frozen=True, kw_only=True):
    """A pod's own burst settings; what is unset comes from the node's."""

    policy: str = ""
    cpu_burst_percent: int | None = None
    cfs_quota_burst_percent: int | None = None
    cfs_quota_burst_period_seconds: int | None = None


class PodCPUQOS(CPUQOS, frozen=True, kw_only=True):
    """A pod's own CPU QoS."""

    def __post_init__(self) -> None:
        identity = self.group_identity
        if identity is not None and not GROUP_IDENTITY_MIN <= identity <= GROUP_IDENTITY_MAX:
            raise ValueError(
                f"groupIdentity {identity} is not within {GROUP_IDENTITY_MIN} to {GROUP_IDENTITY_MAX}"
            )


class PodMemoryQOS(MemoryQOS, frozen=True, kw_only=True):
    """A pod's own memory QoS; `policy` is default (also when empty), none or auto."""

    policy: str = ""


class PodBlkIOQOS(Payload, frozen=True, kw_only=True):
    """A pod's own disk settings."""

    blocks: list[BlockConfig] = []


class _NetworkQOS(Payload, frozen=True, kw_only=True):
    ingress_limit: str | None = None
    egress_limit: str | None = None


class NetworkLimits(msgspec.Struct, frozen=True):
    """Most bytes per second in and out; 0 is no limit."""

    ingress_bytes_per_s: int
    egress_bytes_per_s: int


class Schemata(Payload, frozen=True, kw_only=True):
    """A share of a cache (`range`: from and to, in percent) or of memory bandwidth (`percent`)."""

    percent: int = 0
    range: list[int] = []


class CacheSchemata(Payload, frozen=True, kw_only=True):
    """The share of one cache."""

    cache_id: int = 0
    percent: int = 0
    range: list[int] = []


class ResctrlResource(Payload, frozen=True, kw_only=True):
    """Shares of all caches and of single ones."""

    schemata: Schemata | None = None
    schemata_per_cache: list[CacheSchemata] = []


class Resctrl(Payload, frozen=True, kw_only=True):
    """A pod's own shares of last-level cache and memory bandwidth."""

    llc: ResctrlResource | None = None
    mb: ResctrlResource | None = None


class DeletePreconditions(Payload, frozen=True, kw_only=True):
    """The conditions that must still hold when a deletion happens."""

    uid: str = ""
    resource_version: str = ""


class DeleteOptions(Payload, frozen=True, kw_only=True):
    """The options for deleting the pod."""

    grace_period_seconds: int | None = None
    preconditions: DeletePreconditions | None = None
    orphan_dependents: bool | None = None
    propagation_policy: str = ""
    dry_run: list[str] = []


class OOMScoreRangeError(ProtocolError):
    """An out-of-memory score adjustment that is a number, but none that the kernel takes."""


class SoftEviction(Payload, frozen=True, kw_only=True):
    """A request to whoever owns the pod to move it."""

    timestamp: Time | None = None
    delete_options: DeleteOptions | None = None
    initiator: str = ""
    reason: str = ""


LATENCY_UNITS_S: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
"""Units of durations that an objective's source may tell, in seconds."""
PORT_MAX = 65_535
WINDOW_S_MAX = 300.0
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SCHEMES = ("http", "https")
_OWN_LABELS = frozenset(("le", "quantile"))


class PrometheusSource(Payload, frozen=True, kw_only=True):
    """The histogram or summary of its latency that a pod tells in Prometheus' text format, on its own address."""

    port: int = 0
    path: str = "/metrics"
    scheme: str = "http"
    metric: str = ""
    """Name of the family, without `_bucket`."""
    labels: dict[str, str] = {}
    """Only series with these labels count; all are added up."""
    unit: str = "s"

    def __post_init__(self) -> None:
        if not 1 <= self.port <= PORT_MAX:
            raise ValueError(f"port {self.port} is not within 1 to {PORT_MAX}")
        if not self.path.startswith("/") or not self.path.isprintable() or " " in self.path:
            raise ValueError(f"path {self.path!r} is no path such as /metrics")
        if self.scheme not in _SCHEMES:
            raise ValueError(f"scheme {self.scheme!r} is neither http nor https")
        if not _METRIC_NAME.fullmatch(self.metric):
            raise ValueError(f"metric {self.metric!r} is no name of a metric")
        if own := sorted(_OWN_LABELS & self.labels.keys()):
            raise ValueError(f"labels cannot choose by {own[0]}")
        _check_unit(self.unit)


class AccessLogSource(Payload, frozen=True, kw_only=True):
    """The file, or the socket that takes datagrams, to which a pod writes a line per request, in an emptyDir volume."""

    volume: str = ""
    path: str = ""
    """Relative to the volume."""
    socket: bool = False
    """The agent makes a socket there, and reads a line from each datagram (nginx: `access_log syslog:server=unix:`)."""
    field: str = ""
    """Member of a JSON line that says how long the request took; without, that is the line's last word."""
    unit: str = "s"

    def __post_init__(self) -> None:
        if not self.volume or "/" in self.volume or self.volume in (".", ".."):
            raise ValueError(f"volume {self.volume!r} is no name of a volume")
        if not self.path or any(part in ("", ".", "..") for part in self.path.split("/")):
            raise ValueError(f"path {self.path!r} is no path within the volume")
        _check_unit(self.unit)


class LatencyObjective(Payload, frozen=True, kw_only=True):
    """The promise of a service about its latency, and the place where it tells it."""

    percentile: float = 99.0
    target_milliseconds: float
    window_seconds: float = 5.0
    """Requests of the last so many seconds count."""
    prometheus: PrometheusSource | None = None
    access_log: AccessLogSource | None = None

    def __post_init__(self) -> None:
        if not 0 < self.percentile < 100:
            raise ValueError(f"percentile {self.percentile:g} is not between 0 and 100")
        if self.target_milliseconds <= 0:
            raise ValueError(f"targetMilliseconds {self.target_milliseconds:g} is not above 0")
        if not 1 <= self.window_seconds <= WINDOW_S_MAX:
            raise ValueError(f"windowSeconds {self.window_seconds:g} is not within 1 to {WINDOW_S_MAX:g}")
        if (self.prometheus is None) == (self.access_log is None):
            raise ValueError("say either prometheus or accessLog")


def _check_unit(unit: str) -> None:
    if unit not in LATENCY_UNITS_S:
        raise ValueError(f"unit {unit!r} is none of {', '.join(LATENCY_UNITS_S)}")


CPU_BURST = Annotation(labels.CPU_BURST, PodCPUBurst)
LATENCY_OBJECTIVE = Annotation(labels.LATENCY_OBJECTIVE, LatencyObjective)
CPU_QOS = Annotation(labels.CPU_QOS, PodCPUQOS)
MEMORY_QOS = Annotation(labels.MEMORY_QOS, PodMemoryQOS)
BLKIO_QOS = Annotation(labels.BLKIO_QOS, PodBlkIOQOS, empty=Empty.NOTHING_SET)
RESCTRL = Annotation(labels.RESCTRL, Resctrl)
SOFT_EVICTION = Annotation(labels.SOFT_EVICTION, SoftEviction)
_NETWORK_QOS = Annotation(labels.NETWORK_QOS, _NetworkQOS, empty=Empty.ABSENT)
_OOM_SCORE_ADJ_SPEC = Annotation(labels.OOM_SCORE_ADJ_SPEC, dict[str, int], empty=Empty.ABSENT)
_EVICTION_POLICY = Annotation(labels.EVICTION_POLICY, list[str])


def network_limits(annotations: Mapping[str, str], obj: str = "") -> NetworkLimits | None:
    """Return a pod's bandwidth for the tc hook, None without annotation; a limit that is not said is 0.

    Raises: ProtocolError when malformed.
    """
    asked = _NETWORK_QOS.read(annotations, obj)
    if asked is None:
        return None
    ingress, egress = ("0" if text is None else text for text in (asked.ingress_limit, asked.egress_limit))
    return _limits(ingress, egress, obj)


def terway_network_limits(annotations: Mapping[str, str], obj: str = "") -> NetworkLimits | None:
    """Return the same for the Terway hook, which insists on both limits.

    Raises: ProtocolError when malformed or one limit is not said.
    """
    asked = _NETWORK_QOS.read(annotations, obj)
    return None if asked is None else _limits(asked.ingress_limit or "", asked.egress_limit or "", obj)


def oom_score_adj(annotations: Mapping[str, str], container: str, obj: str = "") -> int | None:
    """Return the out-of-memory score adjustment of a container, its own before the pod's; None leaves it alone.

    Raises: ProtocolError when malformed or out of range; a malformed list of containers hides the pod's value.
    """
    key, score = labels.OOM_SCORE_ADJ_SPEC, (_OOM_SCORE_ADJ_SPEC.read(annotations, obj) or {}).get(container)
    if score is None:
        key, text = labels.OOM_SCORE_ADJ, annotations.get(labels.OOM_SCORE_ADJ)
        if not text:
            return None
        try:
            score = scalars.parse_int(text)
        except scalars.ScalarError as error:
            raise ProtocolError(obj, key, str(error)) from error
    if not OOM_SCORE_ADJ_MIN <= score <= OOM_SCORE_ADJ_MAX:
        raise OOMScoreRangeError(
            obj, key, f"{score} is not within {OOM_SCORE_ADJ_MIN} to {OOM_SCORE_ADJ_MAX}"
        )
    return score


def allows_eviction_by(annotations: Mapping[str, str], policy: str) -> bool:
    """Return whether the named policy may evict the pod: all may when none are listed, none when malformed."""
    try:
        allowed = _EVICTION_POLICY.read(annotations)
    except ProtocolError:
        return False
    return allowed is None or policy in allowed


def _limits(ingress: str, egress: str, obj: str) -> NetworkLimits:
    try:
        return NetworkLimits(quantity.parse(ingress).value // 8, quantity.parse(egress).value // 8)
    except quantity.QuantityError as error:
        raise ProtocolError(obj, labels.NETWORK_QOS, str(error)) from error
