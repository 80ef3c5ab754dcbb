"""Cluster-scoped objects by name, also those that the watch has not told about yet.

Who creates a namespace and a pod in it with one command asks us about the pod before our cache has the namespace.
"""

import asyncio
import logging
from typing import Generic, TypeVar

from koordinator.api.meta import Object
from koordinator.cluster.errors import ApiError, NotFound
from koordinator.cluster.informer import Informer
from koordinator.cluster.protocol import Cluster

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

TIMEOUT_S = 2.0
"""For one question; API servers wait ten seconds for a webhook."""
REMEMBERED_S = 1.0
"""How long an answer counts: a burst of pods asks once, and the watch is sooner as a rule."""
REMEMBERED_MAX = 1_000


class RecentLookup(Generic[T]):
    """A cache, and behind it the API for what the cache does not have."""

    def __init__(self, cluster: Cluster, informer: Informer[T]) -> None:
        self._cluster = cluster
        self._informer = informer
        self._answers: dict[str, tuple[T | None, float]] = {}
        self._asking = asyncio.Lock()

    def known(self, name: str) -> T | None:
        """The object out of the cache, or out of an answer of this second."""
        found = self._informer.get(name)
        if found is not None or not self._answers:
            return found
        return self._remembered(name)[0]

    async def find(self, name: str) -> T | None:
        """The object, asked of the API when it is not known; None when there is none or nobody answers."""
        found = self.known(name)
        if found is not None:
            return found
        async with self._asking:
            found, is_fresh = self._remembered(name)
            if is_fresh:
                return found
            found = await self._ask(name)
            if len(self._answers) >= REMEMBERED_MAX:
                self._answers.clear()
            self._answers[name] = found, self._cluster.clock.now()
            return found

    def _remembered(self, name: str) -> tuple[T | None, bool]:
        answer = self._answers.get(name)
        if answer is None:
            return None, False
        if not 0 <= self._cluster.clock.now() - answer[1] <= REMEMBERED_S:
            del self._answers[name]
            return None, False
        return answer[0], True

    async def _ask(self, name: str) -> T | None:
        view = self._informer.view
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._cluster.get(view, name)
        except NotFound:
            return None
        except (ApiError, TimeoutError) as error:
            facts = {"kind": view.resource.kind, "object": name, "error": str(error) or type(error).__name__}
            log.warning("object not looked up", extra=facts)
            return None
