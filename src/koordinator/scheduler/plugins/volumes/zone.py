"""VolumeZone: bound volumes are reached only from their zones. Source: behaviour/scheduler B1 and B9."""

from collections.abc import Hashable
from typing import Any

import msgspec
import numpy as np

from koordinator.api.core import Pod
from koordinator.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import (
    FilterPlugin,
    Handle,
    PreFilterPlugin,
    PreFilterResult,
    ReasonCodes,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Reason, Status, unresolvable
from koordinator.scheduler.plugins.volumes.catalog import (
    WAIT_FOR_FIRST_CONSUMER,
    ClaimKey,
    VolumeCatalog,
    claims_of,
    class_key_of,
    class_of,
    helps,
    not_found,
)
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.label_columns import ABSENT, LabelColumns
from koordinator.scheduler.table.pod_info import PodInfo

_GA_KEY = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
KEYS = (*_GA_KEY, *_GA_KEY.values())
SEPARATOR = "__"
KINDS = (PersistentVolumeClaim, PersistentVolume, StorageClass)


class ZoneReason(Reason):
    OK = 0, SUCCESS
    ZONE = 1, unresolvable("node(s) had no available volume zone")


class Zones(msgspec.Struct, frozen=True):
    """A label of a volume: nodes must have one of the values under the key."""

    key: str
    values: frozenset[str]


class ZoneState(msgspec.Struct, frozen=True):
    has_claims: bool
    zones: tuple[Zones, ...]
    refusal: Status


class VolumeZone(PreFilterPlugin[ZoneState], FilterPlugin[ZoneState]):
    name = "VolumeZone"
    keyed_by = (class_key_of,)
    fewer_pods_help = True
    wakes_for_row = True
    reasons = ZoneReason
    wakes_on = (
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_LABELS,
        ClusterEvent.STORAGE,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._catalog = VolumeCatalog(handle, KINDS)
        self._labels = handle.table.shared(LabelColumns)

    def prepare(self, pod: PodInfo) -> ZoneState:
        zones: list[Zones] = []
        claims = _claims(pod.pod)
        for key in claims:
            found = self._zones_of(key)
            if isinstance(found, Status):
                return ZoneState(True, (), found)
            zones += found
        return ZoneState(bool(claims), tuple(zones), SUCCESS)

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

    def wakes(self, event: QueueingEvent, pod: PodInfo) -> bool:
        """Nodes in the right zone help, and what is learnt about the pod's claims and their volumes."""
        if event.kind is ClusterEvent.STORAGE:
            return helps(event, pod.pod, KINDS)
        return self.prepare(pod).refusal.is_success and super().wakes(event, pod)

    def epoch(self, state: ZoneState) -> Hashable:
        return self._catalog.version if state.has_claims else None

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


def _claims(pod: Pod) -> tuple[ClaimKey, ...]:
    return tuple(use.key for use in claims_of(pod) if not use.is_ephemeral)
