"""The life of one container: started, watched, restarted after pauses, stopped.

One task (`run`) goes through all its runs; `stop` may be called from elsewhere at any time.
"""

import asyncio
import contextlib
import logging
import os
import signal
from typing import Protocol

from koordinator.host.cgroup_layout import ContainerID
from koordinator.local.processes import container_state, environment, groups, launch, probing
from koordinator.local.processes.container_state import (
    COMPLETED,
    ERROR,
    OOM_KILLED,
    ContainerRecord,
    ContainerWaiting,
    RestartBackoff,
    Running,
    Terminated,
)
from koordinator.local.processes.environment import (
    ContainerConfigError,
    EnvironmentSources,
    NoCommand,
    Services,
)
from koordinator.local.processes.groups import GroupError
from koordinator.local.processes.launch import AS_WE_ARE, Exit, Process, StartError
from koordinator.local.processes.logs import LogFile, Output
from koordinator.local.processes.pod_spec import Container, Handler, KubeletPod, Probe
from koordinator.local.processes.probing import ProbeKind, Prober
from koordinator.local.processes.volumes import PodFiles

log = logging.getLogger(__name__)

CONFIG_RETRY_S = 10.0
"""Interval at which a container is tried again whose ConfigMap, say, is not there."""
HOOK_S_MAX = 300.0
"""A postStart hook that takes longer has failed."""
GRACE_S_MIN = 2
"""Left after a preStop hook, whatever it took."""


class Home(Protocol):
    """The pod, as its containers see it."""

    pod: KubeletPod
    group: str
    pod_ip: str
    files: PodFiles

    def changed(self) -> None:
        """Something of a container's state is other than before."""
        ...

    async def surroundings(self, record: ContainerRecord) -> EnvironmentSources:
        """Return what the container's environment may refer to. Raises: ContainerConfigError, ApiError."""
        ...


