"""Describe GPUs while pods arrive: how much is left and why nobody can use it, and a bound of what can be allocated.

Amounts of GPU are in percent of a card. A pod of the list, drawn at random, cannot use free GPU because the card's
model is not its own, CPU or memory of the node do not suffice, or each free part is too small for it; the first that
holds counts.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.scheduler.plugins.fragmentation.card_values import WHOLE, card_values
from koordinator.scheduler.plugins.fragmentation.demand import Models, PodDemand

MODELS_MAX = 12
"""Models up to which all sets of them are looked at for the bound."""


class GpuPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One piece of what is said about GPUs; all in percent of all GPUs."""


class GpuLeft(GpuPart, frozen=True, kw_only=True):
    """The GPU that is not allocated, by why an average pod of the list cannot use it; `usable` is the rest."""

    wrong_model: float
    no_cpu: float
    no_memory: float
    too_small: float
    usable: float


class GpuPoint(GpuPart, frozen=True, kw_only=True):
    """A moment: how much had been requested until then, and how much was allocated and left."""

    arrived_percent: float
    allocated_percent: float
    left: GpuLeft


class GpuReport(GpuPart, frozen=True, kw_only=True):
    """The outcome of pods arriving. "Full arrivals": as much was requested as there is, placed or not; None when it did
    not come to that. No placement exceeds the bounds."""

    arrived_pods: int
    placed_pods: int
    arrived_percent: float
    allocated_percent_at_full_arrivals: float | None
    allocated_percent: float
    bound_percent_at_full_arrivals: float | None
    bound_percent: float
    course: list[GpuPoint]


class FreeNodes(msgspec.Struct, frozen=True, eq=False):
    """The room that nodes have left; `cards` (slots, nodes) in percent, `models` (nodes,) by name."""

    cpu_milli: npt.NDArray[np.int64]
    memory_bytes: npt.NDArray[np.int64]
    cards: npt.NDArray[np.uint8]
    models: npt.NDArray[np.intp]
    model_names: Sequence[str]


def left(nodes: FreeNodes, counts: Mapping[PodDemand, int], total: float) -> GpuLeft:
    """Return what is left by cause, for a list with `counts` pods of each kind, in percent of `total`."""
    asked = {demand: count for demand, count in counts.items() if demand.shape.cards}
    free = nodes.cards.sum(axis=0, dtype=np.int64)
    fits: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
    causes = np.zeros(4)
    for demand, count in asked.items():
        shape = demand.shape
        key = shape.cards, shape.percent
        if key not in fits:
            fits[key] = _fit(nodes.cards, *key)
        is_own = _takes(demand.models, nodes)
        has_cpu = is_own & (nodes.cpu_milli >= shape.cpu_milli)
        can_run = has_cpu & (nodes.memory_bytes >= shape.memory_bytes)
        lost = free.sum(where=~is_own), free.sum(where=is_own & ~has_cpu), free.sum(where=has_cpu & ~can_run)
        causes += count * np.array([*lost, (free - fits[key]).sum(where=can_run)])
    causes *= 100 / (max(total, 1) * max(sum(asked.values()), 1))
    wrong_model, no_cpu, no_memory, too_small = causes.tolist()
    usable = 100 * float(free.sum()) / max(total, 1) - float(causes.sum())
    return GpuLeft(
        wrong_model=wrong_model, no_cpu=no_cpu, no_memory=no_memory, too_small=too_small, usable=usable
    )


def _takes(models: Models, nodes: FreeNodes) -> npt.NDArray[np.bool_]:
    if models is None:
        return np.ones(nodes.models.size, np.bool_)
    return np.array([name in models for name in nodes.model_names] + [False])[nodes.models]


def _fit(cards: npt.NDArray[np.uint8], count: int, percent: int) -> npt.NDArray[np.int64]:
    """(nodes,): GPU percent on cards that a pod can use."""
    is_enough = cards >= percent
    usable: npt.NDArray[np.int64] = np.where(is_enough, cards, 0).sum(axis=0, dtype=np.int64)
    return np.where(is_enough.sum(axis=0) >= count, usable, 0)


def bound(arrived: Mapping[PodDemand, int], by_model: Mapping[str, int]) -> float:
    """Return a percentage of all GPUs that no placement of these pods exceeds; `by_model` has the cards of each model.

    It is the lesser of two: what the cards of each set of models take of the pods that must go there (the minimal cut
    between pods and models), and what all cards take when parts cost what filling cards with them costs
    (`card_values`: each card holds parts worth 1 at most).
    """
    cards = sum(by_model.values())
    asked = {demand: count for demand, count in arrived.items() if demand.shape.cards}
    by_models: dict[Models, int] = {}
    for demand, count in asked.items():
        by_models[demand.models] = by_models.get(demand.models, 0) + count * demand.shape.gpu_percent
    bounds = _cut(by_models, by_model), _filled(asked, cards)
    return float(100 * min(bounds) / max(WHOLE * cards, 1))


def _cut(by_models: Mapping[Models, int], by_model: Mapping[str, int]) -> float:
    names = list(by_model)
    lowest = float(WHOLE * sum(by_model.values()))
    for chosen in range(1 << len(names) if len(names) <= MODELS_MAX else 0):
        full = {name for index, name in enumerate(names) if chosen >> index & 1}
        others = sum(
            amount
            for models, amount in by_models.items()
            if any(name not in full for name in (names if models is None else models) if name in by_model)
        )
        lowest = min(lowest, others + WHOLE * sum(by_model[name] for name in full))
    return lowest


def _filled(asked: Mapping[PodDemand, int], cards: int) -> float:
    parts: dict[int, float] = {}
    for demand, count in asked.items():
        shape = demand.shape
        parts[shape.percent] = parts.get(shape.percent, 0.0) + count * shape.cards
    prices = card_values(parts)
    room, found = float(cards), 0.0
    # The most percent for its price first.
    for percent, amount in sorted(parts.items(), key=lambda item: prices[item[0]] / item[0]):
        taken = min(amount, room / prices[percent]) if prices[percent] > 0 else amount
        found += taken * percent
        room -= taken * prices[percent]
    return found
