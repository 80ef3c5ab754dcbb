"""Learn from the pods that came in the last hours what pods usually ask for; make arrays of it, by the model of a
node's cards, and the price of cards of a model that they will lack.

A pod that came t seconds ago counts 2^(-t / half-life). The counts follow from the pods that exist: after a restart
they are those of the pods that are still there, by their creation times.

A model is scarce when others can have what they ask for only there. Its load is what is asked for of it, divided by
what is free; pods that take several models are spread so that loads are as equal as they can be. Where loads still
differ, pods that have a choice go where the load is low.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.scheduler.plugins.fragmentation.card_values import WHOLE, card_values
from koordinator.scheduler.plugins.fragmentation.demand import Models, PodDemand, Shape
from koordinator.scheduler.table.nodes import F64

F32 = npt.NDArray[np.float32]

SHAPES_MAX = 64
"""Shapes that the target has, the most frequent ones."""
CARDS_MAX = 64
"""Whole free cards of a node that are told apart."""


class Target(msgspec.Struct, frozen=True, eq=False):
    """Shapes with equal cards and percent are a group. Amounts of GPU are in percent of a card.

    The last row of `weight` is for nodes that name no model. `parts` and `wholes` have three numbers per group, all of
    the first before all of the second: the GPU that pods of the group can use, what of it full sets of cards have (of
    shares all of it), and how many such pods or sets there are.
    """

    per_amount: F32
    """(2, shapes): 1 / milli-cores, 1 / bytes"""
    group: npt.NDArray[np.intp]
    """(shapes,)"""
    weight: F32
    """(models + 1, shapes): how often a pod that takes the model has this shape; each row sums up to 1, or is 0."""
    parts: F32
    """(101, 3 groups): by a card's free percent, for groups of shares; 0 for groups of whole cards."""
    wholes: F32
    """(whole free cards, 3 groups): for groups of whole cards, if these are enough for a pod; 0 for shares."""
    card_value: F64
    """(101,): U of `card_values`"""
    card_use: F64
    """(101,): of a card's free percent, what a pod of the target can use on average, whatever the node has besides."""
    by_models: Mapping[Models, float]
    """GPU percent that an average pod asks for, by the models it takes."""

    @property
    def group_count(self) -> int:
        return int(self.parts.shape[1]) // 3


def target_of(shares: Mapping[PodDemand, float], model_names: Sequence[str]) -> Target:
    """Return the target for a workload (`Workload.shares`) and the models that nodes have."""
    by_shape: defaultdict[Shape, float] = defaultdict(float)
    by_models: defaultdict[Models, float] = defaultdict(float)
    sizes: defaultdict[int, float] = defaultdict(float)
    pieces = [
        (_piece(demand.shape), demand.models, share * _pieces(demand.shape))
        for demand, share in shares.items()
    ]
    for shape, models, share in pieces:
        by_shape[shape] += share
        by_models[models] += share * shape.gpu_percent
        if shape.percent < WHOLE:
            sizes[shape.percent] += share
    kept = sorted(by_shape, key=lambda shape: (-by_shape[shape], shape))[:SHAPES_MAX]
    shapes = sorted(kept, key=lambda shape: (shape.cards, shape.percent, shape))
    groups = sorted({(shape.cards, shape.percent) for shape in shapes})
    number = {shape: index for index, shape in enumerate(shapes)}
    weight = np.zeros((len(model_names) + 1, len(shapes)))
    for shape, models, share in pieces:
        if shape in number:
            weight[_rows(models, model_names), number[shape]] += share
    weight /= np.maximum(weight.sum(axis=1, keepdims=True), 1e-12)
    part_fit, part_copies = _parts(groups)
    per_cpu = _inverse([shape.cpu_milli for shape in shapes])
    per_memory = _inverse([shape.memory_bytes for shape in shapes])
    use = np.array([by_shape[shape] for shape in shapes])
    group = np.array([groups.index((shape.cards, shape.percent)) for shape in shapes], np.intp)
    share_of = np.bincount(group, use, len(groups)) / max(use.sum(), 1e-12)
    single = np.array([1.0 if group == (1, WHOLE) else 0.0 for group in groups])
    card_use = part_fit @ share_of
    card_use[WHOLE] += WHOLE * (single @ share_of)
    return Target(
        np.stack([per_cpu, per_memory]),
        group,
        weight.astype(np.float32),
        np.hstack([part_fit, part_fit, part_copies]),
        np.hstack(_wholes(groups)),
        card_values(sizes),
        card_use,
        dict(by_models),
    )


def _pieces(shape: Shape) -> int:
    """Parts of several cards count as that many pods with one."""
    return shape.cards if shape.percent < WHOLE else 1


