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
        for kept, window_s in self._windows_s():
            points = window_s * _SLACK / shared.config.collect.used_interval_s
            shared.store.retain(kept, int(points))
            shared.store.expire(now_ms - int(window_s * _SLACK * 1000), kept)
        return True

    def _windows_s(self) -> list[tuple[frozenset[str], float]]:
        """Kinds and the longest window that anybody asks for."""
        shared = self._shared
        policy = node_metric.collect_policy(shared.view.metric_spec or NodeMetricSpec())
        slo = shared.view.slo
        threshold = slo.resource_used_threshold_with_be if slo is not None else None
        strategy_s = (threshold.cpu_evict_time_window_seconds if threshold is not None else None) or 0
        group_s = max(policy.aggregate_duration_s, strategy_s, GROUP_WINDOW_S)
        node_s = max([group_s, *map(_seconds, policy.durations)])
        longest_s = shared.config.series_retention_s
        return [(kinds.NODE_KINDS, min(node_s, longest_s)), (kinds.GROUP_KINDS, min(group_s, longest_s))]


def _seconds(text: str) -> float:
    try:
        return duration.parse(text)
    except ScalarError:
        return 0.0  # the reporter says so
