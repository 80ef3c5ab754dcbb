"""Tell hot nodes from cold ones. Elementwise over nodes. Source: behaviour/descheduler 6.6."""

import enum
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.descheduler.plugins.low_node_load import thresholds, usage
from koordinator.descheduler.plugins.low_node_load.thresholds import Filled, Limits
from koordinator.descheduler.plugins.low_node_load.usage import Columns, NodeUtilization

Mask = npt.NDArray[np.bool_]


class NodeClass(enum.IntEnum):
    """`NORMAL` is none of the others."""

    NORMAL = 0
    LOW = 1
    HIGH = 2
    PROD_LOW = 3
    PROD_HIGH = 4
    BOTH_LOW = 5


class Classified(msgspec.Struct, frozen=True):
    """Nodes with their usage, limits and class; rows of all arrays follow `loads`."""

    filled: Filled
    loads: Sequence[NodeUtilization]
    capacity: Columns
    usage: Columns
    prod_usage: Columns
    limits: Limits
    classes: npt.NDArray[np.int8]

    def rows(self, wanted: NodeClass) -> list[int]:
        return [int(row) for row in np.flatnonzero(self.classes == wanted)]

    def names(self, wanted: NodeClass) -> list[str]:
        return [self.loads[row].name for row in self.rows(wanted)]


def classify(loads: Sequence[NodeUtilization], filled: Filled) -> Classified:
    """Return the class of each node."""
    capacity = usage.capacity_columns(loads, filled.names)
    used = usage.columns((load.usage for load in loads), filled.names)
    prod_used = usage.columns((load.prod_usage for load in loads), filled.names)
    found = thresholds.limits(filled, capacity, used, prod_used)
    schedulable = np.array([not load.node.spec.unschedulable for load in loads], np.bool_)
    classes = classes_of(used, prod_used, found, schedulable)
    return Classified(filled, loads, capacity, used, prod_used, found, classes)


def classes_of(used: Columns, prod_used: Columns, limits: Limits, schedulable: Mask) -> npt.NDArray[np.int8]:
    """`NodeClass` per row. Amounts (nodes, resources) as in `usage.columns`; over a limit is above it."""
    low = schedulable & (used <= limits.low).all(axis=1)
    high = (used > limits.high).any(axis=1)
    prod_low = schedulable & (prod_used <= limits.prod_low).all(axis=1)
    prod_high = (prod_used > limits.prod_high).any(axis=1)
    return np.select(
        [low & prod_high, low & prod_low, low, high, prod_high, prod_low],
        [
            NodeClass.PROD_HIGH,
            NodeClass.BOTH_LOW,
            NodeClass.LOW,
            NodeClass.HIGH,
            NodeClass.PROD_HIGH,
            NodeClass.PROD_LOW,
        ],
        NodeClass.NORMAL,
    ).astype(np.int8)
