"""Devices out of reservations, else of the node. Source: behaviour/devices 9."""

from collections.abc import Mapping, Sequence

import msgspec

from koordinator.scheduler.plugin.status import unschedulable
from koordinator.scheduler.plugins.device_share.allocate import (
    AllocateOptions,
    DeviceDecision,
    PodDevices,
    allocate,
)
from koordinator.scheduler.plugins.device_share.inventory import (
    NO_LIMITS,
    AmountsByMinor,
    DeviceLimits,
    NodeDevices,
    add,
)
from koordinator.scheduler.plugins.device_share.request import Amounts

ByType = Mapping[str, AmountsByMinor]


class ReservedDevices(msgspec.Struct, frozen=True):
    """Devices of a reservation, and what its owners use of them. Both count as used on the node."""

    name: str
    reserved: ByType
    used_by_owners: ByType = {}
    is_matched: bool = True
    """Whether the pod may use it."""
    is_restricted: bool = False
    """Whoever uses it gets nothing beyond it."""

    @property
    def remainder(self) -> dict[str, dict[int, Amounts]]:
        """Return what its owners left."""
        return {
            device_type: {
                minor: {
                    name: max(0, amount - self.owned(device_type, minor).get(name, 0))
                    for name, amount in amounts.items()
                }
                for minor, amounts in minors.items()
            }
            for device_type, minors in self.reserved.items()
        }

    def owned(self, device_type: str, minor: int) -> Mapping[str, int]:
        """Return what owners use of one device."""
        return self.used_by_owners.get(device_type, {}).get(minor, {})


class ReservedDecision(msgspec.Struct, frozen=True):
    """The devices that the pod gets, and the reservation that they come from ("" is the node)."""

    decision: DeviceDecision
    reservation: str = ""


def allocate_reserved(
    node: NodeDevices,
    pod: PodDevices,
    reservations: Sequence[ReservedDevices],
    *,
    is_required: bool = False,
    limits: DeviceLimits = NO_LIMITS,
    options: AllocateOptions | None = None,
) -> ReservedDecision:
    """From the first matched reservation that has enough, else from the node unless one is required."""
    matched = [r for r in reservations if r.is_matched]
    owners = [{t: {m: r.owned(t, m) for m in minors} for t, minors in r.reserved.items()} for r in matched]
    counted_twice = [_counted_twice(r) for r in reservations if not r.is_matched]
    base = _sum([limits.given_back, *counted_twice])
    reasons: list[str] = []
    for reservation in matched:
        decision = allocate(node, pod, within(reservation, limits, _sum([base, *owners])), options)
        if decision.status.is_success:
            return ReservedDecision(decision, reservation.name)
        reasons += [f"Reservation(s) {reason}" for reason in decision.status.reasons]
    if is_required:
        return ReservedDecision(DeviceDecision(status=unschedulable(*dict.fromkeys(reasons))))
    back = _sum([base, *(r.reserved for r in matched)])
    return ReservedDecision(allocate(node, pod, msgspec.structs.replace(limits, given_back=back), options))


def allocate_ignoring(
    node: NodeDevices,
    pod: PodDevices,
    reservations: Sequence[ReservedDevices],
    limits: DeviceLimits = NO_LIMITS,
    options: AllocateOptions | None = None,
) -> DeviceDecision:
    """For a pod that reservations do not keep away: only what pods really use counts."""
    back = _sum(
        [limits.given_back, *(_counted_twice(r) for r in reservations), *(r.remainder for r in reservations)]
    )
    return allocate(node, pod, msgspec.structs.replace(limits, given_back=back), options)


def _counted_twice(reservation: ReservedDevices) -> ByType:
    """Return what both the reservation and its owners are booked for."""
    left = reservation.remainder
    return {
        device_type: {
            minor: {name: amount - left[device_type][minor][name] for name, amount in amounts.items()}
            for minor, amounts in minors.items()
        }
        for device_type, minors in reservation.reserved.items()
    }


def within(reservation: ReservedDevices, limits: DeviceLimits, base: ByType | None = None) -> DeviceLimits:
    """Return what a pod of the reservation may see: its remainder on top of what others give back (`base`)."""
    if base is None:
        owned = {t: {m: reservation.owned(t, m) for m in ms} for t, ms in reservation.reserved.items()}
        base = _sum([limits.given_back, owned])
    minors = {t: frozenset(of_type) for t, of_type in reservation.reserved.items()}
    left = reservation.remainder
    return msgspec.structs.replace(
        limits,
        given_back=_sum([base, left]),
        preferred={**limits.preferred, **minors},
        required={**limits.required, **_sum([left, limits.given_back], only=minors)}
        if reservation.is_restricted
        else limits.required,
    )


def _sum(
    parts: Sequence[ByType], only: Mapping[str, frozenset[int]] | None = None
) -> dict[str, dict[int, Amounts]]:
    """Return all parts together; `only` these minors."""
    total: dict[str, dict[int, Amounts]] = {}
    for part in parts:
        for device_type, minors in part.items():
            for minor, amounts in minors.items():
                if only is None or minor in only.get(device_type, ()):
                    add(total.setdefault(device_type, {}).setdefault(minor, {}), amounts)
    return total
