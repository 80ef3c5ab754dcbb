"""koordlet as an NRI plugin: it joins the runtime at its socket, and answers before containers are made.

A connection counts as good once the runtime has registered, configured and synchronized the plugin. A lost one is made
again: after a pause that grows, and at once when the runtime makes a new socket. A runtime that waits for an answer
longer than its time limit (2 s by default) closes the connection and makes the container without adjustments; the
reconciler then writes what they would have been. Source: behaviour/koordlet-act 13.2 to 13.5.
"""

import asyncio
import contextlib
import functools
import logging
import os
import random
from collections.abc import Mapping
from typing import Any

from koordinator.api import yaml_text
from koordinator.api.errors import KoordinatorError, SubjectError
from koordinator.cluster.backoff import Backoff, BackoffPolicy
from koordinator.host import grpc_sockets, protobuf_messages
from koordinator.koordlet import wakeups
from koordinator.koordlet.config import NRIConfig
from koordinator.koordlet.hooks.all import DeliveryMode, RuntimeHooks
from koordinator.koordlet.hooks.contexts import HookStage
from koordinator.koordlet.nri import adjustments, messages
from koordinator.koordlet.nri.frames import FrameError
from koordinator.koordlet.nri.messages import Container, Event, PodSandbox
from koordinator.koordlet.nri.session import Session, UnknownMethod

log = logging.getLogger(__name__)

CHECK_S, CHECK_S_MAX = 0.25, 1.0
"""Interval, at first and at most, at which a socket is looked for while a try is not due yet: a stat,
and no container starts that soon after its runtime."""
_STAGES = {
    Event.RUN_POD_SANDBOX: HookStage.PRE_RUN_POD_SANDBOX,
    Event.REMOVE_POD_SANDBOX: HookStage.PRE_REMOVE_RUN_POD_SANDBOX,
    Event.CREATE_CONTAINER: HookStage.PRE_CREATE_CONTAINER,
    Event.UPDATE_CONTAINER: HookStage.PRE_UPDATE_CONTAINER_RESOURCES,
}
_NO_ANSWER = ("StopContainer", "UpdatePodSandbox", "ValidateContainerAdjustment", "Shutdown")
"""Calls of an NRI runtime that change nothing here."""
_CONFIG_NODES_MAX = 1_000


class PluginConfigError(SubjectError, ValueError):
    """The plugin's configuration, a file on the runtime's side, cannot be used."""

    kind = "configuration of the NRI plugin: "


