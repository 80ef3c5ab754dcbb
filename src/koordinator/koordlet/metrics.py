"""Metrics of the node agent under the reference's names.

Source: behaviour/koordlet-observe 14; behaviour/koordlet-act 25.

Each family is an attribute; its first label is `node`, which the family fills in by itself (two histograms have
none in the reference). `docs/metrics.md` has the table of all, which a test holds against this module.
"""

from collections.abc import Callable, Mapping, Sequence

from koordinator.clock import Clock
from koordinator.cluster.metrics import ClientMetrics
from koordinator.prometheus import (
    ExpiringGauge,
    GaugeReading,
    Histogram,
    HistogramSeries,
    Labels,
    MetricsRegistry,
    exponential,
)

PREFIX = "koordlet_"
TOUCHED_S = 300.0
"""Series of families with garbage collection go when nobody touched them for so long."""
_MS_BUCKETS = exponential(0.01, 4, 8)
_KUBELET_BUCKETS = exponential(0.001, 4, 7)

SUCCEEDED, FAILED = "succeeded", "failed"
"""Values of the label `status`, but for writes to files, which the reference tells as `success` and `failed`."""
POD = ("pod_uid", "pod_name", "pod_namespace")
CONTAINER = ("container_id", "container_name")


class NodeGauge(ExpiringGauge):
    """A gauge of this node."""

    def __init__(
        self, node: str, name: str, description: str, labels: Sequence[str], clock: Clock, *, expires: bool
    ) -> None:
        super().__init__(
            PREFIX + name, description, ("node", *labels), clock.now, TOUCHED_S if expires else None
        )
        self._node = node

    def set(self, number: float, *values: str) -> None:
        super().set(number, self._node, *values)

    def inc(self, *values: str, by: float = 1) -> None:
        super().inc(self._node, *values, by=by)

    def reset(self) -> None:
        """Drop all series, before they are filled again."""
        self.values.clear()
        self._touched_s.clear()


class NodeReading(GaugeReading):
    """A gauge of this node that costs nothing until somebody asks: `read` then returns it by other labels."""

    def __init__(self, node: str, name: str, description: str, labels: Sequence[str]) -> None:
        super().__init__(PREFIX + name, description, ("node", *labels), self._readings)
        self._node = node
        self.read: Callable[[], Mapping[Labels, float]] = dict

    def _readings(self) -> Mapping[Labels, float]:
        return {(self._node, *values): number for values, number in self.read().items()}


class NodeCounter(NodeGauge):
    """A counter of this node."""

    kind = "counter"


class NodeHistogram(Histogram):
    """A histogram of this node."""

    def __init__(
        self, node: str, name: str, description: str, bounds: Sequence[float], labels: Sequence[str]
    ) -> None:
        super().__init__(PREFIX + name, description, bounds, ("node", *labels))
        self._node = node

    def of(self, *values: str) -> HistogramSeries:
        """Return the series with these label values, after the node's."""
        return super().of(self._node, *values)


def status_of(is_success: bool) -> str:
    """Value of the label `status`."""
    return SUCCEEDED if is_success else FAILED


