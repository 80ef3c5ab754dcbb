"""Keep and describe the devices of every row, and what pods hold of them. Source: behaviour/devices 3.1 and 5.1.

The cache of one table is kept once, whatever profiles there are. Holdings of bound pods are read from their
annotations, those of assumed pods are what Reserve gave them; so the cache follows from the objects alone, in whatever
order they come.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koordinator.api import labels, resource_vector
from koordinator.api.annotations import device as annotation
from koordinator.api.core import Node
from koordinator.api.device import Device
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.scheduler.plugins.device_share.allocate import PodDevices
from koordinator.scheduler.plugins.device_share.columns import DeviceColumns
from koordinator.scheduler.plugins.device_share.inventory import (
    NO_LIMITS,
    AmountsByMinor,
    Held,
    NodeDevices,
    VisibleDevice,
    add,
    held_by,
    node_devices,
    visible_device,
)
from koordinator.scheduler.table.columns import RowChange
from koordinator.scheduler.table.nodes import NodeTable, RowKeeper
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

_NODE_LABELS = (
    labels.GPU_VENDOR,
    labels.GPU_MODEL,
    labels.GPU_PARTITION_POLICY,
    labels.GPU_ISOLATION_PROVIDER,
)
"""Labels of a node that allocation looks at."""
_DEVICE_LABELS = (labels.SECONDARY_DEVICE_WELL_PLANNED, labels.GPU_PARTITION_POLICY)
"""Labels of a Device that allocation looks at."""
NO_DEVICES = NodeDevices()


class NodeDeviceRecord:
    """The devices of a row and their holders; the latter may be known first."""

    def __init__(self) -> None:
        self.is_reported = False
        """Whether there is, or was, a Device object: without one the node's own device plugins choose."""
        self.ids: Mapping[str, Mapping[int, str]] = {}
        """Type and minor → id as reported: a UUID or a PCI address."""
        self.held: dict[str, Held] = {}
        """By uid of the pod."""
        self.idle = NO_DEVICES
        """What the node has, as if nobody held any."""
        self.used: dict[str, dict[int, Mapping[str, int]]] = {}
        """Type and minor → what pods use of the device, also of such as were not reported."""
        self._vf_holders: dict[str, Counter[str]] = {}
        """Type → bus id of a virtual function → how many pods hold it."""
        self._kind: bytes = b""
        self._devices: NodeDevices | None = None
        self._signature: bytes | None = None

    @property
    def devices(self) -> NodeDevices:
        """Return the devices as they are now."""
        if self._devices is None:
            used = {device_type: dict(of_type) for device_type, of_type in self.used.items() if of_type}
            taken = {
                device_type: frozenset(of_type)
                for device_type, of_type in self._vf_holders.items()
                if of_type
            }
            self._devices = msgspec.structs.replace(self.idle, used=used, taken_vfs=taken)
        return self._devices

    @property
    def signature(self) -> bytes:
        """Return what is equal for rows on which every pod gets the same answer."""
        if self._signature is None:
            used = [
                (device_type, minor, sorted(amounts.items()))
                for device_type, of_type in sorted(self.used.items())
                for minor, amounts in sorted(of_type.items())
            ]
            taken = [
                (device_type, sorted(of_type)) for device_type, of_type in sorted(self._vf_holders.items())
            ]
            use = msgspec.json.encode((used, taken))
            self._signature = hashlib.blake2b(self._kind + use, digest_size=16).digest()
        return self._signature

    def set_idle(self, idle: NodeDevices) -> bool:
        """Set what the node has, whoever holds it; return whether that is news."""
        partitions = idle.annotations.get(labels.GPU_PARTITIONS)
        kind = msgspec.json.encode((idle.devices, idle.labels, partitions, idle.node_labels))
        is_news = kind != self._kind
        self.idle, self._kind = idle, kind
        self._forget()
        return is_news

    def hold(self, uid: str, held: Held) -> None:
        """Book what a pod holds that held nothing."""
        self.held[uid] = held
        self._count(held, 1)

    def release(self, uid: str) -> Held:
        """Drop what a pod holds, and return it."""
        held = self.held.pop(uid, {})
        self._count(held, -1)
        return held

    def _count(self, held: Held, sign: int) -> None:
        for device_type, devices in held.items():
            used = self.used.setdefault(device_type, {})
            for device in devices:
                left = _plus(used.get(device.minor, {}), device.amounts, sign)
                if left:
                    used[device.minor] = left
                else:
                    used.pop(device.minor, None)
                for vf in device.vfs:
                    holders = self._vf_holders.setdefault(device_type, Counter())
                    holders[vf.bus_id] += sign
                    if not holders[vf.bus_id]:
                        del holders[vf.bus_id]
        self._forget()

    def _forget(self) -> None:
        self._devices = self._signature = None


