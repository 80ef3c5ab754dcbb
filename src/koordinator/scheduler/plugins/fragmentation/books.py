"""Remember of each row its cards, how much the target can use of it, and the cost of each kind of pods there.

Everything is remembered until the row, or the target, changes: a placement makes one row stale.
"""

import functools
from collections.abc import Callable, Hashable

import numpy as np
import numpy.typing as npt

from koordinator.api import labels, pod_resources, resource_vector, resources
from koordinator.api.annotations.device import DeviceType
from koordinator.api.core import Pod
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugins.device_share.node_device_cache import NodeDeviceCache
from koordinator.scheduler.plugins.fragmentation import gradient
from koordinator.scheduler.plugins.fragmentation.card_values import WHOLE
from koordinator.scheduler.plugins.fragmentation.demand import PodDemand, Shape, models_of, shape_of
from koordinator.scheduler.plugins.fragmentation.gradient import Cards, Nodes, Taking
from koordinator.scheduler.plugins.fragmentation.target import F32, Target
from koordinator.scheduler.table.columns import Recent, Rows, at, grown
from koordinator.scheduler.table.label_columns import ABSENT, LabelColumns
from koordinator.scheduler.table.nodes import F64, NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

Versions = npt.NDArray[np.int64]
_SHAPES_MAX = 1_024
_KINDS_MAX = 512
"""Kinds of pods whose costs are kept: 12 bytes per row each."""
_MEMORY = resource_vector.MEMORY_COLUMN
_NAMES = (resources.GPU_CORE, resources.GPU_MEMORY_RATIO)


class GPUNodes:
    """Reads nodes with GPUs from the columns of the table."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._devices = table.shared(NodeDeviceCache)
        self._labels = table.shared(LabelColumns)
        self._shapes: Recent[Shape] = Recent(_SHAPES_MAX)
        self._keys: Recent[Hashable] = Recent(_SHAPES_MAX)
        """Requests of containers, as written → the same as `PodInfo.request_key`."""

    @property
    def model_names(self) -> list[str]:
        """Return the models that nodes have, or had; their order does not change."""
        return self._labels.column(labels.GPU_MODEL).values

    def demand(self, pod: PodInfo) -> PodDemand:
        """Return what a pod asks for, shared by pods that ask for the same."""
        return PodDemand(self._shape(pod.request_key, lambda: pod), models_of(pod.pod))

    def demand_of(self, pod: Pod) -> PodDemand:
        """Return the same of a pod that may be new. Raises: ProtocolError when an amount is no quantity."""
        info = functools.partial(PodInfo.of, pod, self._table.registry)
        if not pod_resources.is_plain(pod):
            return self.demand(info())
        asked = pod.spec.containers[0].resources.requests
        key = self._keys.get(tuple(asked.items()), lambda: info().request_key)
        return PodDemand(self._shape(key, info), models_of(pod))

    def _shape(self, key: Hashable, info: Callable[[], PodInfo]) -> Shape:
        """Return the shape of pods with this `PodInfo.request_key`."""
        return self._shapes.get(
            key, lambda: shape_of(info(), self._table.registry.names, self._card_memory_bytes)
        )

    def _card_memory_bytes(self) -> int:
        """Return the memory of the largest card, 0 when there is none."""
        memory = self._devices.columns.by_type[DeviceType.GPU].amounts.get(resources.GPU_MEMORY)
        return int(memory.total.values.max(initial=0)) if memory is not None else 0

    def cards(self, rows: Rows) -> Cards:
        """Return the free percent of each card: the lesser of its cores and its memory. (slots, rows)"""
        amounts = self._devices.columns.by_type[DeviceType.GPU].amounts
        known = [at(amounts[name].free.values, rows) for name in _NAMES if name in amounts]
        if not known:
            return np.zeros((1, rows.size), np.uint8)
        free: I64 = np.minimum(known[0], known[-1])
        return np.minimum(free, WHOLE).astype(np.uint8)

    def models(self, rows: Rows, count: int) -> npt.NDArray[np.intp]:
        """Return the number of each node's model among the first `count`, `count` for others and for none: (rows,)."""
        ids = self._labels.ids(labels.GPU_MODEL, rows).astype(np.intp)
        return np.where((ids == ABSENT) | (ids > count), count, ids)

    def free_by_model(self) -> F64:
        """Return the GPU percent that is free on cards of each model: (models,)."""
        rows = self._table.rows
        free, count = self.cards(rows).sum(axis=0, dtype=np.int64), len(self.model_names)
        by_model = np.bincount(self.models(rows, count), free, count + 1)
        return by_model[:count].astype(np.float64)

    @property
    def models_version(self) -> int:
        """Return what changes whenever the model of a node does."""
        return self._labels.column(labels.GPU_MODEL).version

    def nodes(self, target: Target, rows: Rows, cards: Cards, models: npt.NDArray[np.intp]) -> Nodes:
        """Return nodes with these cards (slots, rows) and `models` (rows,) as the gradient sees them."""
        free = self._table.free
        cpu, memory = at(free[resource_vector.CPU_COLUMN], rows), at(free[_MEMORY], rows)
        return gradient.nodes_of(target, cpu, memory, models, cards)


