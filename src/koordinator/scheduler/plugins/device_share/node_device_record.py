"""Keep what one node has of devices, and who holds it. Source: behaviour/devices 5.1 and 9."""

import hashlib
from collections.abc import Mapping

import msgspec

from koordinator.api import labels
from koordinator.api.reservation import Reservation
from koordinator.api.resource_vector import add_in_place
from koordinator.scheduler.plugins.device_share.inventory import NOTHING, DeviceEntry, Held, NodeDevices
from koordinator.scheduler.plugins.device_share.reservations import ReservedDevices, left_of
from koordinator.scheduler.table.columns import tally

NO_DEVICES = NodeDevices()


class NodeDeviceRecord:
    """The devices of a row and their holders; the latter may be known first."""

    def __init__(self) -> None:
        self.is_reported = False
        """True when there is, or was, a Device object: without one the node's own device plugins choose."""
        self.ids: Mapping[str, Mapping[int, str]] = {}
        """Type and minor → id as reported: a UUID or a PCI address."""
        self.held: dict[str, Held] = {}
        """By uid of the pod; of a Reservation, all that it reserves."""
        self.uses: dict[str, str] = {}
        """Pod → the Reservation that it uses, by uid."""
        self._counted: dict[str, Held] = {}
        """Devices that `used` counts for each pod: of a Reservation, what its owners leave."""
        self._changed: dict[str, dict[int, Mapping[str, int]]] = {}
        self.idle = NO_DEVICES
        """Devices of the node, as if nobody held any."""
        self.used: dict[str, dict[int, Mapping[str, int]]] = {}
        """Type and minor → what pods use of the device, also of such as were not reported."""
        self._vf_holders: dict[str, dict[str, int]] = {}
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
        """Set what the node has, whoever holds it; return whether that is a change."""
        partitions = idle.annotations.get(labels.GPU_PARTITIONS)
        kind = msgspec.json.encode((idle.devices, idle.labels, partitions, idle.node_labels))
        has_changed = kind != self._kind
        self.idle, self._kind = idle, kind
        self._forget()
        return has_changed

    def hold(self, uid: str, held: Held, reservation: str = "") -> None:
        """Book what a pod holds that held nothing; of a Reservation, all that it reserves. `reservation` is the uid of
        the one that the pod uses, which counts less by it."""
        self.held[uid] = held
        if reservation:
            self.uses[uid] = reservation
        self._recount(uid)
        if reservation:
            self._recount(reservation)

    def release(self, uid: str) -> None:
        """Drop what a pod holds."""
        self.held.pop(uid, None)
        reservation = self.uses.pop(uid, None)
        self._recount(uid)
        if reservation is not None:
            self._recount(reservation)

    def left_of(self, uid: str) -> Held:
        """Return what a pod holds; of a Reservation, what its owners leave."""
        held = self.held.get(uid, {})
        owners = [self.held[pod] for pod, used in self.uses.items() if used == uid] if self.uses else []
        return left_of(held, owners) if owners else held

    def reserved_by(self, uid: str, *, is_restricted: bool) -> ReservedDevices | None:
        """Return what is left of a Reservation; None when it holds no devices here."""
        return ReservedDevices(uid, self.left_of(uid), is_restricted) if uid in self.held else None

    def left_by(self, uid: str, reservation: Reservation | None) -> ReservedDevices | None:
        """Return the same by the policy of the Reservation; None stands for a pod that is one."""
        is_restricted = reservation is not None and reservation.spec.allocate_policy == "Restricted"
        return self.reserved_by(uid, is_restricted=is_restricted)

    def free_vfs(self, device_type: str, device: DeviceEntry) -> int:
        """Return how many virtual functions of a device nobody holds."""
        taken = self._vf_holders.get(device_type, NOTHING)
        return sum(vf.bus_id not in taken for group in device.vf_groups for vf in group.vfs)

    def take_changes(self) -> dict[str, dict[int, Mapping[str, int]]]:
        """Return the devices whose use changed since this was asked last, by type and minor, with their use then."""
        changed, self._changed = self._changed, {}
        return changed

    def _recount(self, uid: str) -> None:
        """Count what a pod holds now in place of what it held."""
        before, now = self._counted.pop(uid, {}), self.left_of(uid)
        if now:
            self._counted[uid] = now
        if before != now:
            self._count(before, -1)
            self._count(now, 1)
            self._forget()

    def _count(self, held: Held, sign: int) -> None:
        for device_type, devices in held.items():
            used = self.used.setdefault(device_type, {})
            for device in devices:
                before = used.get(device.minor, NOTHING)
                self._changed.setdefault(device_type, {}).setdefault(device.minor, before)
                left = _plus(before, device.amounts, sign)
                if left:
                    used[device.minor] = left
                else:
                    used.pop(device.minor, None)
                for vf in device.vfs:
                    tally(self._vf_holders.setdefault(device_type, {}), vf.bus_id, sign)

    def _forget(self) -> None:
        self._devices = self._signature = None


def _plus(used: Mapping[str, int], amounts: Mapping[str, int], sign: int) -> dict[str, int]:
    """Return what is used with some more of it, or less; what is not used at all has no name."""
    total = dict(used)
    add_in_place(total, amounts, sign)
    return {name: amount for name, amount in total.items() if amount}
