"""Evicting batch pods from GPUs whose owners want back what was lent of them (feature gate BatchGPU).

An owner is whoever holds a part of a card that is not lent. A card is full when what owners use and what batch pods
have exceed `FULL_PERCENT` of it; then batch pods of this card go, until it is not. A batch pod has what it was given,
or what it uses where nothing holds it to that (docs/devices.md says what does).
"""

import math
from collections.abc import Callable, Iterable, Mapping

import msgspec

from koordinator.api import pod_labels, priority, qos, resources
from koordinator.api.annotations import koordlet as koordlet_annotations
from koordinator.api.core import Pod
from koordinator.api.feature_gates import FeatureGate, FeatureStage
from koordinator.host.gpu import GPUDevice
from koordinator.koordlet import gpu_shares
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.gpu_shares import BATCH_GPU
from koordinator.koordlet.qos import eviction
from koordinator.koordlet.qos.eviction import EvictionTask, ReleaseTarget
from koordinator.koordlet.qos.eviction_strategy import EvictionStrategy, Flag, plausible

FULL_PERCENT = 95
"""Half of the tenth that is never lent (`koordlet.predict.gpus`) is left when eviction begins."""
WHOLE_PERCENT = 100
_MILLI = 1000
WINDOW_S = 10.0
"""Compute in use comes and goes from second to second; memory is looked at as it is."""


class CardUse(msgspec.Struct, frozen=True):
    """Use of one card, or of a pod there: compute in percent, memory in bytes."""

    core_percent: float = 0.0
    memory_bytes: float = 0.0

    def __add__(self, other: "CardUse") -> "CardUse":
        return CardUse(self.core_percent + other.core_percent, self.memory_bytes + other.memory_bytes)

    def above(self, other: "CardUse") -> "CardUse":
        """Return what is used beyond another use, never below zero."""
        return CardUse(
            max(self.core_percent - other.core_percent, 0.0), max(self.memory_bytes - other.memory_bytes, 0.0)
        )

    def at_least(self, other: "CardUse") -> "CardUse":
        """Return the larger of both, per amount."""
        return CardUse(max(self.core_percent, other.core_percent), max(self.memory_bytes, other.memory_bytes))


NO_USE = CardUse()


class LentCard(msgspec.Struct, frozen=True):
    """A card that batch pods are on: what owners use of it, and what each batch pod has."""

    minor: int
    memory_bytes: int
    owners: CardUse
    batch: Mapping[str, CardUse]
    """By UID."""


class BatchGPUEvict(EvictionStrategy):
    """One feature: owners of GPUs get back what was lent of them."""

    name = "BatchGPUEvict"
    gates = (BATCH_GPU,)
    new_gates = {
        BATCH_GPU: FeatureGate(
            False,
            FeatureStage.ALPHA,
            "predict what services leave of GPUs, and evict batch pods from cards whose owners want it back",
        )
    }
    interval = Flag(
        "batch-gpu-evict-interval-seconds",
        1,
        "Loop of eviction from lent GPUs; 0: off (not in the reference).",
    )
    cool_down = Flag(
        "batch-gpu-evict-cool-time-seconds",
        4,
        "Pause after an eviction from lent GPUs (not in the reference).",
    )

    def tasks(self, now_s: float) -> list[EvictionTask]:
        gpus = self._shared.gpus
        if gpus is None:
            return []
        pods = self.active_pods()
        cards = [found for device in gpus.devices if (found := self._card(device, pods)) is not None]
        return wanted(cards, pods)

    def _card(self, device: GPUDevice, pods: Iterable[Pod]) -> LentCard | None:
        """Return how a card is used; None where nobody borrows, or its use was not measured."""
        owners, borrowers, batch = NO_USE, NO_USE, {}
        for pod in pods:
            uid = pod.metadata.uid
            for share in gpu_shares.shares_of(pod):
                if not share.is_of(device.minor, device.uuid):
                    continue
                used = self._used(kinds.POD_GPU_CORE, kinds.POD_GPU_MEMORY, device, uid) or NO_USE
                if share.is_lent:
                    borrowers += used
                    batch[uid] = CardUse(share.core_percent, share.memory_bytes).at_least(used)
                else:
                    owners += used
        whole = self._used(kinds.NODE_GPU_CORE, kinds.NODE_GPU_MEMORY, device) if batch else None
        if whole is None:
            return None
        # What runs outside of pods counts as the owners'.
        owners += whole.above(owners + borrowers)
        return LentCard(device.minor, device.memory_bytes, owners, batch)

    def _used(self, core_kind: str, memory_kind: str, device: GPUDevice, uid: str = "") -> CardUse | None:
        at = {kinds.GPU_MINOR: str(device.minor), kinds.GPU_UUID: device.uuid}
        if uid:
            at[kinds.POD_UID] = uid
        readings = self._shared.readings
        core = plausible(readings.average(core_kind, WINDOW_S, at).value, WHOLE_PERCENT)
        memory = plausible(readings.latest(memory_kind, at), device.memory_bytes)
        return None if core is None or memory is None else CardUse(core, memory)


