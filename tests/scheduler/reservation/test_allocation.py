"""Pods whose annotation says which reservation they use: written and taken off only where nobody else has a say."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.reservation import Reservation
from koordinator.clock import LoopClock
from koordinator.cluster import errors
from koordinator.scheduler.plugins.reservation.binding import AllocationWriter
from koordinator.scheduler.plugins.reservation.lifecycle import NotActiveError
from koordinator.simulate import virtual_time
from tests.scheduler.fake_cluster import FakeCluster, Json

OURS, THEIRS = {"name": "room", "uid": "uid-room"}, {"name": "room", "uid": "uid-former"}


def pod_of(allocated: Json | None, *, uid: str = "uid-web", node: str = "", phase: str = "Running") -> Json:
    annotations = {labels.RESERVATION_ALLOCATED: json.dumps(allocated)} if allocated else {}
    metadata = {"namespace": "default", "name": "web", "uid": uid, "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}


SEEN = from_builtins(pod_of(None), Pod)
"""The pod as the writer was told of it."""


class SeenUses:
    """What the scheduler has seen: which reservation a pod uses, by UID, and which pods have a node."""

    def __init__(self) -> None:
        self.uses: dict[str, str] = {}
        self.has_node = {"uid-web"}
        self.left: list[Pod] = []

    def users_of(self, uid: str) -> list[Any]:
        return [SimpleNamespace(uid=pod.metadata.uid, pod=pod) for pod in self.left]

    def used_by(self, pod_uid: str) -> str | None:
        return self.uses.get(pod_uid)

    def is_placed(self, pod_uid: str) -> bool:
        return pod_uid in self.has_node


class Desk:
    """A writer, the API it writes to, and what it does in the background."""

    def __init__(self, clock: LoopClock) -> None:
        self.api = FakeCluster(clock)
        self.seen = SeenUses()
        self.background: list[Coroutine[Any, Any, None]] = []
        handle: Any = SimpleNamespace(
            cluster=self.api, actions=SimpleNamespace(spawn=lambda work, *_: self.background.append(work))
        )
        ledger: Any = self.seen
        self.writer = AllocationWriter(handle, ledger, random.Random(0))

    def written(self) -> list[tuple[str, Any]]:
        """Names of patched pods, and the texts that they got."""
        return [
            (name, patch["metadata"]["annotations"][labels.RESERVATION_ALLOCATED])
            for name, patch in self.api.patches
        ]


def run(story: Callable[[Desk], Awaitable[None]]) -> None:
    async def main(clock: LoopClock) -> None:
        await story(Desk(clock))

    virtual_time.run_virtual(main)


@pytest.mark.parametrize(
    ("live", "node", "is_taken_off"),
    [
        pytest.param(pod_of(OURS), "n1", True, id="it was not bound"),
        pytest.param(pod_of(OURS, node="n2"), "n1", True, id="it was bound to another node"),
        pytest.param(pod_of(OURS, node="n1"), "", True, id="the reservation did not get the pod's node"),
        pytest.param(pod_of(OURS), "", True, id="neither has a node"),
        pytest.param(pod_of(OURS, node="n1"), "n1", False, id="it was bound after all"),
        pytest.param(pod_of(OURS, uid="uid-next"), "n1", False, id="another pod of its name"),
        pytest.param(pod_of(THEIRS), "n1", False, id="it uses another reservation of that name"),
        pytest.param(pod_of(None), "n1", False, id="it uses none"),
        pytest.param(None, "n1", False, id="it is gone"),
    ],
)
def test_the_name_of_a_reservation_is_taken_off_who_does_not_use_it(
    live: Json | None, node: str, is_taken_off: bool
) -> None:
    async def story(desk: Desk) -> None:
        if live is not None:
            desk.api.put("Pod", live)

        desk.writer.take_back(SEEN, "uid-room", node)
        [work] = desk.background
        await work

        assert desk.written() == [("web", None)] * is_taken_off

    run(story)


def reservation_of(uid: str = "uid-room", **status: str) -> Json:
    return {"metadata": {"name": "room", "uid": uid}, "status": status}


ROOM = from_builtins(reservation_of(), Reservation)


@pytest.mark.parametrize(
    ("live", "lets_go"),
    [
        pytest.param(None, True, id="it is gone"),
        pytest.param(reservation_of(phase="Pending"), True, id="it has no node"),
        pytest.param(reservation_of(phase="Available", nodeName="n1"), False, id="it has its node after all"),
        pytest.param(reservation_of("uid-next", phase="Available", nodeName="n1"), True, id="another one"),
    ],
)
def test_a_reservation_that_got_no_node_lets_go_of_pods(live: Json | None, lets_go: bool) -> None:
    async def story(desk: Desk) -> None:
        desk.api.put("Pod", pod_of(OURS, node="n1"))
        if live is not None:
            desk.api.put("Reservation", live)

        await desk.writer.let_go([SEEN], ROOM)

        assert desk.written() == [("web", None)] * lets_go

    run(story)


def test_pods_are_kept_where_nobody_knows_whether_the_reservation_got_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unanswered(*_: Any) -> Any:
        raise errors.InternalError("no luck today")

    async def story(desk: Desk) -> None:
        desk.api.put("Pod", pod_of(OURS, node="n1"))
        monkeypatch.setattr(desk.api, "get", unanswered)

        await desk.writer.let_go([SEEN], ROOM)

        assert desk.written() == []

    run(story)


@pytest.mark.parametrize(
    ("live", "refusal"),
    [
        pytest.param(pod_of(None, node="n1"), "", id="it uses none yet"),
        pytest.param(pod_of(OURS, node="n1"), "", id="an attempt before wrote it"),
        pytest.param(pod_of(THEIRS, node="n1"), "uses reservation room", id="it uses another one"),
        pytest.param(pod_of(None, node="n2"), "does not run on node n1", id="elsewhere"),
        pytest.param(pod_of(None, uid="uid-next", node="n1"), "does not run on node n1", id="another pod"),
        pytest.param(pod_of(None, node="n1", phase="Failed"), "does not run on node n1", id="failed"),
        pytest.param(pod_of(None, node="n1", phase="Succeeded"), "does not run on node n1", id="done"),
    ],
)
def test_a_pod_is_taken_over_where_it_runs_and_uses_no_other_reservation(live: Json, refusal: str) -> None:
    async def story(desk: Desk) -> None:
        desk.api.put("Pod", live)
        desk.seen.uses["uid-web"] = "uid-room"
        had_none = labels.RESERVATION_ALLOCATED not in live["metadata"]["annotations"]

        if refusal:
            with pytest.raises(NotActiveError, match=refusal):
                await desk.writer.take_over([SEEN], ROOM, "n1")
        else:
            await desk.writer.take_over([SEEN], ROOM, "n1")

        texts = [json.loads(text) for _, text in desk.written()]
        assert texts == [OURS] * (had_none and not refusal)

    run(story)


@pytest.mark.parametrize(
    ("uses", "has_node", "seen_after_s", "is_taken_over", "took_s"),
    [
        pytest.param({"uid-web": "uid-room"}, True, None, True, 0.0, id="seen at once"),
        pytest.param({}, True, 1.0, True, 1.8, id="seen a little later"),
        pytest.param({}, True, None, False, 15.8, id="never seen"),
        pytest.param({"uid-web": "uid-former"}, True, None, False, 15.8, id="another one is seen"),
        pytest.param({}, False, None, False, 0.0, id="the pod left its node"),
    ],
)
def test_a_take_over_ends_when_the_scheduler_has_seen_it(
    uses: Mapping[str, str], has_node: bool, seen_after_s: float | None, is_taken_over: bool, took_s: float
) -> None:
    async def story(desk: Desk) -> None:
        clock = desk.api.clock
        desk.api.put("Pod", pod_of(None, node="n1"))
        desk.seen.uses.update(uses)
        if not has_node:
            desk.seen.has_node.clear()
        if seen_after_s is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(seen_after_s, desk.seen.uses.update, {"uid-web": "uid-room"})
        start_s = clock.now()

        if is_taken_over:
            await desk.writer.take_over([SEEN], ROOM, "n1")
        else:
            with pytest.raises(NotActiveError, match="not seen"):
                await desk.writer.take_over([SEEN], ROOM, "n1")

        assert clock.now() - start_s == pytest.approx(took_s, abs=0.01)

    run(story)


def test_a_take_over_takes_the_reservation_off_others_that_an_attempt_left() -> None:
    async def story(desk: Desk) -> None:
        left = pod_of(OURS, uid="uid-left", node="n1")
        left["metadata"]["name"] = "left"
        for body in (left, pod_of(OURS, node="n1")):
            desk.api.put("Pod", body)
        desk.seen.left = [from_builtins(body, Pod) for body in (left, pod_of(OURS, node="n1"))]
        desk.seen.uses["uid-web"] = "uid-room"

        await desk.writer.take_over([SEEN], ROOM, "n1")

        assert desk.written() == [("left", None)]

    run(story)
