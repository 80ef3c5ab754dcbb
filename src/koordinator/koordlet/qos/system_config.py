"""Settings of the node's kernel: `systemStrategy` to files below /proc/sys and /sys. Source: behaviour/koordlet-act 12.

Values out of range are left out.
"""

from collections.abc import Callable

import msgspec

from koordinator.api.slo import SystemStrategy
from koordinator.host.errors import ContentError

_KIB = 1024
_FACTOR_UNIT = 10_000
_WMARK_NS_MAX = 2**63 - 1


class _Setting(msgspec.Struct, frozen=True):
    """One file: where, which values it takes, and the value from strategy and node memory in bytes."""

    file: str
    low: int
    high: int
    value: Callable[[SystemStrategy, int], int | None]


def _min_free_kbytes(strategy: SystemStrategy, memory_bytes: int) -> int | None:
    factor = strategy.min_free_kbytes_factor
    return None if factor is None else memory_bytes // _KIB * factor // _FACTOR_UNIT


_SETTINGS = (
    _Setting("vm/min_free_kbytes", 10 * _KIB, 10 * _KIB * _KIB, _min_free_kbytes),
    _Setting("vm/watermark_scale_factor", 10, 400, lambda strategy, _: strategy.watermark_scale_factor),
    _Setting("memcg_reaper/reap_background", 0, 1, lambda strategy, _: strategy.memcg_reap_back_ground),
    _Setting(
        "kernel/sched_group_identity_enabled", 0, 1, lambda strategy, _: strategy.sched_group_identity_enabled
    ),
    _Setting(
        "kernel/sched_idle_saver_wmark", 0, _WMARK_NS_MAX, lambda strategy, _: strategy.sched_idle_saver_wmark
    ),
    _Setting("pagecache_limit/enabled", 0, 1, lambda strategy, _: strategy.page_cache_limit_enabled),
)
BELOW_PROC_SYS = ("vm/", "kernel/")
"""Files that are below /proc/sys; the others are below /sys/kernel/mm."""


class SystemPlan(msgspec.Struct, frozen=True):
    """Files with their texts, and words for `sched_features`, to be written one at a time."""

    files: dict[str, str]
    features: list[str]


def plan(strategy: SystemStrategy, memory_bytes: int, current_features: str) -> SystemPlan:
    """Return what must be written; nothing while the node's memory is not known.

    Raises: ContentError when the kernel's features contradict each other.
    """
    if memory_bytes <= 0:
        return SystemPlan({}, [])
    return SystemPlan(wanted_files(strategy, memory_bytes), wanted_features(strategy, current_features))


def wanted_files(strategy: SystemStrategy, memory_bytes: int) -> dict[str, str]:
    """File → text, for a node with that much memory."""
    wanted = {}
    for setting in _SETTINGS:
        value = setting.value(strategy, memory_bytes)
        if value is not None and setting.low <= value <= setting.high:
            wanted[setting.file] = str(value)
    return wanted


def wanted_features(strategy: SystemStrategy, current: str) -> list[str]:
    """Words to write to the kernel's `sched_features`, one at a time: those that differ from what it says.

    Raises: ContentError when the current content contradicts itself.
    """
    words = set(current.split())
    for word in words:
        if _opposite(word) in words:
            raise ContentError("sched_features", f"both {word} and {_opposite(word)}")
    wanted = (name if is_on else f"NO_{name}" for name, is_on in sorted(strategy.sched_features.items()))
    return [word for word in wanted if word not in words]


def _opposite(word: str) -> str:
    return word.removeprefix("NO_") if word.startswith("NO_") else f"NO_{word}"
