"""Looking at all nodes after a change that may touch each of them, without stopping everything else.

A change of the configuration may mean another object for each of ten thousand nodes. Nodes are compared in
slices of a few milliseconds, only those that differ are queued, and only as fast as the queue empties: a node
that joins meanwhile waits for `WAITING_MAX` others at most, not for the whole cluster.
"""

import asyncio
from collections.abc import Callable, Iterable

from koordinator.cluster.supervise import Guard
from koordinator.cluster.workqueue import WorkQueue

SLICE = 256  # nodes compared before others get their turn: some 5 ms
WAITING_MAX = 64  # keys that may wait; the API's own limit decides how fast they leave


class NodeSweep:
    """Queues the names among `names()` for which `differs` holds, once after each `begin`."""

    def __init__(
        self, queue: WorkQueue[str], names: Callable[[], Iterable[str]], differs: Callable[[str], bool]
    ) -> None:
        self.guard = Guard("sweep over nodes")
        self.queued_count = 0
        self._queue = queue
        self._names = names
        self._differs = differs
        self._wanted = asyncio.Event()
        self._has_room = asyncio.Event()

    def begin(self) -> None:
        """Look at all nodes, again if that is being done already."""
        self._wanted.set()

    def key_done(self) -> None:
        """A worker has finished with a key, so that there may be room for another."""
        self._has_room.set()

    async def run(self) -> None:
        """Sweep whenever that is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            # A change in the middle is seen by the nodes that come after it, the others come again.
            for number, name in enumerate(list(self._names()), 1):
                await self._look_at(name)
                if number % SLICE == 0:
                    await asyncio.sleep(0)

    async def _look_at(self, name: str) -> None:
        # A node for which that cannot be told is worked on, too: whoever does says why.
        if self.guard.answer(self._differs, name, otherwise=lambda _: True):
            while len(self._queue) >= WAITING_MAX:
                self._has_room.clear()
                await self._has_room.wait()
            self._queue.add(name)
            self.queued_count += 1
