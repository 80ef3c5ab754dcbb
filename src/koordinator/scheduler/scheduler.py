"""The scheduler as a component: informers in, cycles, bindings and messages out."""

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.clock import Clock
from koordinator.cluster.backoff import new_rng
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard
from koordinator.cluster.write_through import FencedCluster
from koordinator.scheduler.auditor.auditor import AuditOptions, Auditor
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.engine.batch import BatchBinding
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.evaluation_cache import CLASSES_MAX
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import ExtenderAdvice, PendingPod, Placed, Unplaced
from koordinator.scheduler.explain.objects import ExplanationObjects
from koordinator.scheduler.extenders.advisors import Advisors, ExtenderWakeUps, connect
from koordinator.scheduler.loop.actions import RunningActions, RunningParts, StatusWriter
from koordinator.scheduler.loop.binding import (
    TIMER_SLACK_S,
    Binder,
    BindingCycle,
    BindingRules,
    WaitingPods,
)
from koordinator.scheduler.loop.caches import Caches
from koordinator.scheduler.loop.event_handlers import EventHandlers
from koordinator.scheduler.loop.outcomes import Outcomes
from koordinator.scheduler.observe.observer import Observer, ObserverOptions
from koordinator.scheduler.plugin import capabilities, status
from koordinator.scheduler.plugin.capabilities import ControllerFilter, NextPodPlugin
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import Plugin, PluginType
from koordinator.scheduler.plugin.metrics import SchedulerMetrics
from koordinator.scheduler.plugin.status import SUCCESS, Status
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.network_topology.manager import NetworkTopologyManager
from koordinator.scheduler.queue.queued_pod import QueuedPod
from koordinator.scheduler.queue.scheduling_queue import UNSCHEDULABLE_S_MAX, QueuePolicy, SchedulingQueue
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

CYCLES_PER_TURN = 64
TURN_S = 0.01
"""Cycles, and how long they may take, before other tasks (informers, bindings) get their turn."""
LAST_EVENTS_S = 2.0
"""Time that events may hold up the end of the scheduler."""


