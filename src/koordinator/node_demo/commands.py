"""Command lines of the demonstration's programs."""

import asyncio
import contextlib
import os
import socket
import subprocess
from pathlib import Path

import msgspec

from koordinator.node_demo.build import Programs
from koordinator.node_demo.plan import (
    BATCH_PODS,
    DISK_BLOCK_KIB,
    REQUEST_CPU_MS,
    SERVICES,
    DemoError,
    Hog,
    ServiceKind,
    usable_cpus,
)
from koordinator.node_demo.real_servers import RealServer

_CALIBRATE_S_MAX = 60
_DISK_THREADS = 8  # per batch pod: a queue at the disk, whatever the scheduler does
_STREAM_MIB = 64  # per thread, twice: more than any cache holds
_PROGRAM_MIB = 64  # threads' stacks, tables, the binary
_NETWORK_MIB_PER_S = 512  # per thread: some four times what a network of 10 Gbit/s carries, on two CPUs
_WORKING_SET = (
    "--hot-mib",
    "16",
    "--cold-mib",
    "112",
)  # in the last-level cache of most machines, and beyond
_GUESSES_MS = {ServiceKind.REDIS: 0.1, ServiceKind.NGINX: 0.7}
"""Estimated cost of a request, before the pilot run has measured it."""
_START_S_MAX, _START_PAUSE_S = 60.0, 0.1


class DemoCommands(msgspec.Struct, frozen=True):
    """The programs with what this machine gave them: loops per request, ports, files."""

    programs: Programs
    loops: dict[ServiceKind, int]
    """Loops of our own services."""
    ports: dict[ServiceKind, int]
    metrics_port: int
    """Port on which our own services tell the latencies of their requests."""
    cpus: int
    work_dir: Path
    disk_dir: Path
    reads_disk: bool
    """Some requests read from the disk: our own services make a file that is read past the page cache."""

    def service(self, kind: ServiceKind, address: str = "127.0.0.1") -> list[str]:
        """Two threads per CPU, as a service has that also waits for disks and others; real servers as they come.

        `address` is where it tells its metrics.
        """
        if (server := self._server(kind)) is not None:
            return server.command()
        return [
            *(str(self.programs.service), "--loops", str(self.loops[kind]), "--port", str(self.ports[kind])),
            *("--threads", str(2 * self.cpus)),
            *(("--disk-file", str(self.disk_dir / "service.data")) if self.reads_disk else ()),
            *("--metrics-port", str(self.metrics_port), "--metrics-address", address),
            *(_WORKING_SET if kind is ServiceKind.MEMORY else ()),
        ]

    def before_start(self, kind: ServiceKind) -> None:
        """Write the files that a service starts with."""
        if (server := self._server(kind)) is not None:
            server.write_files()

    async def ready(self, kind: ServiceKind) -> None:
        """Wait until a service listens (ours makes its file on the disk first), and give it its data.

        Raises: DemoError.
        """
        port = self.ports[kind]
        for _ in range(int(_START_S_MAX / _START_PAUSE_S)):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            await asyncio.sleep(_START_PAUSE_S)
        else:
            raise DemoError(f"{SERVICES[kind]} does not listen on port {port} after {_START_S_MAX:.0f} s")
        if (server := self._server(kind)) is not None:
            try:
                await server.fill()
            except (OSError, EOFError) as error:
                raise DemoError(f"{SERVICES[kind]} does not take its data: {error}") from error

    def guess_s(self, kind: ServiceKind) -> float:
        """Return about what a request costs in CPU seconds."""
        return _GUESSES_MS.get(kind, REQUEST_CPU_MS) / 1_000

    def hog(self, hog: Hog, number: int) -> list[str]:
        """One of the batch pods; together they want all CPUs."""
        threads = _DISK_THREADS if hog is Hog.DISK else -(-self.cpus // BATCH_PODS)
        command = [str(self.programs.hog), hog.value, "--counters", str(self.counters(hog, number))]
        command += ["--threads", str(threads)]
        if hog is Hog.CPU:
            command += ["--loops", str(self.loops[ServiceKind.CPU])]
        if hog is Hog.MEMORY:
            command += ["--mib", str(_STREAM_MIB)]
        if hog is Hog.DISK:
            command += ["--disk-file", str(self.disk_dir / f"batch-{number}.data")]
            command += ["--block-kib", str(DISK_BLOCK_KIB)]
        if hog is Hog.NETWORK:
            command += ["--mib-per-s", str(_NETWORK_MIB_PER_S)]
        return command

    def keep_awake(self) -> list[str]:
        """Return what keeps all CPUs from idling."""
        return [str(self.programs.hog), "awake", "--threads", str(self.cpus)]

    def hog_memory_mib(self, hog: Hog) -> int:
        """Return what a batch pod needs."""
        threads = -(-self.cpus // BATCH_PODS)
        return _PROGRAM_MIB + (2 * _STREAM_MIB * threads if hog is Hog.MEMORY else 0)

    def counters(self, hog: Hog, number: int) -> Path:
        """Return where a batch pod counts what it has done."""
        return self.work_dir / f"{hog}-{number}.count"

    def loadgen(
        self,
        kind: ServiceKind,
        rate_per_s: float,
        warm_up_s: float,
        seconds: float,
        disk_every: int,
        out: Path,
    ) -> list[str]:
        """Return the load, as a client on another machine would send it."""
        server = self._server(kind)
        return [
            *(str(self.programs.loadgen), "--port", str(self.ports[kind]), "--rate", f"{rate_per_s:.3f}"),
            *("--warm-up", f"{warm_up_s:g}", "--seconds", f"{seconds:g}", "--out", str(out)),
            *("--disk-every", str(disk_every)),
            *(server.load_options() if server is not None else ()),
        ]

    def _server(self, kind: ServiceKind) -> RealServer | None:
        if kind not in (ServiceKind.REDIS, ServiceKind.NGINX):
            return None
        cpus = usable_cpus(kind, self.cpus)
        name = f"koordinator-demo-{kind}"
        return RealServer(kind, self.work_dir / name, self.disk_dir / name, self.ports[kind], cpus)


def loops_per_request(programs: Programs, kind: ServiceKind) -> int:
    """Loops that cost a request's CPU time on this machine. Raises: DemoError."""
    command = [str(programs.service), "--calibrate", f"{REQUEST_CPU_MS * 1_000:g}"]
    command += _WORKING_SET if kind is ServiceKind.MEMORY else ()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CALIBRATE_S_MAX, check=True)
        return int(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise DemoError(f"the service could not be calibrated: {error}") from error


def free_ports(count: int) -> list[int]:
    """Return different ports of loopback that nobody listens on."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def cpu_count() -> int:
    """Return CPUs that this process may run on: pods get the same."""
    return len(os.sched_getaffinity(0))
