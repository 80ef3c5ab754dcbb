"""What plugins write on a pod before it is bound is stored with one request, or the pod is not bound."""

from typing import Any, ClassVar

import pytest

from koordinator.api import decode
from koordinator.api.core import Pod
from koordinator.api.reservation import Reservation
from koordinator.cluster import errors
from koordinator.scheduler.plugin.capabilities import (
    PreBindExtension,
)
from koordinator.scheduler.plugin.framework import PreBindPlugin
from koordinator.scheduler.plugin.reservation_capabilities import (
    ReservationPreBindPlugin,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, PodPatch, Status
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.extending import with_plugins
from tests.scheduler.world import World, play, pod


class Writing(PreBindPlugin[None], ReservationPreBindPlugin[None]):
    """Enabled before DefaultPreBind; writes what a test says."""

    name = "Writing"
    wanted: ClassVar[dict[str, Any]] = {}

    async def pre_bind(self, state: None, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        for field, values in self.wanted.items():
            if field == "finalizers":
                patch.add_finalizer(values)
            else:
                getattr(patch, field).update(values)
        return SUCCESS

    async def pre_bind_reservation(
        self, state: None, reservation: Reservation, node_name: str, patch: PodPatch
    ) -> Status:
        patch.annotations["node"] = node_name
        return SUCCESS


class WritingLast(Writing):
    name = "WritingLast"

    async def pre_bind(self, state: None, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        patch.annotations["last"] = "yes"
        return SUCCESS


def writing(**wanted: Any) -> dict[str, Any]:
    Writing.wanted = wanted
    return with_plugins(Writing)


async def scheduled(world: World, **meta: Any) -> dict[str, Any]:
    world.nodes(1)
    body = pod("p")
    body["metadata"].update(meta)
    world.api.put("Pod", body)
    await world.settle(2)
    return world.api.pods()[0]


def patches(world: World) -> list[tuple[str, Any]]:
    """What was written on pods and the like; quotas have statuses of their own."""
    return [(name, patch) for name, patch in world.api.patches if not name.startswith("koordinator-")]


def test_one_request_carries_what_all_plugins_wrote_and_only_what_differs() -> None:
    async def story(world: World) -> None:
        found = await scheduled(world, annotations={"same": "1", "gone": "x"})
        assert found["spec"]["nodeName"] == "node-0"
        assert [patch for _, patch in patches(world)] == [
            {
                "metadata": {
                    "annotations": {"a": "1", "gone": None, "last": "yes"},
                    "labels": {"l": "2"},
                    "uid": "uid-2",
                }
            }
        ]
        assert found["metadata"]["annotations"] == {"same": "1", "a": "1", "last": "yes"}

    options = writing(annotations={"a": "1", "same": "1", "gone": None}, labels={"l": "2"})
    options |= with_plugins(Writing, WritingLast)
    play(story, **options)


class Rewritten(Writing):
    """What it wrote in an attempt before is something else by now, of which nobody heard yet."""

    name = "Rewritten"
    stored: ClassVar[dict[str, Any]] = {}

    async def pre_bind(self, state: None, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        live = self.stored["Pod"]["default", "p"]
        live["metadata"]["annotations"] = {"a": "2"}
        patch.annotations["a"] = "1"
        return SUCCESS


def test_what_was_written_before_is_compared_with_the_object_as_it_is() -> None:
    async def story(world: World) -> None:
        Rewritten.stored = world.api.objects
        found = await scheduled(world, annotations={"a": "1"})
        assert (found["spec"]["nodeName"], found["metadata"]["annotations"]) == ("node-0", {"a": "1"})

    play(story, **with_plugins(Rewritten))


def test_nothing_written_means_no_request() -> None:
    async def story(world: World) -> None:
        assert (await scheduled(world))["spec"]["nodeName"] == "node-0"
        assert patches(world) == []

    play(story, **writing())


def test_finalizers_are_added_to_those_there_for_this_version_only() -> None:
    async def story(world: World) -> None:
        found = await scheduled(world, finalizers=["theirs"])
        assert found["metadata"]["finalizers"] == ["theirs", "ours"]
        assert patches(world)[0][1]["metadata"]["resourceVersion"]

    play(story, **writing(finalizers="ours"))


def test_parts_of_the_status_go_to_the_subresource() -> None:
    async def story(world: World) -> None:
        found = await scheduled(world)
        assert (found["status"]["hostIP"], found["spec"]["hostname"]) == ("10.0.0.1", "h")
        assert [sorted(set(patch) - {"metadata"}) for _, patch in patches(world)] == [["spec"], ["status"]]

    play(story, **writing(spec={"hostname": "h"}, status={"hostIP": "10.0.0.1"}))


@pytest.mark.parametrize(
    "failures",
    [
        pytest.param([errors.Conflict("changed")], id="a conflict"),
        pytest.param([errors.TooManyRequests("slow down")], id="throttling"),
        pytest.param([errors.ConnectionFailed("closed")], id="a closed connection"),
        pytest.param([errors.Conflict("1"), errors.ConnectionFailed("2"), errors.Conflict("3")], id="three"),
    ],
)
def test_a_write_that_may_work_later_is_tried_again(failures: list[Exception]) -> None:
    async def story(world: World) -> None:
        world.api.fail_next["patch"] = list(failures)
        found = await scheduled(world)
        assert found["spec"]["nodeName"] == "node-0"
        assert found["metadata"]["annotations"] == {"a": "1"}
        assert len(world.api.events("FailedScheduling")) == 0

    play(story, **writing(annotations={"a": "1"}))


def test_a_pod_whose_results_cannot_be_stored_is_not_bound() -> None:
    async def story(world: World) -> None:
        world.api.fail_next["patch"] = [errors.Forbidden("not allowed to patch pods")]
        world.nodes(1)
        world.api.put("Pod", pod("p"))
        await world.settle(0.5)
        assert world.api.bindings == []
        assert world.scheduler.table.assumed_count == 0
        (event,) = world.api.events("FailedScheduling")
        assert "not allowed to patch pods" in (event.get("note") or event.get("message"))

    play(story, **writing(annotations={"a": "1"}))


def test_a_pod_that_is_being_deleted_meanwhile_is_not_bound() -> None:
    async def story(world: World) -> None:
        original = world.api.patch

        async def deleted_meanwhile(view: Any, name: str, *args: Any, **more: Any) -> Any:
            obj = world.api.objects["Pod"][("default", name)]
            obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return await original(view, name, *args, **more)

        world.api.patch = deleted_meanwhile  # type: ignore[method-assign]
        world.nodes(1)
        world.api.put("Pod", pod("p"))
        await world.settle(0.5)
        assert world.api.bindings == []
        assert world.scheduler.table.assumed_count == 0

    play(story, **writing(annotations={"a": "1"}))


def test_reservations_are_written_by_their_own_plugins_with_one_request_too() -> None:
    async def story(world: World) -> None:
        raw = {"metadata": {"name": "r"}, "spec": {"template": {}, "owners": []}}
        stored = world.api.put("Reservation", raw)
        reservation = decode.from_builtins(stored, Reservation)
        extensions = world.scheduler.profiles["koord-scheduler"].extensions
        # The plugins of the profile that write on Reservations too find nothing of this one in their books.
        states = dict.fromkeys((plugin.name for plugin in extensions.reservation_pre_binds), None)
        status = await extensions.pre_bind_reservation(states, reservation, "node-0")
        assert status.is_success
        assert patches(world) == [("r", {"metadata": {"annotations": {"node": "node-0"}, "uid": "uid-1"}})]

    play(story, **writing())


class Elsewhere(PreBindPlugin[None], PreBindExtension[None]):
    """Stores in a book of its own what it is asked to store for pods named `mine`."""

    name = "Elsewhere"
    book: ClassVar[list[dict[str, Any]]] = []

    async def pre_bind(self, state: None, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        patch.annotations["a"] = "1"
        return SUCCESS

    async def apply_patch(self, pod: PodInfo, patch: PodPatch) -> Status:
        if pod.pod.metadata.name != "mine":
            return SKIP
        self.book.append(patch.body())
        return SUCCESS

    async def apply_reservation_patch(self, reservation: Reservation, patch: PodPatch) -> Status:
        return SKIP


def test_the_first_extension_that_does_not_skip_stores() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Pod", pod("mine"))
        world.api.put("Pod", pod("other"))
        await world.settle(1)
        assert [body["metadata"]["annotations"] for body in Elsewhere.book] == [{"a": "1"}]
        assert [name for name, _ in patches(world)] == ["other"]
        assert len(world.api.bindings) == 2

    Elsewhere.book.clear()
    play(story, **with_plugins(Elsewhere))


def test_what_the_object_has_already_is_not_written_again() -> None:
    patch = PodPatch()
    patch.labels["x"] = "1"
    found = decode.from_builtins(pod("p") | {"metadata": {"name": "p", "labels": {"x": "1"}}}, Pod)
    assert patch.body(found.metadata.annotations, found.metadata.labels) == {}
