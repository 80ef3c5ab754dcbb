"""VolumeRestrictions: disks that only one pod may have, claims for a single pod. VolumeZone: bound volumes are reached
only from their zones. Source: behaviour/scheduler B1 and B9."""

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any

import msgspec
import numpy as np

from koordinator.api.core import Pod
from koordinator.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import Handle, PreFilterPlugin, PreFilterResult, ReasonCodes
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Reason, Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.volumes.catalog import (
    WAIT_FOR_FIRST_CONSUMER,
    ClaimKey,
    VolumePlugin,
    VolumeReachPlugin,
    claims_of,
    class_of,
    not_found,
)
from koordinator.scheduler.table.columns import RowChange, Rows, tally, tally_in
from koordinator.scheduler.table.label_columns import ABSENT
from koordinator.scheduler.table.nodes import RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

READ_WRITE_ONCE_POD = "ReadWriteOncePod"
DiskKey = tuple[str, ...]


class DiskReason(Reason):
    OK = 0, SUCCESS
    DISK = 1, unschedulable("node(s) had no available disk")
    CLAIM = (
        2,
        unschedulable(
            "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by "
            "another pod"
        ),
    )


class InTreeDisk(msgspec.Struct, frozen=True):
    """A disk by the names it has; `is_shared`: readers may share it with other readers."""

    keys: tuple[DiskKey, ...]
    is_shared: bool


class RestrictionState(msgspec.Struct, frozen=True):
    disks: tuple[InTreeDisk, ...]
    claims: tuple[ClaimKey, ...]
    missing: str
    exclusive: tuple[ClaimKey, ...]
    """Claims for a single pod."""


_NO_VOLUMES = RestrictionState((), (), "", ())


class VolumeRestrictions(PreFilterPlugin[RestrictionState], VolumePlugin[RestrictionState], RowKeeper):
    name = "VolumeRestrictions"
    kinds = (PersistentVolumeClaim,)
    reasons = DiskReason
    reads = RowChange.NODE | RowChange.PODS
    wakes_on = (
        ClusterEvent.ASSIGNED_POD_DELETED,
        ClusterEvent.NODE_ADDED,
        ClusterEvent.STORAGE,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._disks: dict[DiskKey, dict[tuple[int, bool], int]] = {}
        """Disk → row, and whether it is shared there → pods."""
        self._users: Counter[ClaimKey] = Counter()

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        return (_claims(pod.pod), tuple(disks_of(pod.pod))) if pod.pod.spec.volumes else ()

    def prepare(self, pod: PodInfo) -> RestrictionState:
        if not pod.pod.spec.volumes:
            return _NO_VOLUMES
        claims = _claims(pod.pod)
        found = [(key, self._catalog.claim(key)) for key in claims]
        return RestrictionState(
            disks=tuple(disks_of(pod.pod)),
            claims=claims,
            missing=next((key[1] for key, claim in found if claim is None), ""),
            exclusive=tuple(
                key
                for key, claim in found
                if claim is not None and READ_WRITE_ONCE_POD in claim.spec.access_modes
            ),
        )

    def epoch(self, state: RestrictionState) -> Hashable:
        return (self._catalog.version, self._is_taken(state)) if state.claims else None

    def pre_filter(self, state: RestrictionState) -> PreFilterResult:
        if state is _NO_VOLUMES:
            return PreFilterResult(SKIP)
        if state.missing:
            return PreFilterResult(unresolvable(not_found(state.missing)))
        if not state.disks and not self._is_taken(state):
            return PreFilterResult(SKIP)
        return PreFilterResult()

    def _is_taken(self, state: RestrictionState) -> bool:
        return any(self._users[key] for key in state.exclusive)

    def filter(self, state: RestrictionState, rows: Rows) -> ReasonCodes:
        taken = DiskReason.CLAIM if self._is_taken(state) else DiskReason.OK
        codes = np.full(rows.size, taken, np.uint16)
        conflicts = {
            row
            for disk in state.disks
            for key in disk.keys
            for row, is_shared in self._disks.get(key, ())
            if not (is_shared and disk.is_shared)
        }
        if conflicts:
            codes[np.isin(rows, sorted(conflicts))] = DiskReason.DISK
        return codes

    def facts(self, state: RestrictionState, row: int) -> tuple[str, ...]:
        lines = []
        for pod in self.handle.table.pods_at(row).values():
            if not pod.pod.spec.volumes:
                continue
            theirs = {key for disk in disks_of(pod.pod) if not disk.is_shared for key in disk.keys}
            readable = {key for disk in disks_of(pod.pod) for key in disk.keys}
            for disk in state.disks:
                taken = readable if not disk.is_shared else theirs
                if key := next((key for key in disk.keys if key in taken), None):
                    lines.append(f"disk {' '.join(key)} is used by pod {pod.key}")
            for claim in set(state.exclusive) & set(_claims(pod.pod)):
                lines.append(f"claim {'/'.join(claim)} (ReadWriteOncePod) is used by pod {pod.key}")
        taken_claims = [claim for claim in state.exclusive if self._users[claim]]
        if taken_claims and not lines:
            lines = [
                f"claim {'/'.join(each)} (ReadWriteOncePod) is used on another node" for each in taken_claims
            ]
        return tuple(lines)

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        """A pod helps by going when it used the same disk or claim; so does a claim of the pod that comes."""
        if event.kind is not ClusterEvent.ASSIGNED_POD_DELETED:
            return super().wakes(event, pod)
        gone = event.old
        if not isinstance(gone, PodInfo):
            return True
        wanted = {key for disk in disks_of(pod.pod) for key in disk.keys}
        had = {key for disk in disks_of(gone.pod) for key in disk.keys}
        return bool(wanted & had or {*_claims(pod.pod)} & {*_claims(gone.pod)})

    # Who uses what

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, 1)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, -1)

    def _count(self, row: int, pod: PodInfo, change: int) -> None:
        if not pod.pod.spec.volumes:
            return
        for claim in _claims(pod.pod):
            tally(self._users, claim, change)
        for disk in disks_of(pod.pod):
            for key in disk.keys:
                tally_in(self._disks, key, (row, disk.is_shared), change)


