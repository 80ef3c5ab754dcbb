"""Finish an attempt: the pod is bound, or goes back to the queue with a reason that is told."""

import re

import msgspec

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.cluster.supervise import Guard
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Unplaced, refused
from koordinator.scheduler.loop import actions
from koordinator.scheduler.loop.actions import RunningParts
from koordinator.scheduler.loop.binding import BindingCycle
from koordinator.scheduler.loop.caches import Caches
from koordinator.scheduler.observe.observer import Observer
from koordinator.scheduler.plugin import handle, status
from koordinator.scheduler.plugin.events import BINDING, SCHEDULING, ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.handle import Handling, SchedulingFailure
from koordinator.scheduler.plugin.status import Status, event_note
from koordinator.scheduler.queue.queued_pod import QueuedPod

_HEAD = re.compile(r"0/\d+ nodes are available: ")
_ITEM = re.compile(r"(\d+) Reservation\(s\) (.*)")
_TOTAL = "matched owner total"
_EXACT = "exactly matches the requested reservation name"
_OF_NODE = "for node reason that"


def event_message(message: str) -> str | None:
    """`0/8 reservations are available: 2 Reservation(s) Insufficient cpu.` from the message of a pod that found
    no node; None when it says nothing about reservations.

    Pure. Source: behaviour/scheduler E2.
    """
    head = _HEAD.match(message)
    if head is None:
        return None
    total: str | None = None
    exact: list[str] = []
    others: list[str] = []
    of_nodes: list[str] = []
    for part in message[head.end() :].replace(". ", ",").split(","):
        text = part.strip(" .")
        item = _ITEM.fullmatch(text)
        if item is None:
            continue
        count, reason = item.groups()
        if reason == _TOTAL:
            total = count
        else:
            group = exact if reason == _EXACT else of_nodes if reason.startswith(_OF_NODE) else others
            group.append(text)
    if total is None:
        return None
    return f"0/{total} reservations are available: {', '.join([*exact, *others, *of_nodes])}."


