"""The queue alone: order, backoff, wake-ups that are never lost."""

import gc
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.resource_vector import ResourceRegistry
from koordinator.clock import FixedClock
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import Handle, NoArgs, Plugin
from koordinator.scheduler.plugin.status import SUCCESS, Status, error, unresolvable, unschedulable
from koordinator.scheduler.plugins.pod_rules import priority_key
from koordinator.scheduler.queue.keyed_heap import STALE_MIN, KeyedHeap
from koordinator.scheduler.queue.queued_pod import QueuedPod
from koordinator.scheduler.queue.scheduling_queue import (
    UNSCHEDULABLE_S_MAX,
    QueuePolicy,
    SchedulingQueue,
    backoff_s,
)
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import pod

NO = unschedulable("0/1 nodes are available: 1 Insufficient cpu.")
FREED = QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED)


class Waker(Plugin[None]):
    name = "Waker"
    wakes_on = (ClusterEvent.ASSIGNED_POD_DELETED,)


def queue_of(**options: Any) -> SchedulingQueue:
    waker = Waker(NoArgs(), Handle(NodeTable(ResourceRegistry()), FixedClock()))
    policy: dict[str, Any] = {
        "initial_backoff_s": 1.0,
        "max_backoff_s": 10.0,
        "sort_key": lambda info, queued_s: priority_key(info.priority, queued_s),
        "gate": lambda entry, but: SUCCESS,
        "plugins": lambda profile: {"Waker": waker},
    }
    return SchedulingQueue(QueuePolicy(**{**policy, **options}))


def info(name: str, priority: int = 0) -> PodInfo:
    body = pod(name, priority=priority)
    body["metadata"]["uid"] = name
    return PodInfo.of(from_builtins(body, Pod), ResourceRegistry())


def add(queue: SchedulingQueue, name: str, now_s: float = 0.0, priority: int = 0) -> None:
    queue.add(info(name, priority), "koord-scheduler", "class", now_s)


def pop_all(queue: SchedulingQueue, now_s: float) -> list[str]:
    names = []
    while (entry := queue.pop(now_s)) is not None:
        names.append(entry.pod.uid)
    return names


def fail(queue: SchedulingQueue, now_s: float, status: Status = NO, by: tuple[str, ...] = ("Waker",)) -> str:
    entry = queue.pop(now_s)
    assert entry is not None
    queue.retry(entry, status, by, now_s)
    return entry.pod.uid


def test_each_pod_is_where_it_was_put_last_whatever_happened_to_it_before() -> None:
    is_closed = False
    queue = queue_of(gate=lambda _, but: unschedulable("closed").by("Waker") if is_closed else SUCCESS)
    add(queue, "a")
    places = [queue.area_of("a")]
    fail(queue, 0.0)
    places.append(queue.area_of("a"))
    queue.happened(FREED, 0.0)
    places.append(queue.area_of("a"))
    queue.flush(10.0)
    places.append(queue.area_of("a"))
    is_closed = True
    queue.activate(["a"], 10.0)
    add(queue, "b")
    places.append(queue.area_of("b"))
    is_closed = False
    assert queue.pop(10.0) is not None
    places += [queue.area_of("a"), queue.area_of("unknown")]

    assert places == ["active", "unschedulable", "backoff", "active", "gated", "in a cycle", ""]


def test_pods_leave_by_priority_then_by_age() -> None:
    queue = queue_of()
    add(queue, "old", 1.0)
    add(queue, "young", 2.0)
    add(queue, "vip", 3.0, priority=10)
    add(queue, "same-age", 2.0)

    assert pop_all(queue, 4.0) == ["vip", "old", "young", "same-age"]


def test_a_refused_pod_sleeps_until_an_event_of_the_plugin_that_refused_it() -> None:
    queue = queue_of()
    add(queue, "web")
    fail(queue, 0.0)

    queue.happened(QueueingEvent(ClusterEvent.NODE_LABELS), 1.0)
    assert queue.pop(100.0) is None

    queue.happened(FREED, 100.0)
    assert pop_all(queue, 100.0) == ["web"]


def test_an_event_during_the_cycle_of_a_pod_wakes_it_afterwards() -> None:
    queue = queue_of()
    add(queue, "web")
    entry = queue.pop(0.0)
    assert entry is not None

    queue.happened(FREED, 0.0)
    queue.retry(entry, NO, ["Waker"], 0.0)

    assert queue.counts()["unschedulable"] == 0
    assert queue.counts()["backoff"] == 1


