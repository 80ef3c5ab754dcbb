"""Translate a colocation strategy for the formulas of Batch and Mid resources (behaviour/manager 6, 7). Pure."""

import enum

import msgspec

from koordinator.api import slo_config
from koordinator.api.slo_config import ColocationStrategy
from koordinator.manager.config.node_entries import overlay


class CalculatePolicy(enum.IntEnum):
    """The figure that stands for the high-priority pods in the formula."""

    USAGE = 0
    REQUEST = 1  # memory only; for CPU it means USAGE, as in the reference
    MAX_USAGE_REQUEST = 2

    @classmethod
    def parse(cls, text: str) -> "CalculatePolicy":
        """Unknown text means usage."""
        return {"request": cls.REQUEST, "maxUsageRequest": cls.MAX_USAGE_REQUEST}.get(text, cls.USAGE)


class ReclaimPolicy(msgspec.Struct, frozen=True):
    """The part of a colocation strategy that the formula needs. Percent values may exceed 100.

    The caps are percent of capacity; None means no cap.
    """

    cpu_percent: int = 60
    memory_percent: int = 65
    cpu_policy: CalculatePolicy = CalculatePolicy.USAGE
    memory_policy: CalculatePolicy = CalculatePolicy.USAGE
    cpu_cap_percent: int | None = None
    memory_cap_percent: int | None = None


class MidPolicy(msgspec.Struct, frozen=True):
    """The part of a colocation strategy that the formula needs; percent of capacity unless said otherwise."""

    is_static: bool = False
    cpu_cap_percent: int = 100
    memory_cap_percent: int = 100
    unallocated_percent: int = 0
    """Part of what no service has requested that is lent on top."""
    static_cpu_percent: int = 0
    static_memory_percent: int = 0


def mid_policy(strategy: ColocationStrategy) -> MidPolicy:
    """Return the policy of a strategy; what it does not set is taken from the defaults."""
    full = overlay(slo_config.DEFAULT_COLOCATION_STRATEGY, strategy)
    assert full.mid_cpu_threshold_percent is not None and full.mid_memory_threshold_percent is not None
    assert full.mid_unallocated_percent is not None
    assert full.mid_static_cpu_reserved_percent is not None
    assert full.mid_static_memory_reserved_percent is not None
    return MidPolicy(
        is_static=full.mid_reclaim_mode == slo_config.MID_RECLAIM_STATIC,
        cpu_cap_percent=full.mid_cpu_threshold_percent,
        memory_cap_percent=full.mid_memory_threshold_percent,
        unallocated_percent=full.mid_unallocated_percent,
        static_cpu_percent=full.mid_static_cpu_reserved_percent,
        static_memory_percent=full.mid_static_memory_reserved_percent,
    )
