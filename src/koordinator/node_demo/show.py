"""The whole demonstration: prepare, measure, tidy up."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from koordinator.clock import SystemClock, rfc3339
from koordinator.host import cgroups
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import Files, HostRoots
from koordinator.node_demo import build, commands, disk, plan, results
from koordinator.node_demo.build import Programs
from koordinator.node_demo.by_hand import ByHand
from koordinator.node_demo.colocated import OnACluster
from koordinator.node_demo.commands import DemoCommands
from koordinator.node_demo.disk import WholeDisk
from koordinator.node_demo.measure import Measured, Meter
from koordinator.node_demo.plan import MODES, DemoError, DemoMode, DemoRun, DemoScenario, Hog
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


class ShownResults(msgspec.Struct, frozen=True):
    """The measurements shown, and the machine that they come from."""

    measured: list[Measured]
    cpus: int
    request_cpu_ms: float
    kernel: str
    machine: str
    """The model of its CPUs."""
    cgroup_version: int
    began_s: float
    """Unix seconds."""
    written: list[Written]
    """What the agent wrote, by its own audit log."""


def prepare(
    scenarios: list[DemoScenario],
    repeats: int,
    seconds: float,
    disk_dir: Path | None = None,
    by_hand: bool = False,
    modes: Sequence[DemoMode] = MODES,
) -> Prepared:
    """Raises: DemoError, which says what is missing and how to get it."""
    if os.geteuid() != 0:
        raise DemoError("groups of processes can only be made by root: sudo make demo-node")
    programs = build.build(build.cache_dir())
    folder = disk_dir if disk_dir is not None else build.cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    device = disk.disk_of(folder)
    if device is None and any(each.hog is Hog.DISK for each in scenarios):
        raise DemoError(
            f"{folder} is not on a single disk, so batch cannot be kept from it: name a folder that is with "
            "--disk-dir, or leave the disk hog out with --hogs cpu --hogs memory"
        )
    if by_hand and DemoMode.DEFAULT in modes:
        raise DemoError(
            "what the node agent does by default cannot be measured without it: leave --by-hand away"
        )
    return Prepared(programs, folder, device, plan.runs(scenarios, repeats, modes), seconds, by_hand)


async def show(prepared: Prepared, on_progress: Callable[[int, DemoRun], None]) -> ShownResults:
    """Measure everything; `on_progress` hears of each run before it starts. Raises: DemoError."""
    clock = SystemClock()
    began_s = clock.now()
    files = Files(_FILES_KEPT_OPEN)
    groups = Cgroups(files, cgroups.detect(files, HostRoots.below("")))
    with tempfile.TemporaryDirectory(prefix="koordinator-demo-") as scratch:
        made = DemoCommands(
            programs=prepared.programs,
            loops=commands.loops_per_request(prepared.programs),
            port=commands.free_port(),
            cpus=commands.cpu_count(),
            work_dir=Path(scratch),
            disk_dir=prepared.disk_dir,
        )
        stage: DemoStage
        if prepared.by_hand:
            stage = ByHand(groups, made, prepared.disk)
        else:
            stage = OnACluster(groups, made, prepared.disk)
        try:
            await stage.open()
            meter = Meter(stage, groups, made)
            request_cpu_s = await meter.pilot()
            measured = []
            for number, run in enumerate(prepared.planned):
                on_progress(number, run)
                measured.append(await meter.run(run, prepared.seconds, request_cpu_s))
        finally:
            await stage.close()
            files.close()
        written = stage.written()
    return ShownResults(
        measured=measured,
        cpus=made.cpus,
        request_cpu_ms=request_cpu_s * 1_000,
        kernel=os.uname().release,
        machine=_cpu_model(),
        cgroup_version=groups.version,
        began_s=began_s,
        written=written,
    )


def circumstances(shown: ShownResults) -> Circumstances:
    """Return what a reader of the figures must know."""
    return Circumstances(
        measured_at=rfc3339(shown.began_s),
        kernel=shown.kernel,
        machine=shown.machine,
        cpus=shown.cpus,
        cgroup_version=shown.cgroup_version,
        seconds=shown.measured[0].window_s,
        disturbances=results.disturbances(shown.measured),
    )


def _cpu_model() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    found = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(found, os.uname().machine)
