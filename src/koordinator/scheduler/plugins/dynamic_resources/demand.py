"""Read what the claims of a pod without devices ask for, and select the devices that a request may get: selectors and
taints, worked out once per kind of request and device. Words as upstream's."""

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.affinity import Toleration
from koordinator.api.dra import (
    ALL_DEVICES,
    EXACT_COUNT,
    RESULTS_MAX,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
)
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.quantity import QuantityError
from koordinator.cel import CompileError, EvaluationError, Program, compile_expression
from koordinator.scheduler.plugins.dynamic_resources.allocator import (
    ALL,
    AllocationProblem,
    ClaimRequest,
    MatchConstraint,
    SubRequest,
)
from koordinator.scheduler.plugins.dynamic_resources.consumable_capacity import Share, Wanted, share_of
from koordinator.scheduler.plugins.dynamic_resources.inventory import Inventory
from koordinator.scheduler.plugins.dynamic_resources.slice_devices import SliceDevice, tolerates
from koordinator.scheduler.table.columns import Recent, grown

SELECTIONS_MAX = 512
"""Kinds of requests remembered; each has a byte per device."""
COLUMNS_MAX = 128
CONTENTS_MAX = 1024
"""Contents of devices for which a selection remembers what its selectors said: nodes have the same parts of cards."""

CLAIM = "{claim}"
"""Stands for the claim's name in texts about selectors, as these are shared by claims."""


class DeviceSelectorError(Exception):
    """A selector that cannot be used; `CLAIM` in the text stands for the claim's name."""


class SelectionKey(msgspec.Struct, frozen=True):
    """The inputs of a selection. `owner` and `own` are a class's name and selectors, `more` those of the request:
    claims that ask for the same share it; `capacity` are the amounts that it needs of a device."""

    owner: str
    own: tuple[str | None, ...]
    more: tuple[str | None, ...]
    tolerations: tuple[tuple[str, str, str, str], ...]
    capacity: Wanted = ()


def texts(selectors: Iterable[DeviceSelector]) -> tuple[str | None, ...]:
    return tuple(each.cel.expression if each.cel is not None else None for each in selectors)


def facts(tolerations: Iterable[Toleration]) -> tuple[tuple[str, str, str, str], ...]:
    return tuple((each.key, each.operator, each.value, each.effect) for each in tolerations)


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
        self.values = grown(self.values, inventory.node.size)
        is_new = inventory.is_alive & (inventory.stamp > self._stamp)
        self._stamp = inventory.stamp_now
        for number in np.flatnonzero(is_new).tolist():
            self.values[number] = self.judge(number, inventory.entries[number])

    @abc.abstractmethod
    def judge(self, number: int, entry: SliceDevice) -> Any:
        """Return the value of one device."""


class _Verdict(msgspec.Struct, frozen=True):
    """The answer of a selection for devices with the same content: `failure` when a selector or an amount failed,
    `share` for what the request would take."""

    matches: bool = False
    failure: str = ""
    share: Share | None = None


