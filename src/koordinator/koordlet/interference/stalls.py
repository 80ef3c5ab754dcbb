"""Measure how long services wait, second by second: pressure (PSI) of their groups, run-queue delay of their threads.

Pressure is the increase of the total, not the kernel's mean of ten seconds, which would be late. Where the groups tell
no pressure (cgroup v1 without a patch for it), the delay of each thread is there (`/proc/TID/schedstat`). What a
service's own limit costs it (throttling) is taken off: batch is not to blame for that.
"""

import asyncio
import math
from collections.abc import Container, Iterable, Mapping, Set

from koordinator.host import cgroup_values
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import ContentError
from koordinator.host.host import Host
from koordinator.koordlet.degradation import Indicator
from koordinator.koordlet.node_pods import PodRecord

PRESSURE_KNOBS = {
    Indicator.CPU_PRESSURE: Knob.CPU_PRESSURE,
    Indicator.MEMORY_PRESSURE: Knob.MEMORY_PRESSURE,
    Indicator.IO_PRESSURE: Knob.IO_PRESSURE,
}
THREADS_MAX = 32
"""Threads of one service that are looked at; of more, some all over its groups."""
CALM_SHARE = 0.1
"""Threads of a service that waits less are looked at each second round only."""
CALM_ROUNDS = 3
"""A service whose latency is far below its objective is looked at each such round."""
THREAD_ROUNDS = 5
"""After so many rounds the threads of a service are listed anew."""
RUNNABLE_SHARE_MIN = 0.02
"""A service that wants less of a CPU waits for hardly anything."""
_US_PER_S, _NS_PER_S = 1e6, 1e9