def test_an_event_before_the_pod_was_popped_does_not_wake_it() -> None:
    queue = queue_of()
    add(queue, "first")
    add(queue, "second")
    held = queue.pop(0.0)
    assert held is not None
    queue.happened(FREED, 0.0)

    assert fail(queue, 0.0) == "second"
    assert queue.counts()["unschedulable"] == 1


def test_an_idle_queue_hands_out_a_refused_pod_before_its_backoff_ends_but_not_an_erred_one() -> None:
    queue = queue_of()
    add(queue, "refused")
    fail(queue, 0.0)
    queue.happened(FREED, 0.1)
    add(queue, "erred", 0.2)
    assert fail(queue, 0.2, error("boom"), by=()) == "erred"

    assert pop_all(queue, 0.3) == ["refused"]
    assert pop_all(queue, 1.9) == []
    assert pop_all(queue, 2.0) == ["erred"]


def test_backoffs_that_end_in_one_window_leave_by_priority() -> None:
    queue = queue_of()
    add(queue, "low", 0.1)
    add(queue, "high", 0.2, priority=5)
    low, high = queue.pop(0.3), queue.pop(0.3)
    assert low is not None and high is not None and low.pod.uid == "high"
    queue.retry(high, error("x"), [], 0.4)
    queue.retry(low, error("x"), [], 0.6)

    assert queue.next_wakeup_s() == 2.0
    assert pop_all(queue, 2.0) == ["high", "low"]


def test_nobody_waits_for_an_event_for_ever() -> None:
    queue = queue_of()
    add(queue, "web")
    fail(queue, 0.0)
    assert queue.pop(UNSCHEDULABLE_S_MAX - 1) is None

    # The check is made every 30 s.
    assert pop_all(queue, UNSCHEDULABLE_S_MAX + 30) == ["web"]


def test_a_gated_pod_is_let_in_by_an_update_only() -> None:
    gates = ["closed"]
    queue = queue_of(gate=lambda entry, but: unresolvable("gate") if gates else SUCCESS)
    add(queue, "web")
    queue.happened(QueueingEvent(ClusterEvent.WILDCARD), 1.0)
    assert queue.pop(1_000.0) is None

    gates.clear()
    queue.update(info("web"), "class", 2.0)
    assert pop_all(queue, 2.0) == []  # nothing but its status can have changed, and that is what we say of it
    queue.update(info("web", priority=1), "class", 3.0)
    assert pop_all(queue, 3.0) == ["web"]


def test_a_removed_pod_is_gone_wherever_it_was() -> None:
    queue = queue_of()
    for name in ("active", "sleeping", "erred"):
        add(queue, name)
    entries = {entry.pod.uid: entry for entry in (queue.pop(0.0), queue.pop(0.0), queue.pop(0.0)) if entry}
    queue.retry(entries["sleeping"], NO, ["Waker"], 0.0)
    queue.retry(entries["erred"], error("x"), [], 0.0)
    queue.done("active")
    add(queue, "active")

    for name in ("active", "sleeping", "erred"):
        queue.remove(name)

    assert len(queue) == 0 and queue.pop(1_000.0) is None
    queue.happened(FREED, 1.0)
    assert queue.next_wakeup_s() is None


def test_an_update_while_a_pod_is_in_flight_is_used_when_it_comes_back() -> None:
    queue = queue_of()
    add(queue, "web")
    entry = queue.pop(0.0)
    assert entry is not None
    queue.update(info("web", priority=7), "class", 0.0)
    queue.retry(entry, NO, ["Waker"], 0.0)

    again = queue.pop(0.5)
    assert again is not None and again.pod.priority == 7
    assert again.attempt_count == 2


def test_activated_pods_skip_backoff_and_sleep() -> None:
    queue = queue_of()
    add(queue, "sleeping")
    fail(queue, 0.0)
    queue.activate(["sleeping", "unknown"], 0.1)

    assert queue.counts()["active"] == 1


def test_pods_that_are_not_activated_at_once_back_off_first() -> None:
    queue = queue_of()
    add(queue, "sleeping")
    fail(queue, 0.0)
    queue.activate(["sleeping", "unknown"], 0.1, at_once=False)

    assert (queue.counts()["active"], queue.counts()["backoff"]) == (0, 1)


