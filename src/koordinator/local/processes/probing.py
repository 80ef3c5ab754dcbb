"""Decide when to probe a running container and what an answer changes, by the rules of the kubelet's prober, and carry
out probes and hooks: a command in the container, a request, a connection."""

import asyncio
import enum
import logging
import os
import signal
from typing import Protocol

import aiohttp
import msgspec

from koordinator.api.schema import IntOrString
from koordinator.cluster.supervise import Guard
from koordinator.local import interfaces
from koordinator.local.processes.container_state import ContainerRecord
from koordinator.local.processes.groups import GroupError
from koordinator.local.processes.launch import Process, StartError
from koordinator.local.processes.pod_spec import (
    Container,
    ExecAction,
    Handler,
    HTTPGetAction,
    Probe,
    TCPSocketAction,
)

log = logging.getLogger(__name__)

OUTPUT_BYTES_MAX = 10 * 1024
"""Most that is read of what a probe prints, as in the kubelet."""
_USER_AGENT = f"kube-probe/{interfaces.KUBERNETES.rpartition('.')[0]}"


class ActionResult(msgspec.Struct, frozen=True):
    """The result: whether it went well, and what it said."""

    is_well: bool
    text: str = ""


class RunningContainer(Protocol):
    """A running container, as somebody who does something in it sees it."""

    environment: dict[str, str]

    @property
    def spec(self) -> Container: ...

    @property
    def folder(self) -> str:
        """Return its working directory."""
        ...

    @property
    def address(self) -> str:
        """Return the address where it listens."""
        ...

    def start_inside(self, command: list[str], output: tuple[int, int]) -> Process:
        """Start another process in its groups. Raises: StartError, GroupError, OSError."""
        ...


async def execute(inside: RunningContainer, action: ExecAction, timeout_s: float) -> ActionResult:
    """Run a command in the container; well when it exits with 0 in time."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(write_end, True)
    try:
        try:
            process = inside.start_inside(action.command, (write_end, write_end))
        except (StartError, GroupError, OSError) as error:
            return ActionResult(False, f"command could not be started: {error}")
        finally:
            os.close(write_end)
        try:
            async with asyncio.timeout(timeout_s):
                ended = await process.wait()
        except TimeoutError:
            process.send(signal.SIGKILL)
            return ActionResult(
                False, f'command timed out: "{" ".join(action.command)}" timed out after {timeout_s:g}s'
            )
        except asyncio.CancelledError:
            process.send(signal.SIGKILL)
            raise
        return ActionResult(ended.code == 0, _text(read_end))
    finally:
        os.close(read_end)


async def get(
    session: aiohttp.ClientSession, inside: RunningContainer, action: HTTPGetAction, timeout_s: float
) -> ActionResult:
    """Send a request; well when the status is from 200 to 399."""
    port = port_of(inside.spec, action.port)
    if port is None:
        return ActionResult(False, f'couldn\'t find port: "{action.port}"')
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    url = f"{(action.scheme or 'HTTP').lower()}://{action.host or inside.address}:{port}{path}"
    headers = {"User-Agent": _USER_AGENT, "Accept": "*/*", "Connection": "close"}
    headers.update({each.name: each.value for each in action.http_headers})
    try:
        async with session.get(
            url,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            ssl=False,
            allow_redirects=False,
        ) as answer:
            if 200 <= answer.status < 400:
                return ActionResult(True)
            return ActionResult(False, f"HTTP probe failed with statuscode: {answer.status}")
    except TimeoutError:
        return ActionResult(
            False, f'Get "{url}": context deadline exceeded (Client.Timeout exceeded while awaiting headers)'
        )
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return ActionResult(False, f'Get "{url}": {error}')


async def connect(inside: RunningContainer, action: TCPSocketAction, timeout_s: float) -> ActionResult:
    """Open a connection; well when that is possible."""
    port = port_of(inside.spec, action.port)
    if port is None:
        return ActionResult(False, f'couldn\'t find port: "{action.port}"')
    host = action.host or inside.address
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return ActionResult(False, f"dial tcp {host}:{port}: i/o timeout")
    except OSError as error:
        return ActionResult(
            False, f"dial tcp {host}:{port}: connect: {os.strerror(error.errno or 0).lower()}"
        )
    writer.close()
    return ActionResult(True)


def port_of(container: Container, port: IntOrString) -> int | None:
    """Return the number of a port, by name where it has one; None when there is no such port."""
    if isinstance(port, int):
        return port
    if port.isdigit():
        return int(port)
    return next((each.container_port for each in container.ports if each.name == port), None)


async def perform(
    session: aiohttp.ClientSession, inside: RunningContainer, handler: Handler, timeout_s: float
) -> ActionResult:
    """Do what a lifecycle hook says."""
    if handler.exec is not None:
        return await execute(inside, handler.exec, timeout_s)
    if handler.http_get is not None:
        return await get(session, inside, handler.http_get, timeout_s)
    if handler.sleep is not None:
        await asyncio.sleep(min(handler.sleep.seconds, timeout_s))
        return ActionResult(True)
    return ActionResult(False, "this node has exec, httpGet and sleep hooks only")


def _text(read_end: int) -> str:
    try:
        return os.read(read_end, OUTPUT_BYTES_MAX).decode(errors="replace")
    except BlockingIOError:
        return ""


PERIOD_S, TIMEOUT_S, FAILURES = 10, 1, 3
"""Defaults of the API, for objects that did not pass it."""


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
        """Note that the startup probe succeeded."""
        ...

    def unhealthy(self, kind: ProbeKind, text: str) -> None:
        """Note that a probe failed once."""
        ...

    async def failed(self, kind: ProbeKind, probe: Probe) -> None:
        """Note that the liveness or startup probe failed for good."""
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
            return await execute(self._asked, probe.exec, timeout_s)
        if probe.http_get is not None:
            return await get(self._session, self._asked, probe.http_get, timeout_s)
        if probe.tcp_socket is not None:
            return await connect(self._asked, probe.tcp_socket, timeout_s)
        return ActionResult(False, "this node asks by exec, httpGet and tcpSocket only")
