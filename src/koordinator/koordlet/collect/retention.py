"""How long series are kept: as long as the longest window that anybody asks for; those of ended pods go."""

from koordinator.api import duration
from koordinator.api.node_metric import NodeMetricSpec
from koordinator.api.scalars import ScalarError
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.report import node_metric

INTERVAL_S = 60.0
GROUP_WINDOW_S = 300.0
"""The longest window of strategies over series of pods and containers, where none is set."""
ENDED_S = 150.0
"""When a series of a group that gets no points any more goes: its pod has ended, and nobody reports it. Longer than the
rarest series (CPI) pauses."""
_INTERVALS = 2.5
_SLACK = 1.2


class SeriesRetention:
    """Looks at the policies in force once a minute."""

    name = "SeriesRetention"
    interval_s = INTERVAL_S

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def collect(self) -> bool:
        shared = self._shared
        now_ms = int(shared.clock.now() * 1000)
        node_s, group_s = self._windows_s()
        for kept, window_s in ((kinds.NODE_KINDS, node_s), (kinds.GROUP_KINDS, group_s)):
            shared.store.retain(kept, int(window_s * _SLACK / shared.config.collect.used_interval_s))
        shared.store.expire(now_ms - int(node_s * _SLACK * 1000), kinds.NODE_KINDS)
        ended_s = max(ENDED_S, _INTERVALS * shared.config.collect.cpi_interval_s)
        shared.store.expire(now_ms - int(ended_s * 1000), kinds.GROUP_KINDS)
        return True

    def _windows_s(self) -> tuple[float, float]:
        """The longest windows that anybody asks for, of series of the node and of groups."""
        shared = self._shared
        policy = node_metric.collect_policy(shared.view.metric_spec or NodeMetricSpec())
        slo = shared.view.slo
        threshold = slo.resource_used_threshold_with_be if slo is not None else None
        strategy_s = (threshold.cpu_evict_time_window_seconds if threshold is not None else None) or 0
        group_s = max(policy.aggregate_duration_s, strategy_s, GROUP_WINDOW_S)
        node_s = max([group_s, *map(_seconds, policy.durations)])
        longest_s = shared.config.series_retention_s
        return min(node_s, longest_s), min(group_s, longest_s)


def _seconds(text: str) -> float:
    try:
        return duration.parse(text)
    except ScalarError:
        return 0.0  # the reporter says so
