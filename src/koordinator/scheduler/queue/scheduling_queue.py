"""Pods that wait for a node: active, backing off, unschedulable or gated.

A pure data structure: times come in as arguments, `Scheduler` owns the timers. Iteration order is always
that of insertion or of the sort key, so that runs repeat. Source: behaviour/scheduler B5.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import msgspec

from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import Plugin
from koordinator.scheduler.plugin.status import Status, unresolvable
from koordinator.scheduler.queue.keyed_heap import KeyedHeap
from koordinator.scheduler.queue.queued_pod import QueuedPod, backoff_s, end_of_window, is_another_question
from koordinator.scheduler.queue.unschedulable_pods import UnschedulablePods, Wakeup, wakeup_of
from koordinator.scheduler.table.columns import tally
from koordinator.scheduler.table.pod_info import PodInfo

UNSCHEDULABLE_S_MAX = 300.0
"""A pod does not wait longer than this for an event: hints can be wrong."""
UNSCHEDULABLE_CHECK_S = 30.0
IN_FLIGHT_EVENTS_MAX = 65_536
"""Events kept while pods are being bound. Beyond it every returning pod is retried, as if all had matched."""


EVENTS_TRIM_CHUNK = 1_024


class _Standing(msgspec.Struct, frozen=True):
    """The number of a pod's attempts, and the time of the first."""

    attempt_count: int = 1
    first_attempt_s: float | None = None
    unschedulable_count: int = 0


class QueuePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The questions of the queue about pods and plugins."""

    initial_backoff_s: float
    max_backoff_s: float
    sort_key: Callable[[PodInfo, float], tuple[Any, ...]]
    gate: Callable[[QueuedPod, str], Status]
    """PreEnqueue without the plugin of that name, "" for all: success, or why the pod may not enter."""
    plugins: Callable[[str], Mapping[str, Plugin[Any]]]
    """Plugins of a profile by name."""
    waits_out: Callable[[PodInfo], bool] = lambda _: False
    """Predicate: the pod is not tried before its backoff is over, however idle the scheduler is."""
    unschedulable_s_max: float = UNSCHEDULABLE_S_MAX


class SchedulingQueue:
    """The queue. `pop` hands a pod out; it is "in flight" until `done`, `retry` or `remove`."""

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._entries: dict[str, QueuedPod] = {}
        self._active: KeyedHeap[QueuedPod] = KeyedHeap()
        self._backoff: KeyedHeap[QueuedPod] = KeyedHeap()
        self._full_backoff: KeyedHeap[QueuedPod] = KeyedHeap()
        """Pods that are not tried early: after errors, and where `QueuePolicy.waits_out` says so."""
        self._popped = _Standing()
        self._unschedulable: dict[str, QueuedPod] = {}
        """Refused pods and those with a closed gate."""
        self._gated_count = 0
        self.rejections: Counter[tuple[str, str]] = Counter()
        """(plugin, profile) → pods that wait because the plugin refused them."""
        self._unschedulable_pods = UnschedulablePods(policy.plugins)
        """Index of the pods in `_unschedulable` that events are compared with."""
        self._next_overdue_check_s = 0.0
        self._in_flight: dict[str, int] = {}
        self._updated_in_flight: dict[str, tuple[PodInfo, Hashable]] = {}
        self._activated_in_flight: dict[str, bool] = {}  # uid → whether at once
        self._events: list[QueueingEvent] = []
        self._events_dropped = 0
        self._cause = ""
        self.incoming: Counter[tuple[str, str]] = Counter()
        """(area, why) → pods that came into it, as in the metric `scheduler_queue_incoming_pods_total`."""

    # Reading

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, uid: str) -> bool:
        return uid in self._entries or uid in self._in_flight

    def counts(self) -> dict[str, int]:
        """Return pods per area, as in the metric `scheduler_pending_pods`."""
        return {
            "active": len(self._active),
            "backoff": len(self._backoff) + len(self._full_backoff),
            "unschedulable": len(self._unschedulable) - self._gated_count,
            "gated": self._gated_count,
        }

    def _count_rejections(self, entry: QueuedPod, change: int) -> None:
        """Note that a pod falls asleep (1) or wakes up (-1), before anything else changes in it."""
        for plugin in entry.rejecters:
            tally(self.rejections, (plugin, entry.profile_name), change)

    def events_in_flight(self) -> dict[str, int]:
        """Events kept for pods in flight, by their names."""
        return dict(Counter(event.kind.value for event in self._events))

    @property
    def active_count(self) -> int:
        """Pods that can be popped now."""
        return len(self._active)

    def find(self, uid: str) -> QueuedPod | None:
        return self._entries.get(uid)

    def area_of(self, uid: str) -> str:
        """Return where the pod is: an area of `counts`, `in a cycle` from then on until its end, empty when nowhere."""
        entry = self._unschedulable.get(uid)
        if entry is not None:
            return "unschedulable" if entry.gate is None else "gated"
        if uid in self._in_flight:
            return "in a cycle"
        if uid in self._active:
            return "active"
        return "backoff" if uid in self._entries else ""

    def is_in_line(self, uid: str) -> bool:
        """Return whether the pod is active, backs off, or is being tried."""
        heaps = (self._active, self._backoff, self._full_backoff)
        return uid in self._in_flight or any(uid in heap for heap in heaps)

    def next_wakeup_s(self) -> float | None:
        """Return when `flush` has something to do next; None when only an event can change anything."""
        times = [heap.first_key()[0] for heap in (self._backoff, self._full_backoff) if len(heap)]
        if self._unschedulable:
            times.append(self._next_overdue_check_s)
        return min(times, default=None)

    # Pods come and go

    def add(self, pod: PodInfo, profile_name: str, class_key: Hashable, now_s: float) -> None:
        """A pod that nobody has tried yet."""
        self._cause = "PodAdd"
        entry = QueuedPod(pod, profile_name, class_key, now_s)
        self._entries[pod.uid] = entry
        self._enter(entry, now_s)

    def update(self, pod: PodInfo, class_key: Hashable, now_s: float) -> None:
        """Note that a waiting pod changed; it moves on if that can help."""
        self._cause = "PodUpdate"
        if pod.uid in self._in_flight:
            self._updated_in_flight[pod.uid] = (pod, class_key)
            return
        entry = self._entries[pod.uid]
        old, entry.pod = entry.pod, pod
        is_asleep = self._wake_up(entry)
        entry.class_key = class_key
        if not is_asleep:
            if self._active.discard(pod.uid):
                self._activate(entry)  # its place in the line may be another one
        elif entry.gate is not None and not is_another_question(old, pod):
            self._sleep(entry)  # what we say ourselves in the status of gated pods must not let them in
        elif entry.gate is not None:
            self._enter(entry, now_s)
        elif wakeup := self._wakeup(entry, QueueingEvent(ClusterEvent.POD_UPDATED, None, old, pod)):
            self._leave(entry, now_s, wakeup)
        else:
            self._sleep(entry)

    def remove(self, uid: str) -> None:
        """Note that the pod is gone, or has been assigned by somebody."""
        entry = self._entries.pop(uid, None)
        if entry is not None:
            for heap in (self._active, self._backoff, self._full_backoff):
                heap.discard(uid)
            self._wake_up(entry)
        self.done(uid)

    # A cycle

    def pop(self, now_s: float) -> QueuedPod | None:
        """Return the next pod to schedule. When none is active, one whose backoff (not after an error) is still running
        goes early: the scheduler has nothing better to do."""
        self.flush(now_s)
        entry = self._active.pop() or self._backoff.pop()
        if entry is None:
            return None
        self._hand_out(entry, now_s)
        self._popped = _Standing(entry.attempt_count, entry.first_attempt_s, entry.unschedulable_count)
        return entry

    def take(self, uid: str, now_s: float, *, by: str) -> QueuedPod | None:
        """Pop this pod for the plugin `by`, wherever it waits. None when it does not wait, or when a gate other
        than that plugin's is closed."""
        found = self.look_for(uid, by=by)
        return None if isinstance(found, Status) else self._take(found, now_s)

    def take_along(self, uid: str, now_s: float) -> QueuedPod | None:
        """Pop this pod, whatever holds it back: it is tried together with the one that was popped last, and its
        attempts count and back off from where that one stands (behaviour/gangs 7.1). None when it does not wait."""
        entry = self._entries.get(uid)
        return None if entry is None else self._take(entry, now_s)

    def _take(self, entry: QueuedPod, now_s: float) -> QueuedPod:
        if not self._wake_up(entry):
            for heap in (self._active, self._backoff, self._full_backoff):
                heap.discard(entry.pod.uid)
        self._hand_out(entry, now_s)
        popped = self._popped
        entry.attempt_count = popped.attempt_count
        entry.first_attempt_s = popped.first_attempt_s
        entry.unschedulable_count = max(entry.unschedulable_count, popped.unschedulable_count)
        return entry

    def look_for(self, uid: str, *, by: str) -> QueuedPod | Status:
        """Return the pod that `take` would pop, or what holds it back."""
        entry = self._entries.get(uid)
        if entry is None:
            return unresolvable("the pod does not wait for a node")
        gate = entry.gate
        if gate is None or (gate.plugin == by and self._policy.gate(entry, by).is_success):
            return entry
        return gate

    def _hand_out(self, entry: QueuedPod, now_s: float) -> None:
        entry.attempt_count += 1
        entry.first_attempt_s = now_s if entry.first_attempt_s is None else entry.first_attempt_s
        entry.rejected_by = entry.pending_by = entry.also_waits_for = frozenset()
        entry.gate = entry.about = None
        entry.backoff_until_s = None
        del self._entries[entry.pod.uid]
        self._in_flight[entry.pod.uid] = self._event_sequence

    def done(self, uid: str) -> None:
        """Note that the pod left the queue for good (it is bound, or gone)."""
        self._updated_in_flight.pop(uid, None)
        self._activated_in_flight.pop(uid, None)
        if self._in_flight.pop(uid, None) is not None:
            self._trim_events()

    def retry(
        self,
        entry: QueuedPod,
        status: Status,
        rejected_by: Iterable[str],
        now_s: float,
        *,
        pending_by: Iterable[str] = (),
        about: tuple[PodInfo, Hashable] | None = None,
    ) -> None:
        """Note that a popped pod found no node, or its binding failed. Events since it was popped count as if they
        happened now, so that no wake-up is lost. `about`: see `QueuedPod.about`."""
        self._cause = "ScheduleAttemptFailure"
        uid = entry.pod.uid
        since = self._in_flight.get(uid, self._event_sequence)
        updated = self._updated_in_flight.get(uid)
        missed = self._events[max(0, since - self._events_dropped) :] if status.is_rejected else []
        is_due = since < self._events_dropped
        activated = self._activated_in_flight.get(uid)
        self.done(uid)
        entry.rejected_by = frozenset(rejected_by)
        entry.pending_by = frozenset(pending_by)
        entry.about, entry.waits_out = about, activated is False
        # No event can lift a refusal that no plugin made (no nodes at all): it counts as an error.
        is_refusal = status.is_rejected and bool(entry.rejected_by or entry.pending_by)
        if is_refusal:
            entry.unschedulable_count += 1
            entry.error_count = 0
        else:
            entry.error_count += 1
        entry.queued_s = now_s
        self._entries[uid] = entry
        if updated is not None:
            old = entry.pod
            entry.pod, entry.class_key = updated
            is_due = is_due or is_another_question(old, entry.pod)
        wakeup: Wakeup | None = None
        if activated is not None or is_due or not is_refusal:
            wakeup = Wakeup((uid,), is_immediate=activated or False)
        for event in missed if is_refusal else ():
            wakeup = self._wakeup(entry, event) or wakeup
            if wakeup is not None and (wakeup.is_immediate or not entry.pending_by):
                break
        self._sleep(entry) if wakeup is None else self._leave(entry, now_s, wakeup)

    # Events

    def happened(self, event: QueueingEvent, now_s: float) -> None:
        """Move the pods whose refusal the event can lift."""
        if self._in_flight:
            self._events.append(event)
            if len(self._events) > IN_FLIGHT_EVENTS_MAX:
                dropped = IN_FLIGHT_EVENTS_MAX // 2
                del self._events[:dropped]
                self._events_dropped += dropped
        self._move(event, now_s)

    def let_go(self, event: QueueingEvent, now_s: float) -> None:
        """Move the pods whose refusal the event can lift: a nominated pod lets its place go, for it cannot be placed
        after all. Pods that bring others stay, since making room for them would begin anew."""
        self._move(event, now_s, but=self._policy.waits_out)

    def _move(
        self, event: QueueingEvent, now_s: float, but: Callable[[PodInfo], bool] = lambda _: False
    ) -> None:
        self._cause = event.kind.value
        for wakeup in self._unschedulable_pods.woken_by(event):
            for uid in wakeup.uids:
                entry = self._unschedulable.get(uid)
                # A gate that looks further may have woken it.
                if entry is None or but(entry.pod):
                    continue
                if wakeup.blocked_by:
                    self._unschedulable_pods.discard(uid)
                    entry.also_waits_for |= {wakeup.blocked_by}
                    self._unschedulable_pods.add(entry)
                else:
                    self._wake_up(entry)
                    self._leave(entry, now_s, wakeup)

    def sleeping(self) -> list[PodInfo]:
        return [entry.pod for entry in self._unschedulable.values()]

    def activate(self, uids: Iterable[str], now_s: float, *, at_once: bool = True) -> None:
        """Make waiting pods active (a plugin asks for it), those in flight when they come back; not `at_once`: those
        that sleep or are in flight, after their backoff."""
        self._cause = "ForceActivate"
        for uid in uids:
            if uid in self._in_flight:
                self._activated_in_flight[uid] = at_once or self._activated_in_flight.get(uid, False)
            entry = self._entries.get(uid)
            if entry is None or uid in self._active:
                continue
            is_asleep = self._wake_up(entry)
            if at_once:
                self._backoff.discard(uid)
                self._full_backoff.discard(uid)
                self._enter(entry, now_s)
            elif is_asleep:
                entry.waits_out = True
                self._leave(entry, now_s, None)

    def flush(self, now_s: float) -> None:
        """Make pods active whose backoff is over, or who waited too long for an event."""
        self._cause = "BackoffComplete"
        for heap in (self._backoff, self._full_backoff):
            while len(heap) and heap.first_key()[0] <= now_s:
                entry = heap.pop()
                assert entry is not None
                self._activate(entry)
        if self._unschedulable and now_s >= self._next_overdue_check_s:
            self._next_overdue_check_s = now_s + UNSCHEDULABLE_CHECK_S
            overdue_s = now_s - self._policy.unschedulable_s_max
            self._cause = "UnschedulableTimeout"
            for entry in [each for each in self._unschedulable.values() if each.queued_s < overdue_s]:
                self._wake_up(entry)
                self._leave(entry, now_s, None)

    # Moving

    @property
    def _event_sequence(self) -> int:
        return self._events_dropped + len(self._events)

    def _trim_events(self) -> None:
        """Forget events from before the oldest pod in flight was popped; all of them when there is none."""
        seen = next(iter(self._in_flight.values()), self._event_sequence) - self._events_dropped
        # In chunks, as taking from the front of a list costs its length.
        if seen > EVENTS_TRIM_CHUNK or not self._in_flight:
            del self._events[:seen]
            self._events_dropped += seen

    def _enter(self, entry: QueuedPod, now_s: float) -> None:
        """Active, unless a gate is closed."""
        if self._is_let_in(entry, now_s):
            self._activate(entry)

    def _leave(self, entry: QueuedPod, now_s: float, wakeup: Wakeup | None) -> None:
        """A pod that slept or failed is tried again, once its backoff is over and if the gates are open."""
        if not self._is_let_in(entry, now_s):
            return
        if wakeup is not None and wakeup.is_immediate:
            self._activate(entry)
        else:
            self._back_off(entry, now_s)

    def _is_let_in(self, entry: QueuedPod, now_s: float) -> bool:
        status = self._policy.gate(entry, "")
        if status.is_success:
            entry.gate = None
            return True
        entry.gate = status
        entry.queued_s = now_s
        self._sleep(entry)
        return False

    def _sleep(self, entry: QueuedPod) -> None:
        if not self._unschedulable:
            # Nobody waited, so nobody looked at the time.
            self._next_overdue_check_s = max(
                self._next_overdue_check_s, entry.queued_s + UNSCHEDULABLE_CHECK_S
            )
        self._unschedulable[entry.pod.uid] = entry
        self.incoming["unschedulable" if entry.gate is None else "gated", self._cause] += 1
        self._gated_count += entry.gate is not None
        self._count_rejections(entry, 1)
        self._unschedulable_pods.add(entry)

    def _wake_up(self, entry: QueuedPod) -> bool:
        """Wake the pod and return whether it slept. It has to be put somewhere else then."""
        if self._unschedulable.pop(entry.pod.uid, None) is None:
            return False
        self._gated_count -= entry.gate is not None
        self._count_rejections(entry, -1)
        self._unschedulable_pods.discard(entry.pod.uid)
        return True

    def _wakeup(self, entry: QueuedPod, event: QueueingEvent) -> Wakeup | None:
        found = wakeup_of(entry, self._policy.plugins(entry.profile_name), event)
        if found is not None and found.blocked_by:
            entry.also_waits_for |= {found.blocked_by}
            return None
        return found

    def _activate(self, entry: QueuedPod) -> None:
        entry.sort_key = self._policy.sort_key(entry.pod, entry.queued_s)
        self._active.push(entry.sort_key, entry.pod.uid, entry)
        self.incoming["active", self._cause] += 1

    def _back_off(self, entry: QueuedPod, now_s: float) -> None:
        """Active when the backoff since the failure is over, else backing off until then."""
        if entry.backoff_until_s is None:
            wait_s = backoff_s(
                entry.unschedulable_count,
                entry.error_count,
                self._policy.initial_backoff_s,
                self._policy.max_backoff_s,
            )
            entry.backoff_until_s = end_of_window(entry.queued_s + wait_s) if wait_s else entry.queued_s
        if entry.backoff_until_s <= now_s:
            self._activate(entry)
            return
        entry.sort_key = self._policy.sort_key(entry.pod, entry.queued_s)
        is_full = entry.error_count > 0 or entry.waits_out or self._policy.waits_out(entry.pod)
        heap = self._full_backoff if is_full else self._backoff
        heap.push((entry.backoff_until_s, *entry.sort_key), entry.pod.uid, entry)
        self.incoming["backoff", self._cause] += 1
