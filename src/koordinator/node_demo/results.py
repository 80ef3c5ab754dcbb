"""Sum up the measurements: medians of repeated runs, each compared with the service alone."""

from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from koordinator.local.nodes.contention import Interference
from koordinator.node_demo.awake import KeptAwakeBy
from koordinator.node_demo.measure import Measured
from koordinator.node_demo.observe import OTHER_RATIO_MAX, STEAL_RATIO_MAX
from koordinator.node_demo.plan import (
    BASELINES,
    DISK_BLOCK_KIB,
    DemoMode,
    DemoScenario,
    Hog,
    ServiceKind,
    alone_like,
)

_UNITS = {
    Hog.CPU: ("units", 1.0),
    Hog.MEMORY: ("GiB", 1 / 1024),
    Hog.DISK: ("MiB", DISK_BLOCK_KIB / 1024),
    Hog.NETWORK: ("MiB", 1.0),
}

SENT_LATE_MS_MAX = 0.5


class ResultRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Medians of one scenario and mode. Ratios of CPU are of all CPUs of the machine; None is what there is no
    baseline for."""

    scenario: DemoScenario
    mode: DemoMode
    runs: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    p99_min_ms: float
    p99_max_ms: float
    p99_to_alone: float | None
    p99_to_awake: float | None
    answered_ratio: float
    total_ratio: float
    service_ratio: float
    batch_ratio: float
    batch_of_left: float | None
    agent_ratio: float
    work_per_s: float

    @property
    def work(self) -> str:
        """Return what batch did per second; a unit of CPU work is that of one request."""
        if not self.mode.has_batch:
            return ""
        unit, factor = _UNITS[self.scenario.hog]
        return f"{self.work_per_s * factor:,.0f} {unit}"


def summarise(measured: Sequence[Measured]) -> list[ResultRow]:
    """Return one row per scenario and mode, in the order of scenarios, then modes."""
    scenarios = sorted({each.run.scenario for each in measured if each.run.mode.has_batch})
    rows = []
    for scenario in scenarios or sorted({each.run.scenario for each in measured}):
        baselines = {mode: _of(measured, alone_like(scenario), mode) for mode in BASELINES}
        for mode in DemoMode:
            runs = baselines[mode] if mode in BASELINES else _of(measured, scenario, mode)
            if runs:
                rows.append(_row(scenario, mode, runs, baselines))
    return rows


def disturbances(measured: Sequence[Measured]) -> list[str]:
    """Return what other than the demonstration went on, one sentence each; empty on a quiet machine."""
    found = []
    for name, value, limit in _DISTURBANCES:
        disturbed = [value(each) for each in measured if value(each) > limit]
        if disturbed:
            found.append(
                name.format(count=len(disturbed), all=len(measured), worst=max(disturbed), limit=limit)
            )
    return found


_DISTURBANCES: tuple[tuple[str, Callable[[Measured], float], float], ...] = (
    (
        "In {count} of {all} runs other processes used more than {limit:.0%} of the CPUs (up to {worst:.0%}).",
        lambda each: each.use.other_ratio,
        OTHER_RATIO_MAX,
    ),
    (
        "In {count} of {all} runs the hypervisor took more than {limit:.0%} of the CPUs away (up to {worst:.0%}).",
        lambda each: each.use.steal_ratio,
        STEAL_RATIO_MAX,
    ),
    (
        "In {count} of {all} runs 1 % of the requests were sent more than {limit:g} ms late (up to {worst:.1f} ms): "
        "something kept even real-time processes waiting.",
        lambda each: each.latency.sent_late_p99_ms,
        SENT_LATE_MS_MAX,
    ),
)


def _of(measured: Sequence[Measured], scenario: DemoScenario, mode: DemoMode) -> list[Measured]:
    return [each for each in measured if each.run.scenario == scenario and each.run.mode is mode]


def _row(
    scenario: DemoScenario, mode: DemoMode, runs: list[Measured], baselines: dict[DemoMode, list[Measured]]
) -> ResultRow:
    p99s = [each.latency.p99_ms for each in runs]
    to = {of: median(p99s) / _p99_ms(alone) if alone else None for of, alone in baselines.items()}
    alone = baselines[DemoMode.ALONE] or baselines[DemoMode.AWAKE]
    service = median(each.use.service_ratio for each in alone) if alone else None
    return ResultRow(
        scenario=scenario,
        mode=mode,
        runs=len(runs),
        p50_ms=median(each.latency.p50_ms for each in runs),
        p99_ms=median(p99s),
        p999_ms=median(each.latency.p999_ms for each in runs),
        p99_min_ms=min(p99s),
        p99_max_ms=max(p99s),
        p99_to_alone=to[DemoMode.ALONE],
        p99_to_awake=to[DemoMode.AWAKE],
        answered_ratio=median(_answered_ratio(each) for each in runs),
        total_ratio=median(each.use.total_ratio for each in runs),
        service_ratio=median(each.use.service_ratio for each in runs),
        batch_ratio=median(each.use.batch_ratio for each in runs),
        batch_of_left=None if service is None else median(batch_of_left(each, service) for each in runs),
        agent_ratio=median(each.use.agent_ratio for each in runs),
        work_per_s=median(each.use.work_per_s for each in runs),
    )


def _p99_ms(runs: list[Measured]) -> float:
    return median(each.latency.p99_ms for each in runs)


def batch_of_left(measured: Measured, alone_service_ratio: float) -> float:
    """CPU time of batch relative to what the service, when alone, leaves of this machine.

    Usage by others (the client that stands for another machine, processes that are not ours) is not there to be
    left; usage by the agent is. Above 1, batch took from the service.
    """
    use = measured.use
    left = 1.0 - alone_service_ratio - use.client_ratio - use.other_ratio
    return use.batch_ratio / left if left > 0 else 0.0


def _answered_ratio(measured: Measured) -> float:
    return min(measured.latency.answered_per_s * measured.window_s / measured.latency.requests, 1.0)


class Circumstances(msgspec.Struct, frozen=True, rename="camel"):
    """The date and the figures of the measurement, and what else went on meanwhile (empty on a quiet machine)."""

    measured_at: str
    kernel: str
    machine: str
    cpus: int
    cgroup_version: int
    seconds: float
    disturbances: list[str]
    request_cpu_ms: dict[ServiceKind, float] = {}
    kept_awake_by: KeptAwakeBy = KeptAwakeBy.IDLE_CLASS  # as in files of before there was a choice


def plain(measured: Sequence[Measured]) -> list[Measured]:
    """Return each run in figures, without its single requests."""
    return [msgspec.structs.replace(each, records=None) for each in measured]


def interference(measured: Sequence[Measured], circumstances: Circumstances) -> Interference:
    """Return p99 in milliseconds of each run of the CPU-bound service beside CPU hogs, by mode and load, as the
    simulator's model reads it."""
    p99_ms: dict[str, dict[int, list[float]]] = {}
    for each in measured:
        if each.run.scenario.hog is Hog.CPU and each.run.scenario.service is ServiceKind.CPU:
            runs = p99_ms.setdefault(each.run.mode.value, {}).setdefault(each.run.scenario.load_percent, [])
            runs.append(round(each.latency.p99_ms, 3))
    by_load = {mode: dict(sorted(loads.items())) for mode, loads in sorted(p99_ms.items())}
    known = circumstances
    return Interference(
        known.measured_at,
        known.kernel,
        known.machine,
        known.cpus,
        known.cgroup_version,
        known.seconds,
        by_load,
    )
