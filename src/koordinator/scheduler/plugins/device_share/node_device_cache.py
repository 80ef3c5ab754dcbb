"""Keep and describe the devices of every row, and what pods hold of them. Source: behaviour/devices 3.1 and 5.1.

The cache of one table is kept once, whatever profiles there are. Holdings of bound pods are read from their
annotations, those of assumed pods are what Reserve gave them; so the cache follows from the objects alone, in whatever
order they come.
"""

import abc
import logging
from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api import labels, pod_labels
from koordinator.api.annotations import device as annotation
from koordinator.api.core import Node
from koordinator.api.device import Device
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.api.reservation import RESERVATION_ALLOCATED
from koordinator.scheduler.plugins.device_share.columns import DeviceColumns
from koordinator.scheduler.plugins.device_share.inventory import (
    NOTHING,
    Held,
    NodeDevices,
    held_by,
    node_devices,
    with_lent,
)
from koordinator.scheduler.plugins.device_share.node_device_record import NodeDeviceRecord
from koordinator.scheduler.table.columns import RowChange
from koordinator.scheduler.table.holdings import ReservableHoldingKeeper
from koordinator.scheduler.table.nodes import NodeTable
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


class DevicesOfPod(msgspec.Struct, frozen=True):
    """The devices that a pod holds, and the Reservation (uid) that they are out of; or those of a whole Reservation."""

    held: Held
    reservation: str = ""
    is_reservation: bool = False


class CardChooser(abc.ABC):
    """A plugin that prefers cards of a node for the pods of its profiles."""

    @abc.abstractmethod
    def card_points(self, pod: PodInfo, row: int) -> tuple[int, ...]:
        """Return how well each card suits, by ascending minor, more is better; empty when it does not matter."""


