"""Counters of the scheduler in the Prometheus text format. Names are upstream's."""

from collections import Counter
from collections.abc import Mapping

from koordinator.scheduler.queue import QueuedPod
from koordinator.scheduler.status import Status


class Metrics:
    """What happened since the start."""

    def __init__(self) -> None:
        self.attempts: Counter[tuple[str, str]] = Counter()
        """(result, profile) → scheduling attempts; results: scheduled, unschedulable, error."""
        self.placed_seconds_sum = 0.0
        self.placed_count = 0

    def attempt(self, profile: str, status: Status) -> None:
        """An attempt that did not end in a binding."""
        self.attempts[("unschedulable" if status.is_rejected else "error", profile)] += 1

    def placed(self, profile: str, entry: QueuedPod, now_s: float) -> None:
        """A pod was bound."""
        self.attempts[("scheduled", profile)] += 1
        self.placed_count += 1
        if entry.first_attempt_s is not None:
            self.placed_seconds_sum += max(0.0, now_s - entry.first_attempt_s)

    def text(self, pending: Mapping[str, int]) -> str:
        """All metrics; `pending` are pods per queue."""
        lines = ["# TYPE scheduler_schedule_attempts_total counter"]
        for (result, profile), count in sorted(self.attempts.items()):
            lines.append(
                f'scheduler_schedule_attempts_total{{profile="{profile}",result="{result}"}} {count}'
            )
        lines.append("# TYPE scheduler_pending_pods gauge")
        lines += [f'scheduler_pending_pods{{queue="{queue}"}} {n}' for queue, n in sorted(pending.items())]
        lines += [
            "# TYPE scheduler_pod_scheduling_sli_duration_seconds summary",
            f"scheduler_pod_scheduling_sli_duration_seconds_sum {self.placed_seconds_sum}",
            f"scheduler_pod_scheduling_sli_duration_seconds_count {self.placed_count}",
        ]
        return "\n".join(lines) + "\n"