class DeviceSelection(DeviceColumn):
    """Devices that a kind of request may get. `failures` has what selectors said that failed on a device (with
    `CLAIM` for the claim's name): such a device does not match. `shares` has what the request would take of each device
    that several claims may share."""

    def __init__(self, inventory: Inventory, key: SelectionKey) -> None:
        """Raises: DeviceSelectorError."""
        super().__init__(inventory, np.bool_)
        own = [(f"class {key.owner}", text) for text in key.own]
        more = [(f"claim {CLAIM}", text) for text in key.more]
        self._programs = [
            _program(whose, index, text) for group in (own, more) for index, (whose, text) in enumerate(group)
        ]
        self._tolerations = key.tolerations
        self._capacity = key.capacity
        self._verdicts: Recent[_Verdict] = Recent(CONTENTS_MAX)
        self.failures: dict[int, str] = {}
        self.shares: dict[int, Share] = {}

    def amounts(self, numbers: Iterable[int]) -> list[list[int]]:
        """Return what the request would take of each device, in billionths, in the order of the capacities' names."""
        return [[each.nanos for each in self.shares.get(number, {}).values()] for number in numbers]

    def judge(self, number: int, entry: SliceDevice) -> bool:
        verdict = self._verdicts.get(entry.content, lambda: self._verdict(entry))
        self.failures.pop(number, None)
        self.shares.pop(number, None)
        if verdict.failure:
            self.failures[number] = verdict.failure
        if verdict.share is not None and self.inventory.is_multi[number]:
            self.shares[number] = verdict.share
        return verdict.matches and all(
            tolerates(self._tolerations, taint) for taint in self.inventory.taints_of(entry)
        )

    def _verdict(self, entry: SliceDevice) -> _Verdict:
        for whose, program in self._programs:
            try:
                matches = program({"device": entry.as_seen})
                if not isinstance(matches, bool):
                    raise EvaluationError(f"the result is no bool: {matches!r}")
            except EvaluationError as error:
                return _Verdict(failure=f"{whose}: CEL runtime error: {error}")
            if not matches:
                return _Verdict()
        is_shared = bool(entry.device.allow_multiple_allocations)
        if not self.inventory.gates.is_on("DRAConsumableCapacity") or not (self._capacity or is_shared):
            return _Verdict(matches=True)
        try:
            share = share_of(self._capacity, entry.capacity_terms)
        except QuantityError as error:
            return _Verdict(failure=f"capacity: {error}")
        return _Verdict(matches=share is not None, share=share)


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
        self.inventory = inventory
        self._selections: Recent[DeviceSelection] = Recent(SELECTIONS_MAX)
        self._attributes: Recent[AttributeColumn] = Recent(COLUMNS_MAX)

    def of(self, key: SelectionKey) -> DeviceSelection:
        """Raises: DeviceSelectorError."""
        return self._selections.get(key, lambda: DeviceSelection(self.inventory, key))

    def attribute(self, name: str) -> AttributeColumn:
        return self._attributes.get(name, lambda: AttributeColumn(self.inventory, name))


T = TypeVar("T")
FindClass = Callable[[str], DeviceClass | None]


class DemandError(Exception):
    """A claim cannot be given devices anywhere."""


class SubRequestTerms(msgspec.Struct, frozen=True, eq=False):
    """The words of a subrequest: `request` is its name in the result; `is_alternative`: the request lists several."""

    request: str
    device_class: DeviceClass
    tolerations: tuple[Toleration, ...]
    is_alternative: bool


class ClaimDemand(msgspec.Struct, frozen=True, eq=False):
    """`problem` in numbers: `selections` and `attributes` are what its indices stand for; `wanted` has the words of
    each subrequest of each ask."""

    claims: tuple[ResourceClaim, ...]
    problem: AllocationProblem
    selections: tuple[DeviceSelection, ...]
    attributes: tuple[AttributeColumn, ...]
    wanted: tuple[tuple[SubRequestTerms, ...], ...]

    @property
    def has_alternatives(self) -> bool:
        return any(words[0].is_alternative for words in self.wanted)


def read(claims: Sequence[ResourceClaim], find_class: FindClass, selections: DeviceSelections) -> ClaimDemand:
    """Raises: DemandError."""
    reader = _Reader(find_class, selections)
    for index, claim in enumerate(claims):
        try:
            reader.read(index, claim)
        except DeviceSelectorError as error:
            raise DemandError(str(error).replace(CLAIM, claim.key)) from error
    return ClaimDemand(
        claims=tuple(claims),
        problem=AllocationProblem(tuple(reader.asks), tuple(reader.rules), len(claims)),
        selections=tuple(reader.selections),
        attributes=tuple(reader.attributes),
        wanted=tuple(reader.wanted),
    )


