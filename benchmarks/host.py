"""Reading 200 containers each second, beside a loop that merely reads the same files.

Real groups are used where this process may make them, else files in a directory (which read a little faster). Prints
CPU time per round and what that is of one core at one round per second, descriptors, and memory after imports.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from koordinator.host import cgroup_counters, cgroups
from koordinator.host.cgroup_knobs import Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.errors import UnsupportedError
from koordinator.host.files import Files, HostRoots, raise_open_files_limit
from koordinator.host.mounts import CgroupMounts
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.restore_log import RestoreLog
from koordinator.koordlet.writing.update_plan import Update

CONTAINERS = 200
ROUNDS = 40
BEST_OF = 5
KNOBS = (
    Knob.CPU_USAGE,
    Knob.CPU_STAT,
    Knob.MEMORY_STAT,
    Knob.MEMORY_USAGE,
    Knob.CPU_QUOTA,
    Knob.PROCS,
)
_PARENT = f"koordinator-bench-{os.getpid()}"


class _Clock:
    """Seconds of rounds: each call of `next` is one second later, so that the cache ages as it would."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now(self) -> float:
        return self.at_s


def main() -> None:
    raise_open_files_limit(CONTAINERS * len(KNOBS) * 3)
    groups = [_PARENT, *(f"{_PARENT}/{number}" for number in range(CONTAINERS))]
    with tempfile.TemporaryDirectory() as directory:
        found = _real() or _tree(directory)
        try:
            for group in groups:
                found.create(group)
                _fill(found, group, directory)
            _measure(found, groups[1:])
        finally:
            for group in reversed(groups):
                found.remove(group)
    _imports()


def _real() -> Cgroups | None:
    files = Files()
    found = Cgroups(files, cgroups.detect(files, HostRoots.below("")))
    if os.geteuid() == 0 and found.create(_PARENT) is None and found.exists(_PARENT):
        print(f"real groups, cgroup v{found.version}")
        return found
    return None


def _tree(directory: str) -> Cgroups:
    print("no right to make groups: ordinary files")
    for subsystem in ("cpu", "cpuacct", "memory"):
        os.makedirs(f"{directory}/{subsystem}")
    files = Files()
    return Cgroups(files, CgroupMounts(1, directory))


def _fill(found: Cgroups, group: str, directory: str) -> None:
    if not found.where.root.startswith(directory):
        return
    stat = "".join(f"{prefix}{name} 123456\n" for prefix in ("", "total_") for name in _STAT.split())
    texts = {Knob.CPU_STAT: "nr_periods 5\nnr_throttled 1\nthrottled_time 7\n", Knob.MEMORY_STAT: stat}
    for knob in KNOBS:
        with open(found.path(knob, group), "w", encoding="utf-8") as file:
            file.write(texts.get(knob, "12345\n"))


_STAT = "cache rss inactive_anon active_anon inactive_file active_file unevictable"


def _measure(found: Cgroups, groups: list[str]) -> None:
    paths = cgroups.paths(found, groups, KNOBS)
    descriptors = [os.open(path, os.O_RDONLY) for path in paths]
    pread = os.pread

    def peer() -> None:
        for fd in descriptors:
            pread(fd, 4096, 0)

    def hot() -> None:
        found.files.hot_many(paths)

    def hot_and_parsed() -> None:
        contents = found.files.hot_many(paths)
        version = found.version
        for index in range(0, len(contents), len(KNOBS)):
            usage, stat, memory = contents[index : index + 3]
            if usage is not None and stat is not None and memory is not None:
                cgroup_counters.cpu_usage_ns(version, usage)
                cgroup_counters.throttling(version, stat)
                cgroup_counters.memory_bytes(version, memory)

    def opened_each_time() -> None:
        for path in paths:
            found.files.read_bytes(path)

    peer_s = _best(peer)
    print(f"{len(paths)} files of {len(groups)} groups per round, CPU time, best of {BEST_OF}:")
    rows: list[tuple[str, Callable[[], None]]] = [
        ("kept open, read again", hot),
        ("the same, three parsed", hot_and_parsed),
        ("opened each time", opened_each_time),
    ]
    _print("bare os.pread of the same files (peer)", peer_s, peer_s)
    for name, step in rows:
        _print(name, _best(step), peer_s)
    print(f"hot files kept open: {found.files.kept_count}")
    for fd in descriptors:
        os.close(fd)
    _measure_executor(found, groups)


def _measure_executor(found: Cgroups, groups: list[str]) -> None:
    clock = _Clock()
    executor = Executor(found, clock, AuditLog(clock), RestoreLog())
    try:
        updates = [Update(group, Knob.CPU_SHARES, "2") for group in groups]
        found.path(Knob.CPU_SHARES, groups[0])
    except UnsupportedError as error:
        print(error)
        return
    first = time.process_time()
    outcomes = {result.outcome.name for result in executor.update(updates, owner="bench")}
    first = time.process_time() - first
    known = _best(lambda: executor.update(updates, owner="bench"))
    print(f"{len(updates)} updates, first time ({', '.join(sorted(outcomes))}): {first * 1e3:.2f} ms of CPU")
    print(f"the same each second, nothing to do: {known * 1e3:.2f} ms ({known * 100:.2f} % of a core)")


def _print(name: str, seconds: float, peer_s: float) -> None:
    print(f"  {name:40} {seconds * 1e3:6.2f} ms  {seconds * 100:5.2f} % of a core  x {seconds / peer_s:.2f}")


def _best(step: Callable[[], object]) -> float:
    """Least CPU seconds per round, over batches of rounds."""
    step()
    best = float("inf")
    for _ in range(BEST_OF):
        begun = time.process_time()
        for _ in range(ROUNDS):
            step()
        best = min(best, (time.process_time() - begun) / ROUNDS)
    return best


def _imports() -> None:
    """Memory of a fresh interpreter after each import, in MiB."""
    print("resident memory after imports:")
    sets = {
        "nothing": "pass",
        "host (files, groups, machine)": "import koordinator.host.host",
        "numpy, msgspec": "import numpy, msgspec",
        "host, executor, audit, series": (
            "import koordinator.host.host, koordinator.host.host, koordinator.koordlet.writing.executor, "
            "koordinator.koordlet.series"
        ),
        "the same with the kubelet client (aiohttp)": (
            "import koordinator.host.host, koordinator.koordlet.writing.executor, koordinator.koordlet.series, "
            "koordinator.host.kubelet"
        ),
    }
    tell = f"print(int(open('/proc/self/statm').read().split()[1]) * {resource.getpagesize()})"
    for name, code in sets.items():
        told = subprocess.run(
            [sys.executable, "-c", f"{code}\n{tell}"], capture_output=True, text=True, check=True
        )
        print(f"  {name:44} {int(told.stdout) / 2**20:5.1f} MiB")


if __name__ == "__main__":
    main()
