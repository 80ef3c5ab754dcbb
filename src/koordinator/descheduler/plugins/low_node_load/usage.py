"""Work out what nodes and pods really use, from NodeMetrics, and the class of each node by its thresholds. Pure.

Sums are exact (billionths, `Nanos`). Where a limit is an integer of milli-cores or whole units, an amount
exceeds it exactly if the amount rounded up does, so arrays hold amounts rounded up. Thresholds in percent become
limits per node. Source: behaviour/descheduler 6.3 to 6.6.
"""

import enum
import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator import clock
from koordinator.api import interference, labels, priority, resources
from koordinator.api.annotations.node import RAW_ALLOCATABLE
from koordinator.api.core import Node, Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.label_selector import compile_selector
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import NANO, ResourceList
from koordinator.api.resource_vector import AMOUNT_MAX, exact_amount
from koordinator.descheduler import facts
from koordinator.descheduler.config.low_node_load import NodePool, Thresholds
from koordinator.descheduler.measurements import MeasuredNode, Nanos, Observation, PodAmounts

log = logging.getLogger(__name__)

PODS = resources.PODS

Columns = npt.NDArray[np.int64]


class NodeUtilization(msgspec.Struct, frozen=True):
    """A node with its usage. `pod_usage` is by namespace/name, as reported; the others hold each resource
    that thresholds are about, and pods."""

    node: Node
    pods: tuple[Pod, ...]
    prod_pods: tuple[Pod, ...]
    capacity: dict[str, int]
    usage: Nanos
    prod_usage: Nanos
    pod_usage: PodAmounts
    interference_percent: int = 0
    """Degradation of its services by batch now."""
    culprits: frozenset[str] = frozenset()
    """Workloads that degraded them."""

    @property
    def name(self) -> str:
        return self.node.metadata.name


def pool_nodes(pool: NodePool, nodes: Sequence[Node], processed: set[str] | frozenset[str]) -> list[Node]:
    """Return the pool's nodes; without a selector all of them, also those already processed (as the reference)."""
    if pool.node_selector is None:
        return list(nodes)
    matches = compile_selector(pool.node_selector)
    return [n for n in nodes if n.metadata.name not in processed and matches(n.metadata.labels)]


def unit(name: str) -> int:
    """Nanos of the integer that limits of the resource count in: milli-cores of cpu, units of all else."""
    return NANO // 1000 if name == resources.CPU else NANO


