"""Work out how long series are kept: as long as the longest window that anybody asks for; those of ended pods go."""

from koordinator.api import duration
from koordinator.api.node_metric import NodeMetricSpec
from koordinator.api.scalars import ScalarError
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.report import node_metric
from koordinator.koordlet.series import GROUP_WINDOW_S_MAX

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
        config = shared.config.collect
        now_ms = int(shared.clock.now() * 1000)
        ended_s = max(ENDED_S, _INTERVALS * config.cpi_interval_s)
        for kept, window_s in self._windows_s():
            kept_s = min(window_s, shared.config.series_retention_s) * _SLACK
            shared.store.retain(kept, int(kept_s / config.used_interval_s))
            unused_s = kept_s if kept is kinds.NODE_KINDS else ended_s
            shared.store.expire(now_ms - int(unused_s * 1000), kept)
        return True

    def _windows_s(self) -> list[tuple[frozenset[str], float]]:
        """Kinds and the longest window that anybody asks for; an hour at most of the many series of groups."""
        shared = self._shared
        policy = node_metric.collect_policy(shared.view.metric_spec or NodeMetricSpec())
        slo = shared.view.slo
        threshold = slo.resource_used_threshold_with_be if slo is not None else None
        strategy_s = (threshold.cpu_evict_time_window_seconds if threshold is not None else None) or 0
        reported_s = max(policy.aggregate_duration_s, GROUP_WINDOW_S)
        return [
            (kinds.NODE_KINDS, max([reported_s, strategy_s, *map(_seconds, policy.durations)])),
            (kinds.REPORTED_KINDS, min(reported_s, GROUP_WINDOW_S_MAX)),
            (kinds.GROUP_KINDS - kinds.REPORTED_KINDS, GROUP_WINDOW_S),
        ]


def _seconds(text: str) -> float:
    try:
        return duration.parse(text)
    except ScalarError:
        return 0.0  # the reporter says so