@pytest.mark.parametrize("is_in_flight", [True, False])
def test_pods_that_are_not_activated_at_once_wait_even_when_nobody_else_does(is_in_flight: bool) -> None:
    queue = queue_of()
    add(queue, "web")
    entry = queue.pop(0.0)
    assert entry is not None
    if is_in_flight:
        queue.activate(["web"], 0.0, at_once=False)
    queue.retry(entry, NO, ["Waker"], 0.0)
    if not is_in_flight:
        queue.activate(["web"], 0.0, at_once=False)

    assert queue.pop(0.5) is None
    assert queue.pop(3.0) is not None


def test_events_are_forgotten_when_nobody_in_flight_can_have_missed_them() -> None:
    queue = queue_of()
    for name in ("slow", "quick", "late"):
        add(queue, name)
    slow, quick = queue.pop(0.0), queue.pop(0.0)
    assert slow is not None and quick is not None
    for _ in range(3_000):
        queue.happened(QueueingEvent(ClusterEvent.NODE_LABELS), 0.0)
    late = queue.pop(0.0)
    assert late is not None
    queue.happened(FREED, 0.0)

    queue.done(slow.pod.uid)
    queue.done(quick.pod.uid)
    assert sum(queue.events_in_flight().values()) == 1
    queue.retry(late, NO, ["Waker"], 0.0)
    assert queue.counts()["backoff"] == 1
    assert not queue.events_in_flight()


@pytest.mark.parametrize(
    ("refusals", "errors", "seconds"),
    [
        pytest.param(0, 0, 0.0, id="no failure, no wait"),
        pytest.param(4, 0, 8.0, id="doubles"),
        pytest.param(4, 1, 1.0, id="errors in a row replace refusals"),
        pytest.param(99, 0, 10.0, id="never above the maximum"),
    ],
)
def test_backoff(refusals: int, errors: int, seconds: float) -> None:
    assert backoff_s(refusals, errors, 1.0, 10.0) == seconds


def test_a_pod_that_waits_for_somebody_to_act_is_active_as_soon_as_that_happened() -> None:
    queue = queue_of()
    add(queue, "web")
    entry = queue.pop(0.0)
    assert entry is not None
    queue.retry(entry, NO, ["Waker"], 0.0, pending_by=["Waker"])

    queue.happened(FREED, 0.1)
    assert queue.counts()["active"] == 1


def test_a_gate_that_hears_of_an_event_is_asked_again() -> None:
    gates = [unresolvable("closed").by("Waker")]
    queue = queue_of(gate=lambda entry, but: gates[0] if gates else SUCCESS)
    add(queue, "web")
    queue.happened(FREED, 1.0)
    assert queue.counts()["gated"] == 1

    gates.clear()
    queue.happened(QueueingEvent(ClusterEvent.NODE_LABELS), 2.0)
    assert queue.counts()["gated"] == 1
    queue.happened(FREED, 3.0)
    assert queue.counts() == {"active": 1, "backoff": 0, "unschedulable": 0, "gated": 0}


def test_a_gate_that_closed_meanwhile_keeps_a_woken_pod_out() -> None:
    gates: list[Status] = []
    queue = queue_of(gate=lambda entry, but: gates[0] if gates else SUCCESS)
    add(queue, "web")
    fail(queue, 0.0)
    gates.append(unresolvable("closed"))

    queue.happened(FREED, 1.0)
    assert queue.counts()["gated"] == 1


def test_a_pod_activated_during_its_cycle_is_active_when_it_comes_back() -> None:
    queue = queue_of()
    add(queue, "web")
    entry = queue.pop(0.0)
    assert entry is not None
    queue.activate(["web"], 0.0)
    queue.retry(entry, NO, ["Waker"], 0.0)

    assert queue.counts()["active"] == 1


