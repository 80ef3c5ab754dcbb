"""What becomes of an attempt: a bound pod, or one that goes back to the queue with a reason that is told."""

from collections.abc import Mapping

from koordinator.api import labels
from koordinator.clock import Clock
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.supervise import Guard
from koordinator.scheduler import diagnosis, pod_status, status
from koordinator.scheduler.binding import Job
from koordinator.scheduler.caches import Caches
from koordinator.scheduler.cycle import Unplaced, refused
from koordinator.scheduler.engine import Engine
from koordinator.scheduler.event_handlers import EventHandlers
from koordinator.scheduler.events import ClusterEvent, Happening
from koordinator.scheduler.metrics import Metrics
from koordinator.scheduler.pod_status import StatusWriter
from koordinator.scheduler.queue import QueuedPod, SchedulingQueue
from koordinator.scheduler.reservation_message import event_message
from koordinator.scheduler.status import Status


class Outcomes:
    """Books the ends of attempts: queue, table, metrics, events and conditions.

    `recorders` are those of the profiles, by scheduler name.
    """

    def __init__(
        self,
        engine: Engine,
        queue: SchedulingQueue,
        caches: Caches,
        handlers: EventHandlers,
        recorders: Mapping[str, EventRecorder],
        status_writer: StatusWriter,
        clock: Clock,
    ) -> None:
        self.metrics = Metrics()
        self._engine = engine
        self._table = engine.table
        self._queue = queue
        self._caches = caches
        self._handlers = handlers
        self._recorders = recorders
        self._status_writer = status_writer
        self._clock = clock
        self._guard = Guard("PostBind plugins")

    def bound(self, job: Job, outcome: Status) -> None:
        """A binding ended."""
        pod, node_name = job.placed.pod, job.placed.node_name
        place = self._table.place_of(pod.uid)
        is_confirmed = place is not None and not place.assumed
        if outcome.is_success or is_confirmed:
            self._queue.done(pod.uid)
            self._status_writer.discard(pod.pod)
            self.metrics.placed(job.profile.name, job.entry, self._clock.now())
            self._recorders[job.profile.name].normal(
                pod.pod, "Scheduled", f"Successfully assigned {pod.key} to {node_name}"
            )
            for plugin in job.profile.post_binds:
                self._guard.call(plugin.post_bind, pod, node_name)
            return
        row = self._table.row_of(node_name)
        self._engine.cycle.forget(job.profile, pod, job.placed.evaluation, node_name)
        self.metrics.attempt(job.profile.name, outcome)
        self._retry(job.entry, refused(pod, outcome))
        self._handlers.happened(Happening(ClusterEvent.ASSIGNED_POD_DELETED, row, pod, None))

    def unplaced(self, entry: QueuedPod, result: Unplaced) -> None:
        """A cycle found no node."""
        self.metrics.attempt(entry.profile_name, result.status)
        self._retry(entry, result)

    def crashed(self, entry: QueuedPod, error: Exception) -> None:
        """A plugin raised: a bug costs the pod an attempt, not everybody the scheduler."""
        place = self._table.place_of(entry.pod.uid)
        if place is not None and place.assumed:
            self._table.unassign(entry.pod.uid)
        failure = status.error(f"scheduling failed: {type(error).__name__}: {error}")
        self.unplaced(entry, Unplaced(entry.pod, failure, frozenset()))

    def _retry(self, entry: QueuedPod, result: Unplaced) -> None:
        """Queue the pod again and tell the user."""
        live = self._caches.live(entry.pod.pod)
        if live is None or live.spec.node_name:
            self._queue.done(entry.pod.uid)
            return
        if result.nominated_node is not None:
            self._engine.nominations.set(entry.pod, result.nominated_node)
        now_s = self._clock.now()
        self._queue.retry(entry, result.status, result.rejected_by, now_s, pending_by=result.pending_by)
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
        self._handlers.wake()
