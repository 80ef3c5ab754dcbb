"""Annotations and labels of users that nobody will be able to read, told when they are written (behaviour/api 16).

Elsewhere a typo shows late or never: the pod is not scheduled, the node keeps its old policy. Objects are let in
all the same, since other versions of a component may understand more.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from koordinator.api import gang_labels, labels, node_labels, slo_config
from koordinator.api.annotations import device, extended_resource, koordlet, node, placement, reservation
from koordinator.api.annotations.codec import Annotation
from koordinator.api.errors import ProtocolError

Texts = Mapping[str, str]
Read = Callable[[Texts], object]
"""Reads one member of annotations (or labels). Raises: ProtocolError when it is malformed."""


def _by_key(*codecs: Annotation[Any]) -> dict[str, Read]:
    return {codec.key: codec.read for codec in codecs}


_POD_ANNOTATIONS: Mapping[str, Read] = {
    **_by_key(device.DEVICE_ALLOCATE_HINT, device.DEVICE_JOINT_ALLOCATE, device.GPU_PARTITION_SPEC),
    **_by_key(extended_resource.EXTENDED_RESOURCE_SPEC, koordlet.CPU_BURST, koordlet.CPU_QOS),
    **_by_key(koordlet.MEMORY_QOS, koordlet.BLKIO_QOS, koordlet.RESCTRL, koordlet.SOFT_EVICTION),
    **_by_key(placement.RESOURCE_SPEC, placement.NUMA_TOPOLOGY_SPEC, placement.NETWORK_TOPOLOGY_SPEC),
    **_by_key(reservation.RESERVATION_AFFINITY, reservation.EXACT_MATCH_RESERVATION),
    labels.NETWORK_QOS: koordlet.network_limits,
    labels.OOM_SCORE_ADJ: lambda found: koordlet.oom_score_adj(found, ""),
    labels.SCHEDULING_HINT: placement.scheduling_hint,
    labels.GANG_MIN_AVAILABLE: lambda found: gang_labels.min_available({}, found),
    labels.GANG_TOTAL_NUMBER: gang_labels.total_number,
    labels.GANG_WAITING_TIME: gang_labels.waiting_time_s,
    labels.GANG_GROUPS: gang_labels.groups,
}
_NODE_ANNOTATIONS: Mapping[str, Read] = {
    **_by_key(slo_config.NODE_COLOCATION_STRATEGY, node.NODE_RESERVATION, node.SYSTEM_QOS_RESOURCE),
    **_by_key(node.AMPLIFICATION_RATIO, node.USAGE_THRESHOLDS, node.THIRD_PARTY_ALLOCATIONS),
    labels.NODE_NETWORK_BANDWIDTH: node_labels.network_bandwidth,
}


def _ratio(key: str) -> Read:
    def read(found: Texts) -> None:
        if key in found and node_labels.ratio_percent(found, key) is None:
            raise ProtocolError("", key, f"{found[key]!r} is no ratio such as 0.6")

    return read


_NODE_LABELS: Mapping[str, Read] = {
    labels.NODE_CPU_NORMALIZATION_ENABLED: node_labels.is_cpu_normalization_enabled,
    **{
        key: _ratio(key)
        for key in (
            labels.NODE_CPU_RECLAIM_RATIO,
            labels.NODE_MEMORY_RECLAIM_RATIO,
            labels.NODE_MID_STATIC_CPU_RESERVED_RATIO,
            labels.NODE_MID_STATIC_MEMORY_RESERVED_RATIO,
        )
    },
}


def pod_warnings(annotations: Texts, old: Texts) -> tuple[str, ...]:
    """Return what is malformed in those annotations of a pod that are new or differ from `old`, in words."""
    return tuple(_malformed("metadata.annotations", _POD_ANNOTATIONS, annotations, old))


def node_warnings(annotations: Texts, old: Texts, own: Texts, old_labels: Texts) -> tuple[str, ...]:
    """Return the same of a node's annotations and labels."""
    return (
        *_malformed("metadata.annotations", _NODE_ANNOTATIONS, annotations, old),
        *_malformed("metadata.labels", _NODE_LABELS, own, old_labels),
    )


def _malformed(path: str, readers: Mapping[str, Read], found: Texts, old: Texts) -> Iterator[str]:
    for key in sorted(readers.keys() & found.keys()):
        if found[key] == old.get(key):
            continue
        try:
            readers[key]({key: found[key]})
        except ProtocolError as error:
            yield f"{path}[{key}]: {error.reason}, so it will not be used"
