"""Devices that have to be made ready once a claim has them: whether they are, were given up, or are late.

Source: KEP-5007.
"""

import enum
import math
from collections.abc import Mapping

import msgspec

from koordinator import clock
from koordinator.api.dra import DeviceRequestAllocationResult, ResourceClaim
from koordinator.api.meta import Condition


class Readiness(enum.Enum):
    READY = "ready"
    PENDING = "pending"
    FAILED = "failed"
    LATE = "late"


class ClaimReadiness(msgspec.Struct, frozen=True):
    """`problem` says what went wrong when a claim FAILED or is LATE. `is_with_driver`: a PENDING one waits for its
    driver, not for a change of what was written."""

    state: Readiness
    problem: str = ""
    is_with_driver: bool = False

    @property
    def is_lost(self) -> bool:
        """Return whether waiting is of no use: other devices have to be found."""
        return self.state in (Readiness.FAILED, Readiness.LATE)


READY = ClaimReadiness(Readiness.READY)
PENDING = ClaimReadiness(Readiness.PENDING, is_with_driver=True)


def readiness(claim: ResourceClaim, timeout_s: float, now_s: float) -> ClaimReadiness:
    """Return whether all devices of a claim are ready: all of their conditions hold and no failure was reported.

    Devices that are not may take `timeout_s` from when they were given away; claims without a time never are late.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return ClaimReadiness(Readiness.PENDING)
    states = [
        _device_state(claim, result) for result in allocation.devices.results if result.binding_conditions
    ]
    for state in states:
        if state.state is not Readiness.READY:
            given_s = clock.parse_rfc3339_or(allocation.allocation_timestamp, math.inf)
            is_late = given_s + timeout_s < now_s
            if state.state is Readiness.PENDING and is_late:
                return ClaimReadiness(Readiness.LATE, f"claim {claim.metadata.name} binding timeout")
            return state
    return READY


def _device_state(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> ClaimReadiness:
    key = (result.driver, result.pool, result.device)
    said = next((each for each in claim.status.devices if (each.driver, each.pool, each.device) == key), None)
    if said is None:
        return PENDING
    conditions: Mapping[str, Condition] = {each.type: each for each in said.conditions}
    for name in result.binding_failure_conditions:
        found = conditions.get(name)
        if found is not None and found.status == "True":
            why = f"reason={found.reason}, message={found.message!r}"
            return ClaimReadiness(Readiness.FAILED, f"claim {claim.metadata.name} binding failed: {why}")
    is_ready = all(
        (found := conditions.get(name)) is not None and found.status == "True"
        for name in result.binding_conditions
    )
    return READY if is_ready else PENDING