def rounded_up(name: str, nanos: int) -> int:
    """Milli-cores of cpu, whole units of all else."""
    return -(-nanos // unit(name))


def is_fresh(metric: MeasuredNode, now_s: float, expiration_s: float) -> bool:
    """Return whether the report counts; an expiration of 0 asks for no age. Raises: ValueError for one that cannot be
    read."""
    if metric.problem:
        raise ValueError(metric.problem)
    if metric.system is None or metric.update_time is None:
        return False
    return expiration_s <= 0 or now_s - clock.parse_rfc3339(metric.update_time) < expiration_s


def loads(
    nodes: Iterable[Node],
    pods_of: Mapping[str, Sequence[Pod]],
    metrics: Mapping[str, MeasuredNode],
    names: Sequence[str],
    now_s: float,
    expiration_s: float,
) -> list[NodeUtilization]:
    """Return the nodes that have a fresh NodeMetric, with their usage of the resources `names`.

    A node whose NodeMetric cannot be read is left out, as one without; so is one that changes the side of its tidal
    pool: its pods leave already.
    """
    found = []
    for node in nodes:
        if node.metadata.labels.get(labels.TIDAL_PHASE, "").startswith("to-"):
            continue
        name = node.metadata.name
        metric = metrics.get(name)
        try:
            if metric is not None and is_fresh(metric, now_s, expiration_s):
                load = load_of(node, pods_of.get(name, ()), metric, names)
                found.append(load if metric.interference is None else _with_interference(load, metric, now_s))
        except ValueError as error:  # a time or a quantity
            log.warning("node skipped: its amounts are malformed", extra={"node": name, "error": str(error)})
    return found


def _with_interference(load: NodeUtilization, metric: MeasuredNode, now_s: float) -> NodeUtilization:
    reported = metric.interference
    return msgspec.structs.replace(
        load,
        interference_percent=interference.fading_of(reported).level(now_s),
        culprits=frozenset(culprit for _, culprit in interference.pairs_of(reported, now_s)),
    )


def load_of(node: Node, pods: Iterable[Pod], metric: MeasuredNode, names: Sequence[str]) -> NodeUtilization:
    """Usage of one node: the system's and that of all reported pods, known or not. Raises: ValueError for an amount
    beyond all nodes: it must not spoil the sums of the others."""
    active = tuple(pod for pod in pods if facts.is_active(pod))
    prod = tuple(pod for pod in active if priority.default(pod) is PriorityClass.PROD)
    prod = active if len(prod) == len(active) else prod
    system, own = metric.system or {}, metric.pods
    of_prod = own.rows(pod.key for pod in prod)
    usage = {name: system.get(name, 0) + own.total(name) for name in names}
    prod_usage = {name: own.total(name, of_prod) for name in names}
    usage[PODS], prod_usage[PODS] = len(active) * NANO, len(prod) * NANO
    capacity = capacity_of(node)
    for name in names:
        for amount in (
            rounded_up(name, usage[name]),
            rounded_up(name, prod_usage[name]),
            capacity.get(name, 0),
        ):
            if abs(amount) > AMOUNT_MAX:
                raise ValueError(f"{amount} of {name} cannot be true")
    return NodeUtilization(node, active, prod, capacity, usage, prod_usage, own)


def capacity_of(node: Node) -> dict[str, int]:
    """Return the amounts that limits are parts of: allocatable before amplification where known, milli-cores and
    units."""
    try:
        raw: ResourceList | None = RAW_ALLOCATABLE.read(node.metadata.annotations)
        if raw is not None:
            return {name: exact_amount(name, amount) for name, amount in raw.items()}
    except KoordinatorError:  # malformed counts as absent: the reference's defined answer
        pass
    return {name: exact_amount(name, amount) for name, amount in node.status.allocatable.items()}


def columns(amounts: Iterable[Nanos], names: Sequence[str]) -> Columns:
    """(nodes, resources) array of amounts rounded up."""
    rows = [[rounded_up(name, own.get(name, 0)) for name in names] for own in amounts]
    return np.array(rows, np.int64).reshape(len(rows), len(names))


def capacity_columns(found: Iterable[NodeUtilization], names: Sequence[str]) -> Columns:
    """(nodes, resources) array of capacities; 0 where a node lacks the resource."""
    rows = [[load.capacity.get(name, 0) for name in names] for load in found]
    return np.array(rows, np.int64).reshape(len(rows), len(names))


Floats = npt.NDArray[np.float64]


class Filled(msgspec.Struct, frozen=True):
    """Thresholds in percent (distances from the average in deviation mode). A high map lacks a resource that only a low
    threshold was given for: no reason names it."""

    names: tuple[str, ...]
    is_deviation: bool
    low: Thresholds
    high: Thresholds
    prod_low: Thresholds
    prod_high: Thresholds


class Limits(msgspec.Struct, frozen=True):
    """(nodes, resources) limits, milli-cores of cpu and whole units of all else."""

    low: Columns
    high: Columns
    prod_low: Columns
    prod_high: Columns


def fill(pool: NodePool) -> Filled:
    """Return every resource of any map, and memory, in every map.

    A resource that has no low threshold is not limited, even if it has a high one; one that has a low
    threshold only stays out of the high map, where that counts as 0. Both are the reference's.
    """
    maps = (
        pool.low_thresholds or {},
        pool.high_thresholds or {},
        pool.prod_low_thresholds or {},
        pool.prod_high_thresholds or {},
    )
    names = tuple(sorted({resources.MEMORY}.union(*maps)))
    unlimited = 0.0 if pool.use_deviation_thresholds else 100.0
    low, high = _fill_pair(maps[0], maps[1], names, unlimited)
    prod_low, prod_high = _fill_pair(maps[2], maps[3], names, unlimited)
    return Filled(names, pool.use_deviation_thresholds, low, high, prod_low, prod_high)


def limits(filled: Filled, capacity: Columns, usage: Columns, prod_usage: Columns) -> Limits:
    """Return the limits of each node; all arrays have the shape (nodes, names), names as in `filled`."""
    low, high = _pair(filled.low, filled.high, filled, capacity, usage)
    prod_low, prod_high = _pair(filled.prod_low, filled.prod_high, filled, capacity, prod_usage)
    return Limits(low, high, prod_low, prod_high)


def _fill_pair(
    low: Thresholds, high: Thresholds, names: tuple[str, ...], unlimited: float
) -> tuple[Thresholds, Thresholds]:
    filled_low = {name: low.get(name, unlimited) for name in names}
    known = [name for name in names if name not in low or name in high]
    return filled_low, {name: high[name] if name in low else unlimited for name in known}


def _pair(
    low: Thresholds, high: Thresholds, filled: Filled, capacity: Columns, usage: Columns
) -> tuple[Columns, Columns]:
    low_percent = np.array([low[name] for name in filled.names], np.float64)
    high_percent = np.array([high.get(name, 0.0) for name in filled.names], np.float64)
    if not filled.is_deviation:
        return _part(low_percent, capacity), _part(high_percent, capacity)
    average = _average(usage, capacity)
    is_free = low_percent == 0
    low_limit = _part(np.clip(average - low_percent, 0, 100), capacity)
    high_limit = _part(np.clip(average + high_percent, 0, 100), capacity)
    return np.where(is_free, capacity, low_limit), np.where(is_free, capacity, high_limit)


def _part(percent: Floats, capacity: Columns) -> Columns:
    """In binary floating point and cut off, in this order of operations: 29 % of 100 is 28."""
    part = np.trunc(percent * 0.01 * capacity.astype(np.float64))
    return np.minimum(part, AMOUNT_MAX).astype(np.int64)  # a percentage may be as large as anybody likes


def _average(usage: Columns, capacity: Columns) -> Floats:
    """Percent used per resource; nodes without the resource count as 0."""
    used = np.zeros(usage.shape, np.float64)
    np.divide(usage, capacity, out=used, where=capacity > 0)
    return np.asarray((used * 100).sum(axis=0) / max(len(usage), 1), np.float64)


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


def measure(pool: NodePool, nodes: Iterable[Node], seen: Observation, expiration_s: float) -> Classified:
    """Return the class of each node of a pool that has a fresh NodeMetric."""
    filled = fill(pool)
    fresh = loads(nodes, seen.pods_of, seen.metrics, filled.names, seen.now_s, expiration_s)
    return classify(fresh, filled)


def classify(loads: Sequence[NodeUtilization], filled: Filled) -> Classified:
    """Return the class of each node."""
    capacity = capacity_columns(loads, filled.names)
    used = columns((load.usage for load in loads), filled.names)
    prod_used = columns((load.prod_usage for load in loads), filled.names)
    found = limits(filled, capacity, used, prod_used)
    schedulable = np.array([_may_get_pods(load) for load in loads], np.bool_)
    classes = classes_of(used, prod_used, found, schedulable)
    return Classified(filled, loads, capacity, used, prod_used, found, classes)


def _may_get_pods(load: NodeUtilization) -> bool:
    """Return whether a node may be a target: one whose services are degraded is held back, not idle."""
    return not load.node.spec.unschedulable and load.interference_percent < interference.REFUSED_PERCENT


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
