"""A sweep over all nodes queues what differs, and leaves room for what comes meanwhile."""

import asyncio
import contextlib

from koordinator import clock as clocks
from koordinator.cluster.controller import WorkQueue
from koordinator.manager.per_node.node_objects import WAITING_MAX, NodeSweep
from koordinator.simulate import virtual_time

WRITE_S = 0.03  # the API lets 30 writes per second pass


def test_a_node_that_joins_does_not_wait_for_all_the_others() -> None:
    async def main(clock: clocks.LoopClock) -> None:
        queue: WorkQueue[str] = WorkQueue()
        names = [f"n{number}" for number in range(5_000)]
        seen: dict[str, float] = {}
        sweep = NodeSweep(queue, lambda: names, lambda name: name not in seen)

        async def work() -> None:
            while True:
                name = await queue.get()
                await asyncio.sleep(WRITE_S)
                seen[name] = clock.now()
                queue.done(name)
                sweep.key_done()

        tasks = [asyncio.create_task(work()), asyncio.create_task(sweep.run())]
        sweep.begin()
        await asyncio.sleep(10)
        joined_s = clock.now()
        queue.add("new")
        await asyncio.sleep(300)

        assert seen["new"] - joined_s <= (WAITING_MAX + 2) * WRITE_S
        assert set(seen) == {*names, "new"} and sweep.queued_count == len(names)

        sweep.begin()  # nothing differs any more
        await asyncio.sleep(1)
        assert sweep.queued_count == len(names)
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    virtual_time.run_virtual(main)


def test_a_node_that_cannot_be_compared_is_looked_at_by_a_worker() -> None:
    async def main(_: clocks.LoopClock) -> None:
        queue: WorkQueue[str] = WorkQueue()

        def differs(name: str) -> bool:
            if name == "odd":
                raise ValueError(name)
            return False

        sweep = NodeSweep(queue, lambda: ["a", "odd", "b"], differs)
        task = asyncio.create_task(sweep.run())
        sweep.begin()
        await asyncio.sleep(1)

        assert await queue.get() == "odd" and len(queue) == 0
        assert sweep.guard.failure_count == 1
        task.cancel()

    virtual_time.run_virtual(main)
