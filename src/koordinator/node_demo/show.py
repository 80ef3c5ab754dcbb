"""The whole demonstration: prepare, measure, tidy up."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from koordinator.clock import SystemClock, rfc3339
from koordinator.host import cgroups
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import Files, HostRoots
from koordinator.node_demo import awake, build, commands, disk, manifests, plan, real_servers, results
from koordinator.node_demo.awake import KeptAwakeBy
from koordinator.node_demo.build import Programs
from koordinator.node_demo.by_hand import ManualStage
from koordinator.node_demo.colocated import ClusterStage
from koordinator.node_demo.commands import DemoCommands
from koordinator.node_demo.disk import WholeDisk
from koordinator.node_demo.measure import Measured, Meter
from koordinator.node_demo.plan import DemoError, DemoMode, DemoRun, Hog, ServiceKind
from koordinator.node_demo.results import Circumstances
from koordinator.node_demo.stage import DemoStage, Written

_FILES_KEPT_OPEN = 64


class Prepared(msgspec.Struct, frozen=True):
    """All that can fail before anything is started."""

    programs: Programs
    disk_dir: Path
    disk: WholeDisk | None
    planned: list[DemoRun]
    seconds: float
    by_hand: bool
    """Without a cluster and an agent."""
    batch_milli: int = manifests.BATCH_REQUEST_MILLI
    """Lent CPU that a managed batch pod requests."""
    earlier: Sequence[Measured] = ()
    """Measurements of an earlier part."""
    at_most_s: float | None = None
    """No measurement is begun that would end later than this after the start."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine on which figures can be compared."""

    cpus: int
    kernel: str
    machine: str
    """The model of its CPUs."""
    cgroup_version: int
    kept_awake_by: KeptAwakeBy

    @classmethod
    def here(cls) -> Self:
        """Return this one."""
        files = Files(_FILES_KEPT_OPEN)
        try:
            version = Cgroups(files, cgroups.detect(files, HostRoots.below(""))).version
        finally:
            files.close()
        return cls(
            cpus=commands.cpu_count(),
            kernel=os.uname().release,
            machine=_cpu_model(),
            cgroup_version=version,
            kept_awake_by=awake.means(),
        )


class ShownResults(Machine, frozen=True, kw_only=True):
    """The measurements shown, and the machine that they come from."""

    measured: list[Measured]
    request_cpu_ms: dict[ServiceKind, float]
    """CPU time of a request in all."""
    began_s: float
    """Unix seconds."""
    written: list[Written]
    """Writes of the agent, by its own audit log."""
    stopped: str = ""
    """Reason for which it ended before everything was measured."""


def prepare(
    planned: list[DemoRun],
    seconds: float,
    disk_dir: Path | None = None,
    by_hand: bool = False,
    earlier: Sequence[Measured] = (),
    minutes: float | None = None,
    busy: bool = False,
) -> Prepared:
    """Prepare all that can fail; on a busy machine batch asks for no lent CPU, for there may be none.

    Raises: DemoError, which says what is missing and how to get it.
    """
    if os.geteuid() != 0:
        raise DemoError("groups of processes can only be made by root: sudo make demo-node")
    for kind in ServiceKind:
        if any(run.scenario.service is kind for run in planned) and (
            what_to_do := real_servers.missing(kind)
        ):
            raise DemoError(what_to_do)
    programs = build.build(build.cache_dir())
    folder = disk_dir if disk_dir is not None else build.cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    device = disk.disk_of(folder)
    if device is None and any(run.scenario.hog is Hog.DISK for run in planned):
        raise DemoError(
            f"{folder} is not on a single disk, so batch cannot be kept from it: name a folder that is with "
            "--disk-dir, or leave the disk hog out with --hogs cpu --hogs memory"
        )
    if by_hand and any(run.mode in (DemoMode.DEFAULT, DemoMode.CLOSED_LOOP) for run in planned):
        raise DemoError(
            "what the node agent does by default or in the closed loop cannot be measured without it: leave "
            "--by-hand away, or choose other --modes"
        )
    at_most_s = None if minutes is None else 60 * minutes
    batch_milli = 0 if busy else manifests.BATCH_REQUEST_MILLI
    return Prepared(programs, folder, device, planned, seconds, by_hand, batch_milli, earlier, at_most_s)


