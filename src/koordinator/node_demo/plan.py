"""Plan what is measured, in which order, and how long it takes; the error that ends a demonstration."""

import enum
from collections.abc import Sequence

import msgspec

from koordinator.api.errors import KoordinatorError

REQUEST_CPU_MS = 1.05
"""CPU time that the work of one request is calibrated to; network and disk come on top."""
SERVICE_REQUEST_MILLI = 1_000
BATCH_PODS = 2
"""Batch pods of a scenario; unmanaged they request together what the service requests."""
PILOT_LOAD_PERCENT = 40
PILOT_S = 2.0
"""Before everything else: what a request costs here in all, so that loads are what they are called."""
DISK_EVERY = 10
"""Beside a disk hog, every tenth request reads a page from the disk."""
DISK_BLOCK_KIB = 16
"""What a disk hog reads or writes at a time, at random places past the page cache: many small operations."""
SETTLE_S = 1.5
"""After the pods of a mode run, before anything is measured: the agent's loops have seen them."""
WARM_UP_S = 1.0
"""Requests at the start of each run that do not count."""
_AROUND_A_RUN_S = 2.0  # pods come and go
_START_S = 45.0  # the agent reports half a minute after its start, which is when batch resources appear


class DemoMode(enum.StrEnum):
    """The company of the service, and who looks after it."""

    ALONE = "alone"
    UNMANAGED = "unmanaged"
    DEFAULT = "default"
    """Managed by the policies of an installation in which nobody changed anything."""
    MANAGED = "managed"

    @property
    def has_agent(self) -> bool:
        """Return whether batch runs as best-effort pods that the node agent looks after."""
        return self in (DemoMode.DEFAULT, DemoMode.MANAGED)


MODES = (DemoMode.ALONE, DemoMode.UNMANAGED, DemoMode.MANAGED)
"""What is compared unless somebody asks for other modes."""


class Hog(enum.StrEnum):
    """The resource that batch work is hungry for."""

    CPU = "cpu"
    MEMORY = "memory"
    DISK = "disk"


class DemoScenario(msgspec.Struct, frozen=True, order=True):
    """One load of the service beside one kind of batch work; `load_percent` is of all CPUs of the machine."""

    load_percent: int
    hog: Hog

    def __str__(self) -> str:
        return f"{self.load_percent} % load, {self.hog} hog"

    @property
    def disk_every(self) -> int:
        """One request in so many reads from the disk, 0 for none."""
        return DISK_EVERY if self.hog is Hog.DISK else 0


class DemoRun(msgspec.Struct, frozen=True):
    """One measurement; `scenario.hog` only says which requests are made when the service is alone."""

    scenario: DemoScenario
    mode: DemoMode
    repeat: int


def rate_per_s(load_percent: float, cpus: int, request_cpu_s: float) -> float:
    """Requests per second that make the service use this share of the machine's CPUs."""
    return load_percent / 100 * cpus / request_cpu_s


def runs(scenarios: list[DemoScenario], repeats: int, modes: Sequence[DemoMode] = MODES) -> list[DemoRun]:
    """Return all measurements, interleaved: whatever changes on the machine meanwhile meets all modes alike.

    Being alone is measured once for all scenarios whose requests are the same (`alone_like`).
    """
    planned = []
    for repeat in range(repeats):
        for mode in modes:
            for scenario in scenarios:
                run = DemoRun(alone_like(scenario) if mode is DemoMode.ALONE else scenario, mode, repeat)
                if run not in planned:
                    planned.append(run)
    return planned


def alone_like(scenario: DemoScenario) -> DemoScenario:
    """Return the scenario that stands for being alone: a CPU or a memory hog that is not there are the same."""
    return scenario if scenario.hog is Hog.DISK else DemoScenario(scenario.load_percent, Hog.CPU)


def expected_s(planned: list[DemoRun], seconds: float) -> float:
    """About how long it takes."""
    return _START_S + len(planned) * (SETTLE_S + WARM_UP_S + seconds + _AROUND_A_RUN_S)


class DemoError(KoordinatorError):
    """The demonstration cannot go on; the message says why, and what to do where there is something to do."""
