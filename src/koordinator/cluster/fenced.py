"""A cluster that only a leader may change.

A process that was stopped for a while (a suspended machine, a starved container) wakes up with decisions that it made
as leader, and another leads by now. The lease's renewal notices that too, but work that was waiting comes first.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.cluster.transport import BEFORE_SENDING
from koordinator.cluster.write_through import ClusterWrite, WriteThrough

R = TypeVar("R")


class NotLeading(errors.Withheld):
    """The lease was not renewed in time, so nothing may be changed."""


class FencedCluster(WriteThrough):
    """`inner`, whose objects can be changed only while `may_write` says so, which is asked before each write, and again
    when the request leaves: it may have waited for its turn while the process was stopped.

    Raises: NotLeading, from every method that changes something.
    """

    def __init__(self, inner: Cluster, may_write: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._may_write = may_write

    async def _send(self, write: ClusterWrite, effect: Callable[[], Awaitable[R]]) -> R:
        def check() -> None:
            if not self._may_write():
                raise NotLeading(f"{write}: the lease was not renewed in time; another instance may lead")

        check()
        token = BEFORE_SENDING.set(check)
        try:
            return await effect()
        finally:
            BEFORE_SENDING.reset(token)