class Scheduler:
    """Places pods that name one of its profiles in `schedulerName`; all others are only counted on nodes.

    `seed` decides ties between nodes and the jitter of retries; `plugins` replaces the installed ones;
    `classes_max`: see `Engine`; `controller_filter`: which plugins' controllers run;
    `observing`: limits and debug switches; `auditing`: what the workload auditor goes by, None without one;
    `unschedulable_s_max`: how long a pod waits for an event at most; `network_topology`: whether to follow
    ClusterNetworkTopology, which gangs are placed by; `instance`: what tells this process from others in events.
    `may_write` is asked before each change but events: whoever was elected may have lost the lease without knowing yet.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: SchedulerConfig | None = None,
        *,
        clock: Clock | None = None,
        seed: int = 0,
        plugins: Mapping[str, PluginType] | None = None,
        gates: FeatureGates | None = None,
        classes_max: int = CLASSES_MAX,
        controller_filter: ControllerFilter = capabilities.ALL_CONTROLLERS,
        observing: ObserverOptions | None = None,
        auditing: AuditOptions | None = None,
        unschedulable_s_max: float = UNSCHEDULABLE_S_MAX,
        network_topology: bool = False,
        instance: str = "",
    ) -> None:
        """Raises: ConfigError, LabelClash."""
        self.config = config or default_plugins.shipped_config()
        self.clock = clock or cluster.clock
        self.synced = asyncio.Event()
        self._wake = asyncio.Event()
        self._rng = random.Random(seed)
        self._guard = Guard("scheduling")
        self._controller_filter = controller_filter
        self._is_scheduling = False
        gates = gates or FeatureGates.of(Component.SCHEDULER)
        self.may_write: Callable[[], bool] = lambda: True
        fenced = FencedCluster(cluster, lambda: self.may_write())

        # What decides. Plugins act through `actions`, which are attached to all that follows.
        self.actions = RunningActions()
        self.network = self._network(fenced) if network_topology else None
        self.engine = Engine(
            self.config,
            self.clock,
            seed=seed,
            plugins=plugins if plugins is not None else installed_plugins(),
            classes_max=classes_max,
            cluster=fenced,
            happened=self.actions.happened,
            actions=self.actions,
            gates=gates,
            network=self.network.tree if self.network is not None else lambda: None,
        )
        self.table, self.profiles = self.engine.table, self.engine.profiles
        self._choosers = self.engine.next_pod_plugins()
        self._advisors = connect(self.config.extenders, self.engine, fenced)
        self.auditor = self._auditor(auditing)
        self.observer = Observer(self.engine, observing)
        self.waiting = WaitingPods(self.observer.waited, noted=self._wake.set)
        self.queue = SchedulingQueue(self._queue_policy(unschedulable_s_max))
        self.engine.cycle.waiting = self._planned
        self.engine.cycle.has_advisors = self._advisors is not None

        # What comes in.
        self.recorders = {name: self._recorder(cluster, name, instance) for name in self.profiles}
        self.caches = Caches(cluster, gates, new_rng(self._rng))
        self._handlers = EventHandlers(self.engine, self.queue, self.waiting, self.recorders, self._wake.set)
        self._listen()

        # What goes out.
        self._explanations = ExplanationObjects(self.engine, self.caches.pods, fenced, new_rng(self._rng))
        self._status_writer = StatusWriter(fenced, self.clock, self.caches.live)
        parts = RunningParts(
            self.waiting, self.recorders, self.queue, self._handlers, self._status_writer, self.auditor
        )
        self.outcomes = Outcomes(self.engine, self.caches, self.observer, parts)
        self._binder = Binder(self._binding_rules(gates), self.waiting)
        self.actions.attach(parts)

    def _network(self, cluster: Cluster) -> NetworkTopologyManager:
        changed = QueueingEvent(ClusterEvent.NETWORK_TOPOLOGY)
        return NetworkTopologyManager(
            cluster,
            self.clock,
            record_event=functools.partial(self.actions.event, ""),
            changed=functools.partial(self.actions.happened, changed),
        )

    def _auditor(self, options: AuditOptions | None) -> Auditor | None:
        if options is None:
            return None
        return Auditor(options, self.engine.metrics.registry, self.clock, self.profiles.__contains__)

    def _recorder(self, cluster: Cluster, profile_name: str, instance: str) -> EventRecorder:
        rng = new_rng(self._rng)
        return EventRecorder(cluster, profile_name, instance=instance, rng=rng, stand_back=self._is_busy)

    def _listen(self) -> None:
        """Register who hears of objects, in this order: the auditor and plugins that count pods know one before the
        queue asks about it."""
        if self.auditor is not None:
            self.caches.pods.add_handler(self.auditor.created, None, self.auditor.deleted)
        for handle in self.engine.handles:
            self.caches.watch(handle.watches)
        if self.network is not None:
            self.caches.watch(self.network.watches)
        self._handlers.listen(self.caches)
        if self._advisors is not None:
            self.caches.watch(self._advisors.watches())

    def _binding_rules(self, gates: FeatureGates) -> BindingRules:
        return BindingRules(
            bindings_max=self.config.bindings_max,
            # The gate asks for a second look at the pod just before it is bound.
            live=self.outcomes.live if gates.is_on("DynamicSchedulerCheck") else lambda pod: pod,
            has_node=lambda name: self.table.row_of(name) is not None,
            finished=self.outcomes.bound,
            interrupted=self.outcomes.interrupted,
            slow=self.outcomes.slow,
            ran=self.observer.ran,
        )

    @property
    def metrics(self) -> SchedulerMetrics:
        return self.engine.metrics

    @property
    def bindings_in_progress(self) -> int:
        return self._binder.in_progress_count

    def _is_busy(self) -> bool:
        """Return whether pods are on their way to a node."""
        return self._is_scheduling and (self._binder.is_busy or self.queue.active_count > 0)

    def _queue_policy(self, unschedulable_s_max: float) -> QueuePolicy:
        extender = ExtenderWakeUps(None, self.engine.handles[0])
        by_name: dict[str, dict[str, Plugin[Any]]] = {
            profile.name: {extender.name: extender, **{plugin.name: plugin for plugin in profile.plugins}}
            for profile in self.profiles.values()
        }
        sort = next(iter(self.profiles.values())).queue_sort
        return QueuePolicy(
            initial_backoff_s=self.config.pod_initial_backoff_seconds,
            max_backoff_s=self.config.pod_max_backoff_seconds,
            sort_key=sort.sort_key,
            gate=self._gate if self.auditor is None else self.auditor.gate(self._gate),
            plugins=by_name.__getitem__,
            waits_out=self._brings_others,
            unschedulable_s_max=unschedulable_s_max,
        )

    def _gate(self, entry: QueuedPod, but: str) -> Status:
        for plugin in self.profiles[entry.profile_name].pre_enqueues:
            if plugin.name == but:
                continue
            answer = self._guard.answer(plugin.pre_enqueue, entry.pod, otherwise=_as_status)
            if not answer.is_success:
                return answer.by(plugin.name)
        return SUCCESS

    def _planned(self, pod: PodInfo, planned_by: str) -> PendingPod | Status:
        """Return a pod of somebody's plan as it waits in the queue."""
        entry = self.queue.look_for(pod.uid, by=planned_by)
        return entry if isinstance(entry, Status) else PendingPod(entry.pod, entry.class_key)

    def _brings_others(self, pod: PodInfo) -> bool:
        return any(chooser.brings_others(pod) for chooser in self._choosers)

    # Running

    async def run(self) -> None:
        """Follow the cluster and schedule until cancelled."""
        async with self.following():
            await self.schedule()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Keep the caches current (before leadership, too); entered once they are filled."""
        async with asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[Any]] = [
                group.create_task(recorder.run(), name=f"events of {name}")
                for name, recorder in self.recorders.items()
            ]
            tasks.append(group.create_task(self._status_writer.run(), name="pod status"))
            tasks += self.caches.start(group)
            try:
                await self.caches.synced()
                self.synced.set()
                facts = {"nodes": self.table.node_count, "pods": len(self.caches.pods)}
                log.info("caches filled", extra=facts)
                yield
            finally:
                self.synced.clear()
                with contextlib.suppress(TimeoutError):  # the last pods bound shall have their events
                    async with asyncio.timeout(LAST_EVENTS_S):
                        await self.flush_events()
                for task in tasks:
                    task.cancel()
                if self._advisors is not None:
                    await self._advisors.close()

    async def flush_events(self) -> None:
        """Until all events recorded so far are written or given up; needs `following`."""
        for recorder in self.recorders.values():
            await recorder.flush()

    async def schedule(self) -> None:
        """Schedule and run the plugins' controllers until cancelled; needs `following`, and to lead."""
        async with asyncio.TaskGroup() as group:
            self._binder.open(group)
            self._is_scheduling = True
            controllers = self.engine.controllers(self._controller_filter)
            if self.network is not None:
                controllers.append(self.network.background)
            loops = [
                group.create_task(capabilities.run_for_ever(each, new_rng(self._rng)), name=each.name)
                for each in (*controllers, self._explanations.background)
            ]
            loops.append(group.create_task(self.observer.run(), name="observer"))
            try:
                await self._schedule()
            finally:
                self._is_scheduling = False
                for loop in loops:
                    loop.cancel()
                await self._binder.close()
                await self.actions.stop()

    async def _schedule(self) -> None:
        clock, loop = self.clock, asyncio.get_running_loop()
        while True:
            until_s = loop.time() + TURN_S
            for _ in range(CYCLES_PER_TURN):
                self._binder.settle()
                now_s = clock.now()
                entry = self._next(now_s)
                if entry is None:
                    await self._wait()
                    break
                self.observer.popped(entry, now_s)
                try:
                    if self._advisors is not None and self._advisors.is_concerned(entry.pod):
                        await self._attempt_with(self._advisors, entry)
                    else:
                        self._attempt(entry)
                except Exception as error:
                    self.outcomes.crashed(entry, error)
                    self._guard.failed(error, self._attempt)
                if self._binder.is_full:
                    await self._binder.room()
                    break
                if loop.time() >= until_s:
                    await asyncio.sleep(0)
                    break
            else:
                await asyncio.sleep(0)

    def _next(self, now_s: float) -> QueuedPod | None:
        """Return the pod that a plugin wants next, else the queue's."""
        for chooser in self._choosers:
            entry = self._chosen(chooser, now_s)
            if entry is not None:
                return entry
        self._binder.settle()  # a round that ended for want of pods gives its places back before others are tried
        return self.queue.pop(now_s)

    def _chosen(self, chooser: NextPodPlugin[Any], now_s: float) -> QueuedPod | None:
        """Return the pod that a plugin wants next, None for none."""
        while True:
            uid = self._guard.answer(chooser.next_pod, otherwise=lambda _: None)
            if uid is None:
                return None
            began_s = self.clock.now()
            entry = self.queue.take(uid, now_s, by=chooser.name)
            self.metrics.next_pod_latency.of().observe(max(0.0, self.clock.now() - began_s))
            if entry is not None:
                return entry  # else it is gone, and the plugin knows of another one

    async def _wait(self) -> None:
        """Until something happens that may make a pod active."""
        if self.waiting.has_decisions:
            return
        self._wake.clear()
        wakeup_s = self.queue.next_wakeup_s()
        pause_s = None if wakeup_s is None else max(0.0, wakeup_s - self.clock.now()) + TIMER_SLACK_S
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _attempt(self, entry: QueuedPod) -> None:
        """One cycle for a popped pod."""
        if not self._is_obsolete(entry):
            self._carry_on(entry, self.observer.search(self.profiles[entry.profile_name], entry))

    async def _attempt_with(self, advisors: Advisors, entry: QueuedPod) -> None:
        """The same for a pod about which somebody outside has to be asked; others wait for their answer."""
        if self._is_obsolete(entry):
            return
        profile, pod = self.profiles[entry.profile_name], entry.pod
        advice: ExtenderAdvice | None = None
        if advisors.advises(pod):
            names = self.engine.cycle.shortlist(profile, pod, entry.class_key, self.clock.now())
            advice = await advisors.advise(pod, names) if names else None
        if self._is_obsolete(entry):
            return
        result = self.observer.search(profile, entry, advice)
        if isinstance(result, Unplaced) and result.later is not None:
            result = await result.later()
        self._carry_on(entry, result)

    def _is_obsolete(self, entry: QueuedPod) -> bool:
        """Return whether the pod needs no node any more; it has left the queue then."""
        pod = entry.pod
        if pod.pod.metadata.deletion_timestamp is None and self.table.place_of(pod.uid) is None:
            return False
        self.queue.done(pod.uid)
        return True

    def _carry_on(self, entry: QueuedPod, result: Placed | Unplaced) -> None:
        profile, count = self.profiles[entry.profile_name], len(result.together)
        is_placed = isinstance(result, Placed)
        batch = BatchBinding(self.metrics, count + is_placed) if count else None
        if isinstance(result, Placed):
            self._start(BindingCycle(profile, entry, result, batch))
        for other in result.together:
            self._start_beside(profile, other, batch)
        if isinstance(result, Unplaced):
            self.outcomes.unplaced(entry, result)

    def _start(self, job: BindingCycle) -> None:
        placed = job.placed
        if placed.nominated_before and placed.nominated_before != placed.node_name:
            self._handlers.room_given_up(placed.pod, placed.nominated_before)
        self._binder.start(job)

    def _start_beside(self, profile: Profile, placed: Placed, batch: BatchBinding | None) -> None:
        """Bind a pod that was placed in the cycle of another one."""
        pod, now_s = placed.pod, self.clock.now()
        # Its gate may be closed, but whoever planned it knows better.
        entry = self.queue.take_along(pod.uid, now_s)
        if entry is None:
            entry = QueuedPod(pod, profile.name, profile.class_key(pod), now_s, attempt_count=1)
        self.observer.popped(entry, now_s)
        self._start(BindingCycle(profile, entry, placed, batch))


def _as_status(failure: Exception) -> Status:
    return status.error(f"{type(failure).__name__}: {failure}")