def _plus(used: Mapping[str, int], amounts: Mapping[str, int], sign: int) -> dict[str, int]:
    """Return what is used with some more of it, or less; what is not used at all has no name."""
    total = dict(used)
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + sign * amount
    return {name: amount for name, amount in total.items() if amount}


class NodeDeviceCache(RowKeeper):
    """Records by row, and Device objects by node name: an object may come before its node."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self.columns = DeviceColumns(table)
        self.kinds: list[NodeDevices] = []
        """What nodes and their Devices say beside the devices, each once; `DeviceColumns.kind` has the numbers."""
        self._kind_of: dict[bytes, int] = {}
        self._records: dict[int, NodeDeviceRecord] = {}
        self._reports: dict[str, Device] = {}
        self._reserved: dict[str, Held] = {}
        self._aside: dict[str, Held] = {}

    def at(self, row: int) -> NodeDeviceRecord:
        """Return the record of a row, an empty one if nothing was heard of it."""
        record = self._records.get(row)
        if record is None:
            record = self._records[row] = NodeDeviceRecord()
        return record

    def reported_rows(self) -> Iterable[tuple[int, NodeDeviceRecord]]:
        """Yield the rows of nodes that have, or had, a Device object."""
        return ((row, record) for row, record in self._records.items() if record.is_reported)

    # Devices and nodes

    def set_report(self, device: Device) -> int | None:
        """Keep a Device; return its row when the node is known and something changed there. Raises: ProtocolError when
        an amount is no quantity; the last object stays."""
        name = device.metadata.name
        try:
            node_devices(device, {})
        except QuantityError as error:
            raise ProtocolError(f"Device {name}", "spec.devices[].resources", str(error)) from error
        self._reports[name] = device
        return self._reread(name)

    def remove_report(self, name: str) -> int | None:
        """Treat all devices of a node as unhealthy: what pods hold of them stays booked."""
        self._reports.pop(name, None)
        row = self._table.row_of(name)
        record = self._records.get(row) if row is not None else None
        if row is None or record is None or not record.is_reported:
            return None
        unhealthy = {
            device_type: {minor: msgspec.structs.replace(entry, total={}) for minor, entry in of_type.items()}
            for device_type, of_type in record.idle.devices.items()
        }
        if not self._set_idle(row, record, msgspec.structs.replace(record.idle, devices=unhealthy)):
            return None
        self._table.changes.add(row, RowChange.NODE)
        return row

    def _reread(self, name: str) -> int | None:
        row = self._table.row_of(name)
        node = self._table.node_at(row) if row is not None else None
        if row is None or node is None or not self._set_node(row, node):
            return None
        self._table.changes.add(row, RowChange.NODE)
        return row

    def node_changed(self, row: int, node: Node) -> None:
        self._set_node(row, node)

    def _set_node(self, row: int, node: Node) -> bool:
        device = self._reports.get(node.metadata.name)
        if device is None:
            return False
        record = self.at(row)
        own = node.metadata.labels
        record.is_reported = True
        ids: dict[str, dict[int, str]] = {}
        for info in device.spec.devices:
            ids.setdefault(info.type, {})[info.minor or 0] = info.id
        record.ids = ids
        idle = node_devices(device, {key: own[key] for key in _NODE_LABELS if key in own})
        return self._set_idle(row, record, idle)

    def _set_idle(self, row: int, record: NodeDeviceRecord, idle: NodeDevices) -> bool:
        """Set what a node has, in the columns, too; return whether that is news."""
        if not record.set_idle(idle):
            return False
        self.columns.set_devices(row, self._kind_number(idle), idle.devices)
        for device_type, used in record.used.items():
            self._show_use(row, record, device_type, dict.fromkeys(used, _NOTHING))
        return True

    def _kind_number(self, idle: NodeDevices) -> int:
        own = {key: idle.labels[key] for key in _DEVICE_LABELS if key in idle.labels}
        partitions = {
            key: idle.annotations[key] for key in (labels.GPU_PARTITIONS,) if key in idle.annotations
        }
        kind = NodeDevices(own, partitions, idle.node_labels)
        number = self._kind_of.setdefault(msgspec.json.encode(kind, order="sorted"), len(self.kinds))
        if number == len(self.kinds):
            self.kinds.append(kind)
        return number

    def _show_use(
        self, row: int, record: NodeDeviceRecord, device_type: str, before: Mapping[int, Mapping[str, int]]
    ) -> None:
        """Bring the columns of some devices up to date; `before` is what was used of each."""
        columns = self.columns.by_type.get(device_type)
        entries, used = record.idle.devices.get(device_type, {}), record.used.get(device_type, {})
        if columns is None or not entries:
            return
        for slot, (minor, entry) in enumerate(entries.items()):
            if minor in before:
                columns.set_used(row, slot, entry, before[minor], used.get(minor, _NOTHING))

    def row_freed(self, row: int) -> None:
        self._records.pop(row, None)

    # Pods

    def reserve(self, row: int, uid: str, held: Held) -> None:
        """Give an assumed pod what was chosen for it."""
        self._reserved[uid] = held
        self._hold(row, uid, held)

    def unreserve(self, uid: str) -> None:
        """Undo `reserve`; nothing when there is nothing to undo."""
        if self._reserved.pop(uid, None) is not None:
            place = self._table.place_of(uid)
            if place is not None:
                self._release(place.row, uid)

    def reserved(self, uid: str) -> Held | None:
        """Return what Reserve gave a pod that is not yet known to be bound."""
        return self._reserved.get(uid)

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        if self._table.is_trial:
            held = self._aside.pop(pod.uid, None)
            if held is not None:
                self._hold(row, pod.uid, held)
        elif not self._is_assumed(pod.uid):  # else Reserve says what it gets
            self._hold_as_annotated(row, pod)

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        if self._is_assumed(new.uid):
            return
        was_reserved = self._reserved.pop(new.uid, None) is not None
        key = labels.DEVICE_ALLOCATED
        if was_reserved or old.pod.metadata.annotations.get(key) != new.pod.metadata.annotations.get(key):
            self._hold_as_annotated(row, new)

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        if not self._table.is_trial:
            self._reserved.pop(pod.uid, None)
        elif (record := self._records.get(row)) is not None and pod.uid in record.held:
            self._aside[pod.uid] = record.held[pod.uid]
        self._release(row, pod.uid)

    def _is_assumed(self, uid: str) -> bool:
        place = self._table.place_of(uid)
        return place is not None and place.assumed

    def _hold_as_annotated(self, row: int, pod: PodInfo) -> None:
        annotations = pod.pod.metadata.annotations
        held: Held = {}
        if labels.DEVICE_ALLOCATED in annotations:
            try:
                held = held_by(annotation.DEVICE_ALLOCATED.read(annotations, f"Pod {pod.key}") or {})
            except (ProtocolError, QuantityError) as problem:
                log.warning("pod holds no devices that we know of: %s", problem, extra={"pod": pod.key})
        if self._hold(row, pod.uid, held) if held else self._release(row, pod.uid):
            self._table.changes.add(row, RowChange.PODS)

    def _hold(self, row: int, uid: str, held: Held) -> bool:
        """Book what a pod holds, in place of what it held; return whether that is news."""
        record = self.at(row)
        if record.held.get(uid) == held:
            return False
        self._release(row, uid)
        before = _used_of(record, held)
        record.hold(uid, held)
        self._changed(row, record, before)
        return True

    def _release(self, row: int, uid: str) -> bool:
        """Drop what a pod holds; return whether it held anything."""
        record = self._records.get(row)
        if record is None or uid not in record.held:
            return False
        before = _used_of(record, record.held[uid])
        record.release(uid)
        self._changed(row, record, before)
        return True

    def _changed(
        self, row: int, record: NodeDeviceRecord, before: Mapping[str, Mapping[int, Mapping[str, int]]]
    ) -> None:
        self.columns.holders[row] = len(record.held)
        for device_type, minors in before.items():
            self._show_use(row, record, device_type, minors)


_NOTHING: Mapping[str, int] = {}


def _used_of(record: NodeDeviceRecord, held: Held) -> dict[str, dict[int, Mapping[str, int]]]:
    """Return what pods use of the devices in `held`, by type and minor."""
    return {
        device_type: {
            device.minor: record.used.get(device_type, {}).get(device.minor, _NOTHING) for device in devices
        }
        for device_type, devices in held.items()
    }


Json = dict[str, Any]


def facts(asked: PodDevices, record: NodeDeviceRecord) -> tuple[str, ...]:
    """Return what a pod asks for, and what each device of these types has left, one sentence per type."""
    if not record.is_reported:
        return ("the node has no Device object: its own device plugins choose devices",)
    return tuple(
        _facts_of(record.devices, device_type, amounts) for device_type, amounts in asked.by_type.items()
    )


def _facts_of(devices: NodeDevices, device_type: str, asked: Mapping[str, int]) -> str:
    wanted = _words(asked)
    of_type = [
        visible_device(devices, device_type, entry, NO_LIMITS)
        for entry in devices.devices.get(device_type, {}).values()
    ]
    if not of_type:
        return f"asks for {wanted}; the node has no {device_type}"
    return f"asks for {wanted}; left: {'; '.join(f'{device_type} {_left(each)}' for each in of_type)}"


def _left(device: VisibleDevice) -> str:
    if not device.is_healthy:
        return f"{device.minor} is not healthy"
    return f"{device.minor} {_words(device.free)}"


def _words(amounts: Mapping[str, int]) -> str:
    return ", ".join(
        f"{name.partition('/')[2]} {resource_vector.readable_amount(name, n)}" for name, n in amounts.items()
    )


def summary(record: NodeDeviceRecord, pod_keys: Mapping[str, str]) -> Json:
    """Return what the endpoint answers about a node, in the reference's form; `pod_keys` maps uids to
    namespace/name."""
    devices = record.devices
    total = {
        t: {minor: entry.total for minor, entry in of_type.items()} for t, of_type in devices.devices.items()
    }
    free = {
        t: {minor: visible_device(devices, t, entry, NO_LIMITS).free for minor, entry in of_type.items()}
        for t, of_type in devices.devices.items()
    }
    held: Json = {}
    for uid, by_type in record.held.items():
        for device_type, of_pod in by_type.items():
            minors = {str(each.minor): _texts(each.amounts) for each in of_pod}
            held.setdefault(device_type, {})[pod_keys.get(uid, uid)] = minors
    answer: Json = {"allocateSet": held}
    for name, by_type_ in (("Total", total), ("Free", free), ("Used", devices.used)):
        answer[f"device{name}"] = _texts(_sum(minors for minors in by_type_.values()))
        answer[f"device{name}Detail"] = {
            device_type: {str(minor): _texts(amounts) for minor, amounts in minors.items()}
            for device_type, minors in by_type_.items()
        }
    return answer


def _sum(by_type: Iterable[AmountsByMinor]) -> dict[str, int]:
    summed: dict[str, int] = {}
    for minors in by_type:
        for amounts in minors.values():
            add(summed, amounts)
    return summed


def _texts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: resource_vector.amount_text(name, amount) for name, amount in amounts.items()}
