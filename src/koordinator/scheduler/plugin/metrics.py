"""Metrics of the scheduler, under upstream's names and with upstream's buckets. Source: behaviour/scheduler G.

`SchedulerMetrics.of(profile)` gives what is counted for every pod with its labels bound, as a pod has 100 µs in all.
"""

from collections.abc import Callable, Mapping

from koordinator.cluster.metrics import ClientMetrics, QueueMetrics
from koordinator.prometheus import (
    Counter,
    Gauge,
    GaugeReading,
    Histogram,
    HistogramSeries,
    Labels,
    MetricsRegistry,
    exponential,
)

ATTEMPTS_LABEL_MAX = 15
"""More attempts share the label `15+`, so that a pod that never fits adds no series."""

SCHEDULED, UNSCHEDULABLE, ERROR = "scheduled", "unschedulable", "error"
"""Results of attempts."""

_SCHEDULING_S = exponential(0.001, 2, 15)
_POINT_S = exponential(0.0001, 2, 12)
_NODES = exponential(1, 2, 24)


class ProfileMetrics:
    """The metrics counted per pod of one profile; durations in seconds."""

    def __init__(self, metrics: "SchedulerMetrics", profile: str) -> None:
        self._metrics = metrics
        self._profile = profile
        self._results: dict[str, HistogramSeries] = {}
        self._sli: dict[int, HistogramSeries] = {}
        self._algorithm = metrics.algorithm_duration.of()
        self._evaluated = metrics.evaluated_nodes.of()
        self._feasible = metrics.feasible_nodes.of()
        self._attempts = metrics.pod_attempts.of()

    def searched(self, seconds: float, evaluated: int, feasible: int) -> None:
        """Note that a cycle looked for a node."""
        self._algorithm.observe(seconds)
        self._evaluated.observe(evaluated)
        self._feasible.observe(feasible)

    def attempted(self, result: str, seconds: float) -> None:
        """Note that an attempt ended: scheduled, unschedulable or error."""
        series = self._results.get(result)
        if series is None:
            series = self._results[result] = self._metrics.attempt_duration.of(result, self._profile)
        series.observe(seconds)

    def placed(self, attempt_count: int, seconds: float) -> None:
        """Note that a pod was bound, `seconds` after its first attempt."""
        attempts = min(attempt_count, ATTEMPTS_LABEL_MAX)
        series = self._sli.get(attempts)
        if series is None:
            label = f"{attempts}+" if attempts == ATTEMPTS_LABEL_MAX else str(attempts)
            series = self._sli[attempts] = self._metrics.sli_duration.of(label)
        series.observe(seconds)
        self._attempts.observe(attempt_count)

    def attempt_counts(self) -> Mapping[str, int]:
        """Attempts by result."""
        return {result: sum(series.counts) for result, series in self._results.items()}


