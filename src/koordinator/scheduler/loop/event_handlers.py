"""Bring what informers tell into the node table, the queue and the nominations."""

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping

from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.supervise import Guard
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.loop.binding import WaitingPods
from koordinator.scheduler.loop.caches import Caches
from koordinator.scheduler.observe.observer import CycleProbe
from koordinator.scheduler.plugin.events import SCHEDULING, ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.status import event_note
from koordinator.scheduler.queue.queued_pod import is_another_question
from koordinator.scheduler.queue.scheduling_queue import SchedulingQueue
from koordinator.scheduler.table.columns import NodeAspect
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

_EVENT_OF_ASPECT = (
    (NodeAspect.ALLOCATABLE, ClusterEvent.NODE_ALLOCATABLE),
    (NodeAspect.LABELS, ClusterEvent.NODE_LABELS),
    (NodeAspect.TAINTS, ClusterEvent.NODE_TAINTS),
    (NodeAspect.CONDITIONS, ClusterEvent.NODE_CONDITIONS),
    (NodeAspect.ANNOTATIONS, ClusterEvent.NODE_ANNOTATIONS),
)


class EventHandlers:
    """Keeps the scheduler's state in step with the cluster. `wake` tells the loop that a pod may be active;
    `recorders` are those of the profiles, by scheduler name."""

    def __init__(
        self,
        engine: Engine,
        queue: SchedulingQueue,
        waiting: WaitingPods,
        recorders: Mapping[str, EventRecorder],
        wake: Callable[[], None],
    ) -> None:
        self._counts_other_schedulers = engine.gates.is_on("CrossSchedulerNomination")
        """True when room is kept for pods that other schedulers nominated, too."""
        clock = engine.clock
        self._metrics = engine.metrics
        self._probe = CycleProbe(engine.metrics, clock.now)
        self._table = engine.table
        self._profiles = engine.profiles
        self._nominations = engine.nominations
        self._queue = queue
        self._waiting = waiting
        self._recorders = recorders
        self._clock = clock
        self._guard = Guard("scheduler plugins")
        self.wake = wake

    def listen(self, caches: Caches) -> None:
        """Hear of all pods and nodes."""
        caches.nodes.add_handler(lambda node: self.node_set(None, node), self.node_set, self.node_deleted)
        caches.pods.add_handler(lambda pod: self.pod_set(None, pod), self.pod_set, self.pod_deleted)

    def happened(self, event: QueueingEvent) -> None:
        now_s = self._clock.now()
        if self._probe.is_event_due():
            with self._probe.measuring_hints(self._profiles.values(), event.kind.value):
                self._queue.happened(event, now_s)
        else:
            self._queue.happened(event, now_s)
        self._metrics.event_handling.of(event.kind.value).observe(max(0.0, self._clock.now() - now_s))
        self.wake()

    def activate(self, uids: Iterable[str], *, at_once: bool = True) -> None:
        """Try waiting pods again, at once or after their backoff: a plugin asks for it."""
        self._queue.activate(uids, self._clock.now(), at_once=at_once)
        self.wake()

    def node_set(self, old: Node | None, node: Node) -> None:
        try:
            aspect = self._table.set_node(node)
        except ProtocolError as error:
            # The node keeps its last readable state; one that never had any takes no pods.
            log.warning("node invalid: %s", error, extra={"node": node.metadata.name})
            return
        row = self._table.row_of(node.metadata.name)
        if NodeAspect.ADDED in aspect:
            self.happened(QueueingEvent(ClusterEvent.NODE_ADDED, row, old, node))
            return
        for flag, kind in _EVENT_OF_ASPECT:
            if flag in aspect:
                self.happened(QueueingEvent(kind, row, old, node))

    def node_deleted(self, node: Node) -> None:
        self._table.remove_node(node.metadata.name)
        self.happened(QueueingEvent(ClusterEvent.NODE_DELETED, None, node, None))

    def pod_set(self, old: Pod | None, pod: Pod) -> None:
        try:
            known = self._known(pod)
            registry = self._table.registry
            info = known.updated(pod, registry) if known is not None else PodInfo.of(pod, registry)
        except ProtocolError as error:
            self._refuse(pod, error)
            return
        if info.is_terminal:
            self.pod_deleted(pod)
        elif info.node_name:
            self._assigned(info)
        else:
            place = self._table.place_of(info.uid)
            if place is None or not place.assumed:  # else it counts where it is, and is not awaited besides
                self._nominated(old, info)
            self._unassigned(info)

    def _known(self, pod: Pod) -> PodInfo | None:
        """Return what we made of the pod's last state."""
        uid = pod.metadata.uid or pod.key
        place = self._table.place_of(uid)
        if place is not None:
            return place.pod
        waiting = self._queue.find(uid)
        return waiting.pod if waiting is not None else None

    def _nominated(self, old: Pod | None, info: PodInfo) -> None:
        """Follow the nomination in the pod's status, which others may write; our own is there before it is."""
        nominations = self._nominations
        is_of_others = info.pod.spec.scheduler_name not in self._profiles
        if is_of_others and not self._counts_other_schedulers:
            return
        said = info.pod.status.nominated_node_name
        was_said = old is not None and old.status.nominated_node_name
        if said != nominations.node_of(info.uid) and (said or was_said):
            nominations.set(info, said, by_others=is_of_others)
        else:
            nominations.refresh(info)

    def _refuse(self, pod: Pod, error: ProtocolError) -> None:
        """Refuse a pod whose requests cannot be read, and report it to its owner."""
        log.warning("pod not schedulable: %s", error, extra={"pod": pod.key})
        recorder = self._recorders.get(pod.spec.scheduler_name)
        if recorder is not None and not pod.spec.node_name:
            recorder.warning(pod, "FailedScheduling", event_note(str(error)), action=SCHEDULING)

    def _assigned(self, info: PodInfo) -> None:
        place = self._table.place_of(info.uid)
        if place is None or not place.assumed:
            self._queue.remove(info.uid)
        old = place.pod if place is not None and not place.assumed else None
        self._nominations.remove(info.uid)
        row = self._table.assign(info, info.node_name)
        if old is None:
            self.happened(QueueingEvent(ClusterEvent.ASSIGNED_POD_ADDED, row, None, info))
        elif not old.asks_like(info) or _matters_to_others(old, info):
            self.happened(QueueingEvent(ClusterEvent.ASSIGNED_POD_UPDATED, row, old, info))

    def _unassigned(self, info: PodInfo) -> None:
        place = self._table.place_of(info.uid)
        if place is not None and place.assumed:
            if is_another_question(place.pod, info):
                self._changed_in_flight(info)
            return  # our binding is under way
        profile = self._profiles.get(info.pod.spec.scheduler_name)
        if profile is None or info.pod.metadata.deletion_timestamp is not None:
            self._queue.remove(info.uid)
            return
        now_s = self._clock.now()
        class_key = self._class_key(profile, info)
        waiting = self._queue.find(info.uid)
        if waiting is not None and waiting.profile_name != profile.name:
            self._queue.remove(info.uid)  # it asks for another profile now
        if info.uid in self._queue:
            self._queue.update(info, class_key, now_s)
        else:
            self._queue.add(info, profile.name, class_key, now_s)
        self.wake()

    def _changed_in_flight(self, info: PodInfo) -> None:
        """Should the binding fail, the pod as it is now is tried next."""
        profile = self._profiles.get(info.pod.spec.scheduler_name)
        if profile is not None and info.uid in self._queue:
            self._queue.update(info, self._class_key(profile, info), self._clock.now())

    def _class_key(self, profile: Profile, info: PodInfo) -> Hashable:
        """Return what the pod has in common with others; nothing, when a plugin raises: its cycle will say so."""
        return self._guard.answer(profile.class_key, info, otherwise=lambda _: object())

    def _nomination_ended(self, uid: str) -> None:
        node_name = self._nominations.node_of(uid)
        pod = self._nominations.remove(uid)
        if pod is not None and self._table.place_of(uid) is None:
            self.room_given_up(pod, node_name)

    def room_given_up(self, pod: PodInfo, node_name: str) -> None:
        """Note that the room that was kept for a pod is free for others."""
        row = self._table.row_of(node_name)
        if row is not None:
            self.happened(QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED, row, pod, None))

    def pod_deleted(self, pod: Pod) -> None:
        uid = pod.metadata.uid or pod.key
        self._queue.remove(uid)
        self._nomination_ended(uid)
        waiting = self._waiting.find(uid)
        if waiting is not None:
            waiting.reject("", "pod is deleted")
        place = self._table.place_of(uid)
        if place is None:
            return
        row = self._table.unassign(uid)
        self.happened(QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED, row, place.pod, None))


def _matters_to_others(old: PodInfo, new: PodInfo) -> bool:
    """Return whether pods that look at other pods may see this one differently."""
    a, b = old.pod.metadata, new.pod.metadata
    return a.labels != b.labels or (a.deletion_timestamp is None) != (b.deletion_timestamp is None)
