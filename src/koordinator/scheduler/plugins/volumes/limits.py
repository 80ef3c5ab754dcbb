"""NodeVolumeLimits: how many volumes of a CSI driver a node can have attached. Source: behaviour/scheduler B1 and
B9."""

from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import Any

import msgspec
import numpy as np

from koordinator.api.meta import is_controlled_by
from koordinator.api.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from koordinator.cluster.informer import key_of
from koordinator.scheduler.plugin.events import ClusterEvent, newest
from koordinator.scheduler.plugin.framework import (
    Handle,
    PreFilterPlugin,
    PreFilterResult,
    ReasonCodes,
    Relief,
)
from koordinator.scheduler.plugin.status import SKIP, Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.volumes.catalog import (
    ClaimKey,
    VolumePlugin,
    claims_of,
    class_key_of,
    class_of,
    not_owned,
)
from koordinator.scheduler.plugins.volumes.in_tree_disks import (
    DRIVERS,
    Disk,
    attached_as,
    disks_of,
    inline_disks,
)
from koordinator.scheduler.table.columns import RowChange, Rows, discard, tally_in
from koordinator.scheduler.table.nodes import RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

Attached = dict[str, set[str]]
"""Driver → handles of its volumes."""

NEAR_NODES_MAX = 3
_TOO_MANY = 1
_MISSING = 2


class LimitState(msgspec.Struct, frozen=True):
    """The volumes that a pod needs; `missing` says which claim cannot be found."""

    volumes: Attached
    missing: str


_NO_CLAIMS = LimitState({}, "")