class SchedulerMetrics:
    """Everything, since the start."""

    def __init__(self) -> None:
        self._profiles: dict[str, ProfileMetrics] = {}
        self._declare_attempts()
        self._declare_framework()
        self._declare_preemption()
        self._declare_batches()
        self._declare_leading()
        self.registry = MetricsRegistry(
            family for family in vars(self).values() if isinstance(family, Counter | Histogram)
        )
        self.client = ClientMetrics(self.registry)
        self.queues = QueueMetrics(self.registry)
        # The first and the last line of most dashboards; derived, so that a pod counts once.
        self.registry.add(
            GaugeReading(
                "scheduler_schedule_attempts_total",
                "[STABLE] Number of attempts to schedule pods, by the result. 'unschedulable' means a pod "
                "could not be scheduled, while 'error' means an internal scheduler problem.",
                ("result", "profile"),
                self._attempt_counts,
                kind="counter",
            )
        )

    def _declare_attempts(self) -> None:
        """Declare metrics of how pods fare: attempts, and what these look at."""
        self.attempt_duration = Histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "[STABLE] Scheduling attempt latency in seconds (scheduling algorithm + binding)",
            _SCHEDULING_S,
            ("result", "profile"),
        )
        self.algorithm_duration = Histogram(
            "scheduler_scheduling_algorithm_duration_seconds",
            "[ALPHA] Scheduling algorithm latency in seconds",
            _SCHEDULING_S,
        )
        self.sli_duration = Histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "[STABLE] E2e latency for a pod being scheduled, from the time the pod enters the scheduling "
            "queue and might involve multiple scheduling attempts.",
            exponential(0.01, 2, 20),
            ("attempts",),
        )
        self.pod_attempts = Histogram(
            "scheduler_pod_scheduling_attempts",
            "[STABLE] Number of attempts to successfully schedule a pod.",
            exponential(1, 2, 5),
        )
        self.evaluated_nodes = Histogram(
            "scheduler_pod_scheduling_evaluated_nodes", "[ALPHA] Nodes looked at for a pod.", _NODES
        )
        self.feasible_nodes = Histogram(
            "scheduler_pod_scheduling_feasible_nodes", "[ALPHA] Nodes that could hold a pod.", _NODES
        )
        self.timeouts = Counter(
            "scheduler_scheduling_timeout",
            "[ALPHA] Attempts found running longer than the scheduling timeout.",
            ("profile",),
        )

    def _declare_framework(self) -> None:
        """Declare metrics of what plugins, events and waiting cost."""
        self.point_duration = Histogram(
            "scheduler_framework_extension_point_duration_seconds",
            "[STABLE] Latency for running all plugins of a specific extension point (of sampled cycles).",
            _POINT_S,
            ("extension_point", "status", "profile"),
        )
        self.plugin_duration = Histogram(
            "scheduler_plugin_execution_duration_seconds",
            "[ALPHA] Duration for running a plugin at a specific extension point (of sampled cycles).",
            exponential(0.00001, 1.5, 20),
            ("plugin", "extension_point", "status"),
        )
        self.permit_wait = Histogram(
            "scheduler_permit_wait_duration_seconds",
            "[ALPHA] Duration of waiting on permit.",
            _SCHEDULING_S,
            ("result",),
        )
        self.event_handling = Histogram(
            "scheduler_event_handling_duration_seconds",
            "[ALPHA] Event handling latency in seconds.",
            _POINT_S,
            ("event",),
        )
        self.hint_duration = Histogram(
            "scheduler_queueing_hint_execution_duration_seconds",
            "[ALPHA] Duration for running a queueing hint function of a plugin (of sampled events).",
            exponential(0.00001, 2, 12),
            ("plugin", "event", "hint"),
        )
        self.next_pod_latency = Histogram(
            "scheduler_next_pod_delete_from_queue_latency",
            "[ALPHA] Time to take a pod that a plugin chose out of the queue, in seconds.",
            exponential(0.00001, 2, 24),
        )

    def _declare_preemption(self) -> None:
        """Declare metrics of who makes room for whom."""
        self.preemption_attempts = Counter(
            "scheduler_preemption_attempts_total",
            "[STABLE] Total preemption attempts in the cluster till now",
        )
        self.preemption_victims = Histogram(
            "scheduler_preemption_victims",
            "[STABLE] Number of selected preemption victims",
            exponential(1, 2, 7),
        )
        self.preemption_duration = Histogram(
            "scheduler_preemption_goroutines_duration_seconds",
            "[ALPHA] Duration in seconds for running goroutines (here: asyncio tasks) for the preemption.",
            exponential(0.01, 2, 20),
            ("result",),
        )
        self.preemption_count = Counter(
            "scheduler_preemption_goroutines_execution_total",
            "[ALPHA] Number of preemption goroutines (here: asyncio tasks) executed.",
            ("result",),
        )

    def _declare_batches(self) -> None:
        """Plans whose pods are placed together."""
        self.batch_duration = Histogram(
            "scheduler_inline_batch_schedule_duration_seconds",
            "[ALPHA] Duration of placing all pods of a plan in one cycle.",
            _SCHEDULING_S,
            ("result",),
        )
        self.batch_by_node = Histogram(
            "scheduler_batch_algorithm_by_node_duration_seconds",
            "[ALPHA] Duration of placing the pods of a plan that go to one node.",
            _SCHEDULING_S,
        )
        self.batch_by_pod = Histogram(
            "scheduler_batch_algorithm_by_pod_duration_seconds",
            "[ALPHA] Duration of placing one pod of a plan.",
            _SCHEDULING_S,
        )
        self.batch_partial_jobs = Counter(
            "scheduler_batch_partial_bind_jobs_total", "[ALPHA] Plans of which only some pods were bound."
        )
        self.batch_partial_pods = Counter(
            "scheduler_batch_partial_bind_pods_total", "[ALPHA] Pods of such plans.", ("status",)
        )
        self.batch_bind_failures = Counter(
            "scheduler_batch_bind_failures_total",
            "[ALPHA] Pods of plans whose binding failed, by who refused and when.",
            ("reason", "phase"),
        )
        self.batch_cleanups = Counter(
            "scheduler_batch_assumed_pods_cleanup_total",
            "[ALPHA] Pods of plans whose placement was undone.",
            ("reason",),
        )

    def _declare_leading(self) -> None:
        """Declare metrics of who leads."""
        self.master = Gauge(
            "leader_election_master_status",
            "[ALPHA] Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 "
            "indicates master. 'name' is the string used to identify the lease. Please make sure to group by "
            "name.",
            ("name",),
        )
        self.slow_paths = Counter(
            "leader_election_slowpath_total",
            "[ALPHA] Total number of slow path exercised in renewing leader leases. 'name' is the string "
            "used to identify the lease. Please make sure to group by name.",
            ("name",),
        )

    def of(self, profile: str) -> ProfileMetrics:
        """Return the metrics of pods of a profile."""
        found = self._profiles.get(profile)
        if found is None:
            found = self._profiles[profile] = ProfileMetrics(self, profile)
        return found

    @property
    def placed_count(self) -> int:
        """Pods bound so far."""
        return sum(profile.attempt_counts().get(SCHEDULED, 0) for profile in self._profiles.values())

    def read(self, name: str, description: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Add a gauge with one label that is read when somebody asks."""

        def labelled() -> Mapping[Labels, float]:
            return {(value,): number for value, number in read().items()}

        self.registry.add(GaugeReading(name, description, (label,), labelled))

    def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        return self.registry.text()

    def _attempt_counts(self) -> Mapping[Labels, float]:
        return {
            (result, name): count
            for name, profile in self._profiles.items()
            for result, count in profile.attempt_counts().items()
        }
