"""The devices of slices one by one: which there are, where they can be used, what selectors see of them, which rules
taint them (KEP-5055)."""

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import msgspec

from koordinator.api import quantity
from koordinator.api.affinity import NodeSelector
from koordinator.api.dra import (
    Device,
    DeviceAttribute,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintSelector,
    ResourceSlice,
)
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.quantity import QuantityError
from koordinator.cel.values import EvaluationError, Semver
from koordinator.scheduler.plugins.dynamic_resources.consumable_capacity import CapacityTerms, terms_of
from koordinator.scheduler.plugins.dynamic_resources.shared_counters import PoolError

DeviceKey = tuple[str, str, str]
"""(driver, pool, device): a device's name in the cluster."""


class DeviceUse(msgspec.Struct, frozen=True):
    """A device that somebody has: whole, or (`share`) so many billionths of each capacity."""

    key: DeviceKey
    share: tuple[tuple[str, int], ...] | None = None


class SliceDevice(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A device and where it comes from. `reach` is None for a device of one node."""

    key: DeviceKey
    device: Device
    node_name: str
    reach: NodeSelector | None
    order: tuple[Any, ...]

    @functools.cached_property
    def as_seen(self) -> dict[str, Any]:
        """The variable `device` of selectors. Raises: EvaluationError when a value is none of its type."""
        driver = self.key[0]
        attributes, capacity = _Domains(), _Domains()
        for name, attribute in self.device.attributes.items():
            domain, _, local = name.rpartition("/")
            attributes.setdefault(domain or driver, {})[local] = _attribute(attribute)
        for name, amount in self.device.capacity.items():
            domain, _, local = name.rpartition("/")
            try:
                capacity.setdefault(domain or driver, {})[local] = quantity.of(amount.value)
            except QuantityError as error:
                raise EvaluationError(str(error)) from error
        return {
            "driver": driver,
            "attributes": attributes,
            "capacity": capacity,
            "allowMultipleAllocations": bool(self.device.allow_multiple_allocations),
        }

    @functools.cached_property
    def capacity_terms(self) -> dict[str, CapacityTerms]:
        """Raises: QuantityError."""
        return terms_of(self.device)

    @functools.cached_property
    def content(self) -> bytes:
        """All that selectors and requests for capacity see: equal for devices that are alike to them."""
        device = self.device
        seen = (self.key[0], device.attributes, device.capacity, device.allow_multiple_allocations)
        return msgspec.json.encode(seen, order="sorted")

    @functools.cached_property
    def capacity_text(self) -> bytes:
        """Its capacities and their policies: equal for devices that have the same."""
        return msgspec.json.encode(self.device.capacity, order="sorted")

    def attribute(self, name: str) -> tuple[str, Any] | None:
        """(type, value) of an attribute by its full name; those without a domain are the driver's."""
        found = self.device.attributes.get(name)
        domain, _, local = name.rpartition("/")
        if found is None and domain == self.key[0]:
            found = self.device.attributes.get(local)
        return None if found is None else _typed(found)


class _Domains(dict[str, dict[str, Any]]):
    """Attributes by domain; other domains have none, which is no error."""

    def __missing__(self, domain: str) -> dict[str, Any]:
        return {}


def _attribute(attribute: DeviceAttribute) -> Any:
    kind, value = _typed(attribute)
    return Semver.of(value) if kind == "version" else value


def _typed(attribute: DeviceAttribute) -> tuple[str, Any]:
    for kind, value in (
        ("int", attribute.int_),
        ("bool", attribute.bool_),
        ("string", attribute.string),
        ("version", attribute.version),
    ):
        if value is not None:
            return kind, value
    return "", None


def entries_of(a_slice: ResourceSlice, gates: FeatureGates) -> list[SliceDevice]:
    """Devices of a slice that can be given away: where that is switched off, not those that have to be made ready, nor
    those that are parts of others or that say themselves for which nodes they are."""
    spec = a_slice.spec
    is_late = has_conditions(a_slice)
    has_parts = gates.is_on("DRAPartitionableDevices")
    has_late = gates.is_on("DRADeviceBindingConditions")
    if not has_parts and (spec.per_device_node_selection is not None or spec.shared_counters):
        return []
    found = []
    for index, device in enumerate(spec.devices):
        if device.binding_conditions and not has_late:
            continue
        if device.consumes_counters and not has_parts:
            continue
        where = device if spec.per_device_node_selection else spec
        reach = None if where.node_name or where.all_nodes else where.node_selector
        if not (where.node_name or where.all_nodes or reach is not None):
            continue
        key = (spec.driver, spec.pool.name, device.name)
        order = (spec.driver, spec.pool.name, is_late, a_slice.metadata.name, index)
        found.append(SliceDevice(key, device, where.node_name or "", reach, order))
    return found


def gate_lacking(a_slice: ResourceSlice, gates: FeatureGates) -> str:
    """Return the gate without which devices of the slice, or the slice, are left out; "" when none is."""
    spec = a_slice.spec
    has_parts = (
        spec.per_device_node_selection is not None
        or spec.shared_counters
        or any(device.consumes_counters for device in spec.devices)
    )
    wanted = {"DRAPartitionableDevices": has_parts, "DRADeviceBindingConditions": has_conditions(a_slice)}
    return next((gate for gate, is_wanted in wanted.items() if is_wanted and not gates.is_on(gate)), "")


def has_conditions(a_slice: ResourceSlice) -> bool:
    """Return whether some device of the slice has to be made ready after it was given away."""
    return any(device.binding_conditions for device in a_slice.spec.devices)


def check_names(names: Iterable[str]) -> None:
    """Raises: PoolError when two devices have the same name."""
    counts = itertools.groupby(sorted(names))
    double = next((name for name, group in counts if len(list(group)) > 1), None)
    if double is not None:
        raise PoolError(f"duplicate device name {double}")


_BLOCKING = ("NoSchedule", "NoExecute")
_ANY = DeviceTaintSelector()


def selects_pool(rule: DeviceTaintRule, pool: tuple[str, str]) -> bool:
    """Return whether a rule may be about devices of the pool (driver, pool)."""
    wanted = rule.spec.device_selector or _ANY
    return wanted.driver in (None, pool[0]) and wanted.pool in (None, pool[1])


def selects(rule: DeviceTaintRule, key: tuple[str, str, str]) -> bool:
    """Return whether a rule is about the device (driver, pool, device)."""
    wanted = rule.spec.device_selector or _ANY
    return selects_pool(rule, key[:2]) and wanted.device in (None, key[2])


def tolerates(tolerations: Iterable[tuple[str, str, str, str]], taint: DeviceTaint) -> bool:
    """Return whether a taint does not keep a request from a device.

    `tolerations`: (key, operator, value, effect); only the effects NoSchedule and NoExecute keep anybody from anything.
    """
    if taint.effect not in _BLOCKING:
        return True
    return any(
        (not effect or effect == taint.effect)
        and (not key or key == taint.key)
        and (operator == "Exists" or (bool(key) and value == taint.value))
        for key, operator, value, effect in tolerations
    )
