"""The target workload as arrays: what pods usually ask for, by the model of a node's cards."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.scheduler.plugins.fragmentation.card_values import F64, WHOLE, card_values
from koordinator.scheduler.plugins.fragmentation.demand import Models, PodDemand, Shape

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
