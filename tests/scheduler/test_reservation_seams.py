"""What a Reservation plugin needs of the framework, shown with a small one: it keeps room on nodes by reserve
pods, lets their owners use it, and writes on Reservation objects."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from koordinator.api import decode, labels
from koordinator.api.core import Pod
from koordinator.api.reservation import Reservation
from koordinator.scheduler.engine.extensions import normalize_reservations
from koordinator.scheduler.plugin.capabilities import (
    FilterTransformer,
    Nomination,
    ReservationCache,
    ReservationFilterPlugin,
    ReservationNominator,
    ReservationPreBindPlugin,
    ReservationRestorePlugin,
    ReservationScorePlugin,
    ReservePodProvider,
)
from koordinator.scheduler.plugin.framework import (
    BindPlugin,
    FilterPlugin,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    ReasonCodes,
    ReservePlugin,
    Watch,
)
from koordinator.scheduler.plugin.handle import Handling, SchedulingFailure
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, PodPatch, Status, unschedulable
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.scheduler.table.trial import Trial
from tests.scheduler.extending import Desk, with_plugins
from tests.scheduler.world import World, play, pod


def reserve_pod_of(reservation: Reservation, node_name: str) -> Pod:
    meta, template = reservation.metadata, reservation.spec.template
    body = {
        "metadata": {
            "name": meta.uid,
            "namespace": "default",
            "uid": meta.uid,
            "annotations": {labels.RESERVE_POD: "true"},
        },
        "spec": {**template["spec"], "nodeName": node_name},
    }
    return decode.from_builtins(body, Pod)


class Keeper(
    PreFilterPlugin[str],
    FilterPlugin[str],
    ReservePlugin[str],
    PreBindPlugin[str],
    BindPlugin[str],
    FilterTransformer[str],
    ReservePodProvider[str],
    ReservationNominator[str],
    ReservationCache[str],
    ReservationRestorePlugin[str],
    ReservationFilterPlugin[str],
    ReservationScorePlugin[str],
    ReservationPreBindPlugin[str],
):
    """Owners name the Reservation in a label."""

    name = "Keeper"
    per_profile = True
    log: ClassVar[list[str]] = []

    def __init__(self, args: Any, handle: Any) -> None:
        super().__init__(args, handle)
        self.reservations: dict[str, Reservation] = {}
        self.used: dict[str, str] = {}
        handle.watch(Watch(Reservation, self._added, self._updated, self._removed))
        handle.on_failure(self._failed)

    # Reservations come and go

    def _added(self, reservation: Reservation) -> None:
        self._updated(reservation, reservation)

    def _updated(self, old: Reservation, new: Reservation) -> None:
        self.reservations[new.metadata.uid] = new
        self.handle.actions.enter_pod(None, reserve_pod_of(new, new.status.node_name))

    def _removed(self, old: Reservation) -> None:
        self.delete_reservation(old)
        self.handle.actions.remove_pod(reserve_pod_of(old, old.status.node_name))

    def reserve_pod(self, uid: str) -> Pod | None:
        found = self.reservations.get(uid)
        return reserve_pod_of(found, found.status.node_name) if found is not None else None

    def reservation_for(self, uid: str) -> Reservation | None:
        return self.reservations.get(uid)

    def reservation_of(self, uid: str, node_name: str) -> Reservation | None:
        return self.reservations.get(self.used.get(uid, ""))

    def delete_reservation(self, reservation: Reservation) -> None:
        self.reservations.pop(reservation.metadata.uid, None)

    def _failed(self, failure: SchedulingFailure) -> Handling:
        if failure.pod.uid not in self.reservations:
            return Handling.GO_ON
        self.log.append(f"told {failure.pod.uid}")
        return Handling.QUIETLY

    # A pod's cycle

    def class_key(self, pod: PodInfo) -> Hashable:
        return self.prepare(pod)

    def prepare(self, pod: PodInfo) -> str:
        return pod.pod.metadata.labels.get("owner-of", "")

    def pre_filter(self, state: str) -> PreFilterResult:
        return PreFilterResult()

    def _matched(self, state: str) -> list[Reservation]:
        return [each for each in self.reservations.values() if each.metadata.name == state]

    def before_filter(self, state: str, pod: PodInfo, what_if: Trial) -> PodInfo | Status:
        for reservation in self._matched(state):
            place = self.handle.table.place_of(reservation.metadata.uid)
            if place is not None:
                what_if.take(place.pod)
        return pod

    def filter(self, state: str, rows: Rows) -> ReasonCodes:
        return np.zeros(rows.size, np.uint16)

    def nominate(self, state: str, pod: PodInfo, row: int) -> Nomination:
        if pod.uid in self.reservations:
            return Nomination(SKIP)
        extensions = self.handle.profile.extensions
        states = {"Keeper": state}
        name = self.handle.table.name_of(row)
        here = [each for each in self._matched(state) if each.status.node_name == name]
        if state and not here:
            return Nomination(unschedulable("node(s) no reservations match reservation affinity"))
        extensions.restore(states, pod, row, here, [])
        here = [each for each in here if extensions.filter_reservation(states, pod, each, row).is_success]
        if not here:
            return Nomination()
        scores = extensions.score_reservations(states, pod, here, row)
        best = max(here, key=lambda each: (scores[each.metadata.uid], each.metadata.name))
        self.used[pod.uid] = best.metadata.uid
        return Nomination(reservation=best)

    def nominated(self, uid: str, node_name: str) -> Reservation | None:
        return self.reservation_of(uid, node_name)

    def forget_nominated(self, uid: str) -> None:
        self.log.append(f"forgot {uid}")

    def restore(
        self,
        state: str,
        pod: PodInfo,
        row: int,
        matched: Sequence[Reservation],
        others: Sequence[Reservation],
    ) -> Status:
        self.log.append(f"restored {len(matched)}")
        return SUCCESS

    def filter_reservation(self, state: str, pod: PodInfo, reservation: Reservation, row: int) -> Status:
        return unschedulable("closed") if reservation.spec.unschedulable else SUCCESS

    def score_reservation(self, state: str, pod: PodInfo, reservation: Reservation, row: int) -> int:
        return len(reservation.metadata.name)

    def normalize_reservations(self, scores: Mapping[str, int]) -> Mapping[str, int]:
        return normalize_reservations(scores)

    async def pre_bind(self, state: str, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        return SUCCESS

    async def pre_bind_reservation(
        self, state: str, reservation: Reservation, node_name: str, patch: PodPatch
    ) -> Status:
        patch.annotations["placed-on"] = node_name
        return SUCCESS

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        reservation = self.reservations.get(pod.uid)
        if reservation is None:
            return SKIP
        status = {"status": {"nodeName": node_name, "phase": "Available"}}
        await self.handle.cluster.patch(Reservation, reservation.metadata.name, status, subresource="status")
        return SUCCESS


def reservation(name: str, cpu: str) -> dict[str, Any]:
    template = {"spec": pod("x", cpu=cpu)["spec"]}
    return {"metadata": {"name": name}, "spec": {"template": template, "owners": [{"object": {}}]}}


def owner(name: str, of: str, cpu: str = "3") -> dict[str, Any]:
    found = pod(name, cpu=cpu)
    found["metadata"]["labels"] = {"owner-of": of}
    return found


def options() -> dict[str, Any]:
    """Reserve pods have to meet the plugin's Bind before the default one."""
    Keeper.log.clear()
    found = with_plugins(Keeper)
    profile = found["config"].profiles[0]
    plugins = profile.plugins
    first = msgspec.structs.replace(plugins.bind.enabled[0], name="Keeper")
    bind = msgspec.structs.replace(
        plugins.bind, enabled=[first, *(ref for ref in plugins.bind.enabled if ref.name == "DefaultBinder")]
    )
    profile = msgspec.structs.replace(profile, plugins=msgspec.structs.replace(plugins, bind=bind))
    return found | {"config": msgspec.structs.replace(found["config"], profiles=[profile])}


