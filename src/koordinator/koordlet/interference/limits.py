"""Turn the controller's decisions into limits: its settings, and what strategies are allowed by its ceilings. Pure."""

from collections.abc import Mapping

import msgspec

from koordinator.api.interference import InterferenceSettings
from koordinator.koordlet.allowance import BatchAllowance
from koordinator.koordlet.interference.control import FULL_PERCENT, ControlConfig, Resource

STEP_PERCENT = 5
"""Shares of resources other than CPU change in such steps: each change is many writes."""
PAGE_BYTES = 4_096
CAP_MILLI_MIN = 10
"""The kernel takes no smaller quota."""
_NEVER_S = float("inf")


def config_of(settings: InterferenceSettings, fixed_percent: int) -> ControlConfig:
    """Return the controller's settings; `fixed_percent` is the threshold that counts without a measurement."""
    return ControlConfig(
        slack_low_ratio=settings.slack_low_percent / FULL_PERCENT,
        slack_high_ratio=settings.slack_high_percent / FULL_PERCENT,
        threshold_min_percent=settings.cpu_threshold_min_percent,
        threshold_max_percent=settings.cpu_threshold_max_percent,
        fixed_percent=fixed_percent,
        resource_min_percent=settings.resource_min_percent,
        cap_after_seconds=ControlConfig().cap_after_seconds if settings.cap_culprit else _NEVER_S,
        evict_after_seconds=settings.evict_after_seconds,
        evictions_max=ControlConfig().evictions_max if settings.evict_culprit else 0,
        signal_half_life_seconds=settings.signal_half_life_seconds
        or ControlConfig().signal_half_life_seconds,
    )


class Cap(msgspec.Struct, frozen=True):
    """A culprit with a quota of its own: the CPU that it used when it was named."""

    uid: str
    used_milli: int

    def milli(self, percent: float) -> int:
        """Return what a share of that is."""
        return max(int(self.used_milli * percent / FULL_PERCENT), CAP_MILLI_MIN)


def allowance_of(
    ceilings: Mapping[Resource, float],
    settings: InterferenceSettings,
    cap: Cap | None,
    culprit_percent: float,
) -> BatchAllowance:
    """Return what strategies are allowed, by the ceilings of all resources in percent."""
    is_capped = cap is not None and culprit_percent < FULL_PERCENT
    return BatchAllowance(
        cpu_threshold_percent=int(ceilings[Resource.CPU]) if settings.acts_on("cpu") else None,
        cache_percent=stepped(ceilings[Resource.CACHE]),
        disk_percent=stepped(ceilings[Resource.DISK]),
        network_percent=stepped(ceilings[Resource.NETWORK]),
        capped_milli={cap.uid: cap.milli(culprit_percent)} if cap is not None and is_capped else {},
    )


def stepped(percent: float) -> int:
    """Return the step below; never nothing."""
    return max(int(percent) // STEP_PERCENT * STEP_PERCENT, STEP_PERCENT)


def memory_high_bytes(used_bytes: int, percent: float) -> int:
    """Return `memory.high` of all batch: a share of what it used when degradation began, in whole pages."""
    return max(int(used_bytes * percent / FULL_PERCENT) // PAGE_BYTES, 1) * PAGE_BYTES
