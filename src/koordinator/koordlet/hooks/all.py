"""All runtime hooks of an agent, delivered by the reconciler and to runtimes that ask.

`RuntimeHooks.at_runtime` answers whoever else asks hooks: the hook server for the runtime proxy, the NRI plugin.
"""

import asyncio
import contextlib
import enum
import functools
import logging
import os
import shutil
from collections.abc import Iterable

from koordinator.api.node_metric import HOOK_DELIVERY
from koordinator.cluster.supervise import Guard
from koordinator.koordlet import wakeups
from koordinator.koordlet.hooks.batch_resource import BatchResourceHook
from koordinator.koordlet.hooks.contexts import ContainerContext, HookStage, PodContext
from koordinator.koordlet.hooks.core_sched import CoreSchedHook
from koordinator.koordlet.hooks.cpu_normalization_run import CPUNormalizationHook
from koordinator.koordlet.hooks.cpuset_allocator import CPUSetAllocator
from koordinator.koordlet.hooks.device_inject import GPUEnvInject, RDMADeviceInject
from koordinator.koordlet.hooks.group_identity import GroupIdentity
from koordinator.koordlet.hooks.hook import Hook, HookRegistry, HookTools, IdleGroups, Runner, StageResult
from koordinator.koordlet.hooks.oom_score import OOMScoreAdj
from koordinator.koordlet.hooks.reconciler import Reconciler
from koordinator.koordlet.hooks.resctrl_pod import ResctrlHook
from koordinator.koordlet.hooks.tc_run import TCNetworkQoS
from koordinator.koordlet.hooks.terway_run import TerwayQoS
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

HOOKS: tuple[type[Hook], ...] = (
    GroupIdentity,
    CPUSetAllocator,
    BatchResourceHook,
    CPUNormalizationHook,
    CoreSchedHook,
    ResctrlHook,
    OOMScoreAdj,
    GPUEnvInject,
    RDMADeviceInject,
    TCNetworkQoS,
    TerwayQoS,
)
"""A new hook is a file of its own and a line here (docs/first-changes.md)."""
_DIRECTORY_MODE = 0o777
FOLLOW_GAP_S = 1.0
"""Least time between two rounds of work that waits: pods come in bursts."""


class DeliveryMode(enum.StrEnum):
    """The ways in which answers of hooks reach containers."""

    RECONCILER = "reconciler"
    NRI = "nri"
    PROXY = "proxy"


