"""Plugins `GPUDeviceResource` and `RDMADeviceResource`: what a node's Device object lists (behaviour/manager 10).

Cards are there whether co-location is on or not.
"""

from collections.abc import Callable, Sequence

from koordinator.manager.noderesource import account
from koordinator.manager.noderesource.device import DeviceTarget
from koordinator.manager.noderesource.rows import NodeRow
from koordinator.manager.noderesource.target import NodeTarget, Note

UNREADABLE = "DeviceUnreadable"


class GPUDeviceResource:
    """Sums over healthy GPUs, and labels that tell what they are."""

    name = "GPUDeviceResource"

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """See `Plugin`."""
        return _sync(rows, targets, lambda row: row.gpu)


class RDMADeviceResource:
    """100 for each healthy NIC."""

    name = "RDMADeviceResource"

    def calculate(self, rows: Sequence[NodeRow], targets: Sequence[NodeTarget]) -> int:
        """See `Plugin`."""
        return _sync(rows, targets, lambda row: row.rdma)


def _sync(
    rows: Sequence[NodeRow], targets: Sequence[NodeTarget], part: Callable[[NodeRow], DeviceTarget]
) -> int:
    failures = 0
    for row, target in zip(rows, targets, strict=True):
        if row.device_problem:
            failures += 1
            note = Note(UNREADABLE, row.device_problem)
            if note not in target.notes:
                target.notes.append(note)
            continue
        wanted = part(row)
        for name, amount in wanted.amounts.items():
            target.amounts[name] = None if amount is None else account.whole(amount)
        target.labels.update(wanted.labels)
    return failures
