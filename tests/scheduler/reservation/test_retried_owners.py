"""An owner whose binding failed uses the same reservation again, while its name is still being taken off the pod."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.cluster import errors
from koordinator.cluster.write_through import ClusterWrite, WriteThrough
from tests.cluster import virtual_loop
from tests.scheduler.reservation.reservation_world import ReservationWorld, allocated, scheduler, scheduling
from tests.scheduler.world import pod

R = TypeVar("R")
TAKES_OFF_S, BINDS_S = 2.0, 8.0


class Hesitant(WriteThrough):
    """A cluster that refuses the first binding, takes annotations off late, and binds later than that."""

    is_refused = False

    async def _send(self, write: ClusterWrite, effect: Callable[[], Awaitable[R]]) -> R:
        annotations: Any = (write.body or {}).get("metadata", {}).get("annotations", {})
        if write.verb == "bind" and not self.is_refused:
            self.is_refused = True
            raise errors.Forbidden("not now")
        if write.verb == "bind":
            await asyncio.sleep(BINDS_S)
        elif write.kind == "Pod" and annotations.get(labels.RESERVATION_ALLOCATED, "") is None:
            await asyncio.sleep(TAKES_OFF_S)
        return await effect()


def test_a_pod_that_is_bound_at_the_second_try_names_its_reservation() -> None:
    async def main() -> None:
        world = await ReservationWorld().serve()
        room = await world.reserve("room", node_name="n", allocateOnce=False)
        async with scheduling(scheduler(Hesitant(world.api))):
            body = pod("web")
            body["metadata"]["labels"] = {"app": "room"}
            await world.api.create(Pod, body, "default")
            await asyncio.sleep(30)

        found = await world.api.get(Pod, "web", "default")
        assert found.spec.node_name == "n"
        assert found.metadata.annotations[labels.RESERVATION_ALLOCATED].replace(" ", "") == allocated(
            room
        ).replace(" ", "")

    virtual_loop.run(main())
