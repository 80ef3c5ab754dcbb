"""Read what the claims of a pod without devices ask for. Words as upstream's."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from koordinator.api.dra import (
    ALL_DEVICES,
    EXACT_COUNT,
    RESULTS_MAX,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from koordinator.scheduler.plugins.dynamic_resources import selection
from koordinator.scheduler.plugins.dynamic_resources.allocator import (
    ALL,
    AllocationProblem,
    ClaimRequest,
    MatchConstraint,
    SubRequest,
)
from koordinator.scheduler.plugins.dynamic_resources.selection import (
    AttributeColumn,
    DeviceSelection,
    DeviceSelections,
    DeviceSelectorError,
    SelectionKey,
)

T = TypeVar("T")
FindClass = Callable[[str], DeviceClass | None]


class DemandError(Exception):
    """A claim cannot be given devices anywhere."""


class SubRequestTerms(msgspec.Struct, frozen=True, eq=False):
    """The words of a wish: `request` is its name in the result."""

    request: str
    device_class: DeviceClass
    tolerations: tuple[DeviceToleration, ...]


class ClaimDemand(msgspec.Struct, frozen=True, eq=False):
    """`problem` in numbers: `selections` and `attributes` are what its indices stand for; `wanted` has the words of
    each wish of each ask."""

    claims: tuple[ResourceClaim, ...]
    problem: AllocationProblem
    selections: tuple[DeviceSelection, ...]
    attributes: tuple[AttributeColumn, ...]
    wanted: tuple[tuple[SubRequestTerms, ...], ...]


def read(claims: Sequence[ResourceClaim], find_class: FindClass, selections: DeviceSelections) -> ClaimDemand:
    """Raises: DemandError."""
    reader = _Reader(find_class, selections)
    for index, claim in enumerate(claims):
        try:
            reader.read(index, claim)
        except DeviceSelectorError as error:
            raise DemandError(str(error).replace(selection.CLAIM, claim.key)) from error
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
                words.append(SubRequestTerms(name, device_class, tuple(sub_request.tolerations)))
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
        if sub_request.capacity:
            raise DemandError(f"claim {claim.key}, request {name}: capacity requirements are not supported")
        mode = sub_request.allocation_mode or EXACT_COUNT
        if mode not in (EXACT_COUNT, ALL_DEVICES):
            raise DemandError(f"claim {claim.key}, request {name}: unsupported count mode {mode}")
        key = SelectionKey(
            owner=device_class.metadata.name,
            own=selection.texts(device_class.spec.selectors),
            more=selection.texts(sub_request.selectors),
            tolerations=selection.facts(sub_request.tolerations),
        )
        return SubRequest(
            fits=_index(self.selections, self._known.of(key)),
            count=ALL if mode == ALL_DEVICES else max(1, sub_request.count),
            is_admin=isinstance(sub_request, ExactDeviceRequest) and bool(sub_request.admin_access),
            rules=rules,
        )


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
