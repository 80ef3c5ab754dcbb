"""Quotas on faster CPUs: the same work in a smaller quota. Source: behaviour/koordlet-act 17."""

import math
from collections.abc import Mapping

from koordinator.api import node_labels, qos
from koordinator.api.annotations import placement
from koordinator.api.node_labels import NO_RATIO
from koordinator.api.qos import QoSClass


def is_scaled(pod_labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    """Return whether the pod shares CPUs, so that its quota follows their speed."""
    qos_class = qos.of_labels(pod_labels)
    if qos_class is QoSClass.NONE:
        return not placement.has_cpuset(annotations)
    return qos_class is QoSClass.LS


def scaled_us(quota_us: int, ratio: float) -> int:
    """Return a quota on CPUs that are `ratio` times as fast as the cluster's measure; ratios up to 1 change nothing."""
    return math.ceil(quota_us / ratio) if quota_us > 0 and ratio > 1 else quota_us


def quota_us(
    pod_labels: Mapping[str, str], annotations: Mapping[str, str], ratio: float, spec_us: int | None
) -> int | None:
    """Quota of a pod or container whose spec says `spec_us`; None leaves it alone.

    With ratio 1 the plain quota is written, which is how an earlier one is put back.
    """
    is_on = ratio != NO_RATIO and is_scaled(pod_labels, annotations)
    if not is_on or spec_us is None or spec_us <= 0:
        return None
    return scaled_us(spec_us, ratio)


def next_ratio(old: float, new: float) -> float:
    """The ratio in force after the node's annotation says `new`: small changes are not worth rewriting quotas."""
    return new if node_labels.is_cpu_normalization_ratio_different(old, new) else old
