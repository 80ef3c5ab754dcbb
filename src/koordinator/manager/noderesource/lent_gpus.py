"""Lend GPUs of services to batch pods: card by card, at most what the node agent predicts to stay free.

The agent reports of each card what services requested of it and, at their predicted peak, will not use
(`koordlet.predict.gpus`). A pool lends a share of that (`gpuReclaimPercent`), in steps, so that noise writes no nodes.
"""

from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api import quantity, resources
from koordinator.api.annotations.device import NODE_BATCH_GPUS, DeviceAllocation, DeviceType
from koordinator.api.device import DeviceInfo
from koordinator.api.quantity import Family

CORE_STEP_PERCENT = 5
MEMORY_STEP_BYTES = 2**30
"""A card lends whole steps."""
_PERCENT = 100


class CardAmount(msgspec.Struct, frozen=True, gc=False):
    """An amount of one GPU: percent of its compute, and bytes."""

    minor: int
    core_percent: int
    memory_bytes: int


CardAmounts = Mapping[str, CardAmount]
"""By id of the card."""
NO_CARDS: CardAmounts = {}


def cards_of(devices: Iterable[DeviceInfo]) -> CardAmounts:
    """Return what is said of each GPU; of one without an id nothing. Raises: QuantityError."""
    return {
        each.id: CardAmount(
            each.minor or 0,
            quantity.value(each.resources.get(resources.GPU_CORE, 0)),
            quantity.value(each.resources.get(resources.GPU_MEMORY, 0)),
        )
        for each in devices
        if each.type == DeviceType.GPU and each.id
    }


def lent(reclaimable: CardAmounts, cards: CardAmounts, percent: int) -> CardAmounts:
    """Return what each of the healthy `cards` lends of what is reclaimable: both amounts, or nothing.

    Never more than `percent` (0 to 100) of what is reclaimable, nor than the card has.
    """
    found = {}
    for name, free in reclaimable.items():
        card = cards.get(name)
        if card is None or card.minor != free.minor:
            continue  # broken, gone, or numbered anew since the report
        core = min(free.core_percent, card.core_percent) * percent // _PERCENT
        memory = min(free.memory_bytes, card.memory_bytes) * percent // _PERCENT
        core, memory = core - core % CORE_STEP_PERCENT, memory - memory % MEMORY_STEP_BYTES
        if core > 0 and memory > 0:
            found[name] = CardAmount(card.minor, core, memory)
    return found


def sums(cards: CardAmounts) -> dict[str, int | None]:
    """Return what the node offers as a whole, by resource in whole units; None where it must offer none."""
    if not cards:
        return dict.fromkeys(resources.BATCH_GPU_RESOURCES)
    return {
        resources.BATCH_GPU_CORE: sum(each.core_percent for each in cards.values()),
        resources.BATCH_GPU_MEMORY: sum(each.memory_bytes for each in cards.values()),
    }


def text_of(cards: CardAmounts) -> str | None:
    """Return the annotation of the node, None for none."""
    if not cards:
        return None
    entries = [
        DeviceAllocation(
            minor=each.minor,
            resources={
                resources.BATCH_GPU_CORE: str(each.core_percent),
                resources.BATCH_GPU_MEMORY: quantity.text_of_value(each.memory_bytes, Family.BINARY),
            },
            id=name,
        )
        for name, each in sorted(cards.items(), key=lambda item: item[1].minor)
    ]
    return NODE_BATCH_GPUS.encode({DeviceType.GPU: entries})
