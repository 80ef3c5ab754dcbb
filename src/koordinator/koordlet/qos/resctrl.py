"""Shares of the last-level cache and of memory bandwidth: schemata of resctrl groups.

Source: behaviour/koordlet-act 10.
"""

import math
from collections.abc import Collection, Iterable, Mapping

import msgspec

from koordinator.api import labels, pod_labels, qos
from koordinator.api.core import Pod
from koordinator.api.qos import QoSClass
from koordinator.api.slo_qos import ResctrlQOS, ResourceQOS, ResourceQOSStrategy

GROUPS = ("LSR", "LS", "BE")
INTEL, AMD = "GenuineIntel", "AuthenticAMD"
INTEL_STEP_PERCENT = 10
AMD_UNLIMITED = 2048
AMD_FULL_BANDWIDTH = 160
"""Units of 1/8 GB/s that one die is assumed to have: 25 GB/s, of which 80 % can be used."""

_PERCENT = 100
_GROUP_OF_QOS = {QoSClass.LSE: "LSR", QoSClass.LSR: "LSR", QoSClass.LS: "LS", QoSClass.BE: "BE"}


class ResctrlCPU(msgspec.Struct, frozen=True):
    """The features of the CPU: vendor, full mask of the cache, ids of the caches as in the root schemata."""

    vendor: str
    full_mask: int
    cache_ids: tuple[int, ...]


class ResctrlSupport(msgspec.Struct, frozen=True):
    """The resources that the CPU can divide."""

    cache: bool
    bandwidth: bool


def support_of(flags: Collection[str]) -> ResctrlSupport:
    """Return what the flags of `/proc/cpuinfo` promise; both are needed."""
    return ResctrlSupport("cat_l3" in flags, "mba" in flags)


def full_mask_of(text: str) -> int:
    """Return the full mask that `cbm_mask` says in hexadecimal; 0 when it says none."""
    try:
        return int(text.strip(), 16)
    except ValueError:
        return 0


def l3_mask(full_mask: int, start_percent: int, end_percent: int) -> int | None:
    """Ways of the cache within a range of percent, at least one; None when mask or range make no sense."""
    if full_mask <= 0 or full_mask & (full_mask + 1):
        return None
    if not 0 <= start_percent < end_percent <= _PERCENT:
        return None
    ways = full_mask.bit_length()
    first = -(-ways * start_percent // _PERCENT)
    end = -(-ways * end_percent // _PERCENT)
    # The kernel refuses an empty mask; a narrow range gets the way that it lies in.
    return (1 << end) - (1 << first) if first < end else 1 << (ways * start_percent // _PERCENT)


def bandwidth(vendor: str, percent: int | None) -> int | None:
    """Return number for an MB line; None leaves it alone. Vendors that we do not know are taken for Intel."""
    if percent is None or not 0 < percent <= _PERCENT:
        return None
    if vendor == AMD:
        return AMD_UNLIMITED if percent == _PERCENT else AMD_FULL_BANDWIDTH * percent // _PERCENT
    return math.ceil(percent / INTEL_STEP_PERCENT) * INTEL_STEP_PERCENT


def group_lines(strategy: ResourceQOSStrategy, cpu: ResctrlCPU) -> dict[str, list[str]]:
    """Lines to write to each group's schemata, in order; a setting that makes no sense leaves it alone."""
    sections = dict(zip(GROUPS, (strategy.lsr_class, strategy.ls_class, strategy.be_class), strict=True))
    return {group: _lines(_resctrl(section), cpu) for group, section in sections.items()}


def l3_line(masks: Mapping[int, int]) -> str:
    """Return the line that gives each cache its mask."""
    return f"L3:{''.join(f'{cache}={masks[cache]:x};' for cache in sorted(masks))}\n"


def mb_line(values: Mapping[int, int]) -> str:
    """Return the line that gives each cache its bandwidth."""
    return f"MB:{''.join(f'{cache}={values[cache]};' for cache in sorted(values))}\n"


def pod_group(pod: Pod, strategy: ResourceQOSStrategy) -> str | None:
    """Return the group whose tasks get the pod's threads; None for pods with groups of their own and switched-off
    classes.
    """
    if labels.RESCTRL in pod.metadata.annotations or pod_labels.is_inactive(pod.status.phase):
        return None
    group = _GROUP_OF_QOS.get(qos.default(pod))
    if group is None:
        return None
    section = {"LSR": strategy.lsr_class, "LS": strategy.ls_class, "BE": strategy.be_class}[group]
    settings = _resctrl(section)
    return group if settings is not None and settings.enable else None


def new_tasks(threads: Iterable[int], group_threads: Collection[int]) -> list[int]:
    """Threads to write to a group's tasks, one per write, in order."""
    return sorted(set(threads) - set(group_threads))


def _resctrl(section: ResourceQOS | None) -> ResctrlQOS | None:
    return section.resctrl_qos if section is not None else None


def _lines(settings: ResctrlQOS | None, cpu: ResctrlCPU) -> list[str]:
    if settings is None:
        return []
    lines = []
    start, end = settings.cat_range_start_percent, settings.cat_range_end_percent
    mask = l3_mask(cpu.full_mask, start, end) if start is not None and end is not None else None
    if mask is not None:
        lines.append(l3_line(dict.fromkeys(cpu.cache_ids, mask)))
    value = bandwidth(cpu.vendor, settings.mba_percent)
    if value is not None:
        lines.append(mb_line(dict.fromkeys(cpu.cache_ids, value)))
    return lines