def wanted(cards: Iterable[LentCard], pods: Iterable[Pod]) -> list[EvictionTask]:
    """Return what must go from each card that is full."""
    by_uid = {pod.metadata.uid: pod for pod in pods}
    tasks = []
    for card in cards:
        both = sum(card.batch.values(), card.owners)
        excess = both.above(CardUse(FULL_PERCENT, card.memory_bytes * FULL_PERCENT / WHOLE_PERCENT))
        asked = _amounts(card.minor, excess, math.ceil)
        if not any(asked.values()):
            continue
        there = [by_uid[uid] for uid in card.batch if uid in by_uid]
        gives = {uid: _amounts(card.minor, has, math.floor) for uid, has in card.batch.items()}
        victims = eviction.uids(_in_order(there, card))
        tasks.append(
            EvictionTask(BATCH_GPU, ReleaseTarget.REQUEST, asked, victims, gives, _reason(card, both))
        )
    return tasks


def _amounts(minor: int, use: CardUse, whole: Callable[[float], int]) -> dict[str, int]:
    """Return amounts of a card, thousandths of a percent and bytes, under names of its own: what is given back on one
    card is of no use on another."""
    core, memory = resources.BATCH_GPU_RESOURCES
    return {
        f"{core}@{minor}": whole(use.core_percent * _MILLI),
        f"{memory}@{minor}": whole(use.memory_bytes),
    }


def _reason(card: LentCard, both: CardUse) -> str:
    memory_percent = WHOLE_PERCENT * both.memory_bytes / max(card.memory_bytes, 1)
    if both.core_percent > FULL_PERCENT:
        what, owners, together = "compute", card.owners.core_percent, both.core_percent
    else:
        owners = WHOLE_PERCENT * card.owners.memory_bytes / max(card.memory_bytes, 1)
        what, together = "memory", memory_percent
    return (
        f"GPU {card.minor}: its owners use {owners:.0f}% of its {what}, with what batch pods have {together:.0f}%, "
        f"above {FULL_PERCENT}%"
    )


def _in_order(pods: Iterable[Pod], card: LentCard) -> list[Pod]:
    """Return candidates, first victim first: by eviction priority, priority, sub-priority, then who has more."""

    def rank(pod: Pod) -> tuple[int, int, int, float, float]:
        number = priority.default_number(pod)
        has = card.batch[pod.metadata.uid]
        return (
            eviction.eviction_priority(pod.metadata.annotations),
            number,
            priority.sub_priority(pod.metadata.labels, number),
            -has.core_percent,
            -has.memory_bytes,
        )

    candidates = [
        pod
        for pod in pods
        if not pod_labels.is_inactive(pod.status.phase)
        and qos.raw(pod) not in eviction.NEVER
        and koordlet_annotations.allows_eviction_by(pod.metadata.annotations, BATCH_GPU)
    ]
    return sorted(eviction.younger_first(candidates), key=rank)
