"""NodeVolumeLimits: how many volumes of a CSI driver a node can have attached. Source: spec 03, B1 and B9."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from typing import Any

import msgspec
import numpy as np

from koordinator.api.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from koordinator.scheduler.changes import Change
from koordinator.scheduler.events import ClusterEvent, Happening
from koordinator.scheduler.framework import (
    FilterPlugin,
    Handle,
    PreFilterPlugin,
    PreFilterResult,
    ReasonCodes,
)
from koordinator.scheduler.nodes import RowKeeper, Rows
from koordinator.scheduler.plugins.volumes.catalog import (
    ClaimKey,
    ClaimUse,
    VolumeCatalog,
    belongs_to,
    claims_of,
    class_of,
    helps,
    not_owned,
)
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.status import SKIP, Status, unresolvable, unschedulable

Attached = dict[str, set[str]]
"""Driver → handles of its volumes."""

KINDS = (PersistentVolumeClaim, PersistentVolume, StorageClass, CSINode, VolumeAttachment)
_TOO_MANY = 1
_MISSING = 2


class LimitState(msgspec.Struct, frozen=True):
    """The volumes that a pod needs; `missing` says which claim cannot be found."""

    claims: tuple[ClaimUse, ...]
    volumes: Attached
    missing: str


class NodeVolumeLimits(PreFilterPlugin[LimitState], FilterPlugin[LimitState], RowKeeper):
    name = "NodeVolumeLimits"
    fewer_pods_help = True
    wakes_for_row = True
    reads = Change.NODE | Change.PODS
    wakes_on = (
        ClusterEvent.ASSIGNED_POD_DELETED,
        ClusterEvent.NODE_ADDED,
        ClusterEvent.STORAGE,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._catalog = VolumeCatalog(handle, KINDS)
        self._claims: dict[int, Counter[ClaimKey]] = {}
        self._attached: dict[int, Attached] = {}
        self._attachments: dict[str, list[VolumeAttachment]] = {}
        self._seen_version = 0

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        if not pod.pod.spec.volumes:
            return ()
        claims = claims_of(pod.pod)
        return (claims, pod.uid if any(use.is_ephemeral for use in claims) else "")

    def prepare(self, pod: PodInfo) -> LimitState:
        claims = claims_of(pod.pod)
        volumes: Attached = defaultdict(set)
        for use in claims:
            namespace, name = use.key
            claim = self._catalog.claim(use.key)
            if claim is None:
                text = f'looking up PVC {namespace}/{name}: persistentvolumeclaims "{name}" not found'
                return LimitState(claims, {}, text)
            if use.is_ephemeral and not belongs_to(claim, pod.pod):
                return LimitState(claims, {}, not_owned(claim, pod.pod))
            self._add(volumes, claim)
        return LimitState(claims, dict(volumes), "")

    def epoch(self, state: LimitState) -> Hashable:
        return self._catalog.version if state.claims else None

    def pre_filter(self, state: LimitState) -> PreFilterResult:
        return PreFilterResult() if state.claims else PreFilterResult(SKIP)

    def filter(self, state: LimitState, rows: Rows) -> ReasonCodes:
        if state.missing:
            return np.full(rows.size, _MISSING, np.uint16)
        codes = np.zeros(rows.size, np.uint16)
        if not state.volumes:
            return codes
        table = self.handle.table
        for index, row in enumerate(rows.tolist()):
            limits = self._limits_of(table.name_of(row))
            if limits and self._is_over(state.volumes, limits, self._attached_at(row)):
                codes[index] = _TOO_MANY
        return codes

    def wakes(self, happening: Happening, pod: PodInfo) -> bool:
        """Volumes that leave a node help there; so does what is learnt about claims and drivers."""
        if happening.event is ClusterEvent.STORAGE:
            return helps(happening, pod.pod, KINDS)
        return super().wakes(happening, pod)

    def refusal(self, state: LimitState, code: int) -> Status:
        if code == _MISSING:
            return unresolvable(state.missing)
        return unschedulable("node(s) exceed max volume count")

    def _is_over(self, new: Attached, limits: dict[str, int], attached: Attached) -> bool:
        for driver, handles in new.items():
            there = attached.get(driver, set())
            # Volumes that are there already need no new place.
            if driver in limits and handles - there and len(there | handles) > limits[driver]:
                return True
        return False

    def _limits_of(self, node_name: str) -> dict[str, int]:
        csi_node = self._catalog.find(CSINode, node_name)
        if csi_node is None:
            return {}
        return {
            driver.name: driver.allocatable.count
            for driver in csi_node.spec.drivers
            if driver.allocatable is not None and driver.allocatable.count is not None
        }

    # What is attached where

    def _attached_at(self, row: int) -> Attached:
        """Volumes of the pods on a row, and those attached to the node without one."""
        if self._seen_version != self._catalog.version:
            self._seen_version = self._catalog.version
            self._attached.clear()
            self._attachments = _by_node(self._catalog.all(VolumeAttachment))
        found = self._attached.get(row)
        if found is None:
            found = defaultdict(set)
            for key in self._claims.get(row, ()):
                claim = self._catalog.claim(key)
                if claim is not None:
                    self._add(found, claim)
            for attachment in self._attachments.get(self.handle.table.name_of(row), ()):
                volume = self._catalog.volume(attachment.spec.source.persistent_volume_name or "")
                if volume is not None and volume.spec.csi is not None:
                    found[volume.spec.csi.driver].add(volume.spec.csi.volume_handle)
            self._attached[row] = found
        return found

    def _add(self, volumes: Attached, claim: PersistentVolumeClaim) -> None:
        """Book the volume of a claim; one that is not there yet counts once, with the driver of its class."""
        volume = self._catalog.volume(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            if volume.spec.csi is not None:
                volumes[volume.spec.csi.driver].add(volume.spec.csi.volume_handle)
            return
        storage_class = self._catalog.storage_class(class_of(claim))
        if storage_class is not None and storage_class.provisioner:
            # A blank cannot be in a handle: no volume is mistaken for the claim.
            volumes[storage_class.provisioner].add(f"claim {claim.key}")

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        if not pod.pod.spec.volumes:
            return
        self._claims.setdefault(row, Counter()).update(use.key for use in claims_of(pod.pod))
        self._attached.pop(row, None)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        if not pod.pod.spec.volumes:
            return
        claims = self._claims[row]
        for use in claims_of(pod.pod):
            claims[use.key] -= 1
            if not claims[use.key]:
                del claims[use.key]
        self._attached.pop(row, None)

    def node_changed(self, row: int, node: Any) -> None:
        self._attached.pop(row, None)

    def row_freed(self, row: int) -> None:
        self._claims.pop(row, None)
        self._attached.pop(row, None)


def _by_node(attachments: Iterable[VolumeAttachment]) -> dict[str, list[VolumeAttachment]]:
    found: dict[str, list[VolumeAttachment]] = {}
    for attachment in attachments:
        found.setdefault(attachment.spec.node_name, []).append(attachment)
    return found
