"""A pod that requires a reservation is never placed without one."""

from typing import Any

import pytest

from koordinator.api import labels
from koordinator.scheduler.config import config
from tests.scheduler.world import World, play, pod


def requiring(affinity: str) -> dict[str, Any]:
    found = pod("p")
    found["metadata"]["annotations"] = {labels.RESERVATION_AFFINITY: affinity}
    return found


@pytest.mark.parametrize(
    "affinity", ['{"reservationSelector": {"pool": "a"}}', '{"name": "r"}', "{}", "", "not JSON"]
)
def test_without_the_plugin_it_waits_and_is_told_what_it_waits_for(affinity: str) -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="64")
        world.api.put("Pod", requiring(affinity))
        world.api.put("Pod", pod("free"))
        await world.settle()
        assert world.condition("p")["message"].startswith(
            "0/2 nodes are available: the pod requires a reservation "
            "(annotation scheduling.koordinator.sh/reservation-affinity), "
            "and the plugin Reservation does not run in this scheduler profile."
        )
        assert world.api.placements()["free"] in ("node-0", "node-1")

    play(story, config.decode({"profiles": [{"schedulerName": "koord-scheduler"}]}))


@pytest.mark.parametrize("settings", [{}, {"profiles": [{"schedulerName": "koord-scheduler"}]}])
def test_it_is_placed_as_soon_as_it_requires_none_any_more(settings: dict[str, Any]) -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", requiring("{}"))
        await world.settle(30)
        assert world.api.placements() == {"p": ""}
        assert world.condition("p")["reason"] == "Unschedulable"
        assert not world.api.events("Preempted")

        world.api.put("Pod", {**world.api.objects["Pod"][("default", "p")], **pod("p")})
        await world.settle(30)
        assert world.api.placements() == {"p": "node-0"}

    play(story, config.decode(settings))