def test_a_pod_that_changes_while_it_backs_off_stays_there() -> None:
    queue = queue_of()
    add(queue, "web")
    fail(queue, 0.0, error("x"), by=())
    queue.update(info("web", priority=3), "class", 0.5)

    assert queue.counts()["backoff"] == 1
    assert pop_all(queue, 2.0) == ["web"]


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "fail", "event", "activate", "remove", "flush", "update"]),
            st.integers(0, 3),
            st.sampled_from([("Waker",), ("Waker", "Other"), ("Other",), ()]),
        ),
        max_size=40,
    )
)
def test_pods_counted_by_refusing_plugin_are_those_that_wait(
    steps: list[tuple[str, int, tuple[str, ...]]],
) -> None:
    def gate(entry: QueuedPod, but: str) -> Status:
        return unschedulable("held").by("Gate") if entry.pod.uid == "pod-0" else SUCCESS

    queue = queue_of(gate=gate)
    for now, (what, number, by) in enumerate(steps):
        now_s, uid = float(now), f"pod-{number}"
        match what:
            case "add" if uid not in queue:
                add(queue, uid, now_s)
            case "fail" if (entry := queue.pop(now_s)) is not None:
                queue.retry(entry, NO, by, now_s)
            case "event":
                queue.happened(FREED, now_s)
            case "activate":
                queue.activate((uid,), now_s)
            case "remove":
                queue.remove(uid)
            case "flush":
                queue.flush(now_s + 400.0)
            case "update" if queue.find(uid) is not None:
                queue.update(info(uid, number), "class", now_s)
        waiting = {
            each: {*entry.refused_by}
            for each in (f"pod-{n}" for n in range(4))
            if (entry := queue.find(each)) is not None and not queue.is_in_line(each)
        }
        counted = Counter((plugin, "koord-scheduler") for names in waiting.values() for plugin in names)
        assert queue.rejections == counted


def test_a_pod_that_brings_others_waits_its_backoff_out_and_holds_up_nobody() -> None:
    queue = queue_of(waits_out=lambda pod: pod.uid == "job")
    add(queue, "job")
    add(queue, "single")
    fail(queue, 0.0)
    fail(queue, 0.0)
    queue.happened(FREED, 0.5)
    assert pop_all(queue, 0.5) == ["single"]
    assert queue.next_wakeup_s() == 2.0
    assert pop_all(queue, 1.9) == []
    assert pop_all(queue, 2.0) == ["job"]


def test_a_pod_taken_along_goes_on_where_the_one_popped_before_it_stands() -> None:
    queue = queue_of()
    add(queue, "first")
    for now_s in (1.0, 2.0, 3.0):
        fail(queue, now_s)
        queue.happened(FREED, now_s)
    add(queue, "other", 4.0)
    first = queue.pop(5.0)
    assert first is not None
    assert first.pod.uid == "other"
    leader = queue.pop(5.0)
    assert leader is not None
    add(queue, "member", 4.0)
    queue.retry(leader, NO, ("Waker",), 6.0)
    member = queue.take_along("member", 6.0)
    assert member is not None
    assert (member.attempt_count, member.first_attempt_s, member.unschedulable_count) == (4, 1.0, 3)
    assert queue.take_along("member", 6.0) is None


def test_a_closed_gate_is_passed_by_its_own_plugin_and_by_those_taken_along() -> None:
    gate = unresolvable("not now").by("Waker")
    queue = queue_of(gate=lambda entry, but: SUCCESS if but else gate)
    for name in ("a", "b", "c"):
        add(queue, name)
    assert queue.take("a", 0.0, by="Other") is None
    assert queue.take("a", 0.0, by="Waker") is not None
    assert queue.take_along("b", 0.0) is not None
    assert queue.counts()["gated"] == 1


def test_of_pods_taken_out_behind_one_that_stays_few_keys_are_kept() -> None:
    class Key(int):
        """A part of a key that the collector of garbage knows."""

    heap: KeyedHeap[str] = KeyedHeap()
    heap.push((Key(0),), "first", "first")
    for number in range(4 * STALE_MIN):
        heap.push((Key(1),), f"p{number}", "other")
        assert heap.discard(f"p{number}")

    kept = [each for each in gc.get_objects() if type(each) is Key]
    assert 0 < len(kept) <= STALE_MIN + 2
    assert heap.pop() == "first"
    assert heap.pop() is None


def test_a_place_that_a_nominated_pod_lets_go_wakes_all_but_jobs_and_the_pod_itself() -> None:
    queue = queue_of(waits_out=lambda info: info.uid.startswith("job"))
    for name in ("before", "job-1", "nominated"):
        add(queue, name)
    for _ in range(2):
        fail(queue, 0)
    nominated = queue.pop(0)
    assert nominated is not None

    queue.let_go(FREED, 20)
    queue.retry(nominated, NO, ("Waker",), 20)

    assert pop_all(queue, 40) == ["before"]