def test_a_reservation_is_placed_as_a_pod_is_and_written_as_a_reservation() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Reservation", reservation("r", "3"))
        await world.settle(1)
        (stored,) = world.api.objects["Reservation"].values()
        assert stored["status"] == {"nodeName": "node-0", "phase": "Available"}
        assert stored["metadata"]["annotations"] == {"placed-on": "node-0"}
        assert world.api.bindings == []
        assert world.api.events("Scheduled") == []
        place = world.scheduler.table.place_of(stored["metadata"]["uid"])
        assert place is not None and not place.assumed
        assert world.scheduler.table.requested[0, place.row] == 3_000

    play(story, **options())


def test_only_owners_use_the_room_and_the_chosen_node_has_to_agree() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Reservation", reservation("r", "3"))
        await world.settle(1)
        world.api.put("Pod", pod("stranger", cpu="3"))
        world.api.put("Pod", owner("lost", "nobody", "1"))
        world.api.put("Pod", owner("mine", "r"))
        await world.settle(1)
        assert world.api.placements() == {"stranger": "", "lost": "", "mine": "node-0"}
        messages = {
            event["involvedObject"]["name"]: event["message"]
            for event in world.api.events("FailedScheduling")
        }
        assert "Insufficient cpu" in messages["stranger"]
        assert messages["lost"] == "node(s) no reservations match reservation affinity"
        assert "restored 1" in Keeper.log

    play(story, **options())


