"""Record the fates of pods, and the cluster at moments of a replay."""

import msgspec

from koordinator.api.resource_vector import I64
from koordinator.scheduler.engine.results import Unplaced
from koordinator.scheduler.table.pod_info import PodInfo


class PodOutcome(msgspec.Struct, frozen=True):
    """The fate of a pod: `node` is "" when it was never placed, `reasons` then tell why; `waited_s` is virtual time
    from arrival to placement (time line only)."""

    info: PodInfo
    node: str
    reasons: tuple[str, ...] = ()
    waited_s: float = 0.0


class ReplaySample(msgspec.Struct, frozen=True):
    """The cluster at one moment of the time line; `allocated` has one share (0 to 1) per resource of
    `ReplayResult.resources`."""

    at_s: float
    allocated: tuple[float, ...]
    pods: int
    waiting: int


class Occupancy(msgspec.Struct, frozen=True):
    """The contents of the nodes when most of some resource was allocated: `requested` (resources, nodes) in the order
    of `ReplayResult.resources`, `pod_count` (nodes,)."""

    requested: I64
    pod_count: I64


def reasons_of(result: Unplaced) -> tuple[str, ...]:
    """Return the distinct reasons of all nodes, sorted; of the pod as a whole, or of its gang, when no node was
    asked."""
    evaluation = result.evaluation
    if evaluation is None or not evaluation.status.is_success:
        return result.status.reasons
    return tuple(sorted(evaluation.reason_counts)) or result.status.reasons