class RuntimeHooks:
    """The hooks of the agent: `start` once the first NodeSLO and pods are known (or not), then `run` until
    cancelled.
    """

    name = "RuntimeHooks"

    def __init__(self, shared: Shared, runner: Runner | None = None) -> None:
        """`runner` runs commands of the host in place of the host's own."""
        self._shared = shared
        self.registry = HookRegistry(shared.metrics, shared.clock, shared.config.hooks.plugin_failure_policy)
        self._reconciler = Reconciler(shared, self.registry)
        self._idle = IdleGroups(shared)
        tools = HookTools(self._idle, runner)
        every = [kind(shared, tools) for kind in HOOKS]
        self._hooks = [each for each in every if shared.gates.is_on(each.name)]
        self._off = [each for each in every if each not in self._hooks]
        self._wake = {each.name: asyncio.Event() for each in self._hooks if each.waits}
        self._guard = Guard(self.name)
        self._is_running = False
        self._delivery: dict[str, dict[str, bool]] = {}
        self._has_pods = asyncio.Event()
        """Pods are to be reconciled."""
        self._has_idle = any(each.wants_idle for each in self._hooks)
        for each in self._hooks:
            each.invalidate = self._reconciler.invalidate
            each.register(self.registry)
        if self._has_idle:
            self._idle.register(self.registry)

    def start(self) -> None:
        """Put back what hooks that are off left behind, act by what is known now, and follow what changes."""
        for hook in self._hooks:
            if hook.needs_runtime:
                log.info("gate %s acts only where a container runtime asks (runtime proxy, NRI)", hook.name)
        for hook in self._off:
            self._guard.call(hook.disable)
        if not self._has_idle:
            self._idle.disable()
        followed = {topic for hook in self._hooks for rule in hook.rules for topic in rule.topics}
        for topic in followed | {Topic.PODS, Topic.NODE_SLO}:
            self._shared.view.listen(topic, self.name, functools.partial(self._on_change, (topic,)))
        self._guard.call(self._on_change, Topic)
        for mode in DeliveryMode:
            self.delivered(mode, mode is DeliveryMode.RECONCILER)

    def delivered(self, mode: DeliveryMode, is_on: bool) -> None:
        """Note that a way to containers is open, or not any more: told as a metric for each hook that goes it, and in
        NodeMetric."""
        is_runtime = mode is not DeliveryMode.RECONCILER
        hooks = self.registry.asked_by_runtimes() if is_runtime else self.registry.reconciled()
        if all(self._delivery.get(hook, {}).get(mode.value) is is_on for hook in hooks):
            return
        for hook in hooks:
            self._shared.metrics.hook_delivery.set(int(is_on), hook, mode)
            self._delivery.setdefault(hook, {})[mode.value] = is_on
        found = {hook: dict(modes) for hook, modes in self._delivery.items()}
        self._shared.view.extend(HOOK_DELIVERY, found)

    def at_runtime(self, stage: HookStage, context: PodContext | ContainerContext) -> StageResult:
        """Ask all hooks for a runtime that has reached a stage.

        Everything that no runtime carries out is done at once: files of a pod's own group, directories for mounts.
        """
        result = self.registry.run_stage(stage, context)
        for error in result.errors:
            log.warning("hook failed", extra={"what": context.obj, "stage": stage, "problem": str(error)})
        if isinstance(context, PodContext):
            if context.group:
                self._guard.call(self._reconciler.deliver, context, result)
        else:
            self._guard.call(_make_directories, result.response.directories)
        return result

    async def run(self) -> None:
        """Reconcile groups every interval and do the work that waits, until cancelled."""
        for hook in self._off:
            if hook.waits:
                await self._guard.call_async(hook.close)
        self._is_running = True
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reconcile(), name="hooks: reconcile")
            tasks.create_task(self._reconcile_pods(), name="hooks: pods")
            for hook in self._hooks:
                if hook.waits:
                    tasks.create_task(self._follow(hook), name=f"hooks: {hook.name}")

    async def disable(self) -> None:
        """Put back what all hooks changed; `run` must have ended."""
        for hook in (*self._hooks, *self._off):
            self._guard.call(hook.disable)
            if hook.waits:
                await self._guard.call_async(hook.close)
        self._idle.disable()

    def _on_change(self, topics: Iterable[Topic]) -> None:
        """Something changed in the view."""
        changed = []
        for hook in self._hooks:
            changed += [rule for rule in hook.rules if rule.topics.intersection(topics) and rule.refresh()]
        if changed:
            self._reconciler.invalidate()
            for rule in changed:
                self._guard.call(rule.changed)
            self._groups()
        elif Topic.NODE_SLO in topics:
            self._guard.call(self._reconciler.host_applications)  # it may name a new one
        if changed or Topic.PODS in topics:
            self._pods()

    def _pods(self) -> None:
        """Reconcile pods: before `run`, when no container runtime waits, at once."""
        if self._is_running:
            self._has_pods.set()
            return
        for _ in self._reconciler.pods():
            pass
        self._reconciled()
        self._guard.call(list, self._idle.slices())

    async def _reconcile_pods(self) -> None:
        while True:
            await self._has_pods.wait()
            self._has_pods.clear()
            for _ in self._reconciler.pods():
                await asyncio.sleep(0)  # a container runtime may wait for an answer
            self._reconciled()
            await self._guard.call_async(self._give_slices)

    async def _give_slices(self) -> None:
        for _ in self._idle.slices():
            await asyncio.sleep(0)

    def _reconciled(self) -> None:
        """All pods were."""
        for hook in self._hooks:
            self._guard.call(hook.on_pods)
        for event in self._wake.values():
            event.set()

    def _groups(self) -> None:
        self._guard.call(self._reconciler.classes)
        self._guard.call(self._reconciler.host_applications)

    async def _reconcile(self) -> None:
        while True:
            await wakeups.sleep(self._shared.config.hooks.reconcile_interval_s)
            self._groups()
            self._guard.call(self._idle.refresh)
            await self._guard.call_async(self._give_slices)

    async def _follow(self, hook: Hook) -> None:
        event = self._wake[hook.name]
        while True:
            event.clear()
            await self._guard.call_async(hook.follow)
            await asyncio.sleep(FOLLOW_GAP_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), self._shared.config.hooks.reconcile_interval_s)


def _make_directories(paths: Iterable[str]) -> None:
    """Make directories that containers find mounted, empty and for everybody. Raises: OSError."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
        os.chmod(path, _DIRECTORY_MODE)
