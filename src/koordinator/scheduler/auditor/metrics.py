"""Metrics of the auditor: `scheduler_workload_auditor_*`. Source: behaviour/scheduler G."""

import re
from collections.abc import Sequence

from koordinator.prometheus import Counter, Histogram, MetricsRegistry, exponential
from koordinator.scheduler.auditor.history import AuditFinding, Measured

PREFIX = "scheduler_workload_auditor_"
_SECONDS = exponential(0.1, 2, 15)
_COUNTS = exponential(1, 2, 10)
_METHOD_S = exponential(0.000001, 2, 20)

_COUNTERS = {
    AuditFinding.REPEATED_PREEMPTION: "Room was made again for a workload that was not scheduled since the last time.",
    AuditFinding.PREEMPTION_INVALIDATED: "Room that was made for a workload was given up or not used.",
}
_HISTOGRAMS = {
    AuditFinding.VICTIM_RESCHEDULED: (
        "From the eviction of a workload's pod to its next placement.",
        _SECONDS,
    ),
    AuditFinding.DELETING_RETRIES: ("Attempts in vain while victims were being deleted.", _COUNTS),
    AuditFinding.VICTIMS_DELETED: ("From a nomination by preemption until all victims were gone.", _SECONDS),
    AuditFinding.CYCLE_INTERRUPTED: ("From a nomination by preemption until it was given up.", _SECONDS),
    AuditFinding.EVENTS_BEFORE_OUTCOME: ("Records of a workload until it was scheduled or gone.", _COUNTS),
    AuditFinding.EVENT_INTERVAL: ("Between two records of a workload.", _SECONDS),
}


class LabelClash(ValueError):
    """Two pod labels that would be one label of the metrics."""


def label_names(pod_labels: Sequence[str]) -> tuple[str, ...]:
    """Names that Prometheus allows. Raises: LabelClash."""
    names = tuple(re.sub(r"^(?=\d)|[^a-zA-Z0-9_]", "_", name) for name in pod_labels)
    if len(set(names)) < len(names):
        raise LabelClash(f"labels {', '.join(pod_labels)} are not told apart as metric labels")
    return names


class AuditMetrics:
    """The metrics; `pod_labels` are labels of pods that they carry. Raises: LabelClash."""

    def __init__(self, registry: MetricsRegistry, pod_labels: Sequence[str]) -> None:
        names = label_names(pod_labels)
        self._counters = {
            each: Counter(f"{PREFIX}{each}", f"[ALPHA] {text}", names) for each, text in _COUNTERS.items()
        }
        self._histograms = {
            each: Histogram(f"{PREFIX}{each}", f"[ALPHA] {text}", bounds, names)
            for each, (text, bounds) in _HISTOGRAMS.items()
        }
        self._method = Histogram(
            f"{PREFIX}record_method_duration_seconds",
            "[ALPHA] What the auditor itself takes.",
            _METHOD_S,
            ("method",),
        )
        registry.add(*self._counters.values(), *self._histograms.values(), self._method)

    def count(self, found: Measured, labels: tuple[str, ...]) -> None:
        counter = self._counters.get(found.finding)
        if counter is not None:
            counter.inc(*labels)
        else:
            self._histograms[found.finding].of(*labels).observe(found.amount)

    def took(self, method: str, seconds: float) -> None:
        self._method.of(method).observe(max(0.0, seconds))