class _Reader:
    def __init__(self, find_class: FindClass, selections: DeviceSelections) -> None:
        self._find_class = find_class
        self._known = selections
        self.asks: list[ClaimRequest] = []
        self.rules: list[MatchConstraint] = []
        self.selections: list[DeviceSelection] = []
        self.attributes: list[AttributeColumn] = []
        self.wanted: list[tuple[SubRequestTerms, ...]] = []

    def read(self, index: int, claim: ResourceClaim) -> None:
        devices = claim.spec.devices
        first_rule = len(self.rules)
        for number, constraint in enumerate(devices.constraints):
            self.rules.append(self._rule(claim, number, constraint))
        least = 0
        for request in devices.requests:
            sub_requests, words = [], []
            for name, sub_request in _sub_requests(claim, request):
                rules = tuple(
                    first_rule + number
                    for number, constraint in enumerate(devices.constraints)
                    if not constraint.requests
                    or request.name in constraint.requests
                    or name in constraint.requests
                )
                device_class = self._class(name, sub_request.device_class_name)
                sub_requests.append(self._sub_request(claim, name, sub_request, device_class, rules))
                is_alternative = isinstance(sub_request, DeviceSubRequest)
                tolerations = tuple(sub_request.tolerations)
                words.append(SubRequestTerms(name, device_class, tolerations, is_alternative))
            self.asks.append(ClaimRequest(index, tuple(sub_requests)))
            self.wanted.append(tuple(words))
            least += min(sub_request.count for sub_request in sub_requests)
        if least > RESULTS_MAX:
            raise DemandError(
                f"claim {claim.key}: number of requested devices {least} exceeds the claim limit of {RESULTS_MAX}"
            )

    def _rule(self, claim: ResourceClaim, number: int, constraint: DeviceConstraint) -> MatchConstraint:
        name = constraint.match_attribute or constraint.distinct_attribute
        if not name:
            raise DemandError(
                f"claim {claim.key}, constraint #{number}: empty constraint (unsupported constraint type?)"
            )
        column = self._known.attribute(name)
        return MatchConstraint(
            _index(self.attributes, column), is_distinct=constraint.match_attribute is None
        )

    def _class(self, request: str, name: str) -> DeviceClass:
        if not name:
            raise DemandError(f"request {request}: unsupported request type")
        found = self._find_class(name)
        if found is None:
            raise DemandError(f"request {request}: device class {name} does not exist")
        return found

    def _sub_request(
        self,
        claim: ResourceClaim,
        name: str,
        sub_request: ExactDeviceRequest | DeviceSubRequest,
        device_class: DeviceClass,
        rules: tuple[int, ...],
    ) -> SubRequest:
        is_admin = isinstance(sub_request, ExactDeviceRequest) and sub_request.admin_access is not None
        _check_gates(self._known.inventory.gates, f"claim {claim.key}, request {name}", sub_request, is_admin)
        mode = sub_request.allocation_mode or EXACT_COUNT
        if mode not in (EXACT_COUNT, ALL_DEVICES):
            raise DemandError(f"claim {claim.key}, request {name}: unsupported count mode {mode}")
        key = SelectionKey(
            owner=device_class.metadata.name,
            own=texts(device_class.spec.selectors),
            more=texts(sub_request.selectors),
            tolerations=facts(sub_request.tolerations),
            capacity=tuple(sorted(sub_request.capacity.requests.items())) if sub_request.capacity else (),
        )
        return SubRequest(
            fits=_index(self.selections, self._known.of(key)),
            count=ALL if mode == ALL_DEVICES else max(1, sub_request.count),
            is_admin=isinstance(sub_request, ExactDeviceRequest) and bool(sub_request.admin_access),
            rules=rules,
        )


def _check_gates(
    gates: FeatureGates, where: str, wanted: ExactDeviceRequest | DeviceSubRequest, is_admin: bool
) -> None:
    """Raises: DemandError when a request asks for what is switched off."""
    if isinstance(wanted, DeviceSubRequest) and not gates.is_on("DRAPrioritizedList"):
        raise DemandError(f"{where}: has subrequests, but the DRAPrioritizedList feature is disabled")
    if wanted.capacity is not None and not gates.is_on("DRAConsumableCapacity"):
        raise DemandError(
            f"{where}: has capacity requests, but the DRAConsumableCapacity feature is disabled"
        )
    if is_admin and not gates.is_on("DRAAdminAccess"):
        raise DemandError(f"{where}: admin access is requested, but the feature is disabled")


def _sub_requests(
    claim: ResourceClaim, request: DeviceRequest
) -> list[tuple[str, ExactDeviceRequest | DeviceSubRequest]]:
    if request.exactly is not None:
        return [(request.name, request.exactly)]
    if request.first_available:
        return [(f"{request.name}/{each.name}", each) for each in request.first_available]
    raise DemandError(f"claim {claim.key}, request {request.name}: unknown request type")


def _index(known: list[T], item: T) -> int:
    """Position of an item, which is appended when it is new."""
    for index, each in enumerate(known):
        if each is item:
            return index
    known.append(item)
    return len(known) - 1