class ContainerLife:
    """Runs one container of a pod."""

    def __init__(self, services: Services, home: Home, record: ContainerRecord) -> None:
        self.record = record
        self.process: Process | None = None
        self.group = ""
        self.environment: dict[str, str] = {}
        self.started = asyncio.Event()
        """Set once a sidecar is far enough for what comes after it."""
        self._services = services
        self._home = home
        self._stopping = asyncio.Event()
        self._kill_at: asyncio.TimerHandle | None = None
        self._backoff = RestartBackoff()
        self.log_run = -1
        """Number of the run whose log is the latest; -1 before the first."""
        self._post_start: asyncio.Task[None] | None = None
        self._output: Output | None = None
        self._identity = AS_WE_ARE

    @property
    def is_stopping(self) -> bool:
        """Return whether it is being stopped for good."""
        return self._stopping.is_set()

    @property
    def is_writing(self) -> bool:
        """Return whether the latest log may still grow."""
        return self._output is not None

    # What probes and hooks see

    @property
    def spec(self) -> Container:
        return self.record.spec

    @property
    def folder(self) -> str:
        return str(self._home.files.working(self.record.spec))

    @property
    def address(self) -> str:
        return self._home.pod_ip

    def start_inside(
        self, command: list[str], output: tuple[int, int], stdin: str = launch.NO_INPUT
    ) -> Process:
        """Start another process in the container. Raises: StartError, GroupError, OSError."""
        return launch.start(
            command,
            environment=self.environment,
            folder=self.folder,
            output=output,
            enter=self._enter,
            identity=self._identity,
            stdin=stdin,
        )

    def set_ready(self, is_ready: bool) -> None:
        if is_ready != self.record.is_ready:
            self.record.is_ready = is_ready
            self._home.changed()

    def set_started(self) -> None:
        self.record.is_started = True
        self.record.is_ready = self.record.spec.readiness_probe is None
        self.started.set()
        self._home.changed()

    def unhealthy(self, kind: ProbeKind, text: str) -> None:
        self._warn("Unhealthy", f"{kind.value} probe failed: {text}")

    async def failed(self, kind: ProbeKind, probe: Probe) -> None:
        grace_s = probe.termination_grace_period_seconds
        why = f"failed {kind.value.lower()} probe, will be restarted"
        await self.restart(why, self._home.pod.grace_s if grace_s is None else grace_s)

    @property
    def name(self) -> str:
        return self.record.spec.name

    @property
    def _field(self) -> str:
        return "initContainers" if self.record.is_init else "containers"

    # Running

    async def run(self) -> None:
        """Run the container, again as its policy says, until it is over or stopped."""
        before = self.record.state
        if isinstance(before, Terminated):  # in an earlier run of this node
            if not self._starts_again(before):
                return
            await self._pause(before)
        while not self._stopping.is_set():
            begun = await self._begin()
            if not begun:
                continue
            ended = await self._until_end()
            self.record.state = ended
            self.record.is_ready = self.record.is_started = False
            self._home.changed()
            if self._stopping.is_set() or not self._starts_again(ended):
                return
            await self._pause(ended)

    def _starts_again(self, ended: Terminated) -> bool:
        policy, record = self._home.pod.spec.restart_policy or "Always", self.record
        return container_state.restarts_again(
            policy, ended.exit_code, is_step=record.is_step, is_sidecar=record.spec.is_sidecar
        )

    async def _begin(self) -> bool:
        """Start a run; False when it could not be started for now (or was stopped meanwhile)."""
        try:
            around = await self._home.surroundings(self.record)
            variables = environment.of_container(self._home.pod, self.record.spec, around)
            words = environment.command_line(self.record.spec, variables)
            self._identity = environment.identity(self._home.pod, self.record.spec, os.geteuid())
        except ContainerConfigError as error:
            self._cannot("CreateContainerConfigError", str(error), f"Error: {error}")
            await self._wait(CONFIG_RETRY_S)
            return False
        except NoCommand as error:
            text = f'Failed to pull image "{error.image}": {error}'
            self._cannot("ErrImagePull", str(error), text)
            await self._stopping.wait()
            return False
        if self._stopping.is_set():
            return False
        image = self.record.spec.image
        self._record_event("Pulled", f'Container image "{image}" already present on machine')
        self.environment = variables
        return await self._launch(words)

    async def _launch(self, words: list[str]) -> bool:
        services, record = self._services, self.record
        own_id = services.new_id(self._home.pod, self.name, record.restarts)
        self.group = services.groups.container_group(self._home.group, own_id)
        try:
            self._make_group()
            self._home.files.give(self.name, self._identity.user, self._identity.group)
            output = self._new_output()
        except (GroupError, OSError) as error:
            await self._remove_group()
            self._cannot("CreateContainerError", str(error), f"Error: {error}")
            await self._wait(CONFIG_RETRY_S)
            return False
        record.id = str(own_id)
        self._record_event("Created", f"Created container: {self.name}")
        try:
            self.process = launch.start(
                words,
                environment=self.environment,
                folder=str(self._home.files.working(record.spec)),
                output=output.ends,
                enter=self._enter,
                identity=self._identity,
            )
        except (StartError, GroupError, OSError) as error:
            self._failed_to_start(own_id, error)
        else:
            self._running()
        output.handed_over()
        self._output = output
        return True

    def _new_output(self) -> Output:
        """Logs of this run and of the one before are kept."""
        files = self._home.files
        self.log_run = self.record.restarts
        files.drop_log(self.name, self.log_run - 2)
        return Output(LogFile(files.log(self.name, self.log_run), self._services.clock))

    def _make_group(self) -> None:
        kept = self._services.groups
        kept.make(self.group, can_hold_groups=False)
        kept.set_amounts(self.group, groups.of_container(self.record.spec))
        kept.die_together(self.group)

    def _enter(self, pid: int) -> None:
        self._services.groups.enter(pid, self.group)
        score = groups.oom_score_adj(self._home.pod.view, self.record.spec, self._services.memory_bytes)
        self._services.processes.set_oom_score_adj(pid, score)

    def _running(self) -> None:
        record = self.record
        record.state = Running(self._services.clock.now())
        record.is_started = record.spec.startup_probe is None
        record.is_ready = record.is_started and record.spec.readiness_probe is None
        if record.is_started:
            self.started.set()
        self._record_event("Started", f"Started container {self.name}")
        self._home.changed()

    def _failed_to_start(self, own_id: ContainerID, error: Exception) -> None:
        now_s = self._services.clock.now()
        self.process = None
        self.record.state = Terminated(
            launch.START_ERROR_CODE,
            "StartError",
            now_s,
            now_s,
            str(own_id),
            message=f"failed to start: {error}",
        )
        self._warn("Failed", f"Error: failed to start containerd task: {error}")

    def _begin_post_start(self) -> None:
        hook = self._hook("post_start")
        if hook is not None:
            self._post_start = asyncio.create_task(self._after_start(hook), name=f"postStart of {self.name}")

    async def _after_start(self, hook: Handler) -> None:
        outcome = await probing.perform(self._services.session, self, hook, HOOK_S_MAX)
        if not outcome.is_well:
            self._warn("FailedPostStartHook", f"PostStartHook failed: {outcome.text}")
            await self.restart("failed its postStart hook", self._home.pod.grace_s)

    def _hook(self, name: str) -> Handler | None:
        lifecycle = self.record.spec.lifecycle
        hook: Handler | None = getattr(lifecycle, name, None)
        return hook

    # Ending

    async def _until_end(self) -> Terminated:
        """Wait for the end of a run and clean up after it."""
        process, state = self.process, self.record.state
        if process is None:
            assert isinstance(state, Terminated), state
            ended = state
            await self._remove_group()
            self._close_output()
        else:
            assert isinstance(state, Running), state
            prober = Prober(self._services.session, self)
            try:
                self._begin_post_start()
                prober.start()
                ended = self._ended(await process.wait(), state)
            finally:
                await prober.stop()
                if self._post_start is not None:
                    self._post_start.cancel()
                self._disarm()
                if process.has_ended:  # else the node stops, and the pod's group goes with all in it
                    await self._remove_group()
                self._close_output()
        self.process = None
        return ended

    def _close_output(self) -> None:
        if self._output is not None:
            self._output.finish()
            self._output = None

    def _ended(self, how: Exit, state: Running) -> Terminated:
        killed = self._services.groups.oom_kills(self.group) > 0 and how.code != 0
        reason = OOM_KILLED if killed else ERROR if how.code else COMPLETED
        now_s = self._services.clock.now()
        return Terminated(how.code, reason, state.since_s, now_s, self.record.id, how.signal)

    async def _remove_group(self) -> None:
        try:
            await self._services.groups.remove(self.group)
        except GroupError as error:  # a process that hangs in the kernel; the pod's end tries again
            log.warning("cgroup not removed: %s", error)

    async def _pause(self, ended: Terminated) -> None:
        """Wait as long as the back-off says, then count a restart."""
        record = self.record
        pause_s = self._backoff.next_s(ended.finished_s)
        record.last = ended
        if pause_s > 0:
            pod = self._home.pod
            text = f"back-off {_duration(pause_s)} restarting failed container={self.name} "
            text += f"pod={pod.raw.metadata.name}_{pod.raw.metadata.namespace}({pod.uid})"
            record.state = ContainerWaiting("CrashLoopBackOff", text)
            where = f"{pod.raw.metadata.name}_{pod.raw.metadata.namespace}({pod.uid})"
            self._warn("BackOff", f"Back-off restarting failed container {self.name} in pod {where}")
            self._home.changed()
            await self._wait(pause_s)
            if self._stopping.is_set():
                record.state, record.last = ended, None
                return
        record.restarts += 1

    # Stopping

    async def stop(self, grace_s: float) -> None:
        """Stop for good: preStop, SIGTERM, SIGKILL after the grace period. A second call can only hasten it."""
        is_first = not self._stopping.is_set()
        self._stopping.set()
        if self.process is None or self.process.has_ended:
            return
        if is_first:
            self._record_event("Killing", f"Stopping container {self.name}")
            await self._end_process(grace_s)
        else:
            self._kill_after(grace_s)

    async def restart(self, why: str, grace_s: float) -> None:
        """End the current run, as a probe that failed asks; what comes then is up to the restart policy."""
        if self.process is not None and not self._stopping.is_set():
            self._record_event("Killing", f"Container {self.name} {why}")
            await self._end_process(grace_s)

    async def _end_process(self, grace_s: float) -> None:
        process = self.process
        assert process is not None
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        hook = self._hook("pre_stop")
        self._kill_after(grace_s + (GRACE_S_MIN if hook else 0))
        if hook is not None and grace_s > 0:
            outcome = await probing.perform(self._services.session, self, hook, grace_s)
            if not outcome.is_well:
                self._warn("FailedPreStopHook", f"PreStopHook failed: {outcome.text}")
        if self.process is not process:
            return  # it ended meanwhile
        if grace_s > 0:
            process.send(signal.SIGTERM)
            left_s = max(grace_s - (loop.time() - begun_s), GRACE_S_MIN if hook else 0.0)
            self._kill_after(left_s)

    def _kill_after(self, delay_s: float) -> None:
        """Kill everything then, unless a moment sooner is set already."""
        loop = asyncio.get_running_loop()
        at_s = loop.time() + delay_s
        if self._kill_at is not None:
            if self._kill_at.when() <= at_s:
                return
            self._kill_at.cancel()
        self._kill_at = loop.call_at(at_s, self._kill, self.group)

    def _kill(self, group: str) -> None:
        if group == self.group:
            self._services.groups.signal_all(group, signal.SIGKILL)

    def _disarm(self) -> None:
        if self._kill_at is not None:
            self._kill_at.cancel()
            self._kill_at = None

    # Telling

    def _cannot(self, reason: str, message: str, event: str) -> None:
        self.record.state = ContainerWaiting(reason, message)
        self._warn("Failed", event)
        self._home.changed()

    async def _wait(self, seconds: float) -> None:
        """Pause, unless the container is stopped."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _record_event(self, reason: str, message: str) -> None:
        self._services.record_event(self._home.pod, reason, message, container=self.name, field=self._field)

    def _warn(self, reason: str, message: str) -> None:
        self._services.warn(self._home.pod, reason, message, container=self.name, field=self._field)


def _duration(seconds: float) -> str:
    """Return a duration as Go writes it: 40s, 2m40s."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
