"""Plain labels and annotations of nodes. Source: behaviour/api 6.3, 6.4 and 8.3.

Selling more than a node physically has (behaviour/api 8.2), by a ratio per resource, is computed in 64-bit binary
floating point and rounded up, as users' figures are (100 × 1.1 is 111), so that all components write the same amounts.
"""

import enum
import math
from collections.abc import Mapping

from koordinator.api import labels, quantity, scalars
from koordinator.api.annotations.node import FACTOR_MAX, KubeletCPUManagerPolicy
from koordinator.api.labels import parsed
from koordinator.api.quantity import Quantity
from koordinator.api.scalars import ScalarError

NO_RATIO = -1.0
"""The CPU normalisation ratio of a node that has none."""

RATIO_LIMIT = 2.0**56
"""Reclaim ratios from here on do not fit the percentages that they become."""

RATIO_TOLERANCE = 0.01
"""Two CPU normalisation ratios differ when they are further apart than this."""


class NodeCPUBindPolicy(enum.StrEnum):
    """The layout of all bound pods of a node on physical cores."""

    NONE = "None"
    FULL_PCPUS_ONLY = "FullPCPUsOnly"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"


class NUMAAllocateStrategy(enum.StrEnum):
    """The order in which a node's NUMA nodes fill."""

    MOST_ALLOCATED = "MostAllocated"
    LEAST_ALLOCATED = "LeastAllocated"
    DISTRIBUTE_EVENLY = "DistributeEvenly"


def cpu_bind_policy(
    node_labels: Mapping[str, str], kubelet: KubeletCPUManagerPolicy | None
) -> NodeCPUBindPolicy:
    """Return the policy of the node: whole cores if the label or the kubelet says so, else the label's."""
    policy = node_labels.get(labels.NODE_CPU_BIND_POLICY, "")
    is_full = policy == NodeCPUBindPolicy.FULL_PCPUS_ONLY
    if is_full or (kubelet is not None and kubelet.is_full_pcpus_only):
        return NodeCPUBindPolicy.FULL_PCPUS_ONLY
    if policy == NodeCPUBindPolicy.SPREAD_BY_PCPUS:
        return NodeCPUBindPolicy.SPREAD_BY_PCPUS
    return NodeCPUBindPolicy.NONE


def ratio_percent(node_labels: Mapping[str, str], key: str) -> int | None:
    """Return a ratio label (reclaim, static reservation) in percent, cut off; None when absent, bad, negative or
    absurd.

    The product is one of binary floating point, as users of the label know it: 0.29 is 28 percent.
    """
    try:
        ratio = scalars.parse_float(node_labels.get(key, ""))
    except ScalarError:
        return None
    return int(ratio * 100) if 0 <= ratio < RATIO_LIMIT else None


def is_cpu_normalization_enabled(node_labels: Mapping[str, str], obj: str = "") -> bool | None:
    """Return what the label says, None when absent. Raises: ProtocolError when it is no boolean."""
    text = node_labels.get(labels.NODE_CPU_NORMALIZATION_ENABLED)
    if text is None:
        return None
    return parsed(text, labels.NODE_CPU_NORMALIZATION_ENABLED, scalars.parse_bool, obj)


def cpu_normalization_ratio(annotations: Mapping[str, str], obj: str = "") -> float:
    """Return how much faster the node's CPUs are than the cluster's measure, `NO_RATIO` when absent.

    Raises: ProtocolError when it is no positive number up to `FACTOR_MAX`.
    """
    text = annotations.get(labels.NODE_CPU_NORMALIZATION_RATIO)
    if text is None:
        return NO_RATIO
    return parsed(text, labels.NODE_CPU_NORMALIZATION_RATIO, _parse_positive, obj)


def cpu_normalization_ratio_text(ratio: float) -> str:
    """Two decimals, ties of the binary value to even."""
    return f"{ratio:.2f}"


def is_cpu_normalization_ratio_different(old: float, new: float) -> bool:
    """Return whether the ratios are further apart than `RATIO_TOLERANCE`; 1.21 and 1.22 are not."""
    return old > new + RATIO_TOLERANCE or old < new - RATIO_TOLERANCE


def network_bandwidth(annotations: Mapping[str, str], obj: str = "") -> Quantity | None:
    """Return the node's network bandwidth in bits per second, None when absent.

    Raises: ProtocolError when it is no quantity.
    """
    text = annotations.get(labels.NODE_NETWORK_BANDWIDTH)
    return None if text is None else parsed(text, labels.NODE_NETWORK_BANDWIDTH, quantity.parse, obj)


def _parse_positive(text: str) -> float:
    number = scalars.parse_float(text)
    if not 0 < number <= FACTOR_MAX:
        raise ScalarError(text, f"a positive number up to {FACTOR_MAX:g}")
    return number


def amplify(amount: int, ratio: float) -> int:
    """`amount` × `ratio`, rounded up; unchanged for a ratio not above 1."""
    return math.ceil(amount * ratio) if ratio > 1 else amount
