"""The state of the cluster that one cycle looks at, and what plugins may ask for on the way."""

from collections.abc import Mapping, Sequence

import msgspec

from koordinator.api.core import Node, Pod
from koordinator.descheduler.measurements import MeasuredNode


class Observation(msgspec.Struct, frozen=True):
    """The nodes that take part, with their pods and measurements. `pods_of` and `metrics` are by node name."""

    now_s: float
    nodes: Sequence[Node]
    pods_of: Mapping[str, Sequence[Pod]]
    metrics: Mapping[str, MeasuredNode]
