"""Remember of a class of pods which devices they ask for, and what nodes said about it so far."""

from collections.abc import Callable, Sequence

import numpy as np

from koordinator.api.annotations.device import DeviceAllocations
from koordinator.scheduler.plugin.framework import ReasonCodes
from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.plugins.device_share.allocate import DeviceDecision, PodDevices
from koordinator.scheduler.plugins.device_share.bulk import DeviceDemand, KindVerdicts
from koordinator.scheduler.plugins.device_share.inventory import NodeDevices
from koordinator.scheduler.table.columns import Recent
from koordinator.scheduler.table.pod_info import PodInfo

ANSWERS_MAX = 16_384
"""Answers that a class of pods remembers: some for each node of a large cluster."""
CHOICES_MAX = 64
"""Choices of devices that a class of pods remembers: nodes that fill up alike pass through few states."""


class DeviceState:
    """A pod's demand, and the answers of nodes so far; nodes that are alike (`NodeDeviceRecord.signature`) answer
    alike."""

    def __init__(
        self,
        pod: PodInfo,
        asked: PodDevices,
        demand: DeviceDemand,
        kinds: KindVerdicts,
        status: Status,
        chosen: DeviceAllocations | None,
    ) -> None:
        self.pod = pod
        self.asked = asked
        self.demand = demand
        self.kinds = kinds
        self.status = status
        self.chosen = chosen
        """Devices that were chosen beforehand, by whoever plans for the scheduler."""
        self.kind_codes: ReasonCodes = np.zeros(0, np.uint16)
        """(kinds,): refusals by what a node says beside its devices."""
        self.codes: dict[bytes, int] = {}
        self.points: dict[bytes, int] = {}
        self.choices: Recent[DeviceDecision] = Recent(CHOICES_MAX)
        self.statuses: list[Status] = []
        self._code_of: dict[Status, int] = {}

    def follow(self, kinds: Sequence[NodeDevices]) -> None:
        """Take in kinds of nodes that are new."""
        if self.kinds.follow(kinds):
            codes = [self.code_of(status) for status in self.kinds.refusals]
            self.kind_codes = np.array(codes, np.uint16)

    def code_of(self, status: Status) -> int:
        """Return the number of a refusal; 0 for success."""
        if status.is_success:
            return 0
        code = self._code_of.get(status)
        if code is None:
            self.statuses.append(status)
            code = self._code_of[status] = len(self.statuses)
        return code


def remembered(known: dict[bytes, int], signature: bytes, work_out: Callable[[], int]) -> int:
    """Return the answer that nodes with this signature gave, asked for once."""
    found = known.get(signature)
    if found is None:
        if len(known) >= ANSWERS_MAX:
            known.clear()
        found = known[signature] = work_out()
    return found
