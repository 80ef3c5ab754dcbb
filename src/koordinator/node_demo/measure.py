"""One measurement after the other: set the stage, send the load, read what happened. Percentiles of latencies are
exact."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator.host.cgroup_knobs import V1
from koordinator.host.cgroups import Cgroups
from koordinator.host.files import FileProblem
from koordinator.node_demo import awake, observe, plan
from koordinator.node_demo.awake import KeptAwakeBy
from koordinator.node_demo.commands import DemoCommands
from koordinator.node_demo.observe import Moment, Use
from koordinator.node_demo.plan import (
    SETTLE_S,
    DemoError,
    DemoMode,
    DemoRun,
    DemoScenario,
    Hog,
    ServiceKind,
)
from koordinator.node_demo.stage import DemoStage, StageSetting

_STRAGGLERS_S = 30.0  # start and end of the load generator, generously

T = TypeVar("T")
I64 = NDArray[np.int64]

_FIELDS = 3  # due, latency, lateness of sending: loadgen.c
_NS_PER_MS = 1e6
_NS_PER_S = 1e9


class ClientLatency(msgspec.Struct, frozen=True, rename="camel"):
    """The latency that clients saw, from the moment that each request was due."""

    requests: int
    unanswered: int
    answered_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    sent_late_p99_ms: float


class Records(msgspec.Struct, frozen=True):
    """Requests of one run in the order they were due; nanoseconds, arrays of (requests,).

    A request without an answer has the negated time that it had waited when the run ended.
    """

    due_ns: I64
    latency_ns: I64
    late_ns: I64


def read(path: Path) -> Records:
    """Raises: DemoError when the file is not what a load generator writes."""
    numbers = np.fromfile(path, dtype=np.int64)
    if numbers.size == 0 or numbers.size % _FIELDS:
        raise DemoError(f"{path}: {numbers.size} numbers are no list of requests")
    due, latency, late = numbers.reshape(-1, _FIELDS).T
    return Records(due, latency, late)


def percentile(values: I64, percent: float) -> int:
    """Return the smallest of `values` (requests,) that at least `percent` of all do not exceed (nearest rank)."""
    assert values.size > 0, values.shape
    rank = max(int(np.ceil(round(percent / 100 * values.size, 9))), 1)
    return int(np.partition(values, rank - 1)[rank - 1])


def summarise(records: Records, window_s: float) -> ClientLatency:
    """Figures of a run whose requests were due within `window_s`.

    Requests without an answer count with what they had waited: their latency is at least that.
    """
    is_answered = records.latency_ns > 0
    waited = np.abs(records.latency_ns)
    in_time = is_answered & (records.due_ns + waited <= window_s * _NS_PER_S)
    return ClientLatency(
        requests=int(waited.size),
        unanswered=int(waited.size - is_answered.sum()),
        answered_per_s=float(in_time.sum() / window_s),
        p50_ms=percentile(waited, 50) / _NS_PER_MS,
        p99_ms=percentile(waited, 99) / _NS_PER_MS,
        p999_ms=percentile(waited, 99.9) / _NS_PER_MS,
        max_ms=int(waited.max()) / _NS_PER_MS,
        sent_late_p99_ms=percentile(records.late_ns, 99) / _NS_PER_MS,
    )


class Measured(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The result of one run."""

    run: DemoRun
    window_s: float
    latency: ClientLatency
    use: Use
    evidence: dict[str, str]
    records: Records | None = None
    """None of a run that an earlier demonstration measured."""


class DemoLoad(msgspec.Struct, frozen=True):
    """Requests of one run."""

    service: ServiceKind
    rate_per_s: float
    disk_every: int
    warm_up_s: float
    seconds: float


