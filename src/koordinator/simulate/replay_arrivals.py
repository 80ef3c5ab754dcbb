"""Pods arrive until the cluster's GPUs have been requested several times over, as fragmentation is evaluated.

The pods of the list come in random order, and again in another order, until the GPU they request reaches a multiple of
what the nodes have. Nobody leaves; who does not fit is dropped. Source: Weng et al., Beware of Fragmentation (USENIX
ATC 2023), section 6.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from koordinator.api import resource_vector
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.plugins.fragmentation.books import GPUNodes
from koordinator.scheduler.plugins.fragmentation.card_values import WHOLE
from koordinator.scheduler.plugins.fragmentation.demand import PodDemand
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.simulate import gpu_course
from koordinator.simulate.gpu_course import FreeNodes, GpuPoint, GpuReport
from koordinator.simulate.replay_input import InputError

POINTS = 40
"""Moments at which the report says what is left."""


def drawn(infos: Sequence[PodInfo], seed: int) -> Iterator[PodInfo]:
    """Yield the pods in random order, without end; those that come again have names of their own."""
    generator = random.Random(seed)
    order = list(infos)
    number = 0
    while True:
        generator.shuffle(order)
        yield from order if number == 0 else (_again(info, number) for info in order)
        number += 1


def _again(info: PodInfo, number: int) -> PodInfo:
    meta = info.pod.metadata
    name, uid = f"{meta.name}-{number}", f"{info.uid}-{number}"
    pod = replace(info.pod, metadata=replace(meta, name=name, uid=uid))
    return replace(info, pod=pod, key=f"{info.key}-{number}", uid=uid)


class GpuArrivals:
    """Counts what arrives and what is placed, and notes the course."""

    def __init__(self, engine: Engine, infos: Sequence[PodInfo], times: float) -> None:
        """`times` is how often the cluster's GPUs are requested. Raises: InputError when there are no GPUs, or nobody
        asks for any."""
        self._table = engine.table
        self._nodes = GPUNodes(engine.table)
        self._kinds: dict[object, PodDemand] = {}
        self._counts = Counter(map(self._demand, infos))
        """Counts of the list."""
        cards = self._nodes.cards(engine.table.rows)
        self.total = int(cards.sum(dtype=np.int64))
        if not self.total or not any(demand.shape.cards for demand in self._counts):
            raise InputError("--arrivals needs nodes with GPUs, and pods that ask for some (--gpu share)")
        count_of = np.bincount(
            self._nodes.models(engine.table.rows, len(self._nodes.model_names)),
            cards.sum(axis=0, dtype=np.int64) // WHOLE,
        )
        names = [*self._nodes.model_names, ""]
        self._cards_by_model = {names[i]: int(count) for i, count in enumerate(count_of) if count}
        self._wanted = times * self.total
        self._arrived: Counter[PodDemand] = Counter()
        self._placed_pods = self.requested = self.allocated = 0
        self._at_full: tuple[float, float] | None = None
        self._course: list[GpuPoint] = []
        self._note()

    def _demand(self, info: PodInfo) -> PodDemand:
        known = self._kinds.get(id(info.pod.spec))
        if known is None:
            known = self._kinds[id(info.pod.spec)] = self._nodes.demand(info)
        return known

    @property
    def is_over(self) -> bool:
        """Return whether enough has been requested."""
        return self.requested >= self._wanted

    @property
    def progress(self) -> float:
        """Return the part of all arrivals that has come, 0 to 1."""
        return min(self.requested / self._wanted, 1.0)

    def tried(self, info: PodInfo, *, is_placed: bool) -> None:
        """Count a pod that arrived and was tried."""
        demand = self._demand(info)
        self._arrived[demand] += 1
        self._placed_pods += is_placed
        self.requested += demand.shape.gpu_percent
        self.allocated += demand.shape.gpu_percent * is_placed
        if self._at_full is None and self.requested >= self.total:
            self._at_full = self._percent(self.allocated), self._bound()
        if self.requested * POINTS >= len(self._course) * self._wanted:
            self._note()

    def report(self) -> GpuReport:
        """Return all figures as of now."""
        return GpuReport(
            arrived_pods=self._arrived.total(),
            placed_pods=self._placed_pods,
            arrived_percent=self._percent(self.requested),
            allocated_percent_at_full_arrivals=self._at_full[0] if self._at_full else None,
            allocated_percent=self._percent(self.allocated),
            bound_percent_at_full_arrivals=self._at_full[1] if self._at_full else None,
            bound_percent=self._bound(),
            course=self._course,
        )

    def _bound(self) -> float:
        return gpu_course.bound(self._arrived, self._cards_by_model)

    def _percent(self, amount: int) -> float:
        return 100 * amount / self.total

    def _note(self) -> None:
        rows, free = self._table.rows, self._table.free
        nodes = FreeNodes(
            free[resource_vector.CPU_COLUMN][rows],
            free[resource_vector.MEMORY_COLUMN][rows],
            self._nodes.cards(rows),
            self._nodes.models(rows, len(self._nodes.model_names)),
            self._nodes.model_names,
        )
        self._course.append(
            GpuPoint(
                arrived_percent=self._percent(self.requested),
                allocated_percent=self._percent(self.allocated),
                left=gpu_course.left(nodes, self._counts, self.total),
            )
        )