class NRIPlugin:
    """The plugin; `run` until cancelled."""

    def __init__(
        self,
        config: NRIConfig,
        hooks: RuntimeHooks,
        *,
        var_run: str,
        disabled_stages: tuple[str, ...],
        rng: random.Random,
    ) -> None:
        """`var_run` is where a relative socket path begins."""
        self._config = config
        self._hooks = hooks
        self.path = os.path.join(var_run, config.socket)
        self.events = events_of(hooks.registry.stages(), disabled_stages)
        """Events that a hook answers."""
        self._synchronized: asyncio.Future[None] | None = None
        self._backoff = Backoff(
            BackoffPolicy(
                initial_s=config.backoff_s,
                max_s=config.backoff_max_s,
                factor=config.backoff_factor,
                jitter_ratio=config.backoff_jitter_ratio,
            ),
            rng,
        )
        self._problem = ""

    async def run(self) -> None:
        """Join the runtime whenever it is there; ends only where no hook answers a runtime."""
        if not self.events:
            log.info("not an NRI plugin: no hook answers a container runtime")
            return
        while True:
            identity = _identity(self.path)
            problem = await self._joined()
            self._hooks.delivered(DeliveryMode.NRI, False)
            if problem != self._problem:
                log.warning("hooks are not delivered by NRI", extra={"path": self.path, "problem": problem})
                self._problem = problem
            await self._pause(self._backoff.next_s(), identity)

    async def _joined(self) -> str:
        """Be a plugin as long as the connection lasts; why it does not."""
        problem = grpc_sockets.problem_of_socket(self.path)
        if problem:
            return problem
        try:
            reader, writer = await asyncio.open_unix_connection(self.path)
        except OSError as error:
            return f"{self.path}: {(error.strerror or str(error)).lower()}"
        session = Session(reader, writer, messages.PLUGIN_SERVICE, self.answered)
        running = asyncio.create_task(session.run(), name="NRI connection")
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                await self._registered(session, running)
            self._backoff.reset()
            self._problem = ""
            self._hooks.delivered(DeliveryMode.NRI, True)
            log.info("joined the container runtime", extra={"path": self.path, "events": self._names()})
            await running
            return "the runtime closed the connection"
        except TimeoutError:
            return f"the runtime did not answer within {self._config.connect_timeout_s:g} s"
        except (KoordinatorError, OSError) as error:
            return str(error) or type(error).__name__
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, FrameError, OSError, TimeoutError):
                await running

    async def _registered(self, session: Session, running: asyncio.Task[None]) -> None:
        """Register, and wait until the runtime has told what it has. Raises: KoordinatorError, OSError."""
        self._synchronized = asyncio.get_running_loop().create_future()
        request = messages.RegisterPluginRequest(self._config.name, self._config.index)
        payload = protobuf_messages.encode(request)
        await session.call(messages.RUNTIME_SERVICE, "RegisterPlugin", payload)
        await asyncio.wait((running, self._synchronized), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
            raise FrameError("the runtime closed the connection before it had configured the plugin")

    async def _pause(self, seconds: float, identity: object) -> None:
        """Wait, but not when there is another socket than the one that was tried."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                check_s = CHECK_S
                while _identity(self.path) in (None, identity):  # nobody tells us
                    await wakeups.sleep(check_s)
                    check_s = min(2 * check_s, CHECK_S_MAX)

    def _names(self) -> list[str]:
        return [_STAGES[event] for event in self.events]

    # Calls of the runtime

    def answered(self, method: str, payload: bytes) -> bytes:
        """Return the answer to a call. Raises: KoordinatorError, UnknownMethod."""
        if method in _NO_ANSWER:
            return b""
        answer = self._methods.get(method)
        if answer is None:
            raise UnknownMethod(f"no method {method[:80]!r}")
        return protobuf_messages.encode(answer(payload))

    @functools.cached_property
    def _methods(self) -> Mapping[str, Any]:
        return {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create,
            "UpdateContainer": self._update,
            "StateChange": self._state_change,
        }

    def _configure(self, payload: bytes) -> messages.ConfigureResponse:
        request = protobuf_messages.decode(messages.ConfigureRequest, payload)
        log.info(
            "configured by the container runtime",
            extra={"runtime": request.runtime_name, "version": request.runtime_version},
        )
        return messages.ConfigureResponse(mask_of(narrowed(self.events, request.config)))

    def _synchronize(self, payload: bytes) -> messages.SynchronizeResponse:
        """Nothing to change: the reconciler writes groups of containers that are there already."""
        request = protobuf_messages.decode(messages.SynchronizeRequest, payload)
        if not request.more and self._synchronized is not None and not self._synchronized.done():
            self._synchronized.set_result(None)
        return messages.SynchronizeResponse(more=request.more)

    def _create(self, payload: bytes) -> messages.CreateContainerResponse:
        request = protobuf_messages.decode(messages.CreateContainerRequest, payload)
        container = request.container or Container()
        pod = adjustments.pod_context(request.pod or PodSandbox())
        context = adjustments.container_context(pod, container)
        response = self._hooks.at_runtime(HookStage.PRE_CREATE_CONTAINER, context).accepted()
        return messages.CreateContainerResponse(adjustments.adjustment(response))

    def _update(self, payload: bytes) -> messages.UpdateContainerResponse:
        request = protobuf_messages.decode(messages.UpdateContainerRequest, payload)
        container = request.container or Container()
        pod = adjustments.pod_context(request.pod or PodSandbox())
        context = adjustments.container_context(pod, container, request.linux_resources)
        response = self._hooks.at_runtime(HookStage.PRE_UPDATE_CONTAINER_RESOURCES, context).accepted()
        return messages.UpdateContainerResponse(adjustments.updates(container.id, response))

    def _state_change(self, payload: bytes) -> messages.Empty:
        request = protobuf_messages.decode(messages.StateChangeEvent, payload)
        stage = _STAGES.get(request.event)  # type: ignore[call-overload] # events of later versions
        if stage in (HookStage.PRE_RUN_POD_SANDBOX, HookStage.PRE_REMOVE_RUN_POD_SANDBOX):
            pod = adjustments.pod_context(request.pod or PodSandbox())
            self._hooks.at_runtime(stage, pod).accepted()
        return messages.Empty()


def events_of(hooked: list[HookStage], disabled: tuple[str, ...]) -> tuple[Event, ...]:
    """Return the events that a hook answers and that are not switched off."""
    return tuple(event for event, stage in _STAGES.items() if stage in hooked and stage not in disabled)


_NAMED: Mapping[str, frozenset[Event]] = {
    **{event.name.replace("_", "").lower(): frozenset((event,)) for event in Event},
    "all": frozenset(Event),
    **dict.fromkeys(("pod", "podsandbox"), frozenset(each for each in Event if "POD" in each.name)),
    "container": frozenset(each for each in Event if "CONTAINER" in each.name),
}
"""Names that a list of events may have, as NRI's own plugins read it."""


def narrowed(events: tuple[Event, ...], config: str) -> tuple[Event, ...]:
    """Return the events that the plugin's configuration leaves: those of its list `events`, all without one.

    Raises: PluginConfigError, yaml_text.YamlError.
    """
    settings = yaml_text.load(config, nodes_max=_CONFIG_NODES_MAX) if config.strip() else {}
    if not isinstance(settings, Mapping):
        raise PluginConfigError("events", "expected a mapping with a list of names of events")
    wanted = settings.get("events")
    if wanted is None:
        return events
    if not isinstance(wanted, list):
        raise PluginConfigError("events", "is no list")
    names = [name.strip().lower() for each in wanted for name in str(each).split(",")]
    unknown = [name for name in names if name not in _NAMED]
    if unknown:
        raise PluginConfigError("events", f"{unknown[0][:80]!r} is no event of NRI")
    kept = frozenset().union(*(_NAMED[name] for name in names))
    return tuple(event for event in events if event in kept)


def mask_of(events: tuple[Event, ...]) -> int:
    """Return the bits of events. No bit would ask for all, so none is said by one that changes nothing here."""
    return sum(1 << (event - 1) for event in events or (Event.REMOVE_CONTAINER,))


def _identity(path: str) -> tuple[int, int, int] | None:
    """Return what tells a socket from its successor; None without one."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
