"""Command lines of the demonstration's programs."""

import os
import socket
import subprocess
from pathlib import Path

import msgspec

from koordinator.node_demo.build import Programs
from koordinator.node_demo.plan import BATCH_PODS, DISK_BLOCK_KIB, REQUEST_CPU_MS, DemoError, Hog

_CALIBRATE_S_MAX = 60
_DISK_THREADS = 8  # per batch pod: a queue at the disk, whatever the scheduler does
_STREAM_MIB = 64  # per thread, twice: more than any cache holds
_PROGRAM_MIB = 64  # threads' stacks, tables, the binary


class DemoCommands(msgspec.Struct, frozen=True):
    """The programs with what this machine gave them: loops per request, a port, files."""

    programs: Programs
    loops: int
    port: int
    cpus: int
    work_dir: Path
    disk_dir: Path

    def service(self) -> list[str]:
        """Two threads per CPU, as a service has that also waits for disks and others."""
        threads = ["--threads", str(2 * self.cpus)]
        disk = ["--disk-file", str(self.disk_dir / "service.data")]
        return [
            str(self.programs.service),
            "--loops",
            str(self.loops),
            "--port",
            str(self.port),
            *threads,
            *disk,
        ]

    def hog(self, hog: Hog, number: int) -> list[str]:
        """One of the batch pods; together they want all CPUs."""
        threads = _DISK_THREADS if hog is Hog.DISK else -(-self.cpus // BATCH_PODS)
        command = [str(self.programs.hog), hog.value, "--counters", str(self.counters(hog, number))]
        command += ["--threads", str(threads)]
        if hog is Hog.CPU:
            command += ["--loops", str(self.loops)]
        if hog is Hog.MEMORY:
            command += ["--mib", str(_STREAM_MIB)]
        if hog is Hog.DISK:
            command += ["--disk-file", str(self.disk_dir / f"batch-{number}.data")]
            command += ["--block-kib", str(DISK_BLOCK_KIB)]
        return command

    def hog_memory_mib(self, hog: Hog) -> int:
        """Return what a batch pod needs."""
        threads = -(-self.cpus // BATCH_PODS)
        return _PROGRAM_MIB + (2 * _STREAM_MIB * threads if hog is Hog.MEMORY else 0)

    def counters(self, hog: Hog, number: int) -> Path:
        """Return where a batch pod counts what it has done."""
        return self.work_dir / f"{hog}-{number}.count"

    def loadgen(
        self, rate_per_s: float, warm_up_s: float, seconds: float, disk_every: int, out: Path
    ) -> list[str]:
        """Return the load, as a client on another machine would send it."""
        command = [str(self.programs.loadgen), "--port", str(self.port), "--rate", f"{rate_per_s:.3f}"]
        command += ["--warm-up", f"{warm_up_s:g}", "--seconds", f"{seconds:g}", "--out", str(out)]
        return [*command, "--disk-every", str(disk_every)]


def loops_per_request(programs: Programs) -> int:
    """Loops that cost a request's CPU time on this machine. Raises: DemoError."""
    command = [str(programs.service), "--calibrate", f"{REQUEST_CPU_MS * 1_000:g}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CALIBRATE_S_MAX, check=True)
        return int(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise DemoError(f"the service could not be calibrated: {error}") from error


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_count() -> int:
    """Return CPUs that this process may run on: pods get the same."""
    return len(os.sched_getaffinity(0))
