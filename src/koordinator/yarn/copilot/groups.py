"""Groups of YARN's containers on this node: which there are, what each uses, how old it is. Source: behaviour/yarn 8.2
and 8.6."""

import asyncio

import msgspec

from koordinator.api import copilot
from koordinator.host import cgroup_layout
from koordinator.host.errors import ContentError
from koordinator.host.files import Identity
from koordinator.host.host import Host
from koordinator.host.kill_group import members

_NS_PER_MS = 1_000_000


class _Counter(msgspec.Struct, frozen=True):
    """CPU time of a group, when it was read, and of which group."""

    usage_ns: int
    at_s: float
    identity: Identity | None


class ContainerGroups:
    """The groups below YARN's own; `path` is relative to the root of a controller."""

    def __init__(self, host: Host, path: str) -> None:
        self.host = host
        self.path = path
        self._counters: dict[str, _Counter] = {}
        self._used_milli: dict[str, int] = {}

    def ids(self) -> list[str]:
        """Return the containers that have a group, by id."""
        names = self.host.files.directories(self.host.cgroups.directory(self.path)) or []
        return [name for name in names if copilot.is_yarn_id(name)]

    def running(self) -> list[str]:
        """Return the containers in whose groups processes run, by id."""
        return [each for each in self.ids() if members(self.host, self.group(each))]

    def group(self, container_id: str) -> str:
        """Return the group of a container."""
        return cgroup_layout.join(self.path, container_id)

    def sample(self) -> None:
        """Take the CPU time of all containers: what they use is worked out between two samples."""
        now_s = asyncio.get_running_loop().time()
        counters, used = {}, {}
        for each in self.ids():
            counter = self._read(each, now_s)
            if counter is None:
                continue
            counters[each] = counter
            if (milli := _milli(self._counters.get(each), counter)) is not None:
                used[each] = milli
        self._counters, self._used_milli = counters, used

    def used(self, container_id: str) -> dict[str, int]:
        """Return the use of a container: `cpu` in milli-cores between the last two samples, `memory` in bytes now,
        without page cache; what cannot be told is missing."""
        found = {}
        if (milli := self._used_milli.get(container_id)) is not None:
            found["cpu"] = milli
        try:
            stat = self.host.cgroups.memory_stat(self.group(container_id))
        except ContentError:
            stat = None
        if stat is not None:
            found["memory"] = stat.usage_bytes
        return found

    def age_s(self, container_id: str) -> float | None:
        """Return for how long its oldest process has run; None without a process that can be seen."""
        host, uptime_s = self.host, self.host.machine.uptime_s()
        ticks = (host.processes.start_ticks(pid) for pid in members(host, self.group(container_id)))
        oldest = min((each for each in ticks if each is not None), default=None)
        if oldest is None or uptime_s is None:
            return None
        return max(uptime_s - oldest / host.machine.clock_ticks_per_s, 0.0)

    def _read(self, container_id: str, now_s: float) -> _Counter | None:
        cgroups, group = self.host.cgroups, self.group(container_id)
        try:
            usage_ns = cgroups.cpu_usage_ns(group)
        except ContentError:
            return None
        return None if usage_ns is None else _Counter(usage_ns, now_s, cgroups.identity(group))


def _milli(last: _Counter | None, now: _Counter) -> int | None:
    """Return milli-cores between two readings of the same group; None when they tell nothing."""
    if last is None or last.identity != now.identity or now.usage_ns < last.usage_ns or now.at_s <= last.at_s:
        return None
    return int((now.usage_ns - last.usage_ns) / ((now.at_s - last.at_s) * _NS_PER_MS))