class Outcomes:
    """Books the ends of attempts: queue, table, metrics, events and conditions."""

    def __init__(self, engine: Engine, caches: Caches, observer: Observer, parts: RunningParts) -> None:
        self._observer = observer
        self._engine = engine
        self._table = engine.table
        self._caches = caches
        self._parts = parts
        self._queue = parts.queue
        self._clock = engine.clock
        self._guard = Guard("PostBind plugins")
        self._failures = engine.failure_handlers()
        self._expected: set[str] = set()
        """Uids of pods whose placement was written on them before they are bound."""

    def slow(self, job: BindingCycle) -> None:
        """Write the node on a pod that Permit, its volumes or devices keep waiting (what the gate
        NominatedNodeNameForExpectation of kube-scheduler is for)."""
        live = self._caches.live(job.placed.pod.pod)
        if live is not None:  # else it is gone, or only the scheduler knows it
            self._expected.add(job.placed.pod.uid)
            self._parts.statuses.write(live, actions.PodStatusUpdate("", "", job.placed.node_name))

    def bound(self, job: BindingCycle, outcome: Status) -> None:
        """Note that a binding ended."""
        pod, node_name = job.placed.pod, job.placed.node_name
        place = self._table.place_of(pod.uid)
        is_there = place is not None and self._table.name_of(place.row) == node_name
        is_confirmed = is_there and place is not None and not place.assumed
        if outcome.is_success or is_confirmed:
            if not is_there:
                self._forget(job)  # it is gone already, or the API says that somebody else took it elsewhere
            if job.batch is not None:
                job.batch.ended(status.SUCCESS, "")
            self._placed(job)
            return
        if job.batch is not None:
            job.batch.ended(outcome, _phase(job, outcome))
        self._observer.failed(job.entry, outcome, self._clock.now())
        row = self._forget(job)
        result = refused(pod, outcome)
        if job.batch is not None and not self._engine.nominations.node_of(pod.uid):
            result = msgspec.structs.replace(result, nominated_node="")
        before = job.placed.nominated_before if pod.uid in self._expected else None
        self._expected.discard(pod.uid)
        self._retry(job.entry, result, node_name, before)
        if job.batch is not None:
            # The others of its plan are on their way: it must not wait for an event.
            self._queue.activate((pod.uid,), self._clock.now())
        if outcome.plugin not in handle.JOB_PLUGINS:
            # Places that a job held for the length of its round are as free as before it: nobody who sleeps was
            # refused because of them, and two jobs would wake each other for ever.
            self._parts.handlers.happened(QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED, row, pod, None))

    def _placed(self, job: BindingCycle) -> None:
        pod, node_name = job.placed.pod, job.placed.node_name
        self._queue.done(pod.uid)
        self._expected.discard(pod.uid)
        self._parts.statuses.discard(pod.pod)
        self._observer.placed(job.entry, self._clock.now())
        if self._parts.auditor is not None:
            self._parts.auditor.placed(job.entry, node_name)
        if job.profile.extensions.reservation_for(pod.uid) is None:
            message = f"Successfully assigned {pod.key} to {node_name}"
            self._parts.recorders[job.profile.name].normal(pod.pod, "Scheduled", message, action=BINDING)
        for plugin in job.profile.post_binds:
            self._guard.call(plugin.post_bind, pod, node_name)

    def interrupted(self, job: BindingCycle) -> None:
        """Note that the scheduler stops: the pod is as good as never tried. If it was bound after all, the API will
        say so."""
        self._forget(job)
        self._expected.discard(job.placed.pod.uid)
        self._observer.interrupted(job.entry)
        self._requeue(job.entry, Unplaced(job.placed.pod, status.error("interrupted"), frozenset()))

    def _forget(self, job: BindingCycle) -> int | None:
        """Undo a placement; the row where it was, if the node is still there."""
        placed = job.placed
        self._engine.cycle.forget(job.profile, placed.pod, placed.evaluation, placed.node_name)
        return self._table.row_of(placed.node_name)

    def unplaced(self, entry: QueuedPod, result: Unplaced) -> None:
        """Note that a cycle found no node."""
        self._observer.failed(entry, result.status, self._clock.now())
        self._retry(entry, result)

    def crashed(self, entry: QueuedPod, error: Exception) -> None:
        """Note that a plugin raised: a bug costs the pod an attempt, not everybody the scheduler."""
        failure = status.error(f"scheduling failed: {type(error).__name__}: {error}")
        self.unplaced(entry, Unplaced(entry.pod, failure, frozenset()))

    def _retry(
        self, entry: QueuedPod, result: Unplaced, node_name: str = "", before: str | None = None
    ) -> None:
        """Queue the pod again and tell the user, unless a plugin does; `node_name` is where the pod was, `before` the
        nomination that its expected node was written over, None when it was not."""
        nominated = handle.nomination_after(result.status, node_name, result.nominated_node)
        if nominated is None:
            nominated = before
        if nominated != result.nominated_node:
            result = msgspec.structs.replace(result, nominated_node=nominated)
        if self._parts.auditor is not None:
            self._parts.auditor.failed(entry, result)
        failure = SchedulingFailure(
            entry.pod, entry.profile_name, result.status, result.rejected_by, nominated
        )
        if not (nominated or (nominated is None and self._engine.nominations.node_for(entry.pod))):
            self._engine.profiles[entry.profile_name].extensions.forget_nominated(entry.pod.uid)
        handling = self._failures.before(failure)
        if handling is Handling.DONE:
            self._queue.done(entry.pod.uid)
        else:
            live = self._requeue(entry, result)
            if live is not None and handling is Handling.GO_ON:
                self._report(live, entry, result)
            elif live is not None and before is not None:
                self._parts.statuses.write(live, actions.PodStatusUpdate("", "", nominated))
        self._failures.after(failure)

    def _report(self, live: Pod, entry: QueuedPod, result: Unplaced) -> None:
        """Write event and condition."""
        message = result.status.message
        reason = "Unschedulable" if result.status.is_rejected else "SchedulerError"
        recorder = self._parts.recorders[entry.profile_name]
        recorder.warning(live, "FailedScheduling", event_note(message), action=SCHEDULING)
        if labels.RESERVATION_AFFINITY in live.metadata.annotations:
            about_reservations = event_message(message)
            if about_reservations is not None:
                note = event_note(about_reservations)
                recorder.warning(live, "FailedScheduling-Reservation", note, action=SCHEDULING)
        self._parts.statuses.write(live, actions.PodStatusUpdate(reason, message, result.nominated_node))

    def _requeue(self, entry: QueuedPod, result: Unplaced) -> Pod | None:
        """Return the pod as it waits now; None when it has no reason to wait any more."""
        live = self.live(entry.pod.pod)
        if live is None or live.spec.node_name or live.metadata.deletion_timestamp is not None:
            self._queue.done(entry.pod.uid)
            return None
        if live.spec.scheduler_name != entry.profile_name:
            self._queue.done(entry.pod.uid)
            self._parts.handlers.pod_set(None, live)  # it begins anew, if the other name is ours, too
            return None
        nominations, said = self._engine.nominations, live.status.nominated_node_name
        before = nominations.node_of(entry.pod.uid)
        if result.nominated_node is not None:
            nominations.set(entry.pod, result.nominated_node)
        elif said and not nominations.node_of(entry.pod.uid):
            nominations.set(entry.pod, said)  # it gives its place back, and the room is kept for it as before
        now_s = self._clock.now()
        if before and before != nominations.node_of(entry.pod.uid):
            row = self._table.row_of(before)
            self._queue.let_go(QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED, row, entry.pod, None), now_s)
        about = (result.about.pod, result.about.class_key) if result.about is not None else None
        self._queue.retry(
            entry, result.status, result.rejected_by, now_s, pending_by=result.pending_by, about=about
        )
        self._parts.handlers.wake()
        return live

    def live(self, pod: Pod) -> Pod | None:
        """Return a pod as it is now, also one that only the scheduler knows; None when it is gone."""
        found = self._caches.live(pod)
        if found is not None:
            return found
        profile = self._engine.profiles.get(pod.spec.scheduler_name)
        return profile.extensions.reserve_pod(pod.metadata.uid) if profile is not None else None


def _phase(job: BindingCycle, outcome: Status) -> str:
    """Return the extension point at which a binding failed, told by the plugin that refused."""
    points = (("PreBind", job.profile.pre_binds), ("Permit", job.profile.permits))
    return next((name for name, plugins in points if outcome.plugin in {p.name for p in plugins}), "Bind")