class NodeVolumeLimits(PreFilterPlugin[LimitState], VolumePlugin[LimitState], RowKeeper):
    name = "NodeVolumeLimits"
    kinds = (PersistentVolumeClaim, PersistentVolume, StorageClass, CSINode, VolumeAttachment)
    keyed_by = (class_key_of, inline_disks)
    wakes_for_row = True
    reads = RowChange.NODE | RowChange.PODS
    wakes_on = (
        ClusterEvent.ASSIGNED_POD_DELETED,
        ClusterEvent.NODE_ADDED,
        ClusterEvent.STORAGE,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._catalog.on_change = self._changed
        self._claims: dict[int, dict[ClaimKey, int]] = {}
        self._rows_of: dict[ClaimKey, dict[int, int]] = {}
        self._disks: dict[int, dict[Disk, int]] = {}
        """Row → disks that pods there name themselves → pods."""
        self._attached: dict[int, Attached] = {}
        self._attachments: dict[str, dict[str, VolumeAttachment]] = {}
        self._nodes_of: dict[str, set[str]] = {}
        """Nodes that a volume is attached to, by its name."""
        self._limits: dict[str, dict[str, int]] = {}
        """Most volumes by driver and node."""

    # A pod

    def prepare(self, pod: PodInfo) -> LimitState:
        claims, disks = claims_of(pod.pod), disks_of(pod.pod)
        if not claims and not disks:
            return _NO_CLAIMS
        volumes: Attached = defaultdict(set)
        for driver, handle in disks:
            volumes[driver].add(handle)
        for use in claims:
            namespace, name = use.key
            claim = self._catalog.claim(use.key)
            if claim is None:
                text = f'looking up PVC {namespace}/{name}: persistentvolumeclaims "{name}" not found'
                return LimitState({}, text)
            if use.is_ephemeral and not is_controlled_by(claim, pod.pod):
                return LimitState({}, not_owned(claim, pod.pod))
            self._add(volumes, claim)
        return LimitState(dict(volumes), "")

    def epoch(self, state: LimitState) -> Hashable:
        return None if state is _NO_CLAIMS else self._catalog.version

    def pre_filter(self, state: LimitState) -> PreFilterResult:
        return PreFilterResult(SKIP) if state is _NO_CLAIMS else PreFilterResult()

    def filter(self, state: LimitState, rows: Rows) -> ReasonCodes:
        if state.missing:
            return np.full(rows.size, _MISSING, np.uint16)
        codes = np.zeros(rows.size, np.uint16)
        if not state.volumes:
            return codes
        limited = [self._limits[driver] for driver in state.volumes if driver in self._limits]
        if not limited:
            return codes
        name_of = self.handle.table.name_of
        for index, row in enumerate(rows.tolist()):
            name = name_of(row)
            # Volumes that are there already need no new place.
            if any(name in limits for limits in limited) and any(
                more and there + more > limit for _, there, more, limit in self._figures(state, row)
            ):
                codes[index] = _TOO_MANY
        return codes

    def refusal(self, state: LimitState, code: int) -> Status:
        if code == _MISSING:
            return unresolvable(state.missing)
        return unschedulable("node(s) exceed max volume count")

    def facts(self, state: LimitState, row: int) -> tuple[str, ...]:
        return tuple(
            f"{driver}: {there} volumes attached, {more} more for this pod, at most {limit}"
            for driver, there, more, limit in self._figures(state, row)
        )

    def reliefs(self, state: LimitState, rows: Rows) -> list[Relief]:
        """Volumes to detach where fewest are too many."""
        found = []
        for row in rows.tolist():
            over = [
                (driver, there + more - limit, limit >= more)
                for driver, there, more, limit in self._figures(state, row)
                if more and there + more > limit
            ]
            if over and all(is_possible for *_, is_possible in over):
                parts = [f"{count} volumes of {driver}" for driver, count, _ in over]
                name = self.handle.table.name_of(row)
                text = f"detach {' and '.join(parts)} from {name}"
                found.append((sum(count for _, count, _ in over), Relief("volumes", text, (row,))))
        found.sort(key=lambda each: (each[0], each[1].rows))
        return [relief for _, relief in found[:NEAR_NODES_MAX]]

    def _figures(self, state: LimitState, row: int) -> Iterator[tuple[str, int, int, int]]:
        """(driver, volumes that are attached, those that come with the pod, limit), where there is a limit."""
        attached, name = self._attached_at(row), self.handle.table.name_of(row)
        for driver, handles in sorted(state.volumes.items()):
            limit = self._limits.get(driver, {}).get(name)
            if limit is not None:
                there = attached.get(driver, set())
                yield driver, len(there), len(handles - there), limit

    # What is attached where

    def _attached_at(self, row: int) -> Attached:
        """Volumes of the pods on a row, and those attached to the node without one."""
        found = self._attached.get(row)
        if found is None:
            found = defaultdict(set)
            for key in self._claims.get(row, ()):
                claim = self._catalog.claim(key)
                if claim is not None:
                    self._add(found, claim)
            for driver, handle in self._disks.get(row, ()):
                found[driver].add(handle)
            for attachment in self._attachments.get(self.handle.table.name_of(row), {}).values():
                volume, driver = self._attached_volume(attachment), attachment.spec.attacher
                if driver and volume is not None and volume.spec.csi is not None:
                    found[driver].add(volume.spec.csi.volume_handle)
            self._attached[row] = found
        return found

    def _add(self, volumes: Attached, claim: PersistentVolumeClaim) -> None:
        """Book the volume of a claim; one that is not there yet counts once, with the driver of its class."""
        volume = self._catalog.volume(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            driver, handle = attached_as(volume) or ("", "")
            if handle:
                volumes[driver].add(handle)
            return
        storage_class = self._catalog.storage_class(class_of(claim))
        if storage_class is not None and storage_class.provisioner:
            driver = DRIVERS.get(storage_class.provisioner, storage_class.provisioner)
            # A blank cannot be in a handle: no volume is mistaken for the claim.
            volumes[driver].add(f"claim {claim.key}")

    def _attached_volume(self, attachment: VolumeAttachment) -> PersistentVolume | None:
        return self._catalog.volume(attachment.spec.source.persistent_volume_name or "")

    def _changed(self, old: Any, new: Any) -> None:
        """Forget what was worked out for the nodes that a change concerns."""
        subject = newest(old, new)
        if isinstance(subject, CSINode):
            self._set_limits(subject, is_there=new is not None)
        elif isinstance(subject, VolumeAttachment):
            for attachment, is_there in ((old, False), (new, True)):
                if attachment is not None:
                    self._set_attachment(attachment, is_there=is_there)
        elif isinstance(subject, PersistentVolumeClaim):
            self._forget_users(key_of(subject))
        elif isinstance(subject, PersistentVolume):
            for volume in (old, new):
                if volume is not None and volume.spec.claim_ref is not None:
                    self._forget_users((volume.spec.claim_ref.namespace, volume.spec.claim_ref.name))
            for node_name in self._nodes_of.get(subject.metadata.name, ()):
                self._forget_node(node_name)
        else:
            self._attached.clear()

    def _set_limits(self, node: CSINode, *, is_there: bool) -> None:
        name = node.metadata.name
        for limits in self._limits.values():
            limits.pop(name, None)
        for driver in node.spec.drivers if is_there else ():
            if driver.allocatable is not None and driver.allocatable.count is not None:
                self._limits.setdefault(driver.name, {})[name] = driver.allocatable.count

    def _set_attachment(self, attachment: VolumeAttachment, *, is_there: bool) -> None:
        node_name, key = attachment.spec.node_name, attachment.metadata.name
        volume_name = attachment.spec.source.persistent_volume_name or ""
        if is_there:
            self._attachments.setdefault(node_name, {})[key] = attachment
            self._nodes_of.setdefault(volume_name, set()).add(node_name)
        else:
            discard(self._attachments, node_name, key)
            discard(self._nodes_of, volume_name, node_name)
        self._forget_node(node_name)

    def _forget_users(self, claim: ClaimKey) -> None:
        for row in self._rows_of.get(claim, ()):
            self._attached.pop(row, None)

    def _forget_node(self, name: str) -> None:
        row = self.handle.table.row_of(name)
        if row is not None:
            self._attached.pop(row, None)

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, 1)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        self._count(row, pod, -1)

    def _count(self, row: int, pod: PodInfo, change: int) -> None:
        if not pod.pod.spec.volumes:
            return
        for use in claims_of(pod.pod):
            tally_in(self._claims, row, use.key, change)
            tally_in(self._rows_of, use.key, row, change)
        for disk in disks_of(pod.pod):
            tally_in(self._disks, row, disk, change)
        self._attached.pop(row, None)

    def node_changed(self, row: int, node: Any) -> None:
        self._attached.pop(row, None)

    def row_freed(self, row: int) -> None:
        self._attached.pop(row, None)
