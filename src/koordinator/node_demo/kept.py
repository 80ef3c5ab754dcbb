"""Figures of a demonstration as JSON, written and read back: a matrix is measured in parts."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from koordinator.local.nodes.contention import Interference
from koordinator.node_demo import results, texts
from koordinator.node_demo.measure import Measured
from koordinator.node_demo.plan import DemoError, DemoRun
from koordinator.node_demo.results import Circumstances, ResultRow
from koordinator.node_demo.show import Machine, ShownResults


class KeptFigures(msgspec.Struct, frozen=True):
    """The figures of a file that are needed to go on with it."""

    circumstances: Circumstances
    runs: list[Measured]


def write(
    path: Path, circumstances: Circumstances, rows: Sequence[ResultRow], measured: list[Measured]
) -> None:
    """Write all figures, without single requests."""
    document = {
        "circumstances": circumstances,
        "rows": rows,
        "verdicts": texts.verdicts(list(rows)),
        "runs": results.plain(measured),
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def write_interference(path: Path, curve: Interference) -> None:
    """Write p99 by load, from which the simulator's model is made."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(curve)) + b"\n")


def read(path: Path) -> KeptFigures | None:
    """Return what an earlier demonstration wrote; None when there is no file. Raises: DemoError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeptFigures)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise DemoError(f"{path} does not hold the figures of a demonstration: {error}") from error


def left(planned: Sequence[DemoRun], kept: KeptFigures | None, seconds: float) -> list[DemoRun]:
    """Return what is still to be measured. Raises: DemoError when all is, or runs are of another length."""
    if kept is None:
        return list(planned)
    if kept.circumstances.seconds != seconds:
        raise DemoError(
            f"runs of {kept.circumstances.seconds:g} s have been kept: go on with --seconds "
            f"{kept.circumstances.seconds:g}, or name another file"
        )
    done = {each.run for each in kept.runs}
    found = [run for run in planned if run not in done]
    if not found:
        raise DemoError(
            "everything that was asked for is measured already: name another file to measure anew"
        )
    return found


def check(kept: KeptFigures, now: Machine) -> None:
    """Raises: DemoError when the kept figures are of another machine."""
    before = kept.circumstances
    for name, old, new in (
        ("machine", before.machine, now.machine),
        ("kernel", before.kernel, now.kernel),
        ("number of CPUs", before.cpus, now.cpus),
        ("version of control groups", before.cgroup_version, now.cgroup_version),
        ("way to keep CPUs awake", before.kept_awake_by, now.kept_awake_by),
    ):
        if old != new:
            raise DemoError(f"the kept figures are of another {name}: {old}, and now {new}")


def join(
    kept: KeptFigures | None, shown: ShownResults, circumstances: Circumstances
) -> tuple[ShownResults, Circumstances]:
    """Put what was measured now beside what was kept."""
    if kept is None:
        return shown, circumstances
    before = kept.circumstances
    measured = [*shown.measured, *kept.runs]
    costs = {**before.request_cpu_ms, **circumstances.request_cpu_ms}
    joined = msgspec.structs.replace(
        circumstances,
        measured_at=before.measured_at,
        request_cpu_ms=costs,
        disturbances=results.disturbances(measured),
    )
    return msgspec.structs.replace(shown, measured=measured, request_cpu_ms=costs), joined