async def show(prepared: Prepared, on_progress: Callable[[int, DemoRun], None]) -> ShownResults:
    """Measure everything, or what fits into the time; `on_progress` hears of each run before it starts.

    Interrupted (SIGINT, SIGTERM), it ends its pods and gives what was measured until then. Raises: DemoError.
    """
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    clock = SystemClock()
    began_s = clock.now()
    files = Files(_FILES_KEPT_OPEN)
    groups = Cgroups(files, cgroups.detect(files, HostRoots.below("")))
    with tempfile.TemporaryDirectory(prefix="koordinator-demo-") as scratch:
        made = _commands(prepared, Path(scratch))
        stage: DemoStage
        if prepared.by_hand:
            stage = ManualStage(groups, made, prepared.disk)
        else:
            stage = ClusterStage(groups, made, prepared.disk, prepared.batch_milli)
        request_cpu_s: dict[ServiceKind, float] = {}
        measured: list[Measured] = []
        stopped = ""
        try:
            await stage.open()
            meter = Meter(stage, groups, made, prepared.earlier)
            for number, run in enumerate(prepared.planned):
                takes_s = plan.expected_run_s(run, prepared.seconds)
                if prepared.at_most_s is not None and clock.now() - began_s + takes_s > prepared.at_most_s:
                    break
                on_progress(number, run)
                service = run.scenario.service
                try:
                    if service not in request_cpu_s:
                        request_cpu_s[service] = await meter.pilot(service)
                    measured.append(await meter.run(run, prepared.seconds, request_cpu_s[service]))
                except DemoError as error:
                    if not measured:
                        raise
                    stopped = f"{run.scenario}, {run.mode}: {error}"  # what was measured is worth keeping
                    break
                except asyncio.CancelledError:
                    if not measured:
                        raise
                    task.uncancel()
                    stopped = "it was interrupted"
                    break
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            await stage.close()
            files.close()
        written = stage.written()
    if not measured:
        raise DemoError("not one measurement fits into the time: give it more --minutes")
    return ShownResults(
        **msgspec.structs.asdict(Machine.here()),
        measured=measured,
        request_cpu_ms={kind: 1_000 * cost_s for kind, cost_s in request_cpu_s.items()},
        began_s=began_s,
        written=written,
        stopped=stopped,
    )


def _commands(prepared: Prepared, scratch: Path) -> DemoCommands:
    """Return the programs, calibrated to this machine, with ports. Raises: DemoError."""
    kinds = {ServiceKind.CPU, *(run.scenario.service for run in prepared.planned)}
    own = [kind for kind in kinds if kind in (ServiceKind.CPU, ServiceKind.MEMORY)]
    ports = commands.free_ports(len(kinds) + 1)
    return DemoCommands(
        programs=prepared.programs,
        loops={kind: commands.loops_per_request(prepared.programs, kind) for kind in own},
        ports=dict(zip(sorted(kinds), ports, strict=False)),
        metrics_port=ports[-1],
        cpus=commands.cpu_count(),
        work_dir=scratch,
        disk_dir=prepared.disk_dir,
        reads_disk=any(run.scenario.disk_every for run in prepared.planned),
    )


def circumstances(shown: ShownResults) -> Circumstances:
    """Return what a reader of the figures must know."""
    return Circumstances(
        measured_at=rfc3339(shown.began_s),
        kernel=shown.kernel,
        machine=shown.machine,
        cpus=shown.cpus,
        cgroup_version=shown.cgroup_version,
        kept_awake_by=shown.kept_awake_by,
        seconds=shown.measured[0].window_s,
        disturbances=results.disturbances(shown.measured),
        request_cpu_ms=shown.request_cpu_ms,
    )


def _cpu_model() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    found = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(found, os.uname().machine)