def test_a_reservation_that_finds_no_node_is_told_by_its_plugin_and_tried_again() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="2")
        stored = world.api.put("Reservation", reservation("r", "3"))
        uid = stored["metadata"]["uid"]
        await world.settle(1)
        assert Keeper.log.count(f"told {uid}") == 1
        assert world.api.events("FailedScheduling") == []
        assert uid in world.scheduler.queue
        world.nodes(1, cpu="8")
        await world.settle(5)
        (stored,) = world.api.objects["Reservation"].values()
        assert stored["status"]["nodeName"] == "node-0"

    play(story, **options())


def test_a_deleted_reservation_gives_its_room_to_those_who_wait() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        world.api.put("Reservation", reservation("r", "3"))
        await world.settle(1)
        world.api.put("Pod", pod("stranger", cpu="3"))
        await world.settle(1)
        assert world.api.placements() == {"stranger": ""}
        world.api.remove("Reservation", "r")
        await world.settle(15)
        assert world.api.placements() == {"stranger": "node-0"}

    play(story, **options())


def test_a_reservation_deleted_while_it_waits_is_forgotten() -> None:
    async def story(world: World) -> None:
        stored = world.api.put("Reservation", reservation("r", "3"))
        await world.settle(1)
        world.api.remove("Reservation", "r")
        await world.settle(1)
        assert stored["metadata"]["uid"] not in world.scheduler.queue
        assert world.scheduler.table.place_of(stored["metadata"]["uid"]) is None

    play(story, **options())


def test_scores_of_reservations_are_scaled_so_that_the_best_has_100() -> None:
    assert normalize_reservations({"a": 3, "b": 9, "c": 0}) == {"a": 33, "b": 100, "c": 0}
    assert normalize_reservations({"a": 3, "b": 9}, reverse=True) == {"a": 67, "b": 0}
    assert normalize_reservations({"a": 0}) == {"a": 0}
    assert normalize_reservations({"a": 0}, reverse=True) == {"a": 100}
    assert normalize_reservations({}) == {}


def test_the_first_plugin_that_refuses_a_reservation_is_named() -> None:
    desk = Desk(Keeper).nodes("a")
    body = {"metadata": {"name": "r", "uid": "u"}, "spec": {"template": {}, "unschedulable": True}}
    found = decode.from_builtins(body, Reservation)
    info = desk.info(pod("p"))
    status = desk.profile.extensions.filter_reservation({"Keeper": ""}, info, found, 0)
    assert (status.plugin, status.message) == ("Keeper", "closed")
