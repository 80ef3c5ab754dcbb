"""Select the devices that a request may get: selectors and taints, worked out once per kind of request and device."""

import abc
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.dra import DeviceSelector, DeviceTaint, DeviceToleration
from koordinator.cel import CompileError, EvaluationError, Program, compile_expression
from koordinator.scheduler.plugins.dynamic_resources.inventory import Inventory, SliceDevice

SELECTIONS_MAX = 512
"""Kinds of requests remembered; each has a byte per device."""
COLUMNS_MAX = 128

CLAIM = "{claim}"
"""Stands for the claim's name in texts about selectors, as these are shared by claims."""

_BLOCKING = ("NoSchedule", "NoExecute")


class DeviceSelectorError(Exception):
    """A selector that cannot be used; `CLAIM` in the text stands for the claim's name."""


class SelectionKey(msgspec.Struct, frozen=True):
    """The inputs of a selection. `owner` and `own` are a class's name and selectors, `more` those of the request:
    claims that ask for the same share it.
    """

    owner: str
    own: tuple[str | None, ...]
    more: tuple[str | None, ...]
    tolerations: tuple[tuple[str, str, str, str], ...]


def texts(selectors: Iterable[DeviceSelector]) -> tuple[str | None, ...]:
    return tuple(each.cel.expression if each.cel is not None else None for each in selectors)


def facts(tolerations: Iterable[DeviceToleration]) -> tuple[tuple[str, str, str, str], ...]:
    return tuple((each.key, each.operator, each.value, each.effect) for each in tolerations)


def tolerates(tolerations: Iterable[tuple[str, str, str, str]], taint: DeviceTaint) -> bool:
    """Return whether a taint does not keep a request from a device."""
    if taint.effect not in _BLOCKING:
        return True
    return any(
        (not effect or effect == taint.effect)
        and (not key or key == taint.key)
        and (operator == "Exists" or (bool(key) and value == taint.value))
        for key, operator, value, effect in tolerations
    )


class DeviceColumn(abc.ABC):
    """Something worked out once per device: `values` over the devices' numbers."""

    def __init__(self, inventory: Inventory, dtype: npt.DTypeLike) -> None:
        self.inventory = inventory
        self.values: npt.NDArray[Any] = np.zeros(0, dtype)
        self._stamp = -1

    def refresh(self) -> None:
        """Look at devices that are new since the last time."""
        inventory = self.inventory
        if self._stamp == inventory.stamp_now:
            return
        missing = inventory.node.size - self.values.size
        if missing > 0:
            self.values = np.concatenate([self.values, np.zeros(missing, self.values.dtype)])
        is_new = inventory.is_alive & (inventory.stamp > self._stamp)
        self._stamp = inventory.stamp_now
        for number in np.flatnonzero(is_new).tolist():
            entry = inventory.entries[number]
            assert entry is not None, number
            self.values[number] = self.judge(number, entry)

    @abc.abstractmethod
    def judge(self, number: int, entry: SliceDevice) -> Any:
        """Return the value of one device."""


class DeviceSelection(DeviceColumn):
    """Devices that a kind of request may get. `failures` has what selectors said that failed on a device (with
    `CLAIM` for the claim's name): such a device does not match."""

    def __init__(self, inventory: Inventory, key: SelectionKey) -> None:
        """Raises: DeviceSelectorError."""
        super().__init__(inventory, np.bool_)
        own = [(f"class {key.owner}", text) for text in key.own]
        more = [(f"claim {CLAIM}", text) for text in key.more]
        self._programs = [_program(whose, index, text) for index, (whose, text) in _numbered(own, more)]
        self._tolerations = key.tolerations
        self.failures: dict[int, str] = {}

    def judge(self, number: int, entry: SliceDevice) -> bool:
        self.failures.pop(number, None)
        for whose, program in self._programs:
            try:
                matches = program({"device": entry.as_seen})
                if not isinstance(matches, bool):
                    raise EvaluationError(f"the result is no bool: {matches!r}")
            except EvaluationError as error:
                self.failures[number] = f"{whose}: CEL runtime error: {error}"
                return False
            if not matches:
                return False
        return all(tolerates(self._tolerations, taint) for taint in entry.device.taints)


def _numbered(*groups: Sequence[tuple[str, str | None]]) -> list[tuple[int, tuple[str, str | None]]]:
    return [numbered for group in groups for numbered in enumerate(group)]


def _program(whose: str, index: int, text: str | None) -> tuple[str, Program]:
    name = f"{whose}: selector #{index}"
    if text is None:
        raise DeviceSelectorError(f"{name}: CEL expression empty (unsupported selector type?)")
    try:
        return name, compile_expression(text, ("device",))
    except CompileError as error:
        raise DeviceSelectorError(f"{name}: CEL compile error: {error}") from error


ABSENT = -1


class AttributeColumn(DeviceColumn):
    """Number of an attribute's value per device, `ABSENT` for devices without it."""

    def __init__(self, inventory: Inventory, name: str) -> None:
        super().__init__(inventory, np.int32)
        self._name = name
        self._numbers: dict[Any, int] = {}

    def judge(self, number: int, entry: SliceDevice) -> int:
        value = entry.attribute(self._name)
        return ABSENT if value is None else self._numbers.setdefault(value, len(self._numbers))


class DeviceSelections:
    """All of them, those asked for last kept longest."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._selections: OrderedDict[SelectionKey, DeviceSelection] = OrderedDict()
        self._attributes: OrderedDict[str, AttributeColumn] = OrderedDict()

    def of(self, key: SelectionKey) -> DeviceSelection:
        """Raises: DeviceSelectorError."""
        found = self._selections.get(key)
        if found is None:
            found = self._selections[key] = DeviceSelection(self._inventory, key)
            if len(self._selections) > SELECTIONS_MAX:
                self._selections.popitem(last=False)
        self._selections.move_to_end(key)
        return found

    def attribute(self, name: str) -> AttributeColumn:
        found = self._attributes.get(name)
        if found is None:
            found = self._attributes[name] = AttributeColumn(self._inventory, name)
            if len(self._attributes) > COLUMNS_MAX:
                self._attributes.popitem(last=False)
        self._attributes.move_to_end(name)
        return found
