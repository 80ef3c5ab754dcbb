"""What informers tell becomes the node table, the queue, nominations, and the events that wake pods."""

from collections.abc import Sequence
from typing import Any

import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.loop.binding import WaitingPods
from koordinator.scheduler.loop.event_handlers import EventHandlers
from koordinator.scheduler.plugin.events import QueueingEvent
from koordinator.scheduler.plugin.status import SUCCESS, error, unschedulable
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.queue.queued_pod import QueuedPod
from koordinator.scheduler.queue.scheduling_queue import QueuePolicy, SchedulingQueue
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import node, pod

Json = dict[str, Any]
BROKEN = {"cpu": "much"}


class Recorded:
    """Events that users would see."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, about: Pod, reason: str, note: str, *, action: str) -> None:
        self.warnings.append(f"{about.metadata.name} {reason}")


class Desk:
    """Event handlers of a scheduler that does not run; `events` are kinds, each with its node."""

    def __init__(self, gates: str = "", profiles: Sequence[str] = ("koord-scheduler",)) -> None:
        reported = FeatureGates.of(Component.SCHEDULER, gates)
        settings = config.decode({"profiles": [{"schedulerName": name} for name in profiles]})
        self.engine = Engine(settings, FixedClock(), plugins=installed_plugins(), gates=reported)
        self.queue = SchedulingQueue(
            QueuePolicy(
                initial_backoff_s=1,
                max_backoff_s=1,
                sort_key=lambda info, queued_s: (queued_s,),
                gate=lambda entry, but: SUCCESS,
                plugins=lambda profile: {},
            )
        )
        self.events: list[str] = []
        self.queue.happened = self._happened  # type: ignore[method-assign]
        self.wake_count = 0
        self.recorder = Recorded()
        recorders: Any = {"koord-scheduler": self.recorder}
        self.handlers = EventHandlers(self.engine, self.queue, WaitingPods(), recorders, self._wake)
        self.handlers.node_set(None, from_builtins(node("n"), Node))
        self.forget()

    def _happened(self, event: QueueingEvent, now_s: float) -> None:
        name = self.engine.table.name_of(event.row) if event.row is not None else ""
        self.events.append(f"{event.kind.value} {name}".strip())

    def _wake(self) -> None:
        self.wake_count += 1

    def forget(self) -> None:
        self.events.clear()
        self.wake_count = 0

    def set(self, **changes: Any) -> Pod:
        """The pod `p` as the API shows it now; `status`, `metadata` and fields of its spec."""
        new, old = self.pod(**changes), getattr(self, "last", None)
        self.last = new
        self.handlers.pod_set(old, new)
        return new

    def pod(self, **changes: Any) -> Pod:
        meta, status = changes.pop("metadata", {}), changes.pop("status", {})
        body = pod("p", **changes)
        body["metadata"] |= {"uid": "p", **meta}
        return from_builtins(body | {"status": status}, Pod)

    def assume(self) -> QueuedPod:
        """The scheduler takes the pod out of the queue, and places it."""
        entry = self.queue.pop(0.0)
        assert entry is not None
        self.engine.table.assign(entry.pod, "n", assumed=True)
        return entry


def with_node(**changes: Any) -> Desk:
    desk, old = Desk(), from_builtins(node("n"), Node)
    desk.handlers.node_set(old, from_builtins(node("n", **changes), Node))
    return desk


@pytest.mark.parametrize(
    ("changes", "events"),
    [
        ({}, []),
        ({"cpu": "8"}, ["NodeUpdate/Allocatable n"]),
        ({"labels": {"zone": "a"}}, ["NodeUpdate/Label n"]),
        ({"unschedulable": True}, ["NodeUpdate/Taint n"]),
        ({"annotations": {"a": "b"}}, ["NodeUpdate/Annotation n"]),
        (
            {"cpu": "8", "labels": {"zone": "a"}, "annotations": {"a": "b"}},
            ["NodeUpdate/Allocatable n", "NodeUpdate/Label n", "NodeUpdate/Annotation n"],
        ),
        ({"cpu": "much"}, []),
    ],
)
def test_each_side_of_a_node_that_changed_is_an_event(changes: Json, events: list[str]) -> None:
    desk = with_node(**changes)
    assert desk.events == events
    assert desk.wake_count == len(events)


def test_nodes_that_come_and_go_are_reported() -> None:
    desk = Desk()
    other = from_builtins(node("m"), Node)
    desk.handlers.node_set(None, other)
    desk.handlers.node_deleted(other)
    assert desk.events == ["NodeAdd m", "NodeDelete"]


@pytest.mark.parametrize(
    ("changes", "events"),
    [
        pytest.param({}, [], id="nothing"),
        pytest.param({"cpu": "2"}, ["AssignedPodUpdate n"], id="what it holds"),
        pytest.param({"metadata": {"labels": {"a": "b"}}}, ["AssignedPodUpdate n"], id="labels"),
        pytest.param(
            {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
            ["AssignedPodUpdate n"],
            id="it leaves",
        ),
        pytest.param({"metadata": {"annotations": {"a": "b"}}}, [], id="annotations"),
        pytest.param({"status": {"phase": "Running"}}, [], id="it runs"),
        pytest.param({"status": {"phase": "Succeeded"}}, ["AssignedPodDelete n"], id="it is done"),
    ],
)
def test_changes_of_a_placed_pod_are_told_where_they_matter(changes: Json, events: list[str]) -> None:
    desk = Desk()
    desk.set(nodeName="n")
    assert desk.events == ["AssignedPodAdd n"]
    desk.forget()

    desk.set(nodeName="n", **changes)
    assert desk.events == events


def test_a_pod_that_we_placed_is_reported_once_the_api_says_so() -> None:
    desk = Desk()
    desk.set()
    desk.assume()
    desk.set(nodeName="n")
    assert desk.events == ["AssignedPodAdd n"]
    assert "p" in desk.queue, "its binding is still to end"

    desk.set(nodeName="n", status={"phase": "Running"})
    assert "p" not in desk.queue


def test_a_pod_that_somebody_else_placed_leaves_the_queue() -> None:
    desk = Desk()
    desk.set()
    assert desk.wake_count == 1
    desk.set(nodeName="n")
    assert (len(desk.queue), desk.events) == (0, ["AssignedPodAdd n"])


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        pytest.param({}, True, id="ours"),
        pytest.param({"scheduler": "other"}, False, id="another scheduler's"),
        pytest.param({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, False, id="it leaves"),
        pytest.param({"status": {"phase": "Failed"}}, False, id="it failed"),
        pytest.param({"requests": BROKEN}, False, id="unreadable"),
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
def test_pods_wait_that_we_are_to_place(changes: Json, waits: bool, is_known: bool) -> None:
    desk = Desk()
    if is_known:
        desk.set()
    desk.set(**changes)
    is_kept = is_known and "requests" in changes
    assert (desk.queue.find("p") is not None) is (waits or is_kept)
    assert desk.recorder.warnings == ["p FailedScheduling"] * ("requests" in changes)


def test_owners_are_told_of_unreadable_requests_of_pods_that_we_place() -> None:
    desk = Desk()
    desk.set(requests=BROKEN, scheduler="other")
    desk.set(requests=BROKEN, nodeName="n")
    assert desk.recorder.warnings == []


@pytest.mark.parametrize(
    ("changes", "is_newer"),
    [
        ({}, False),
        ({"status": {"phase": "Pending", "message": "told"}}, False),
        ({"cpu": "2"}, True),
        ({"scheduler": "other"}, False),
        ({"metadata": {"labels": {"a": "b"}}}, True),
        ({"metadata": {"annotations": {"a": "b"}}}, True),
        ({"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu"}]}}, True),
    ],
)
def test_a_pod_that_changes_while_it_is_bound_is_tried_as_it_is_now(changes: Json, is_newer: bool) -> None:
    desk = Desk()
    first = desk.set()
    entry = desk.assume()
    now = desk.set(**changes)

    desk.queue.retry(entry, error("bindings are slow"), (), 0.0)
    assert entry.pod.pod is (now if is_newer else first)


@pytest.mark.parametrize(
    ("said", "kept"), [(["n"], "n"), (["n", "m"], "m"), (["n", ""], ""), ([""], "own"), (["own"], "own")]
)
def test_a_nomination_follows_the_pods_status_and_ours_is_there_first(said: list[str], kept: str) -> None:
    desk = Desk()
    first = desk.set()
    if kept == "own":
        desk.engine.nominations.set(PodInfo.of(first, desk.engine.table.registry), "own")
    for name in said:
        desk.set(status={"nominatedNodeName": name})
    assert desk.engine.nominations.node_of("p") == kept


def test_a_nominated_pod_that_changes_keeps_its_place_among_the_others_of_its_node() -> None:
    desk = Desk()
    desk.set(status={"nominatedNodeName": "n"})
    other = desk.pod(metadata={"uid": "q", "name": "q"}, status={"nominatedNodeName": "n"})
    desk.handlers.pod_set(None, other)
    desk.set(cpu="3", status={"nominatedNodeName": "n"})

    [first, second] = desk.engine.nominations.on("n")
    assert (first.uid, first.nonzero_amounts[0], second.uid) == ("p", 3000, "q")


@pytest.mark.parametrize(
    ("gates", "scheduler", "kept"),
    [
        ("", "koord-scheduler", "n"),
        ("CrossSchedulerNomination=false", "koord-scheduler", "n"),
        ("CrossSchedulerNomination=true", "other", "n"),
        ("CrossSchedulerNomination=false", "other", ""),
    ],
)
def test_nominations_by_other_schedulers_count_where_the_gate_says_so(
    gates: str, scheduler: str, kept: str
) -> None:
    desk = Desk(gates)
    desk.set(scheduler=scheduler, status={"nominatedNodeName": "n"})
    assert desk.engine.nominations.node_of("p") == kept


@pytest.mark.parametrize(
    ("nominated", "events"), [("n", ["AssignedPodDelete n"]), ("gone", []), ("", [])], ids=str
)
def test_the_room_kept_for_a_pod_that_is_deleted_is_reported(nominated: str, events: list[str]) -> None:
    desk = Desk()
    last = desk.set(status={"nominatedNodeName": nominated})
    desk.handlers.pod_deleted(last)
    assert (desk.events, len(desk.queue), desk.engine.nominations.node_of("p")) == (events, 0, "")


def test_a_pod_that_is_placed_gives_its_room_back_once() -> None:
    desk = Desk()
    desk.set()
    last = desk.set(nodeName="n", status={"nominatedNodeName": "n"})
    desk.forget()
    desk.handlers.pod_deleted(last)
    desk.handlers.pod_deleted(last)
    assert desk.events == ["AssignedPodDelete n"]


def test_the_room_of_a_pod_that_is_deleted_before_its_binding_is_told_once() -> None:
    desk = Desk()
    last = desk.set(status={"nominatedNodeName": "n"})
    desk.assume()
    desk.handlers.pod_deleted(last)
    assert desk.events == ["AssignedPodDelete n"]


def test_a_pod_that_names_another_profile_of_ours_waits_under_that_one() -> None:
    desk = Desk(profiles=["koord-scheduler", "second"])
    desk.set()
    first = desk.queue.find("p")
    desk.set(cpu="2")
    assert desk.queue.find("p") is first
    desk.set(scheduler="second")
    moved = desk.queue.find("p")
    assert moved is not None and moved.profile_name == "second"


@pytest.mark.parametrize("at_once", [True, False, None])
def test_a_plugin_has_pods_tried_at_once_unless_it_says_otherwise(at_once: bool | None) -> None:
    desk = Desk()
    desk.set()
    now_s = desk.engine.clock.now()
    entry = desk.queue.pop(now_s)
    assert entry is not None
    desk.queue.retry(entry, unschedulable("no"), ("Fit",), now_s)
    options = {} if at_once is None else {"at_once": at_once}
    desk.handlers.activate(["p"], **options)
    area = "active" if at_once in (True, None) else "backoff"
    assert desk.queue.counts()[area] == 1
    assert desk.wake_count == 2


def test_a_pod_without_a_uid_is_known_by_its_name() -> None:
    desk = Desk()
    waiting = desk.set(metadata={"uid": ""})
    assert desk.queue.find("default/p") is not None
    desk.handlers.pod_deleted(waiting)
    assert len(desk.queue) == 0

    placed = desk.set(metadata={"uid": ""}, nodeName="n")
    desk.forget()
    desk.handlers.pod_deleted(placed)
    assert desk.events == ["AssignedPodDelete n"]


@pytest.mark.parametrize("uid", ["p", ""])
@pytest.mark.parametrize("where", ["", "n"], ids=["waiting", "placed"])
def test_the_amounts_of_a_pod_are_read_once(uid: str, where: str) -> None:
    desk, key = Desk(), uid or "default/p"

    def known() -> PodInfo:
        place, waiting = desk.engine.table.place_of(key), desk.queue.find(key)
        assert (place is None) is (where == "")
        return place.pod if place is not None else waiting.pod  # type: ignore[union-attr]

    desk.set(metadata={"uid": uid}, nodeName=where)
    before = known()
    now = desk.set(metadata={"uid": uid, "labels": {"a": "b"}}, nodeName=where)
    assert known().pod is now
    assert known().request_key is before.request_key


def test_a_pod_that_the_api_shows_without_its_node_again_is_to_be_placed_anew() -> None:
    desk = Desk()
    desk.set(nodeName="n")
    desk.set()
    assert "p" in desk.queue


def test_a_change_of_a_placed_pod_that_left_the_queue_does_not_bring_it_back() -> None:
    desk = Desk()
    desk.set()
    desk.assume()
    desk.queue.remove("p")
    desk.set(cpu="2")
    assert "p" not in desk.queue


@pytest.mark.parametrize(("took_s", "told_s"), [(0.25, 0.25), (0.0, 0.0), (-3.0, 0.0)])
def test_how_long_events_take_is_measured_and_never_below_nothing(took_s: float, told_s: float) -> None:
    desk = Desk()
    clock: Any = desk.engine.clock

    def slow(event: QueueingEvent, now_s: float) -> None:
        clock.now_s += took_s

    desk.queue.happened = slow  # type: ignore[method-assign]
    series = desk.engine.metrics.event_handling.of("NodeAdd")
    before = series.total, sum(series.counts)
    desk.handlers.node_set(None, from_builtins(node("m"), Node))
    assert (series.total - before[0], sum(series.counts) - before[1]) == (pytest.approx(told_s), 1)