class Waits:
    """Readings of one service, kept from round to round."""

    def __init__(self, cgroups: Cgroups, record: PodRecord, indicators: Iterable[Indicator]) -> None:
        self.record = record
        self._cgroups = cgroups
        self._pressure_paths = [
            (indicator, cgroups.path(knob, record.group))
            for indicator, knob in PRESSURE_KNOBS.items()
            if indicator in indicators
        ]
        groups = [record.group, *(each.group for each in record.containers)]
        self._stat_paths = [cgroups.path(Knob.CPU_STAT, group) for group in groups]
        self._ids = (record.uid, *(each.id for each in record.containers))
        self._has_run_queue = Indicator.RUN_QUEUE in indicators
        self._waiting_share: float | None = None
        self._queue_at_s: float | None = None
        self._own_ns = 0.0
        """Time that limits took since threads were looked at."""
        self._is_skipped = False
        self._threads: list[str] = []
        self._rounds_left = 0
        self._at_s: float | None = None
        self._calm_rounds = 0
        self._found: dict[Indicator, float] = {}
        self._stalled_us: dict[Indicator, int] = {}
        self._throttled_ns: int | None = None
        self._times: dict[str, tuple[int, int]] = {}
        """Thread's file → ns on a CPU, ns waiting for one."""

    def shares(
        self, proc: str, throttled: Set[str], now_s: float, *, is_calm: bool
    ) -> dict[Indicator, float]:
        """Return the share of time that was lost since the last round, by indicator, less what its own limit cost; of a
        calm service what was found up to `CALM_ROUNDS` before.

        `throttled` are UIDs of pods and ids of containers that were, by what collectors read. The result is empty in
        the first round, and without indicators whose files are gone.
        """
        self._calm_rounds = (self._calm_rounds + 1) % CALM_ROUNDS if is_calm else 0
        if self._calm_rounds:
            return self._found
        elapsed_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        throttled_ns = 0.0 if throttled.isdisjoint(self._ids) else self._throttled_ns_since()
        found = self._pressures(elapsed_s, throttled_ns) if self._pressure_paths else {}
        if self._has_run_queue:
            share = self._run_queue(proc, throttled_ns, now_s)
            if share is not None:
                found[Indicator.RUN_QUEUE] = share
        self._found = found
        return found

    def _throttled_ns_since(self) -> float:
        """Return for how many ns its CPUs were taken away by limits, over all of them, since that was read last.

        It is without end the first time, since then nobody knows how much of it is old.
        """
        total = 0
        for data in self._cgroups.files.hot_many(self._stat_paths):
            if data is not None:
                try:
                    total += cgroup_values.throttling(self._cgroups.version, data.decode()).throttled_ns
                except ContentError:
                    continue
        before, self._throttled_ns = self._throttled_ns, total
        return math.inf if before is None else max(total - before, 0)

    def _pressures(self, elapsed_s: float, throttled_ns: float) -> dict[Indicator, float]:
        found: dict[Indicator, float] = {}
        contents = self._cgroups.files.hot_many(path for _, path in self._pressure_paths)
        for (indicator, _), data in zip(self._pressure_paths, contents, strict=True):
            total = _total_us(data) if data is not None else None
            before = self._stalled_us.get(indicator)
            if total is None:
                self._stalled_us.pop(indicator, None)
                continue
            self._stalled_us[indicator] = total
            if before is not None and total >= before and elapsed_s > 0:
                own_us = throttled_ns / 1000 if indicator is Indicator.CPU_PRESSURE else 0.0
                found[indicator] = min(max(total - before - own_us, 0.0) / _US_PER_S / elapsed_s, 1.0)
        return found

    def _run_queue(self, proc: str, throttled_ns: float, now_s: float) -> float | None:
        self._own_ns += throttled_ns
        known = self._waiting_share
        self._is_skipped = not self._is_skipped and known is not None and known < CALM_SHARE
        if self._is_skipped:
            return known
        elapsed_s = 0.0 if self._queue_at_s is None else now_s - self._queue_at_s
        self._queue_at_s = now_s
        if self._rounds_left <= 0:
            self._list_threads(proc)
        self._rounds_left -= 1
        ran = waited = 0
        times: dict[str, tuple[int, int]] = {}
        for path, data in zip(self._threads, self._cgroups.files.hot_many(self._threads), strict=True):
            words = data.split() if data is not None else ()
            if len(words) < 2:
                continue
            now = times[path] = int(words[0]), int(words[1])
            before = self._times.get(path)
            if before is not None:
                ran += max(now[0] - before[0], 0)
                waited += max(now[1] - before[1], 0)
        is_first = not self._times
        self._times = times
        own_ns, self._own_ns = self._own_ns, 0.0
        if is_first or elapsed_s <= 0:
            return None
        waited_ns = max(waited - own_ns, 0.0)
        wanted_ns = ran + waited_ns
        is_much = wanted_ns > RUNNABLE_SHARE_MIN * elapsed_s * _NS_PER_S
        self._waiting_share = waited_ns / wanted_ns if is_much else 0.0
        return self._waiting_share

    def _list_threads(self, proc: str) -> None:
        self._rounds_left = THREAD_ROUNDS
        found: list[str] = []
        paths = [self._cgroups.path(Knob.TASKS, each.group) for each in self.record.containers]
        for data in self._cgroups.files.hot_many(paths):
            found += (f"{proc}/{tid.decode()}/schedstat" for tid in (data or b"").split() if tid.isdigit())
        every = max(-(-len(found) // THREADS_MAX), 1)
        self._threads = found[::every]


class StallReader:
    """All services in one pass. `available` says, by indicator, what this kernel tells; empty: unknown yet."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._services: dict[str, Waits] = {}
        self._listed: Mapping[str, PodRecord] | None = None
        self.available: dict[Indicator, str] = {}
        """Indicator → why it is missing; empty text when it is there."""

    def read(
        self,
        services: Mapping[str, PodRecord],
        kubepods: str,
        throttled: Set[str],
        calm: Container[str] = (),
    ) -> dict[str, dict[Indicator, float]]:
        """Return the share of time lost since the last round, 0 to 1, by UID and indicator; `calm` are UIDs of services
        whose latency is far below its objective."""
        self._probe(kubepods)
        if services is not self._listed:
            self._follow(services)
        proc, now_s = self._host.roots.proc, asyncio.get_running_loop().time()
        return {
            uid: waits.shares(proc, throttled, now_s, is_calm=uid in calm)
            for uid, waits in self._services.items()
        }

    def _follow(self, services: Mapping[str, PodRecord]) -> None:
        """Take over a new list; services whose containers are the same keep their readings."""
        indicators = [indicator for indicator, missing in self.available.items() if not missing]
        kept: dict[str, Waits] = {}
        for uid, record in services.items():
            known = self._services.get(uid)
            is_same = known is not None and known.record.containers == record.containers
            kept[uid] = (
                known if known is not None and is_same else Waits(self._host.cgroups, record, indicators)
            )
        self._services, self._listed = kept, services

    def _probe(self, kubepods: str) -> None:
        """Ask in the group of all pods until it is there."""
        if self.available:
            return
        cgroups, files = self._host.cgroups, self._host.files
        if not cgroups.exists(kubepods):
            return
        for indicator, knob in PRESSURE_KNOBS.items():
            path = cgroups.path(knob, kubepods)
            self.available[indicator] = "" if files.exists(path) else f"no file {path}"
        schedstat = f"{self._host.roots.proc}/self/schedstat"
        self.available[Indicator.RUN_QUEUE] = "" if files.exists(schedstat) else f"no file {schedstat}"
        self._services, self._listed = {}, None  # they are asked for what is there


def _total_us(data: bytes) -> int | None:
    """Return the total of the line `some`, which comes first."""
    _, found, rest = data.partition(b"total=")
    digits = rest.split(b"\n", 1)[0]
    return int(digits) if found and digits.isdigit() else None