def _claims(pod: Pod) -> tuple[ClaimKey, ...]:
    """Claims that could be shared, which those of ephemeral volumes cannot."""
    return tuple(use.key for use in claims_of(pod) if not use.is_ephemeral)


def disks_of(pod: Pod) -> Iterator[InTreeDisk]:
    """Disks that the pod names itself and that not everybody can have at once."""
    for volume in pod.spec.volumes:
        if (gce := volume.gce_persistent_disk) is not None:
            yield InTreeDisk((("gce", gce.pd_name),), gce.read_only)
        if (ebs := volume.aws_elastic_block_store) is not None:
            yield InTreeDisk((("ebs", ebs.volume_id),), is_shared=False)
        if (iscsi := volume.iscsi) is not None:
            yield InTreeDisk((("iscsi", iscsi.iqn),), iscsi.read_only)
        if (rbd := volume.rbd) is not None:
            keys = tuple(("rbd", monitor, rbd.pool, rbd.image) for monitor in rbd.monitors)
            yield InTreeDisk(keys, rbd.read_only)


_GA_KEY = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
KEYS = (*_GA_KEY, *_GA_KEY.values())
SEPARATOR = "__"


class ZoneReason(Reason):
    OK = 0, SUCCESS
    ZONE = 1, unresolvable("node(s) had no available volume zone")


class Zones(msgspec.Struct, frozen=True):
    """A label of a volume: nodes must have one of the values under the key."""

    key: str
    values: frozenset[str]


class ZoneState(msgspec.Struct, frozen=True):
    zones: tuple[Zones, ...]
    refusal: Status


_NO_CLAIMS = ZoneState((), SUCCESS)


class VolumeZone(PreFilterPlugin[ZoneState], VolumeReachPlugin[ZoneState]):
    name = "VolumeZone"
    kinds = (PersistentVolumeClaim, PersistentVolume, StorageClass)
    reasons = ZoneReason

    def prepare(self, pod: PodInfo) -> ZoneState:
        claims = _claims(pod.pod)
        if not claims:
            return _NO_CLAIMS
        zones: list[Zones] = []
        for key in claims:
            found = self._zones_of(key)
            if isinstance(found, Status):
                return ZoneState((), found)
            zones += found
        return ZoneState(tuple(zones), SUCCESS)

    def _zones_of(self, key: ClaimKey) -> list[Zones] | Status:
        """Return where the volume of a claim can be reached, or why nobody can tell."""
        claim = self._catalog.claim(key)
        if claim is None:
            return unresolvable(not_found(key[1]))
        name = claim.spec.volume_name
        if not name:
            return self._unbound(class_of(claim))
        volume = self._catalog.volume(name)
        if volume is None:
            return unresolvable(f'persistentvolume "{name}" not found')
        labels = volume.metadata.labels
        zones = [Zones(key, frozenset(labels[key].split(SEPARATOR))) for key in KEYS if key in labels]
        # An empty zone is a mistake; the label then says nothing.
        return [each for each in zones if "" not in each.values]

    def _unbound(self, class_name: str) -> list[Zones] | Status:
        if not class_name:
            return unresolvable("PersistentVolumeClaim had no pv name and storageClass name")
        storage_class = self._catalog.storage_class(class_name)
        if storage_class is None:
            return unresolvable(f'storageclasses.storage.k8s.io "{class_name}" not found')
        if storage_class.volume_binding_mode is None:
            return unresolvable(f'VolumeBindingMode not set for StorageClass "{class_name}"')
        if storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER:
            return []
        return unresolvable("PersistentVolume had no name")

    def facts(self, state: ZoneState, row: int) -> tuple[str, ...]:
        node = self.handle.table.node_at(row)
        labels = {} if node is None else node.metadata.labels
        lines = []
        for zones in state.zones:
            key = zones.key if zones.key in labels else _GA_KEY.get(zones.key, zones.key)
            has = labels.get(key, "nothing")
            lines.append(
                f"a volume needs {zones.key} in {', '.join(sorted(zones.values))}; the node has {has}"
            )
        return tuple(lines)

    def epoch(self, state: ZoneState) -> Hashable:
        return None if state is _NO_CLAIMS else self._catalog.version

    def pre_filter(self, state: ZoneState) -> PreFilterResult:
        if not state.refusal.is_success:
            return PreFilterResult(state.refusal)
        return PreFilterResult() if state.zones else PreFilterResult(SKIP)

    def filter(self, state: ZoneState, rows: Rows) -> ReasonCodes:
        is_far = np.zeros(rows.size, np.bool_)
        for zones in state.zones:
            column = self._labels.column(zones.key)
            ids = self._labels.ids(zones.key, rows)
            is_near = np.isin(ids, column.numbers_of(zones.values))
            ga_key = _GA_KEY.get(zones.key)
            if ga_key is not None:
                # The node may have moved on to the current name of the label.
                numbers = self._labels.column(ga_key).numbers_of(zones.values)
                is_near |= (ids == ABSENT) & np.isin(self._labels.ids(ga_key, rows), numbers)
            is_far |= ~is_near
        has_any = np.zeros(rows.size, np.bool_)
        for key in KEYS:
            has_any |= self._labels.ids(key, rows) != ABSENT
        return (is_far & has_any).astype(np.uint16)
