"""Oddities of the reference in merging NodeSLO strategies, for those who compare both (behaviour/manager 3.1, 11.4).

Each function rewrites what was parsed, so that the plain merge gives what the reference would.
"""

import msgspec

from koordinator.api.slo_config import NodeResourceQOS, NodeSystem, ResourceQOSConfig, SystemConfig
from koordinator.api.slo_qos import BlkIOQOS, BlockConfig, ResourceQOS, ResourceQOSStrategy
from koordinator.manager.config.overlay import overlay

_NO_BANDWIDTH = "0"
_QOS_CLASSES = ("lsr_class", "ls_class", "be_class", "system_class", "cgroup_root")


def with_reset_bandwidth(parsed: SystemConfig) -> SystemConfig:
    """Entries that name no bandwidth reset it, since the reference always writes that member."""

    def reset(entry: NodeSystem) -> NodeSystem:
        if entry.total_network_bandwidth is not None:
            return entry
        return msgspec.structs.replace(entry, total_network_bandwidth=_NO_BANDWIDTH)

    return msgspec.structs.replace(parsed, node_strategies=[reset(e) for e in parsed.node_strategies])


def with_blocks_by_index(parsed: ResourceQOSConfig) -> ResourceQOSConfig:
    """Block devices of an entry inherit from the cluster's at the same place of the list, whatever their names."""
    cluster = parsed.cluster_strategy
    if cluster is None:
        return parsed
    entries = [_inheriting_blocks(cluster, entry) for entry in parsed.node_strategies]
    return msgspec.structs.replace(parsed, node_strategies=entries)


def _inheriting_blocks(cluster: ResourceQOSStrategy, entry: NodeResourceQOS) -> NodeResourceQOS:
    changes = {}
    for field in _QOS_CLASSES:
        own: ResourceQOS | None = getattr(entry, field)
        below = _blocks(getattr(cluster, field))
        if own is not None and own.blkio_qos is not None and own.blkio_qos.blocks and below:
            blocks = _laid_over(below, own.blkio_qos.blocks)
            blkio: BlkIOQOS = msgspec.structs.replace(own.blkio_qos, blocks=blocks)
            changes[field] = msgspec.structs.replace(own, blkio_qos=blkio)
    return msgspec.structs.replace(entry, **changes) if changes else entry


def _blocks(settings: ResourceQOS | None) -> list[BlockConfig]:
    return settings.blkio_qos.blocks if settings is not None and settings.blkio_qos is not None else []


def _laid_over(below: list[BlockConfig], own: list[BlockConfig]) -> list[BlockConfig]:
    shared = [overlay(old, new) for old, new in zip(below, own, strict=False)]
    return shared + own[len(shared) :]
