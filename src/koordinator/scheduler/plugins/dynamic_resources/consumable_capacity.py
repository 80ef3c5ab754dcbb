"""Shares of devices that several claims may have at a time: how much of each capacity a share takes.

Source: KEP-5075.
"""

from collections.abc import Mapping

import msgspec

from koordinator.api import quantity
from koordinator.api.dra import CapacityRequestPolicy, Device, DeviceCapacity
from koordinator.api.quantity import Family, Quantity, QuantityError, RawQuantity

Share = Mapping[str, Quantity]
"""Amount taken of each capacity of a device."""
Wanted = tuple[tuple[str, RawQuantity], ...]
"""Amounts that a request asks for, by name."""


class CapacityTerms(msgspec.Struct, frozen=True):
    """A capacity of a device, read: `values` or a range of amounts that a share may have, None where all may be."""

    value: Quantity
    default: Quantity
    values: tuple[Quantity, ...] | None = None
    least: Quantity | None = None
    most: Quantity | None = None
    step: Quantity | None = None

    @classmethod
    def of(cls, capacity: DeviceCapacity) -> "CapacityTerms":
        """Raises: QuantityError."""
        value = quantity.of(capacity.value)
        policy = capacity.request_policy or CapacityRequestPolicy()
        default = value if policy.default is None else quantity.of(policy.default)
        if policy.valid_range is not None:
            limits = policy.valid_range
            return cls(
                value=value,
                default=default,
                least=quantity.of(limits.min),
                most=None if limits.max is None else quantity.of(limits.max),
                step=None if limits.step is None else quantity.of(limits.step),
            )
        values = tuple(sorted(quantity.of(each) for each in policy.valid_values))
        return cls(value=value, default=default, values=values or None)

    def rounded(self, wanted: Quantity) -> Quantity | None:
        """Return the least amount that a share may have and that is enough; None when there is none."""
        if self.values is not None:
            return next((each for each in self.values if each >= wanted), None)
        if self.least is not None:
            wanted = self._in_steps(self.least, wanted)
            if self.most is not None and wanted > self.most:
                return None
        return wanted

    def _in_steps(self, least: Quantity, wanted: Quantity) -> Quantity:
        if wanted <= least:
            return least
        if not self.step:
            return wanted
        steps = -((least.nanos - wanted.nanos) // self.step.nanos)
        return Quantity(least.nanos + steps * self.step.nanos, Family.BINARY)


def terms_of(device: Device) -> dict[str, CapacityTerms]:
    """Return the capacities of a device, in the order of their names.

    Raises: QuantityError.
    """
    return {name: CapacityTerms.of(device.capacity[name]) for name in sorted(device.capacity)}


def share_of(wanted: Wanted, terms: Mapping[str, CapacityTerms]) -> Share | None:
    """Return what a share takes of a device: of each capacity what was asked for, rounded up as its policy says, else
    its default, else all of it. None when the device can never give that.

    Raises: QuantityError for an amount in the request that is none.
    """
    asked = {name: quantity.of(raw) for name, raw in wanted}
    if not asked.keys() <= terms.keys():
        return None
    share: dict[str, Quantity] = {}
    for name, capacity in terms.items():
        amount = capacity.rounded(asked[name]) if name in asked else capacity.default
        if amount is None or amount > capacity.value:
            return None
        share[name] = amount
    return share


def amounts_of(consumed: Mapping[str, RawQuantity]) -> tuple[tuple[str, int], ...]:
    """Return what a written share took, by name, in billionths; amounts that cannot be read take nothing."""
    found = []
    for name, raw in sorted(consumed.items()):
        try:
            found.append((name, quantity.of(raw).nanos))
        except QuantityError:
            continue
    return tuple(found)