class NodeDeviceCache(ReservableHoldingKeeper[DevicesOfPod, Held]):
    """Records by row, and Device objects by node name: an object may come before its node."""

    annotations = (labels.DEVICE_ALLOCATED, labels.RESERVATION_ALLOCATED)

    def __init__(self, table: NodeTable) -> None:
        super().__init__(table)
        self.columns = DeviceColumns(table)
        self._records: dict[int, NodeDeviceRecord] = {}
        self._reports: dict[str, Device] = {}
        self.choosers: dict[str, CardChooser] = {}
        """By scheduler name."""

    def at(self, row: int) -> NodeDeviceRecord:
        """Return the record of a row, an empty one if nothing was heard of it."""
        record = self._records.get(row)
        if record is None:
            record = self._records[row] = NodeDeviceRecord()
        return record

    def reported_rows(self) -> Iterable[int]:
        """Yield the rows of nodes that have, or had, a Device object."""
        return (row for row, record in self._records.items() if record.is_reported)

    # Devices and nodes

    def set_report(self, device: Device) -> int | None:
        """Keep a Device; return its row when the node is known and something changed there. Raises: ProtocolError when
        an amount is no quantity; the last object stays."""
        name = device.metadata.name
        try:
            node_devices(device, {})
        except QuantityError as error:
            raise ProtocolError(f"Device {name}", "spec.devices[].resources", str(error)) from error
        try:
            annotation.GPU_PARTITIONS.read(device.metadata.annotations, f"Device {name}")
        except ProtocolError as problem:
            log.warning("no partition table can be read: %s", problem, extra={"node": name})
        self._reports[name] = device
        row = self._table.row_of(name)
        node = self._table.node_at(row) if row is not None else None
        if row is None or node is None or not self._set_node(row, node):
            return None
        self._table.changes.add(row, RowChange.NODE)
        return row

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
        try:
            lent = annotation.NODE_BATCH_GPUS.read(node.metadata.annotations, f"Node {node.metadata.name}")
            idle = with_lent(idle, lent, ids) if lent else idle
        except (ProtocolError, QuantityError) as problem:
            log.warning("nothing of its GPUs is lent: %s", problem, extra={"node": node.metadata.name})
        return self._set_idle(row, record, idle)

    def _set_idle(self, row: int, record: NodeDeviceRecord, idle: NodeDevices) -> bool:
        """Set what a node has, in the columns, too; return whether that is a change."""
        if not record.set_idle(idle):
            return False
        self.columns.set_devices(row, _kind_of(idle), idle.devices)
        for device_type, used in record.used.items():
            self._show_use(row, record, device_type, dict.fromkeys(used, NOTHING))
        return True

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
                columns.set_used(row, slot, entry, before[minor], used.get(minor, NOTHING))
                if entry.vf_groups:
                    columns.set_free_vfs(row, slot, record.free_vfs(device_type, entry))

    def row_freed(self, row: int) -> None:
        self._records.pop(row, None)

    # Pods

    def reserve(self, row: int, uid: str, held: Held, reservation: str = "") -> None:
        """Give an assumed pod what was chosen for it, out of the Reservation with this uid if there is one."""
        self._chosen[uid] = held
        self._hold(row, uid, DevicesOfPod(held, reservation))

    def reservations_aside(self, row: int) -> dict[str, DevicesOfPod]:
        """Return the Reservations that a trial took from a row, by uid, in the order in which they were taken."""
        return {uid: each for uid, each in self._aside_at.get(row, {}).items() if each.is_reservation}

    def with_reservations(self, row: int) -> NodeDeviceRecord:
        """Return the record of a row with the Reservations that a trial took from it."""
        record, away = self.at(row), self.reservations_aside(row)
        if not away:
            return record
        whole = NodeDeviceRecord()
        whole.is_reported = record.is_reported
        whole.set_idle(record.idle)
        for uid, held in record.held.items():
            whole.hold(uid, held, record.uses.get(uid, ""))
        for uid, each in away.items():
            whole.hold(uid, each.held)
        return whole

    def _written(self, pod: PodInfo) -> DevicesOfPod | None:
        annotations = pod.pod.metadata.annotations
        if labels.DEVICE_ALLOCATED not in annotations:
            return None
        held = held_by(annotation.DEVICE_ALLOCATED.read(annotations, f"Pod {pod.key}") or {})
        used = RESERVATION_ALLOCATED.read(annotations, f"Pod {pod.key}")
        return DevicesOfPod(held, used.uid if used is not None else "") if held else None

    def _held(self, row: int, pod: PodInfo) -> DevicesOfPod | None:
        record = self._records.get(row)
        if record is None or pod.uid not in record.held:
            return None
        is_reservation = pod_labels.stands_for_reservation(pod.pod.metadata)
        return DevicesOfPod(record.held[pod.uid], record.uses.get(pod.uid, ""), is_reservation)

    def _hold(self, row: int, uid: str, held: DevicesOfPod) -> bool:
        record = self.at(row)
        if record.held.get(uid) == held.held and record.uses.get(uid, "") == held.reservation:
            return False
        record.release(uid)
        record.hold(uid, held.held, held.reservation)
        self._show(row, record)
        return True

    def _release(self, row: int, uid: str) -> bool:
        record = self._records.get(row)
        if record is None or uid not in record.held:
            return False
        record.release(uid)
        self._show(row, record)
        return True

    def _show(self, row: int, record: NodeDeviceRecord) -> None:
        """Bring the columns up to date with the holders."""
        self.columns.holders.values[row] = len(record.held)
        for device_type, minors in record.take_changes().items():
            self._show_use(row, record, device_type, minors)


def _kind_of(idle: NodeDevices) -> NodeDevices:
    """Return what a node and its Device say beside the devices, as far as allocation looks at it."""
    own = {key: idle.labels[key] for key in _DEVICE_LABELS if key in idle.labels}
    partitions = {key: idle.annotations[key] for key in (labels.GPU_PARTITIONS,) if key in idle.annotations}
    return NodeDevices(own, partitions, idle.node_labels)
