"""GPU use of processes, summed by card. Source: behaviour/koordlet-observe 10.1."""

from collections.abc import Collection, Iterable, Mapping

import msgspec


class GPUUsage(msgspec.Struct, frozen=True):
    """Compute in percent of a card, and its memory."""

    core_percent: int = 0
    memory_bytes: int = 0

    def __add__(self, other: "GPUUsage") -> "GPUUsage":
        return GPUUsage(self.core_percent + other.core_percent, self.memory_bytes + other.memory_bytes)


Processes = Mapping[int, Mapping[int, GPUUsage]]
"""Process id → card (minor) → what it uses there."""


def node_usage(minors: Iterable[int], processes: Processes) -> dict[int, GPUUsage]:
    """Return what all processes use of each card; idle cards, too."""
    return {minor: GPUUsage() for minor in minors} | group_usage(processes, processes.keys())


def group_usage(processes: Processes, pids: Collection[int]) -> dict[int, GPUUsage]:
    """Return what the processes of a pod or container use, of the cards that they touch."""
    sums: dict[int, GPUUsage] = {}
    for pid in pids:
        for minor, usage in processes.get(pid, {}).items():
            sums[minor] = sums.get(minor, GPUUsage()) + usage
    return sums