class DemandCosts:
    """The costs of one kind of pods: `values` (capacity,), each valid where `version` is that of the row."""

    def __init__(self, taking: Taking, capacity: int) -> None:
        self.taking = taking
        self.values: F32 = np.zeros(capacity, np.float32)
        self.version: Versions = np.full(capacity, -1, np.int64)


class CostBook:
    """The costs of pods on rows, for one target."""

    def __init__(self, table: NodeTable, nodes: GPUNodes, target: Target) -> None:
        self._table, self._nodes, self.target = table, nodes, target
        self._capacity = capacity = table.capacity
        self._sequence = table.changes.sequence
        self._row_version: Versions = np.zeros(capacity, np.int64)
        self._known_version: Versions = np.full(capacity, -1, np.int64)
        """Versions of what the next four know of a row."""
        self._amounts: F32 = np.zeros((capacity, 2 + target.parts.shape[1]), np.float32)
        self._model: npt.NDArray[np.intp] = np.zeros(capacity, np.intp)
        self._models_version = -1
        self._whole: npt.NDArray[np.intp] = np.zeros(capacity, np.intp)
        self._usable: F32 = np.zeros(capacity, np.float32)
        self._cards: Cards = np.zeros((1, capacity), np.uint8)
        self._kinds: Recent[DemandCosts] = Recent(_KINDS_MAX)
        self._takings: Recent[Taking] = Recent(_SHAPES_MAX)

    @property
    def is_current(self) -> bool:
        """Return whether the table is as large as it was."""
        return self._capacity == self._table.capacity

    def costs(self, demand: PodDemand, rows: Rows) -> F32:
        """Return what such a pod costs on each row, in GPU percent: (rows,)."""
        if self._table.is_trial:  # what holds for a moment only is not remembered
            cards, nothing = self._nodes.cards(rows), np.zeros(rows.size, np.float32)
            nodes = self._nodes.nodes(self.target, rows, cards, self.models(rows))
            taking = self.taking(demand.shape)
            return gradient.costs(self.target, taking, nodes, cards, nothing, np.arange(rows.size))[0]
        self._follow()
        known = self._kinds.get(demand, lambda: DemandCosts(self.taking(demand.shape), self._capacity))
        versions = at(self._row_version, rows)
        is_stale = at(known.version, rows) != versions
        stale = rows[is_stale]
        if stale.size:
            known.values[stale] = self._work_out(known.taking, stale)
            known.version[stale] = versions[is_stale]
        return at(known.values, rows)

    def models(self, rows: Rows) -> npt.NDArray[np.intp]:
        """Return the rows of `Target.weight` that stand for the nodes' models, of rows whose costs were asked for:
        (rows,)."""
        if self._table.is_trial:
            return self._nodes.models(rows, len(self.target.weight) - 1)
        return at(self._model, rows)

    def taking(self, shape: Shape) -> Taking:
        """Return what pods of this shape change."""
        return self._takings.get(shape, lambda: gradient.taking_of(self.target, shape))

    def _work_out(self, taking: Taking, rows: Rows) -> F32:
        versions = self._row_version.take(rows)
        unknown = (self._known_version.take(rows) != versions).nonzero()[0]
        if unknown.size:
            self._read(rows[unknown])
        nodes = Nodes(self._amounts.take(rows, axis=0), self._model.take(rows), self._whole.take(rows))
        cards, before = self._cards.take(rows, axis=1), self._usable.take(rows)
        found, before = gradient.costs(self.target, taking, nodes, cards, before, unknown)
        if unknown.size:
            self._usable[rows] = before
            self._known_version[rows] = versions
        return found

    def _read(self, rows: Rows) -> None:
        """Read nodes from the table anew."""
        cards = self._nodes.cards(rows)
        self._cards = grown(self._cards, len(cards), axis=0)  # nodes with more cards may have come
        nodes = self._nodes.nodes(self.target, rows, cards, self._model.take(rows))
        self._cards[:, rows] = cards
        self._amounts[rows], self._whole[rows] = nodes.amounts, nodes.whole

    def _follow(self) -> None:
        """Take note of which rows changed."""
        if self._models_version != (version := self._nodes.models_version):
            self._models_version = version
            self._model = self._nodes.models(np.arange(self._capacity), len(self.target.weight) - 1)
        log = self._table.changes
        if self._sequence != log.sequence:
            self._row_version[log.since(self._sequence).rows] = log.sequence
            self._sequence = log.sequence