class Meter:
    """Measures runs on a stage."""

    def __init__(
        self, stage: DemoStage, cgroups: Cgroups, commands: DemoCommands, earlier: Sequence[Measured] = ()
    ) -> None:
        self._baselines_ms: dict[DemoScenario, float] = {}
        for each in earlier:
            self._remember(each)
        self._stage = stage
        self._cgroups = cgroups
        self._commands = commands

    async def pilot(self, service: ServiceKind) -> float:
        """CPU seconds of one request, all that the service spends on it included. Raises: DemoError."""
        cpus = plan.usable_cpus(service, self._commands.cpus)
        rate = plan.rate_per_s(plan.PILOT_LOAD_PERCENT, cpus, self._commands.guess_s(service))
        scenario = DemoScenario(plan.PILOT_LOAD_PERCENT, Hog.CPU, service)
        setting = await self._stage.enter(DemoMode.ALONE, scenario)
        load = DemoLoad(service, rate, 0, plan.warm_up_s(DemoMode.ALONE), plan.PILOT_S)

        async def measure() -> Use:
            _, use = await self._send(setting, load, [])
            return use

        use = await _calmest(measure, lambda use: use)
        if use.service_ratio <= 0:
            raise DemoError(
                f"{plan.SERVICES[service]} used no CPU time though it was asked {rate:.0f} times a second"
            )
        return use.service_ratio * self._commands.cpus / rate

    async def run(self, run: DemoRun, seconds: float, request_cpu_s: float) -> Measured:
        """Measure a run: the calmest of a few measurements.

        Alone, one is enough: there idle CPUs are the hypervisor's to give away. Raises: DemoError.
        """

        async def measure() -> Measured:
            return await self._run(run, seconds, request_cpu_s)

        is_alone = run.mode is DemoMode.ALONE
        found = await (measure() if is_alone else _calmest(measure, lambda measured: measured.use))
        self._remember(found)
        return found

    async def _run(self, run: DemoRun, seconds: float, request_cpu_s: float) -> Measured:
        """One measurement; in the closed loop the service's objective comes from its baseline measured before."""
        scenario = run.scenario
        cpus = plan.usable_cpus(scenario.service, self._commands.cpus)
        rate = plan.rate_per_s(scenario.load_percent, cpus, request_cpu_s)
        setting = await self._stage.enter(run.mode, scenario, self._target_ms(run))
        warm_up_s = plan.warm_up_s(run.mode)
        load = DemoLoad(scenario.service, rate, scenario.disk_every, warm_up_s, seconds)
        async with self._awake(plan.is_kept_awake(run)) as spinners:
            await asyncio.sleep(SETTLE_S)
            records, use = await self._send(setting, load, spinners)
        return Measured(run, seconds, summarise(records, seconds), use, setting.evidence, records)

    def _remember(self, measured: Measured) -> None:
        """Take the slower p99 without batch, CPUs kept awake or not, for what the service reaches by itself."""
        if measured.run.mode in plan.BASELINES:
            known_ms = self._baselines_ms.get(measured.run.scenario, 0.0)
            self._baselines_ms[measured.run.scenario] = max(known_ms, measured.latency.p99_ms)

    def _target_ms(self, run: DemoRun) -> float | None:
        if run.mode is not DemoMode.CLOSED_LOOP:
            return None
        usual_ms = self._baselines_ms.get(plan.alone_like(run.scenario))
        if usual_ms is None:
            raise DemoError(
                f"{run.scenario}: the closed loop needs the service without batch: --modes alone --modes awake"
            )
        return plan.objective_ratio(run.scenario.load_percent) * usual_ms

    @contextlib.asynccontextmanager
    async def _awake(self, is_wanted: bool) -> AsyncIterator[list[int]]:
        """Keep all CPUs from idling. Gives the process that does so, if any: it is in the root group, for below any
        other its class would not count beside pods."""
        if not is_wanted:
            yield []
            return
        if awake.means() is KeptAwakeBy.PM_QOS:
            with awake.polling():
                yield []
            return
        process = await asyncio.create_subprocess_exec(*self._commands.keep_awake())
        try:
            problem = self._to_root(process.pid)
            if problem is not None:
                raise DemoError(f"what keeps CPUs awake cannot run in the root group: {problem}")
            yield [process.pid]
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _send(self, setting: StageSetting, load: DemoLoad, spinners: list[int]) -> tuple[Records, Use]:
        out = self._commands.work_dir / "latencies"
        command = self._commands.loadgen(
            load.service, load.rate_per_s, load.warm_up_s, load.seconds, load.disk_every, out
        )
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        if (
            self._cgroups.version == V1
        ):  # real-time classes need run time of their own, which only the root group has
            self._to_root(process.pid)
        try:
            await asyncio.sleep(load.warm_up_s)
            before = self._sample(setting, spinners)
            await asyncio.sleep(load.seconds)
            after = self._sample(setting, spinners)
            text, problem = await asyncio.wait_for(process.communicate(), _STRAGGLERS_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if process.returncode != 0:
            raise DemoError(f"{Path(command[0]).name} failed: {problem.decode(errors='replace').strip()}")
        output = msgspec.json.decode(text, type=_LoadOutput)
        generator_s = output.cpu_seconds * load.seconds / (load.seconds + load.warm_up_s)
        return read(out), observe.use(before, after, self._commands.cpus, generator_s)

    def _sample(self, setting: StageSetting, spinners: list[int]) -> Moment:
        return observe.look(
            self._cgroups,
            setting.service_group,
            setting.batch_groups,
            setting.counters,
            setting.agents,
            spinners,
        )

    def _to_root(self, pid: int) -> FileProblem | None:
        """Move a process to the root group; why not, or None."""
        return self._cgroups.files.write(f"{self._cgroups.directory('', 'cpu')}/cgroup.procs", str(pid))


async def _calmest(measure: Callable[[], Awaitable[T]], use_of: Callable[[T], Use]) -> T:
    """Measure anew while others disturb it, `plan.ATTEMPTS` times at most; return the calmest."""
    found = await measure()
    for _ in range(plan.ATTEMPTS - 1):
        if observe.disturbance(use_of(found)) <= 1:
            break
        found = min(found, await measure(), key=lambda each: observe.disturbance(use_of(each)))
    return found


class _LoadOutput(msgspec.Struct, rename="camel"):
    """The output of a load generator."""

    requests: int
    answered: int
    cpu_seconds: float
