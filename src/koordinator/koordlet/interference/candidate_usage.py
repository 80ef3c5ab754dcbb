"""Measure what candidates use of each resource a service may lack, second by second.

CPU and memory are those that collectors measured; bytes of disks come from the group (on cgroup v1 the kernel charges
writeback of cached pages to no group), bytes of the network from the pod's own namespace.
"""

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from koordinator.host.cgroup_knobs import V1, Knob
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.degradation import Contended
from koordinator.koordlet.interference.culprit import F64, RESOURCES
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared

CALM_ROUNDS = 5
"""Bytes of disks and networks are read after so many rounds while no service is degraded."""
PROCESS_ROUNDS = 10
"""After so many rounds a pod without a process that tells of its network is asked for one again."""
_LOOPBACK = b"lo"
_SENT = 8
"""Column of sent bytes in `/proc/PID/net/dev`, counted from the received ones."""


class _Counters(msgspec.Struct):
    """The last readings of one candidate."""

    record: PodRecord
    disk_path: str
    net_path: str = ""
    rounds_left: int = 0
    at_s: float = math.nan
    disk: float = math.nan
    net: float = math.nan


class CandidateUsage:
    """Rates of all candidates, in the order in which they are given."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._counters: dict[str, _Counters] = {}
        self._listed: Mapping[str, PodRecord] | None = None
        self._bytes: tuple[dict[str, float], dict[str, float]] = {}, {}
        self._rounds_left = 0

    def read(
        self,
        candidates: Mapping[str, PodRecord],
        moved: Mapping[str, float],
        now_s: float,
        *,
        is_calm: bool = False,
    ) -> F64:
        """Return what each candidate uses now, shape (candidates, resources), NaN where it is not measured; `moved` are
        bytes per second from memory, by UID, where counters tell. While all services are calm, bytes of disks and
        networks are means of up to `CALM_ROUNDS` rounds."""
        readings = self._shared.readings
        cpu = readings.pods(kinds.POD_CPU) | readings.containers(kinds.FOREIGN_CPU)
        memory = readings.pods(kinds.POD_MEMORY) | readings.containers(kinds.FOREIGN_MEMORY)
        self._rounds_left -= 1
        if not is_calm or self._rounds_left <= 0 or candidates is not self._listed:
            self._rounds_left = CALM_ROUNDS
            self._bytes = self._rates(candidates, now_s)
        disk, network = self._bytes
        columns: dict[Contended, Mapping[str, float]] = {
            Contended.CPU: cpu,
            Contended.MEMORY: memory,
            Contended.CACHE: moved,
            Contended.DISK: disk,
            Contended.NETWORK: network,
        }
        found = np.empty((len(candidates), len(RESOURCES)))
        for column, resource in enumerate(RESOURCES):
            used = columns[resource]
            found[:, column] = [used.get(uid, math.nan) for uid in candidates]
        return found

    def _rates(
        self, candidates: Mapping[str, PodRecord], now_s: float
    ) -> tuple[dict[str, float], dict[str, float]]:
        if candidates is not self._listed:
            self._counters = {uid: self._of(uid, record) for uid, record in candidates.items()}
            self._listed = candidates
        kept = self._counters
        files = self._shared.host.files
        is_v1 = self._shared.host.cgroups.version == V1
        disks = files.hot_many(each.disk_path for each in kept.values())
        disk: dict[str, float] = {}
        network: dict[str, float] = {}
        for (uid, each), data in zip(kept.items(), disks, strict=True):
            elapsed_s = now_s - each.at_s
            read = math.nan if data is None else disk_bytes(data, is_v1=is_v1)
            sent = self._network_bytes(each)
            if read >= each.disk and elapsed_s > 0:
                disk[uid] = (read - each.disk) / elapsed_s
            if sent >= each.net and elapsed_s > 0:
                network[uid] = (sent - each.net) / elapsed_s
            each.at_s, each.disk, each.net = now_s, read, sent
        return disk, network

    def _of(self, uid: str, record: PodRecord) -> _Counters:
        known = self._counters.get(uid)
        if known is not None and known.record.containers == record.containers:
            return known
        return _Counters(record, self._shared.host.cgroups.path(Knob.IO_BYTES, record.group))

    def _network_bytes(self, each: _Counters) -> float:
        if each.record.pod.spec.host_network:
            return math.nan  # its bytes are those of the node
        files = self._shared.host.files
        data = files.hot(each.net_path) if each.net_path else None
        if data is not None:
            return net_bytes(data)
        each.rounds_left -= 1
        if each.rounds_left < 0:
            each.rounds_left = PROCESS_ROUNDS
            pid, proc = self._first_process(each.record), self._shared.host.roots.proc
            # Who shares the network of the node cannot be told from it.
            is_own = bool(pid) and files.identity(f"{proc}/{pid}/ns/net") != files.identity(
                f"{proc}/1/ns/net"
            )
            each.net_path = f"{proc}/{pid}/net/dev" if is_own else ""
        return math.nan

    def _first_process(self, record: PodRecord) -> str:
        cgroups = self._shared.host.cgroups
        for container in record.containers:
            pids = cgroups.procs(container.group) or ()
            if pids:
                return str(pids[0])
        return ""


def disk_bytes(data: bytes, *, is_v1: bool) -> float:
    """Return all bytes read and written so far: the last line of v1's file, the sum over devices of v2's `io.stat`."""
    if is_v1:
        word = data.rstrip().rpartition(b" ")[2]
        return float(word) if word.isdigit() else 0.0
    total = 0
    for word in data.split():
        if word.startswith((b"rbytes=", b"wbytes=")):
            digits = word[7:]
            total += int(digits) if digits.isdigit() else 0
    return float(total)


def net_bytes(data: bytes) -> float:
    """Return all bytes received and sent so far by `/proc/PID/net/dev`, without the loopback."""
    total = 0
    for line in data.splitlines()[2:]:
        name, _, rest = line.strip().partition(b":")
        words = rest.split()
        if name != _LOOPBACK and len(words) > _SENT:
            total += int(words[0]) + int(words[_SENT])
    return float(total)
