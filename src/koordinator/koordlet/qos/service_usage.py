"""Measure what all services together use, between any two looks: from two counters of the kernel."""

from koordinator.api.qos import KubeQoS
from koordinator.clock import Clock
from koordinator.host import cgroup_layout, cgroup_values
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroup_layout import Driver
from koordinator.host.errors import ContentError
from koordinator.host.host import Host
from koordinator.koordlet.view import NodeView

WINDOW_S_MIN = 0.05
"""Counters move with the kernel's ticks; over less time they say nothing."""
WINDOW_S_MAX = 10.0


class ServiceUsage:
    """CPU of all pods less that of best-effort ones; each user of it has a mark of its own."""

    def __init__(self, host: Host, view: NodeView, clock: Clock) -> None:
        self._host = host
        self._view = view
        self._clock = clock
        self._driver: Driver | None = None
        self._paths: list[str] = []
        self._marks: dict[str, tuple[float, int]] = {}

    def since(self, mark: str) -> float | None:
        """Cores used since this was asked last with that mark; None when that is not known, or no use."""
        used_ns = self._used_ns()
        old = self._marks.pop(mark, None)
        if used_ns is None:
            return None
        now_s = self._clock.now()
        self._marks[mark] = now_s, used_ns
        if old is None or not WINDOW_S_MIN <= now_s - old[0] <= WINDOW_S_MAX:
            return None
        return max(used_ns - old[1], 0) / 1e9 / (now_s - old[0])

    def _used_ns(self) -> int | None:
        if self._driver is not self._view.driver:
            self._driver = self._view.driver
            self._marks.clear()
            self._paths = [
                self._host.cgroups.path(Knob.CPU_USAGE, cgroup_layout.class_dir(self._driver, kube))
                for kube in (KubeQoS.GUARANTEED, KubeQoS.BEST_EFFORT)
            ]
        version, counted = self._host.cgroups.version, []
        for data in self._host.files.hot_many(self._paths):
            if data is None:
                return None
            try:
                counted.append(cgroup_values.cpu_usage_ns(version, data.decode()))
            except (ContentError, UnicodeDecodeError):
                return None
        return counted[0] - counted[1]
