"""Resctrl groups of single pods, as their annotation asks. Source: behaviour/koordlet-act 19."""

from collections.abc import Mapping

import msgspec

from koordinator.api.annotations.koordlet import RESCTRL, ResctrlResource
from koordinator.koordlet.qos import resctrl
from koordinator.koordlet.qos.resctrl import ResctrlCPU

GROUP_PREFIX = "koordlet-"
_KNOWN_VENDORS = (resctrl.INTEL, resctrl.AMD)


class PodGroup(msgspec.Struct, frozen=True):
    """Directory of the group, and the text of its schemata; empty text writes nothing."""

    name: str
    schemata: str


def group_of(annotations: Mapping[str, str], uid: str, cpu: ResctrlCPU, obj: str = "") -> PodGroup | None:
    """The pod's own group, None without annotation.

    What holds for all caches comes first, then what is said of single ones. A line is only written when every
    cache has a value. Raises: ProtocolError when the annotation is malformed.
    """
    asked = RESCTRL.read(annotations, obj)
    if asked is None:
        return None
    masks = _masks(asked.llc, cpu)
    values = _bandwidths(asked.mb, cpu)
    lines = []
    if _is_complete(masks, cpu):
        lines.append(resctrl.l3_line(masks))
    if _is_complete(values, cpu):
        lines.append(resctrl.mb_line(values))
    return PodGroup(GROUP_PREFIX + uid, "".join(lines))


def _is_complete(values: Mapping[int, int], cpu: ResctrlCPU) -> bool:
    return bool(cpu.cache_ids) and all(values.get(cache, 0) > 0 for cache in cpu.cache_ids)


def _masks(asked: ResctrlResource | None, cpu: ResctrlCPU) -> dict[int, int]:
    """Masks by cache; a range that makes no sense ends the list."""
    masks: dict[int, int] = {}
    if asked is None:
        return masks
    if asked.schemata is not None and asked.schemata.range:
        mask = _mask(asked.schemata.range, cpu)
        if mask is None:
            return masks
        masks = dict.fromkeys(cpu.cache_ids, mask)
    for single in asked.schemata_per_cache:
        mask = _mask(single.range, cpu)
        if mask is None:
            break
        if single.cache_id in cpu.cache_ids:
            masks[single.cache_id] = mask
    return masks


def _mask(span: list[int], cpu: ResctrlCPU) -> int | None:
    return resctrl.l3_mask(cpu.full_mask, *span) if len(span) == 2 else None


def _bandwidths(asked: ResctrlResource | None, cpu: ResctrlCPU) -> dict[int, int]:
    values: dict[int, int] = {}
    if asked is None or cpu.vendor not in _KNOWN_VENDORS:
        return values
    if asked.schemata is not None:
        common = resctrl.bandwidth(cpu.vendor, asked.schemata.percent)
        if common is not None:
            values = dict.fromkeys(cpu.cache_ids, common)
    for single in asked.schemata_per_cache:
        own = resctrl.bandwidth(cpu.vendor, single.percent)
        if own is not None and single.cache_id in cpu.cache_ids:
            values[single.cache_id] = own
    return values