def _piece(shape: Shape) -> Shape:
    count = _pieces(shape)
    if count == 1:
        return shape
    return Shape(shape.cpu_milli // count, shape.memory_bytes // count, 1, shape.percent)


def _rows(models: Models, model_names: Sequence[str]) -> list[int]:
    if models is None:
        return list(range(len(model_names) + 1))
    return [index for index, name in enumerate(model_names) if name in models]


def _inverse(amounts: Sequence[int]) -> F32:
    return (1.0 / np.maximum(np.array(amounts, np.float64), 1e-6)).astype(np.float32)


def _parts(groups: Sequence[tuple[int, int]]) -> tuple[F32, F32]:
    free = np.arange(WHOLE + 1)[:, np.newaxis]
    percent = np.array([each for _, each in groups], np.int64)
    is_part = percent < WHOLE
    copies = np.where(is_part, free // np.maximum(percent, 1), 0)
    return np.where(copies > 0, free, 0).astype(np.float32), copies.astype(np.float32)


def _wholes(groups: Sequence[tuple[int, int]]) -> tuple[F32, F32, F32]:
    free = np.arange(CARDS_MAX + 1)[:, np.newaxis]
    cards = np.array([count for count, _ in groups], np.int64)
    is_whole = np.array([percent == WHOLE for _, percent in groups], np.bool_)
    copies = np.where(is_whole, free // np.maximum(cards, 1), 0)
    fit = np.where(copies > 0, WHOLE * free, 0)
    return fit.astype(np.float32), (WHOLE * copies * cards).astype(np.float32), copies.astype(np.float32)


SCARCITY_WEIGHT = 2.0
"""Price of a card per unit of ln(load / lowest load), in cards."""
_ROUNDS = 300
_TINY = 1e-9


def loads(by_models: Mapping[Models, float], model_names: Sequence[str], free: F64) -> F64:
    """Return the load of each model, (models,), up to a factor. `free` (models,) is the GPU that is left; `by_models`
    as in `Target`."""
    asked = [(_mask(models, model_names), amount) for models, amount in by_models.items()]
    takes = np.array([mask for mask, _ in asked], np.float64).reshape(len(asked), len(model_names))
    amounts = np.array([amount for _, amount in asked])
    parts = takes * np.maximum(free, _TINY)
    parts /= np.maximum(parts.sum(axis=1, keepdims=True), _TINY)
    load = np.zeros(len(model_names))
    for _ in range(_ROUNDS):
        load = amounts @ parts / np.maximum(free, _TINY)
        parts /= np.sqrt(load + _TINY)
        parts /= np.maximum(parts.sum(axis=1, keepdims=True), _TINY)
    return load


def _mask(models: Models, model_names: Sequence[str]) -> list[bool]:
    return [models is None or name in models for name in model_names]


def prices(by_models: Mapping[Models, float], model_names: Sequence[str], free: F64) -> F64:
    """Return the price of a percent of each model's cards, in percent: (models + 1,), the last for nodes that name no
    model. Models of which nothing is left have none."""
    found = np.zeros(len(model_names) + 1)
    has = free > 0
    if not by_models or not has.any():
        return found
    load = loads(by_models, model_names, free)[has]
    found[:-1][has] = SCARCITY_WEIGHT * np.log((load + _TINY) / (load.min() + _TINY))
    return found


LEARNED_FIRST = 16
"""Pods after which the target is made for the first time."""
_RESCALE_HALF_LIVES = 500.0
"""Counts are kept relative to a start; before they leave the range of numbers, the start moves."""
KINDS_MAX = 4_096
"""Kinds of pods that are counted; the rarest go when there are twice as many."""


class Workload:
    """Decayed counts by kind of pod. `version` grows when they differ noticeably from what they were."""

    def __init__(self, half_life_s: float) -> None:
        self.version = 0
        self._half_life_s = half_life_s
        self._start_s: float | None = None
        self._counts: defaultdict[PodDemand, float] = defaultdict(float)
        self._seen = 0
        """Pods that came since `version` grew."""
        self._enough = LEARNED_FIRST

    def came(self, demand: PodDemand, at_s: float) -> None:
        """Count a pod that came at a time; pods without cards do not matter."""
        if not demand.shape.cards:
            return
        if self._start_s is None:
            self._start_s = at_s
        age = (at_s - self._start_s) / self._half_life_s
        if age > _RESCALE_HALF_LIVES:
            self._move_start(at_s, age)
            age = 0.0
        self._counts[demand] += 2.0**age
        self._seen += 1
        if len(self._counts) > 2 * KINDS_MAX:
            self._drop_rarest()
        if self._seen >= self._enough:
            self.version += 1
            # As many again would make half of what is known: counts are scaled to pods of now.
            self._enough = max(LEARNED_FIRST, math.ceil(sum(self._counts.values()) / 2.0**age))
            self._seen = 0

    @property
    def shares(self) -> Mapping[PodDemand, float]:
        """Return the share of each kind; sums up to 1, empty before anything came."""
        total = sum(self._counts.values())
        return {demand: count / total for demand, count in self._counts.items() if total}

    def _move_start(self, at_s: float, age: float) -> None:
        self._start_s = at_s
        scaled = {demand: count * 2.0**-age for demand, count in self._counts.items()}
        self._counts.clear()
        self._counts.update({demand: count for demand, count in scaled.items() if count > 0})

    def _drop_rarest(self) -> None:
        kept = sorted(self._counts.items(), key=lambda item: -item[1])[:KINDS_MAX]
        self._counts.clear()
        self._counts.update(kept)
