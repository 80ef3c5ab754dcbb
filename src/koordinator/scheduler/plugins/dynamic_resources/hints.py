"""Which events can help pods whose claims were refused."""

import numpy as np

from koordinator.api.core import Pod
from koordinator.api.dra import ResourceClaim
from koordinator.scheduler.plugin.events import ClusterEvent, Happening
from koordinator.scheduler.plugin.framework import Mask, WakeIndex
from koordinator.scheduler.plugins.dynamic_resources.claims import ClaimKey, claim_names
from koordinator.scheduler.table.pod_info import PodInfo

CLAIM_EVENTS = (
    ClusterEvent.RESOURCE_CLAIM_ADDED,
    ClusterEvent.RESOURCE_CLAIM_UPDATED,
    ClusterEvent.RESOURCE_CLAIM_DELETED,
)


def keys_of(pod: Pod) -> frozenset[ClaimKey]:
    """Claims that the pod names, as far as they are known."""
    namespace = pod.metadata.namespace
    return frozenset((namespace, name) for _, name in claim_names(pod) if name is not None)


def gives_back(happening: Happening) -> bool:
    """Whether devices became free: a claim lost them, or went, or a promise was taken back."""
    old, new = happening.old, happening.new
    if old is None and new is None:
        return True
    had = isinstance(old, ResourceClaim) and old.status.allocation is not None
    has = isinstance(new, ResourceClaim) and new.status.allocation is not None
    return had and not has


def helps(happening: Happening, pod: Pod) -> bool:
    """Whether news of a claim can help a pod: its own claim came or has another status, or devices became free."""
    if gives_back(happening):
        return True
    old, new = happening.old, happening.new
    if new is None or (new.metadata.namespace, new.metadata.name) not in keys_of(pod):
        return False
    return old is None or old.status != new.status or old.metadata.uid != new.metadata.uid


class ClaimIndex(WakeIndex):
    """Pods by the claims that they wait for: most news of claims concern one pod of thousands."""

    def __init__(self) -> None:
        self._slots: dict[ClaimKey, set[int]] = {}
        self._keys: dict[int, frozenset[ClaimKey]] = {}

    def put(self, slot: int, pod: PodInfo) -> None:
        keys = self._keys[slot] = keys_of(pod.pod)
        for key in keys:
            self._slots.setdefault(key, set()).add(slot)

    def clear(self, slot: int) -> None:
        for key in self._keys.pop(slot, ()):
            slots = self._slots[key]
            slots.discard(slot)
            if not slots:
                del self._slots[key]

    def may_wake(self, happening: Happening, slot_count: int) -> Mask:
        if happening.event not in CLAIM_EVENTS or gives_back(happening):
            return np.ones(slot_count, np.bool_)
        found = np.zeros(slot_count, np.bool_)
        subject = happening.new if happening.new is not None else happening.old
        meta = subject.metadata
        found[list(self._slots.get((meta.namespace, meta.name), ()))] = True
        return found
