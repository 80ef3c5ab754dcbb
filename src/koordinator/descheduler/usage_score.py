"""Score how hot a node is, and how well a pod's removal cures it. Pure. Source: behaviour/descheduler 6.8 and 6.9."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Weights = Mapping[str, int]
Columns = npt.NDArray[np.int64]

FULL = 1000


def node_scores(usage: Columns, capacity: Columns, names: Sequence[str], weights: Weights) -> Columns:
    """0 to 1000 per node: weighted mean of used parts.

    `usage`, `capacity`: (nodes, resources), milli-cores of cpu and whole units of all else; a capacity of
    0 counts as unused. Integer division throughout; no weights give 0.
    """
    weight = np.array([weights.get(name, 0) for name in names], np.int64)
    total = int(weight.sum())
    if total == 0:
        return np.zeros(usage.shape[0], np.int64)
    safe = np.maximum(capacity, 1)
    capped = np.minimum(usage, capacity)
    # Two divisions: capacity × 1000 need not fit 64 bits for byte counts of whole clusters.
    whole, rest = np.divmod(capped, safe)
    used = np.where(capacity > 0, whole * FULL + rest * FULL // safe, 0)
    return np.asarray((used * weight).sum(axis=1) // total, np.int64)


def pod_score(usage: Mapping[str, int], excess: Mapping[str, int], weights: Weights) -> float:
    """0 to 2: highest for the pod that alone cures the node with the smallest overshoot.

    `excess`: how far the node is above its limit, per resource that is; the others have no weight.
    """
    total, weight_sum = 0.0, 0
    for name, used in usage.items():
        over = excess.get(name, 0)
        weight = weights.get(name, 0) if over > 0 else 0
        if not weight:
            continue
        part = used / over
        total += weight * (part if part < 1 else 1 / part + 1)
        weight_sum += weight
    return total / weight_sum if weight_sum else 0.0
