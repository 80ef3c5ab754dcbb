"""The rounds of a strategy that evicts for CPU or memory: what both do alike, from the settings to the evictor."""

import abc
import asyncio
from collections.abc import Collection, Sequence

from koordinator.api.core import Pod
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import allocatable, eviction_settings
from koordinator.koordlet.qos.allocatable import Lent
from koordinator.koordlet.qos.cool_down import CoolDown
from koordinator.koordlet.qos.eviction import Amounts, EvictionTask
from koordinator.koordlet.qos.eviction_settings import Feature
from koordinator.koordlet.qos.evictor import Evictor
from koordinator.koordlet.view import Topic


class EvictRounds(abc.ABC):
    """Asks a strategy for its tasks and hands them to the evictor; after an eviction it rests."""

    after = Topic.USAGE

    def __init__(
        self,
        shared: Shared,
        evictor: Evictor,
        *,
        features: Sequence[Feature],
        resource: str,
        lent: Sequence[str],
        by_allocatable: Feature,
        cool_s: float,
        rests_first: bool = False,
    ) -> None:
        """`resource` is `cpu` or `memory`, `lent` are its names where it is lent, which `by_allocatable` looks at."""
        self._shared = shared
        self._evictor = evictor
        self._features = frozenset(feature for feature in features if shared.gates.is_on(feature))
        self._resource = resource
        self._lent = Lent(lent)
        self._by_allocatable = by_allocatable
        self._cool_s = cool_s
        self._rests_first = rests_first
        self._cool_down: CoolDown | None = None

    @abc.abstractmethod
    def _wanted(
        self,
        features: Collection[Feature],
        strategy: ResourceThresholdStrategy,
        capacity: int,
        lent: Amounts,
        pods: Sequence[Pod],
    ) -> list[EvictionTask]:
        """What these features want of the active pods, by what was measured last."""

    async def run(self) -> None:
        """One round."""
        now_s = asyncio.get_running_loop().time()
        if self._cool_down is None:
            self._cool_down = CoolDown(self._cool_s, now_s if self._rests_first else None)
        tasks = self._tasks(now_s)
        if tasks and self._cool_down.is_over(now_s) and await self._evictor.carry_out(tasks):
            self._cool_down.begin(asyncio.get_running_loop().time())

    def disable(self) -> None:  # noqa: B027 # nothing to do, for all of them
        """Nothing to put back: who was evicted stays so."""

    def _tasks(self, now_s: float) -> list[EvictionTask]:
        view = self._shared.view
        strategy = view.slo.resource_used_threshold_with_be if view.slo is not None else None
        capacity = allocatable.capacity(view.node, self._resource)
        if strategy is None or eviction_settings.activity(strategy) or view.node is None or capacity <= 0:
            return []
        facts = view.pods, view.node, strategy
        features = self._features
        if self._lent.is_known_to_fit(*facts):
            features -= {self._by_allocatable}
        lent = self._lent.amounts(view.node, now_s)
        pods = [record.pod for record in view.pods.values() if record.is_active]
        tasks = self._wanted(features, strategy, capacity, lent, pods)
        if all(task.feature is not self._by_allocatable for task in tasks):
            self._lent.found_to_fit(*facts)
        return tasks
