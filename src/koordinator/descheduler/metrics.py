"""Metrics of the descheduler; `descheduler_pods_evicted` is the reference's.

Source: behaviour/descheduler 13.
"""

from collections.abc import Callable, Mapping

from koordinator.cluster.metrics import ClientMetrics, QueueMetrics
from koordinator.prometheus import (
    Counter,
    Gauge,
    GaugeReading,
    Histogram,
    Labels,
    MetricsRegistry,
    exponential,
)

LEASE = "koord-descheduler"
"""Name of the lease that instances compete for, unless the configuration says another."""

SUCCESS, ERROR = "success", "error"


class DeschedulerMetrics:
    """All families, in one registry."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.client = ClientMetrics(self.registry)
        self.queues = QueueMetrics(self.registry)
        self.pods_evicted = Counter(
            "descheduler_pods_evicted",
            "Number of evicted pods, by the result, by the strategy, by the namespace, by the node name.",
            ("result", "strategy", "namespace", "node"),
        )
        self.cycle_seconds = Histogram(
            "koord_descheduler_cycle_duration_seconds",
            "Time from the start of a cycle to its end, evictions included.",
            exponential(0.01, 2, 14),
        )
        self.cycle_failures = Counter(
            "koord_descheduler_cycle_failures_total", "Cycles that ended with an error."
        )
        self.plugin_evictions = Counter(
            "koord_descheduler_evictions_total",
            "Evictions that plugins asked for, by what became of them: accepted, refused or limited.",
            ("profile", "plugin", "outcome"),
        )
        self.arbitrations = Counter(
            "koord_descheduler_arbitrations_total",
            "Decisions of arbitration about migration jobs: passed, failed or refused.",
            ("decision",),
        )
        self.is_leader = Gauge(
            "koord_descheduler_is_leader", "Whether this instance leads (1) or stands by (0)."
        )
        self.is_leader.set(0)
        self.registry.add(
            self.pods_evicted,
            self.cycle_seconds,
            self.cycle_failures,
            self.plugin_evictions,
            self.arbitrations,
            self.is_leader,
        )

    def show_jobs(self, by_phase: Callable[[], Mapping[Labels, float]]) -> None:
        """Show how many migration jobs there are, by phase (`Waiting`: for arbitration)."""
        self.registry.add(
            GaugeReading("koord_descheduler_migration_jobs", "Migration jobs by phase.", ("phase",), by_phase)
        )
