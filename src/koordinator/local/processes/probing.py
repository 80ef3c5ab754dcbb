"""Probes of a running container: when to ask, what an answer changes. Rules of the kubelet's prober."""

import asyncio
import enum
import logging
from typing import Protocol

import aiohttp

from koordinator.cluster.supervise import Guard
from koordinator.local.processes import actions
from koordinator.local.processes.actions import ActionResult, RunningContainer
from koordinator.local.processes.container_state import ContainerRecord
from koordinator.local.processes.pod_spec import Probe

log = logging.getLogger(__name__)

PERIOD_S, TIMEOUT_S, FAILURES = 10, 1, 3
"""What the API fills in; for objects that did not pass it."""


class ProbeKind(enum.Enum):
    """The three probes, as messages name them."""

    STARTUP = "Startup"
    LIVENESS = "Liveness"
    READINESS = "Readiness"


class Streak:
    """Answers in a row. Pure."""

    def __init__(self, probe: Probe) -> None:
        self._needed = {True: max(probe.success_threshold, 1), False: probe.failure_threshold or FAILURES}
        self._last: bool | None = None
        self._count = 0

    def add(self, is_well: bool) -> bool | None:
        """Add an answer; return what is true now, None while too few answers in a row say so."""
        self._count = self._count + 1 if is_well is self._last else 1
        self._last = is_well
        return is_well if self._count >= self._needed[is_well] else None


class ProbedContainer(RunningContainer, Protocol):
    """A container that is probed."""

    record: ContainerRecord

    @property
    def is_stopping(self) -> bool: ...

    def set_ready(self, is_ready: bool) -> None:
        """Set what the readiness probe found."""
        ...

    def set_started(self) -> None:
        """The startup probe succeeded."""
        ...

    def unhealthy(self, kind: ProbeKind, text: str) -> None:
        """A probe failed once."""
        ...

    async def failed(self, kind: ProbeKind, probe: Probe) -> None:
        """The liveness or startup probe failed for good."""
        ...


class Prober:
    """All probes of one run of a container."""

    def __init__(self, session: aiohttp.ClientSession, asked: ProbedContainer) -> None:
        self._session = session
        self._asked = asked
        self._tasks: list[asyncio.Task[None]] = []
        self._guard = Guard(f"probes of container {asked.spec.name}")

    def start(self) -> None:
        """Begin to ask."""
        spec = self._asked.spec
        for kind, probe in (
            (ProbeKind.STARTUP, spec.startup_probe),
            (ProbeKind.LIVENESS, spec.liveness_probe),
            (ProbeKind.READINESS, spec.readiness_probe),
        ):
            if probe is not None:
                name = f"{kind.value} probe of {spec.name}"
                self._tasks.append(asyncio.create_task(self._guarded(kind, probe), name=name))

    async def stop(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _guarded(self, kind: ProbeKind, probe: Probe) -> None:
        await self._guard.call_async(self._ask_on, kind, probe)

    async def _ask_on(self, kind: ProbeKind, probe: Probe) -> None:
        asked = self._asked
        await asyncio.sleep(probe.initial_delay_seconds)
        streak = Streak(probe)
        while True:
            if kind is ProbeKind.STARTUP or asked.record.is_started:
                outcome = await self._ask(probe)
                if not outcome.is_well:
                    asked.unhealthy(kind, outcome.text)
                verdict = streak.add(outcome.is_well)
                if verdict is not None and await self._settle(kind, probe, verdict):
                    return
            await asyncio.sleep(probe.period_seconds or PERIOD_S)

    async def _settle(self, kind: ProbeKind, probe: Probe, is_well: bool) -> bool:
        """Act on what is true now; whether nothing more is to be asked."""
        match kind:
            case ProbeKind.READINESS:
                self._asked.set_ready(is_well)
                return False
            case ProbeKind.STARTUP if is_well:
                self._asked.set_started()
                return True
            case ProbeKind.LIVENESS if is_well:
                return False
        if not self._asked.is_stopping:
            await self._asked.failed(kind, probe)
        return True

    async def _ask(self, probe: Probe) -> ActionResult:
        timeout_s = float(probe.timeout_seconds or TIMEOUT_S)
        if probe.exec is not None:
            return await actions.execute(self._asked, probe.exec, timeout_s)
        if probe.http_get is not None:
            return await actions.get(self._session, self._asked, probe.http_get, timeout_s)
        if probe.tcp_socket is not None:
            return await actions.connect(self._asked, probe.tcp_socket, timeout_s)
        return ActionResult(False, "this node asks by exec, httpGet and tcpSocket only")
