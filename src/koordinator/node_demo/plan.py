"""Plan what is measured, in which order, and how long it takes; the error that ends a demonstration."""

import enum
from collections.abc import Sequence

import msgspec

from koordinator.api.errors import KoordinatorError

REQUEST_CPU_MS = 1.05
"""CPU time that the work of one request of our own services is calibrated to; network and disk come on top."""
SERVICE_REQUEST_MILLI = 1_000
BATCH_PODS = 2
"""Batch pods of a scenario; unmanaged they request together what the service requests."""
PILOT_LOAD_PERCENT = 40
PILOT_S = 2.0
"""Before everything else: what a request costs here in all, so that loads are what they are called."""
DISK_EVERY = 10
"""Beside a disk hog, every tenth request reads a page from the disk."""
DISK_BLOCK_KIB = 16
"""Size of a disk hog's reads and writes, at random places past the page cache: many small operations."""
SETTLE_S = 1.5
"""After the pods of a mode run, before anything is measured: the agent's loops have seen them."""
WARM_UP_S = 1.0
CLOSED_LOOP_WARM_UP_S = 4.0
"""The agent listens once a second and looks at a window: by then it knows what the service feels, and has acted."""
ATTEMPTS = 3
"""Measurements of a run at most: one that others disturbed is made anew, and the calmest counts."""
CALM_LOAD_PERCENT = 40
"""Up to this load the promises are those of an ordinary hour, above it those of a rush hour."""
_AROUND_A_RUN_S = 2.0  # pods come and go
_AGENT_STARTS_S = 5.0  # in the closed loop, before each run
_START_S = 45.0  # the agent reports half a minute after its start, which is when batch resources appear


class DemoMode(enum.StrEnum):
    """The company of the service, and who looks after it."""

    ALONE = "alone"
    AWAKE = "awake"
    """Alone, but no CPU ever idles (`awake`): a virtual CPU that is parked costs the first request after a pause what
    batch work saves it."""
    UNMANAGED = "unmanaged"
    DEFAULT = "default"
    """Managed by the policies of an installation in which nobody changed anything."""
    MANAGED = "managed"
    CLOSED_LOOP = "closed-loop"
    """Managed, and what batch may use follows what the service feels: its latency, or how it waits."""

    @property
    def has_agent(self) -> bool:
        """Return whether batch runs as best-effort pods that the node agent looks after."""
        return self in (DemoMode.DEFAULT, DemoMode.MANAGED, DemoMode.CLOSED_LOOP)

    @property
    def has_batch(self) -> bool:
        """Return whether batch runs beside the service."""
        return self not in BASELINES


BASELINES = (DemoMode.ALONE, DemoMode.AWAKE)
"""The service by itself: what the other modes are compared with."""
MODES = (DemoMode.ALONE, DemoMode.AWAKE, DemoMode.UNMANAGED, DemoMode.MANAGED, DemoMode.CLOSED_LOOP)
"""Modes that are compared unless others are asked for."""


class ServiceKind(enum.StrEnum):
    """The program that serves the requests; each suffers from other neighbours."""

    CPU = "cpu"
    """Our own, computing in the first caches."""
    MEMORY = "memory"
    """Our own, reading from a working set in and beyond the last-level cache."""
    REDIS = "redis"
    NGINX = "nginx"


class Hog(enum.StrEnum):
    """The resource that batch work is hungry for."""

    CPU = "cpu"
    MEMORY = "memory"
    DISK = "disk"
    NETWORK = "network"


class DemoScenario(msgspec.Struct, frozen=True, order=True):
    """One load of a service beside one kind of batch work; `load_percent` is of the CPUs that the service can use: all
    of the machine, or one for Redis."""

    load_percent: int
    hog: Hog
    service: ServiceKind = ServiceKind.CPU

    def __str__(self) -> str:
        who = "" if self.service is ServiceKind.CPU else f"{SERVICES[self.service]}, "
        return f"{who}{self.load_percent} % load, {self.hog} hog"

    @property
    def disk_every(self) -> int:
        """One request in so many reads from the disk, 0 for none."""
        return DISK_EVERY if self.hog is Hog.DISK else 0


