"""Metrics of the manager under the reference's names. Source: behaviour/manager 2.4."""

from collections.abc import Callable, Mapping

from koordinator.clock import Clock
from koordinator.cluster.metrics import ClientMetrics, QueueMetrics
from koordinator.prometheus import (
    Counter,
    ExpiringGauge,
    Gauge,
    GaugeReading,
    Histogram,
    MetricsRegistry,
    exponential,
)

SUCCEEDED, FAILED = "succeeded", "failed"
ALLOWED, REJECTED = "allowed", "rejected"
LEASE = "koordinator-manager"
"""Name of the lease that instances of the manager compete for."""
EXPIRES_S = 300.0
"""Series of the node gauge go when nobody set them for so long."""
EXPIRE_PERIOD_S = 60.0


class TidalMetrics:
    """Families about tidal pools (behaviour/tidal 4); series of pools go with them."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self.nodes = Gauge("tidal_nodes", "Nodes of a pool, by phase.", ("pool", "phase"))
        self.target = Gauge("tidal_target", "Nodes that should be lent besides the batch reserve.", ("pool",))
        self.transitions = Counter(
            "tidal_transitions_total", "Nodes that changed their phase.", ("pool", "to", "reason")
        )
        self.drains = Histogram(
            "tidal_drain_seconds",
            "Time until a node that changes sides was empty.",
            exponential(10, 2, 10),
            ("pool", "to"),
        )
        self.lent_core_s = Counter(
            "tidal_lent_core_seconds_total", "Cores of nodes in batch phase, times seconds.", ("pool",)
        )
        self.emergency_returns = Counter(
            "tidal_emergency_returns_total", "Nodes that returned at once for online pods.", ("pool",)
        )
        registry.add(
            self.nodes,
            self.target,
            self.transitions,
            self.drains,
            self.lent_core_s,
            self.emergency_returns,
        )

    def forget(self, pool: str) -> None:
        """Drop what a pool has now; what it did stays counted."""
        for gauge in (self.nodes, self.target):
            for labels in [labels for labels in gauge.values if labels[0] == pool]:
                del gauge.values[labels]


class ManagerMetrics:
    """All families, in three registries: `runtime` is about the process and its queues, `internal` about what the
    manager decides, `external` for users of the cluster (none so far, as upstream).

    Counters of reconciles take (status, reason); the reason of a success is "", or the write that was needed.
    """

    def __init__(self, clock: Clock) -> None:
        self.runtime = MetricsRegistry()
        self.client = ClientMetrics(self.runtime)
        self.queues = QueueMetrics(self.runtime)
        self.internal = MetricsRegistry()
        self.external = MetricsRegistry()
        outcome = ("status", "reason")
        text = "Reconciles, by outcome."
        self.noderesource_reconciles = self._counter(
            "slo_controller_node_resource_reconcile_count", text, outcome
        )
        self.nodemetric_reconciles = self._counter("slo_controller_nodemetric_reconcile_count", text, outcome)
        self.nodemetric_parses = self._counter(
            "slo_controller_nodemetric_spec_parse_count", "Collect policies worked out.", outcome
        )
        self.nodeslo_reconciles = self._counter("slo_controller_nodeslo_reconcile_count", text, outcome)
        self.nodeslo_parses = self._counter(
            "slo_controller_nodeslo_spec_parse_count", "Sections of NodeSLOs worked out.", outcome
        )
        self.plugin_runs = self._counter(
            "slo_controller_node_resource_run_plugin_status",
            "What plugins of node resources did (reason: the stage).",
            ("plugin", *outcome),
        )
        self.node_allocatable = ExpiringGauge(
            "slo_controller_node_extended_resource_allocatable_internal",
            "Batch and Mid resources as last calculated.",
            ("node", "resource", "unit"),
            clock.now,
            EXPIRES_S,
        )
        self.webhook_durations = Histogram(
            "koord_manager_webhook_webhook_duration_milliseconds",
            "Time that a step of an admission took.",
            exponential(0.001, 2, 20),
            ("webhook_type", "object_type", "operation", "plugin_name", "status"),
        )
        self.quota_shared_weight = Gauge(
            "koord_manager_webhook_quota_shared_weight",
            "Shared weight of a quota as admitted.",
            ("elasticquota_name", "resource_name"),
        )
        self.internal.add(self.node_allocatable, self.webhook_durations, self.quota_shared_weight)
        self.binding_decisions = self._counter(
            "koord_manager_webhook_binding_admission_decisions_total", "Bindings, by decision.", ("decision",)
        )
        self.ledger_bytes = Gauge(
            "koordinator_manager_lent_ledger_bytes", "Memory of the ledger of what nodes lent, about."
        )
        self.tidal = TidalMetrics(self.internal)
        self.is_leader = Gauge(
            "koordinator_manager_is_leader", "Whether this instance leads (1) or stands by (0)."
        )
        self.is_leader.set(0)
        self.internal.add(self.ledger_bytes, self.is_leader)
        self.runtime.add(
            GaugeReading(
                "leader_election_master_status",
                "[ALPHA] Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, "
                "1 indicates master. 'name' is the string used to identify the lease. Please make sure to "
                "group by name.",
                ("name",),
                lambda: {(LEASE,): self.is_leader.values[()]},
            )
        )

    def show_config_problems(self, problems: Callable[[], Mapping[str, str]]) -> None:
        """Show which keys of the configuration are not in force as they are written; ours, to alert on."""
        self.internal.add(
            GaugeReading(
                "slo_controller_config_problem",
                "Keys of slo-controller-config that are not in force as they are written.",
                ("key",),
                lambda: {(key,): 1 for key in problems()},
            )
        )

    def _counter(self, name: str, description: str, labels: tuple[str, ...]) -> Counter:
        counter = Counter(name, description, labels)
        self.internal.add(counter)
        return counter
