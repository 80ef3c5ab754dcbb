"""The scheduler as a component: informers in, cycles, bindings and messages out."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from koordinator.api import labels, normalization
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.meta import Object
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import Informer
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.supervise import Guard
from koordinator.scheduler import default_plugins, diagnosis, pod_status, status
from koordinator.scheduler.actions import RunningActions
from koordinator.scheduler.binding import Binder, Job
from koordinator.scheduler.config import SchedulerConfig
from koordinator.scheduler.cycle import Placed, Unplaced
from koordinator.scheduler.engine import Engine
from koordinator.scheduler.evaluation import CLASSES_MAX
from koordinator.scheduler.events import ClusterEvent, Happening
from koordinator.scheduler.framework import Watch
from koordinator.scheduler.metrics import Metrics
from koordinator.scheduler.nodes import NodeAspect
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.profile import PluginType
from koordinator.scheduler.queue import QueuedPod, QueuePolicy, SchedulingQueue
from koordinator.scheduler.reservation_message import event_message
from koordinator.scheduler.status import SUCCESS, Status
from koordinator.scheduler.waiting import WaitingPods

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

CYCLES_PER_TURN = 64
"""Cycles before other tasks (informers, bindings) get their turn."""
SYNC_POLL_S = 0.1
WAKE_SLACK_S = 0.001
"""Timers may fire this much early."""

_EVENT_OF_ASPECT = (
    (NodeAspect.ALLOCATABLE, ClusterEvent.NODE_ALLOCATABLE),
    (NodeAspect.LABELS, ClusterEvent.NODE_LABELS),
    (NodeAspect.TAINTS, ClusterEvent.NODE_TAINTS),
    (NodeAspect.CONDITIONS, ClusterEvent.NODE_CONDITIONS),
    (NodeAspect.ANNOTATIONS, ClusterEvent.NODE_ANNOTATIONS),
)


class Scheduler:
    """Places pods that name one of its profiles in `schedulerName`; all others are only counted on nodes.

    `seed` decides ties between nodes and the jitter of retries; `plugins` replaces the installed ones;
    `classes_max`: see `Engine`.
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
    ) -> None:
        """Raises: ConfigError."""
        self.config = config or default_plugins.shipped_config()
        self.clock = clock or cluster.clock
        self.waiting = WaitingPods()
        self._recorders: dict[str, EventRecorder] = {}
        self._actions = RunningActions(self.waiting, self._recorders)
        self.engine = Engine(
            self.config,
            self.clock,
            seed=seed,
            plugins=plugins,
            classes_max=classes_max,
            cluster=cluster,
            happened=self._happened,
            actions=self._actions,
        )
        self.table = self.engine.table
        self.profiles = self.engine.profiles
        self.metrics = Metrics()
        self.queue = SchedulingQueue(self._queue_policy())
        self._cluster = cluster
        self._rng = random.Random(seed)
        gates = gates or FeatureGates.of(Component.SCHEDULER)
        self._binder = Binder(
            self.config.bindings_max,
            self.waiting,
            # The gate asks for a second look at the pod just before it is bound.
            self._live_pod if gates.is_on("DynamicSchedulerCheck") else lambda pod: pod,
            self._bound,
        )
        for name in self.profiles:
            self._recorders[name] = EventRecorder(cluster, name, rng=self._new_rng())
        self._status_writer = pod_status.StatusWriter(cluster, self.clock, self._live_pod)
        self._wake = asyncio.Event()
        self._guard = Guard("scheduling")
        steps = normalization.PodSteps.of(gates)
        self._pods = self._informer(Pod, lambda pod: normalization.normalize_pod(pod, steps))
        self._nodes = self._informer(Node, normalization.normalize_node)
        self._informers: list[Informer[Any]] = [self._nodes, self._pods]
        self._wire()
        self.synced = asyncio.Event()

    # Building

    def _new_rng(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    def _informer(self, view: type[T], transform: Callable[[T], T] | None = None) -> Informer[T]:
        return Informer(self._cluster, view, rng=self._new_rng(), transform=transform)

    def _queue_policy(self) -> QueuePolicy:
        by_name = {
            profile.name: {plugin.name: plugin for plugin in profile.plugins}
            for profile in self.profiles.values()
        }
        sort = next(iter(self.profiles.values())).queue_sort
        return QueuePolicy(
            initial_backoff_s=self.config.pod_initial_backoff_seconds,
            max_backoff_s=self.config.pod_max_backoff_seconds,
            sort_key=sort.sort_key,
            gate=self._gate,
            plugins=by_name.__getitem__,
        )

    def _wire(self) -> None:
        self._nodes.add_handler(lambda node: self._node_set(None, node), self._node_set, self._node_deleted)
        self._pods.add_handler(lambda pod: self._pod_set(None, pod), self._pod_set, self._pod_deleted)
        by_view: dict[type[Object], Informer[Any]] = {}
        for handle in self.engine.handles:
            for watch in handle.watches:
                informer = by_view.get(watch.view)
                if informer is None:
                    informer = by_view[watch.view] = self._informer(watch.view)
                    self._informers.append(informer)
                _add_watch(informer, watch)

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
                for name, recorder in self._recorders.items()
            ]
            tasks.append(group.create_task(self._status_writer.run(), name="pod status"))
            tasks += [group.create_task(each.run(), name=each.guard.name) for each in self._informers]
            try:
                for informer in self._informers:
                    await _first_list(informer)
                self.synced.set()
                log.info("caches filled", extra={"nodes": self.table.node_count, "pods": len(self._pods)})
                yield
            finally:
                self.synced.clear()
                for task in tasks:
                    task.cancel()

    async def schedule(self) -> None:
        """Schedule until cancelled; needs `following`."""
        try:
            await self._schedule()
        finally:
            await self._binder.stop()
            await self._actions.stop()

    async def _schedule(self) -> None:
        while True:
            for _ in range(CYCLES_PER_TURN):
                entry = self.queue.pop(self.clock.now())
                if entry is None:
                    await self._wait()
                    break
                error = await self._guard.call_async(self._attempt, entry)
                if error is not None:
                    self._crashed(entry, error)
            else:
                await asyncio.sleep(0)

    async def _wait(self) -> None:
        """Until something happens that may make a pod active."""
        self._wake.clear()
        wakeup_s = self.queue.next_wakeup_s()
        pause_s = None if wakeup_s is None else max(0.0, wakeup_s - self.clock.now()) + WAKE_SLACK_S
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _attempt(self, entry: QueuedPod) -> None:
        """One cycle for a popped pod."""
        pod = entry.pod
        if pod.pod.metadata.deletion_timestamp is not None or self.table.place_of(pod.uid) is not None:
            self.queue.done(pod.uid)
            return
        profile = self.profiles[entry.profile_name]
        result = self.engine.cycle.run(profile, pod, entry.class_key, entry.attempt_count, self.clock.now())
        if isinstance(result, Placed):
            await self._binder.start(Job(profile, entry, result))
        else:
            self.metrics.attempt(profile.name, result.status)
            self._unplaced(entry, result)

    def _crashed(self, entry: QueuedPod, error: Exception) -> None:
        """A plugin raised: a bug costs the pod an attempt, not everybody the scheduler."""
        place = self.table.place_of(entry.pod.uid)
        if place is not None and place.assumed:
            self.table.unassign(entry.pod.uid)
        failure = status.error(f"scheduling failed: {type(error).__name__}: {error}")
        self.metrics.attempt(entry.profile_name, failure)
        self._unplaced(entry, Unplaced(entry.pod, failure, frozenset()))

    def _gate(self, entry: QueuedPod) -> Status:
        for plugin in self.profiles[entry.profile_name].pre_enqueues:
            answer = plugin.pre_enqueue(entry.pod)
            if not answer.is_success:
                return answer.by(plugin.name)
        return SUCCESS

    # Outcomes

    def _bound(self, job: Job, outcome: Status) -> None:
        """A binding ended."""
        pod, node_name = job.placed.pod, job.placed.node_name
        place = self.table.place_of(pod.uid)
        is_confirmed = place is not None and not place.assumed
        if outcome.is_success or is_confirmed:
            self.queue.done(pod.uid)
            self._status_writer.discard(pod.pod)
            self.metrics.placed(job.profile.name, job.entry, self.clock.now())
            self._recorders[job.profile.name].normal(
                pod.pod, "Scheduled", f"Successfully assigned {pod.key} to {node_name}"
            )
            for plugin in job.profile.post_binds:
                self._guard.call(plugin.post_bind, pod, node_name)
            return
        row = self.table.row_of(node_name)
        self.engine.cycle.forget(job.profile, pod, job.placed.evaluation, node_name)
        self.metrics.attempt(job.profile.name, outcome)
        rejected_by = frozenset((outcome.plugin,)) if outcome.is_rejected and outcome.plugin else frozenset()
        self._unplaced(job.entry, Unplaced(pod, outcome, rejected_by))
        self._happened(Happening(ClusterEvent.ASSIGNED_POD_DELETED, row, pod, None))

    def _unplaced(self, entry: QueuedPod, result: Unplaced) -> None:
        """Queue the pod again and tell the user."""
        live = self._live_pod(entry.pod.pod)
        if live is None or live.spec.node_name:
            self.queue.done(entry.pod.uid)
            return
        now_s = self.clock.now()
        if result.nominated_node is not None:
            self.engine.nominations.set(entry.pod, result.nominated_node)
        self.queue.retry(entry, result.status, result.rejected_by, now_s)
        message = result.status.message
        reason = "Unschedulable" if result.status.is_rejected else "SchedulerError"
        recorder = self._recorders[entry.profile_name]
        recorder.warning(live, "FailedScheduling", diagnosis.event_note(message))
        if labels.RESERVATION_AFFINITY in live.metadata.annotations:
            about_reservations = event_message(message)
            if about_reservations is not None:
                note = diagnosis.event_note(about_reservations)
                recorder.warning(live, "FailedScheduling-Reservation", note)
        self._status_writer.write(live, pod_status.Verdict(reason, message, result.nominated_node))
        self._wake.set()

    def _live_pod(self, pod: Pod) -> Pod | None:
        """The pod as the informer knows it now; None when it is gone or another one has its name."""
        meta = pod.metadata
        live = self._pods.get(meta.name, meta.namespace)
        return live if live is not None and live.metadata.uid == meta.uid else None

    # What informers tell

    def _happened(self, happening: Happening) -> None:
        self.queue.happened(happening, self.clock.now())
        self._wake.set()

    def _node_set(self, old: Node | None, node: Node) -> None:
        try:
            aspect = self.table.set_node(node)
        except ProtocolError as error:
            # The node keeps its last readable state; one that never had any takes no pods.
            log.warning("node not readable: %s", error, extra={"node": node.metadata.name})
            return
        row = self.table.row_of(node.metadata.name)
        if NodeAspect.ADDED in aspect:
            self._happened(Happening(ClusterEvent.NODE_ADDED, row, old, node))
            return
        for flag, event in _EVENT_OF_ASPECT:
            if flag in aspect:
                self._happened(Happening(event, row, old, node))

    def _node_deleted(self, node: Node) -> None:
        self.table.remove_node(node.metadata.name)
        self._happened(Happening(ClusterEvent.NODE_DELETED, None, node, None))

    def _pod_set(self, old: Pod | None, pod: Pod) -> None:
        try:
            info = PodInfo.of(pod, self.table.registry)
        except ProtocolError as error:
            self._refuse(pod, error)
            return
        if info.is_terminal:
            self._pod_deleted(pod)
        elif info.node_name:
            self._assigned(info)
        else:
            self._nominated(old, info)
            self._unassigned(info)

    def _nominated(self, old: Pod | None, info: PodInfo) -> None:
        """Follow the nomination in the pod's status, which others may write; our own is there before it is."""
        nominations = self.engine.nominations
        said = info.pod.status.nominated_node_name
        was_taken_back = old is not None and bool(old.status.nominated_node_name) and not said
        if said != nominations.node_of(info.uid) and (said or was_taken_back):
            nominations.set(info, said)

    def _refuse(self, pod: Pod, error: ProtocolError) -> None:
        """A pod whose requests cannot be read is not scheduled, and its owner is told."""
        log.warning("pod not schedulable: %s", error, extra={"pod": pod.key})
        recorder = self._recorders.get(pod.spec.scheduler_name)
        if recorder is not None and not pod.spec.node_name:
            recorder.warning(pod, "FailedScheduling", diagnosis.event_note(str(error)))

    def _assigned(self, info: PodInfo) -> None:
        place = self.table.place_of(info.uid)
        is_news = place is None or place.assumed
        if place is None or not place.assumed:
            self.queue.remove(info.uid)
        old = place.pod if place is not None else None
        self.engine.nominations.remove(info.uid)
        row = self.table.assign(info, info.node_name)
        if old is None or is_news:
            self._happened(Happening(ClusterEvent.ASSIGNED_POD_ADDED, row, None, info))
        elif old.request_key != info.request_key or _matters_to_others(old, info):
            self._happened(Happening(ClusterEvent.ASSIGNED_POD_UPDATED, row, old, info))

    def _unassigned(self, info: PodInfo) -> None:
        place = self.table.place_of(info.uid)
        if place is not None and place.assumed:
            return  # our binding is under way
        profile = self.profiles.get(info.pod.spec.scheduler_name)
        if profile is None or info.pod.metadata.deletion_timestamp is not None:
            self.queue.remove(info.uid)
            return
        now_s = self.clock.now()
        class_key = profile.class_key(info)
        waiting = self.queue.find(info.uid)
        if waiting is not None and waiting.profile_name != profile.name:
            self.queue.remove(info.uid)  # it asks for another profile now
        if info.uid in self.queue:
            self.queue.update(info, class_key, now_s)
        else:
            self.queue.add(info, profile.name, class_key, now_s)
        self._wake.set()

    def _nomination_ended(self, uid: str) -> None:
        """The room that was kept for a pod is free for others."""
        node_name = self.engine.nominations.node_of(uid)
        pod = self.engine.nominations.remove(uid)
        if pod is not None and self.table.place_of(uid) is None:
            row = self.table.row_of(node_name)
            self._happened(Happening(ClusterEvent.ASSIGNED_POD_DELETED, row, pod, None))

    def _pod_deleted(self, pod: Pod) -> None:
        uid = pod.metadata.uid or pod.key
        self.queue.remove(uid)
        self._nomination_ended(uid)
        waiting = self.waiting.find(uid)
        if waiting is not None:
            waiting.reject("", "pod is deleted")
        place = self.table.place_of(uid)
        if place is None:
            return
        row = self.table.unassign(uid)
        self._happened(Happening(ClusterEvent.ASSIGNED_POD_DELETED, row, place.pod, None))


def _matters_to_others(old: PodInfo, new: PodInfo) -> bool:
    """Whether pods that look at other pods may see this one differently."""
    a, b = old.pod.metadata, new.pod.metadata
    return a.labels != b.labels or (a.deletion_timestamp is None) != (b.deletion_timestamp is None)


async def _first_list(informer: Informer[Any]) -> None:
    """Until an informer is filled, or the API says that it does not serve such objects (a CRD that is not
    installed): the plugin then has no opinion until it is."""
    while not informer.synced.is_set():
        if isinstance(informer.guard.last_error, errors.NotFound):
            resource = informer.view.resource.qualified
            log.warning("resource not served: going on without", extra={"resource": resource})
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SYNC_POLL_S):
                await informer.synced.wait()


def _add_watch(informer: Informer[Any], watch: Watch[Any]) -> None:
    informer.add_handler(watch.on_add, watch.on_update, watch.on_delete)