SERVICES = {
    ServiceKind.CPU: "CPU-bound service",
    ServiceKind.MEMORY: "memory-bound service",
    ServiceKind.REDIS: "Redis",
    ServiceKind.NGINX: "nginx",
}


class DemoRun(msgspec.Struct, frozen=True):
    """One measurement; `scenario.hog` only says which requests are made when the service is alone."""

    scenario: DemoScenario
    mode: DemoMode
    repeat: int


def usable_cpus(service: ServiceKind, cpus: int) -> int:
    """CPUs that a service can use: Redis answers in one thread."""
    return 1 if service is ServiceKind.REDIS else cpus


def rate_per_s(load_percent: float, cpus: int, request_cpu_s: float) -> float:
    """Requests per second that make the service use this share of `cpus` CPUs."""
    return load_percent / 100 * cpus / request_cpu_s


def runs(scenarios: list[DemoScenario], repeats: int, modes: Sequence[DemoMode] = MODES) -> list[DemoRun]:
    """Return all measurements: service by service, load by load, and there interleaved: whatever changes on the machine
    meanwhile meets all modes alike.

    Being alone is measured once for all scenarios whose requests are the same (`alone_like`).
    """
    planned: dict[DemoRun, None] = {}
    for service, load in sorted({(each.service, each.load_percent) for each in scenarios}):
        of_load = [each for each in scenarios if (each.service, each.load_percent) == (service, load)]
        for repeat in range(repeats):
            for mode in modes:
                for scenario in of_load:
                    is_baseline = mode in BASELINES
                    planned[DemoRun(alone_like(scenario) if is_baseline else scenario, mode, repeat)] = None
    return list(planned)


def is_kept_awake(run: DemoRun) -> bool:
    """Return whether CPUs are kept from idling (`awake`): in the baseline, and in the closed loop beside batch that
    leaves them idle. Else parking, not batch, would make the difference between the two."""
    leaves_idle = run.scenario.hog in (Hog.DISK, Hog.NETWORK)
    return run.mode is DemoMode.AWAKE or (run.mode is DemoMode.CLOSED_LOOP and leaves_idle)


def alone_like(scenario: DemoScenario) -> DemoScenario:
    """Return the scenario that stands for being alone: hogs that are not there are all the same, unless requests
    differ."""
    return scenario if scenario.hog is Hog.DISK else msgspec.structs.replace(scenario, hog=Hog.CPU)


def warm_up_s(mode: DemoMode) -> float:
    """Requests at the start of a run that do not count, in seconds."""
    return CLOSED_LOOP_WARM_UP_S if mode is DemoMode.CLOSED_LOOP else WARM_UP_S


def p99_to_awake_max(load_percent: int) -> float:
    """Return what is promised of p99 in the closed loop, relative to CPUs kept awake."""
    return 1.2 if load_percent <= CALM_LOAD_PERCENT else 1.5


def objective_ratio(load_percent: int) -> float:
    """Return the service's objective relative to p99 without batch: with room for the noise of a p99 over five seconds,
    else batch would shrink for nothing."""
    return 1.5 if load_percent <= CALM_LOAD_PERCENT else 2.0


def expected_s(planned: Sequence[DemoRun], seconds: float) -> float:
    """About how long it takes, start included."""
    return _START_S + sum(expected_run_s(run, seconds) for run in planned)


def expected_run_s(run: DemoRun, seconds: float) -> float:
    """About how long one measurement takes, with the pods that come and go."""
    agent_s = _AGENT_STARTS_S if run.mode is DemoMode.CLOSED_LOOP else 0.0
    return SETTLE_S + warm_up_s(run.mode) + seconds + _AROUND_A_RUN_S + agent_s


class DemoError(KoordinatorError):
    """The demonstration cannot go on; the message says why, and what to do where there is something to do."""
