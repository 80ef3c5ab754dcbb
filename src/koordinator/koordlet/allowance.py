"""Say what the closed loop leaves best-effort pods (`view.allowance`), and what policies become by it.

The loop (`interference.act`) writes no file that a strategy writes: it says here what is allowed, and CPU suppression,
resctrl, disk limits, network bandwidth and batch quotas act on that in their next round. Without an allowance all of
them act as configured. Pure.
"""

from collections.abc import Mapping

import msgspec

from koordinator.api import quantity
from koordinator.api.quantity import QuantityError
from koordinator.api.schema import IntOrString
from koordinator.api.slo_qos import (
    BlkIOQOS,
    BlockConfig,
    NetworkQOS,
    ResctrlQOS,
    ResourceQOSStrategy,
)

FULL_PERCENT = 100


class BatchAllowance(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of best-effort pods: of CPU together with services, of the rest a share of what is configured."""

    cpu_threshold_percent: int | None = None
    """In place of `cpuSuppressThresholdPercent`; None: as configured."""
    cache_percent: int = FULL_PERCENT
    disk_percent: int = FULL_PERCENT
    network_percent: int = FULL_PERCENT
    capped_milli: Mapping[str, int] = {}
    """CPU of single pods, by UID."""


AS_CONFIGURED = BatchAllowance()


def shrunk(strategy: ResourceQOSStrategy, allowed: BatchAllowance) -> ResourceQOSStrategy:
    """Return the policy with less of cache, memory bandwidth, disks and network for best-effort pods.

    Only what is switched on and limited is shrunk, no other class is touched, and nothing grows.
    """
    section = strategy.be_class
    if section is None:
        return strategy
    found = msgspec.structs.replace(
        section,
        resctrl_qos=_less_cache(section.resctrl_qos, allowed.cache_percent),
        blkio_qos=_less_disk(section.blkio_qos, allowed.disk_percent),
        network_qos=_less_network(section.network_qos, allowed.network_percent),
    )
    return strategy if found == section else msgspec.structs.replace(strategy, be_class=found)


def _less_cache(settings: ResctrlQOS | None, percent: int) -> ResctrlQOS | None:
    """Fewer ways from the start of the range on, one at least, and less bandwidth."""
    if settings is None or not settings.enable or percent >= FULL_PERCENT:
        return settings
    start, end, bandwidth = (
        settings.cat_range_start_percent,
        settings.cat_range_end_percent,
        settings.mba_percent,
    )
    if start is not None and end is not None and end > start:
        end = max(start + (end - start) * percent // FULL_PERCENT, start + 1)
    return msgspec.structs.replace(
        settings,
        cat_range_end_percent=end,
        mba_percent=None if bandwidth is None else _part(bandwidth, percent),
    )


def _less_disk(settings: BlkIOQOS | None, percent: int) -> BlkIOQOS | None:
    if settings is None or not settings.enable or percent >= FULL_PERCENT:
        return settings
    return msgspec.structs.replace(settings, blocks=[_less_block(each, percent) for each in settings.blocks])


def _less_block(block: BlockConfig, percent: int) -> BlockConfig:
    limits = block.io_cfg
    said = {
        name: _part(value, percent)
        for name in ("read_iops", "write_iops", "read_bps", "write_bps")
        if (value := getattr(limits, name)) is not None and value > 0
    }
    return msgspec.structs.replace(block, io_cfg=msgspec.structs.replace(limits, **said))


def _less_network(settings: NetworkQOS | None, percent: int) -> NetworkQOS | None:
    """Less at most, and as much less assured, so that nobody is assured more than its maximum."""
    if settings is None or not settings.enable or percent >= FULL_PERCENT:
        return settings
    said = {
        name: _less_amount(value, percent)
        for name in ("ingress_request", "ingress_limit", "egress_request", "egress_limit")
        if (value := getattr(settings, name)) is not None
    }
    return msgspec.structs.replace(settings, **said)


def _less_amount(raw: IntOrString, percent: int) -> IntOrString:
    """A number is a percentage, a text a quantity; one that cannot be read stays, since nobody else can read it."""
    if isinstance(raw, int):
        return _part(raw, percent)
    try:
        found = quantity.parse(raw)
    except QuantityError:
        return raw
    return quantity.text_of_value(_part(found.value, percent))


def _part(amount: int, percent: int) -> int:
    """Return a share of an amount, at least 1 of what is more than nothing: 0 would be no limit."""
    return max(amount * percent // FULL_PERCENT, 1) if amount > 0 else amount