class AgentMetrics:
    """All families, in two registries: `internal` is about the agent, `external` for users of the node."""

    def __init__(self, node: str, clock: Clock) -> None:
        self.internal = MetricsRegistry()
        self.external = MetricsRegistry()
        self.client = ClientMetrics(self.internal)
        self._node = node
        self._clock = clock
        self._expiring: list[NodeGauge] = []
        self._add_collect()
        self._add_report()
        self._add_protect()
        self._add_interference()
        self._add_shadow()

    def expire(self) -> None:
        """Drop what nobody touched; once a minute."""
        for family in self._expiring:
            family.expire()

    def _add_collect(self) -> None:
        text = "Collection rounds."
        self.start_time = self._gauge("start_time", "When the agent started, in seconds since 1970.")
        self.node_cpu_info = self._counter("collect_node_cpu_info_status", text, ("status",))
        self.node_numa_info = self._counter("collect_node_numa_info_status", text, ("status",))
        self.node_storage_info = self._counter("collect_node_local_storage_info_status", text, ("status",))
        self.node_used_cpu = self._gauge("node_used_cpu_cores", "CPU in use, in cores.")
        self.node_used_memory = self._gauge("node_used_memory_bytes", "Memory in use.")
        self.host_application_usage = self._gauge(
            "host_application_resource_usage",
            "What host applications use.",
            ("host_application_name", "resource", "priority_class", "qos"),
        )
        self.container_cpi = self._gauge(
            "container_cpi", "Cycles and instructions.", (*CONTAINER, *POD, "cpi_field"), external=True
        )
        psi = ("psi_resource_type", "psi_precision", "psi_degree", "cpu_full_supported")
        self.container_psi = self._gauge(
            "container_psi", "Pressure in percent.", (*CONTAINER, *POD, *psi), external=True
        )
        self.pod_psi = self._gauge("pod_psi", "Pressure in percent.", (*POD, *psi), external=True)
        self.llc_occupancy = self._gauge(
            "resctrl_llc_occupancy", "Cache in use, in bytes.", ("cache_id", "qos"), external=True
        )
        self.memory_bandwidth = self._gauge(
            "resctrl_memory_bandwidth",
            "Memory traffic counted so far, in bytes.",
            ("cache_id", "qos", "mb_type"),
            external=True,
        )
        self.kubelet_request = Histogram(
            PREFIX + "kubelet_request_duration_seconds",
            "Requests to the kubelet.",
            _KUBELET_BUCKETS,
            ("verb", "path", "code"),
        )
        self.internal.add(self.kubelet_request)

    def _add_report(self) -> None:
        unit = ("resource", "unit")
        self.node_usage = self._gauge("node_metric_node_usage", "Last report.", unit)
        self.system_usage = self._gauge("node_metric_system_usage", "Last report.", unit)
        self.numa_usage = self._gauge("node_metric_numa_node_usage", "Last report.", ("numa_node_id", *unit))
        self.numa_system_usage = self._gauge(
            "node_metric_numa_system_usage", "Last report.", ("numa_node_id", *unit)
        )
        self.allocatable = self._gauge(
            "node_resource_allocatable", "Batch and mid resources of the node.", unit, external=True
        )
        self.reclaimable = self._gauge(
            "node_priority_resource_reclaimable", "As reported.", ("priority", *unit), external=True
        )
        self.reclaimable_status = self._gauge(
            "node_resource_priority_reclaimable_status",
            "0: predicted, 1: prediction failed.",
            ("priority",),
            external=True,
        )
        container = (*unit, *POD, *CONTAINER)
        self.container_requests = self._gauge(
            "container_resource_requests", "Batch and mid requests.", container, external=True
        )
        self.container_limits = self._gauge(
            "container_resource_limits", "Batch and mid limits.", container, external=True
        )
        self.predicted_reclaimable = self._gauge(
            "node_predicted_resource_reclaimable", "By predictor.", ("predictor", *unit)
        )
        self.predicted_peak = self._gauge(
            "node_predicted_resource_peak", "By predictor.", ("predictor", *unit)
        )

    def _add_protect(self) -> None:
        container = ("pod_namespace", "pod_name", *CONTAINER)
        self.eviction = self._counter("pod_eviction", "Evictions.", ("reason",))
        self.eviction_detail = self._counter(
            "pod_eviction_detail", "Evictions by pod.", ("pod_namespace", "pod_name", "reason"), expires=True
        )
        self.be_suppress_cpu = self._gauge(
            "be_suppress_cpu_cores", "CPU left to best-effort pods.", ("type",)
        )
        self.be_suppress_ls_used = self._gauge(
            "be_suppress_ls_used_cpu_cores", "CPU used by other pods than best-effort ones."
        )
        self.be_suppress_be_used = self._gauge(
            "be_suppress_be_used_cpu_cores", "CPU used by best-effort pods."
        )
        self.scaled_burst = self._gauge("container_scaled_cfs_burst_us", "Burst buffer set.", container)
        self.scaled_quota = self._gauge("container_scaled_cfs_quota_us", "Quota set.", container)
        self.share_pool = self._gauge("cpuset_share_pool_cpu_cores", "CPUs of the share pools.")
        self.be_share_pool = self._gauge("cpuset_be_share_pool_cpu_cores", "CPUs of best-effort share pools.")
        self.share_pool_info = self._gauge("cpuset_share_pool_info", "CPUs of the share pools.", ("cpu",))
        self.be_share_pool_info = self._gauge("cpuset_be_share_pool_info", "As above, best effort.", ("cpu",))
        self.core_sched_cookie = self._gauge(
            "container_core_sched_cookie",
            "Core scheduling groups.",
            (*container, "pod_uid", "core_sched_group", "core_sched_cookie"),
            expires=True,
        )
        self.core_sched_status = self._counter(
            "core_sched_cookie_manage_status",
            "Cookies handled.",
            ("core_sched_group", "status"),
            expires=True,
        )
        self.oom_score_adj = self._gauge(
            "container_oom_score_adj",
            "OOM score adjustments.",
            ("pod_namespace", "pod_name", "pod_uid", "container_name"),
            expires=True,
        )
        self.resource_update = Histogram(
            PREFIX + "resource_update_duration_milliseconds",
            "Writes to files of groups (cgroup) and other changes of the host (default).",
            _MS_BUCKETS,
            ("type", "status"),
        )
        self.hook_invoked = NodeHistogram(
            self._node,
            "runtime_hook_invoked_duration_milliseconds",
            "Hooks called by a runtime.",
            _MS_BUCKETS,
            ("hook", "stage", "status"),
        )
        self.hook_reconciled = NodeHistogram(
            self._node,
            "runtime_hook_reconciler_invoked_duration_milliseconds",
            "Hooks called by the reconciler.",
            _MS_BUCKETS,
            ("level", "resource_type", "status"),
        )
        self.hook_delivery = self._gauge(
            "runtime_hook_delivery", "1: the hook reaches containers in this mode now.", ("hook", "mode")
        )
        self.internal.add(self.resource_update, self.hook_invoked, self.hook_reconciled)

    def _add_interference(self) -> None:
        self.sense_available = self._gauge(
            "interference_sense_available", "1: this node can tell; 0: it cannot.", ("sense",)
        )
        self.interference_level = NodeReading(
            self._node, "interference_level", "How a service suffers, 1 from its mark on.", (*POD, "sense")
        )
        self.latency_slack = NodeReading(
            self._node, "latency_slack", "Share of a latency objective that is left.", POD
        )
        self.external.add(self.interference_level, self.latency_slack)
        self.interference_verdicts = self._counter(
            "interference_verdicts", "Culprits named, by what they take.", ("resource",)
        )
        self.interference_slack = self._gauge(
            "interference_slack_ratio", "What is left of the objective of the service worst off.", ("source",)
        )
        self.interference_ceiling = self._gauge(
            "interference_ceiling_percent",
            "CPU of services and batch together; of other resources what batch may have.",
            ("resource",),
        )
        self.interference_stage = self._gauge(
            "interference_stage", "1: how far the closed loop has gone now.", ("stage",)
        )
        self.interference_culprit = self._gauge(
            "interference_culprit_percent", "What a capped culprit may use of what it used; 100: nobody is."
        )
        self.interference_signal = self._gauge(
            "interference_signal_ratio", "How much services suffered lately, as schedulers are told."
        )
        self.interference_steps = self._counter(
            "interference_steps_total", "Times that the closed loop came to a stage.", ("stage",)
        )

    def _add_shadow(self) -> None:
        self.isolation_works = self._gauge(
            "isolation_works", "1: proven; 0: without effect; -1: not known.", ("mechanism",)
        )
        self.shadow_mode = self._gauge(
            "shadow_mode", "1: the strategy decides and does nothing.", ("strategy",)
        )
        self.shadow_writes = self._counter(
            "shadow_writes_total", "Writes that strategies in shadow mode would have made.", ("strategy",)
        )
        self.shadow_evictions = self._counter(
            "shadow_evictions_total", "Pods that strategies in shadow mode would have evicted.", ("strategy",)
        )
        self.shadow_core_seconds = self._counter(
            "shadow_core_seconds_total",
            "CPU that strategies in shadow mode would have held back from batch, raised or lent.",
            ("strategy", "kind"),
        )

    def _gauge(
        self,
        name: str,
        description: str,
        labels: Sequence[str] = (),
        *,
        external: bool = False,
        expires: bool = False,
    ) -> NodeGauge:
        family = NodeGauge(self._node, name, description, labels, self._clock, expires=expires)
        self._keep(family, external, expires)
        return family

    def _counter(
        self, name: str, description: str, labels: Sequence[str] = (), *, expires: bool = False
    ) -> NodeCounter:
        family = NodeCounter(self._node, name, description, labels, self._clock, expires=expires)
        self._keep(family, False, expires)
        return family

    def _keep(self, family: NodeGauge, external: bool, expires: bool) -> None:
        (self.external if external else self.internal).add(family)
        if expires:
            self._expiring.append(family)
