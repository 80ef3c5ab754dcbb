"""Devices out of reservations, else of the node. Source: behaviour/devices 9.

On a node a reservation counts with what its owners leave of it, so that nothing is counted twice.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from koordinator.api import resource_list
from koordinator.api.resource_vector import add_in_place, less
from koordinator.scheduler.plugin.status import unschedulable
from koordinator.scheduler.plugins.device_share.allocate import (
    AllocateOptions,
    DeviceDecision,
    PodDevices,
    allocate,
    joint_types,
)
from koordinator.scheduler.plugins.device_share.inventory import (
    NO_LIMITS,
    NOTHING,
    AmountsByMinor,
    DeviceLimits,
    Held,
    HeldDevice,
    NodeDevices,
)
from koordinator.scheduler.plugins.device_share.request import Amounts

V = TypeVar("V")
VFsByMinor = Mapping[str, Mapping[int, frozenset[str]]]


def left_of(reserved: Held, owners: Sequence[Held]) -> Held:
    """Return what owners leave of a reservation: amounts and virtual functions of its devices."""
    used: dict[tuple[str, int], Amounts] = {}
    taken: set[tuple[str, str]] = set()
    for owner in owners:
        for device_type, devices in owner.items():
            for device in devices:
                add_in_place(used.setdefault((device_type, device.minor), {}), device.amounts)
                taken.update((device_type, vf.bus_id) for vf in device.vfs)
    return {
        device_type: tuple(
            HeldDevice(
                device.minor,
                less(device.amounts, used.get((device_type, device.minor), {})),
                tuple(vf for vf in device.vfs if (device_type, vf.bus_id) not in taken),
                device.template,
            )
            for device in devices
        )
        for device_type, devices in reserved.items()
    }


class ReservedDevices(msgspec.Struct, frozen=True):
    """A reservation that a pod may use, and what its owners leave of it, which counts as used on the node."""

    name: str
    left: Held
    """All of its devices, also those of which nothing is left."""
    is_restricted: bool = False
    """Whoever uses it gets nothing beyond it."""

    @property
    def minors(self) -> dict[str, frozenset[int]]:
        """Return its devices by type."""
        return {t: frozenset(each.minor for each in held) for t, held in self.left.items()}

    @property
    def amounts(self) -> dict[str, dict[int, Amounts]]:
        """Return what is left, by type and minor."""
        found: dict[str, dict[int, Amounts]] = {}
        for device_type, devices in self.left.items():
            for device in devices:
                add_in_place(found.setdefault(device_type, {}).setdefault(device.minor, {}), device.amounts)
        return found

    @property
    def vfs(self) -> dict[str, dict[int, frozenset[str]]]:
        """Return the bus ids of virtual functions that are left, of the types where it has any."""
        return {
            device_type: {each.minor: frozenset(vf.bus_id for vf in each.vfs) for each in devices}
            for device_type, devices in self.left.items()
            if any(each.vfs for each in devices)
        }


def all_of(holdings: Sequence[Held]) -> ReservedDevices:
    """Return what running pods hold, for a reservation that is placed onto them."""
    together: dict[str, dict[int, HeldDevice]] = {}
    for held in holdings:
        for device_type, devices in held.items():
            of_type = together.setdefault(device_type, {})
            for device in devices:
                known = of_type.get(device.minor, HeldDevice(device.minor, {}))
                amounts = dict(known.amounts)
                add_in_place(amounts, device.amounts)
                vfs = (*known.vfs, *device.vfs)
                of_type[device.minor] = HeldDevice(device.minor, amounts, vfs, device.template)
    return ReservedDevices(
        "", {device_type: tuple(of_type.values()) for device_type, of_type in together.items()}
    )


def includes(held: Held, part: Held) -> bool:
    """Return whether there is as much of every device in what is held as in a part of it, virtual functions too."""
    missing = left_of(part, [held])
    return not any(each.vfs or any(each.amounts.values()) for devices in missing.values() for each in devices)


def allocate_reserved(
    node: NodeDevices,
    pod: PodDevices,
    reservation: ReservedDevices,
    limits: DeviceLimits = NO_LIMITS,
    options: AllocateOptions | None = None,
) -> DeviceDecision:
    """From the reservation alone, else, where it allows that, from the node, too."""
    decision = DeviceDecision()
    for seen in _seen(reservation, pod, limits):
        decision = allocate(node, pod, seen, options)
        if decision.status.is_success:
            return msgspec.structs.replace(decision, reservation=reservation.name)
    reasons = [f"Reservation(s) {reason}" for reason in decision.status.reasons]
    return DeviceDecision(status=unschedulable(*dict.fromkeys(reasons)))


def allocate_ignoring(
    node: NodeDevices,
    pod: PodDevices,
    reservations: Sequence[ReservedDevices],
    limits: DeviceLimits = NO_LIMITS,
    options: AllocateOptions | None = None,
) -> DeviceDecision:
    """For a pod that these reservations do not keep away: only what pods really use counts."""
    for each in reservations:
        limits = _with_back(each, limits)
    return allocate(node, pod, limits, options)


def _with_back(reservation: ReservedDevices, limits: DeviceLimits) -> DeviceLimits:
    amounts = _joined(limits.given_back, reservation.amounts, lambda a, b: resource_list.sum_of((a, b)))
    vfs = _joined(limits.given_back_vfs, reservation.vfs, operator.or_)
    return msgspec.structs.replace(limits, given_back=amounts, given_back_vfs=vfs)


def _joined(
    first: Mapping[str, Mapping[int, V]], second: Mapping[str, Mapping[int, V]], join: Callable[[V, V], V]
) -> dict[str, dict[int, V]]:
    """Return both together, by type and minor."""
    found = {device_type: dict(by_minor) for device_type, by_minor in first.items()}
    for device_type, by_minor in second.items():
        of_type = found.setdefault(device_type, {})
        for minor, more in by_minor.items():
            of_type[minor] = join(of_type[minor], more) if minor in of_type else more
    return found


def within(reservation: ReservedDevices, limits: DeviceLimits) -> DeviceLimits:
    """Return what a pod of the reservation may see: what is left of it on top of what others give back. Of devices that
    were chosen beforehand it sees in a restricted one those that it holds."""
    seen = _with_back(reservation, limits)
    if not reservation.is_restricted:
        return seen
    required: dict[str, AmountsByMinor] = {**reservation.amounts}
    for device_type, chosen in limits.required.items():
        held = required.get(device_type)
        required[device_type] = chosen if held is None else _in_both(chosen, held)
    return msgspec.structs.replace(seen, required=required)


def _in_both(chosen: AmountsByMinor, held: AmountsByMinor) -> dict[int, Mapping[str, int]]:
    """Return the devices that are in both, and of each no more than in either; no amounts at all are no limit."""
    found: dict[int, Mapping[str, int]] = {}
    for minor in chosen.keys() & held.keys():
        one, other = chosen[minor], held[minor]
        names = one.keys() | other.keys() if one and other else ()
        found[minor] = {name: min(one.get(name, 0), other.get(name, 0)) for name in names} or one or other
    return found


def _seen(reservation: ReservedDevices, pod: PodDevices, limits: DeviceLimits) -> Iterator[DeviceLimits]:
    """Yield what a pod of the reservation may see, the narrowest first: where cards are chosen by closeness, and NICs
    by their cards, preferring some of them has no effect. Its own virtual functions come first, but others of its
    devices will do: what is left of these is what counts."""
    vfs = reservation.vfs
    own_vfs = frozenset[str]().union(
        *(of_minor for by_minor in vfs.values() for of_minor in by_minor.values())
    )
    seen = msgspec.structs.replace(within(reservation, limits), preferred_vfs=own_vfs)
    own = seen
    if not reservation.is_restricted:
        uncapped = {t: dict.fromkeys(of_type, NOTHING) for t, of_type in reservation.minors.items()}
        own = msgspec.structs.replace(seen, required=uncapped)
    if reservation.is_restricted or not limits.required:
        if vfs:
            yield msgspec.structs.replace(own, allowed_vfs=_allowed(limits.allowed_vfs, vfs))
        yield own
    if not reservation.is_restricted:
        yield msgspec.structs.replace(seen, preferred=reservation.minors)
        if joint_types(pod):
            yield seen


def _allowed(chosen: VFsByMinor, own: VFsByMinor) -> VFsByMinor:
    """Return the virtual functions of a reservation, but of devices that were chosen beforehand with theirs those."""
    return _joined(own, chosen, lambda _, those: those)
