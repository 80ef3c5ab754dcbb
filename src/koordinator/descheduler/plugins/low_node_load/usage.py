"""Work out what nodes and pods really use, from NodeMetrics. Pure. Source: behaviour/descheduler 6.4 and 6.5.

Sums are exact (billionths, `Nanos`). Where a limit is an integer of milli-cores or whole units, an amount
exceeds it exactly if the amount rounded up does, so arrays hold amounts rounded up.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator import clock
from koordinator.api import priority, quantity, resources
from koordinator.api.annotations.node import RAW_ALLOCATABLE
from koordinator.api.core import Node, Pod
from koordinator.api.errors import KoordinatorError
from koordinator.api.node_metric import NodeMetric, NodeMetricStatus
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import NANO, ResourceList
from koordinator.descheduler import facts

log = logging.getLogger(__name__)

PODS = resources.PODS

Nanos = dict[str, int]
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
    pod_usage: dict[str, Nanos]

    @property
    def name(self) -> str:
        return self.node.metadata.name


def unit(name: str) -> int:
    """Nanos of the integer that limits of the resource count in: milli-cores of cpu, units of all else."""
    return NANO // 1000 if name == resources.CPU else NANO


def rounded_up(name: str, nanos: int) -> int:
    """Milli-cores of cpu, whole units of all else."""
    return -(-nanos // unit(name))


def is_fresh(status: NodeMetricStatus, now_s: float, expiration_s: float) -> bool:
    """Return whether the report counts; an expiration of 0 asks for no age. Raises: ValueError for a bad time."""
    if status.node_metric is None or status.update_time is None:
        return False
    return expiration_s <= 0 or now_s - clock.parse_rfc3339(status.update_time) < expiration_s


def loads(
    nodes: Iterable[Node],
    pods_of: Mapping[str, Sequence[Pod]],
    metrics: Mapping[str, NodeMetric],
    names: Sequence[str],
    now_s: float,
    expiration_s: float,
) -> list[NodeUtilization]:
    """Return the nodes that have a fresh NodeMetric, with their usage of the resources `names`.

    A node whose NodeMetric cannot be read is left out, as one without.
    """
    found = []
    for node in nodes:
        name = node.metadata.name
        metric = metrics.get(name)
        try:
            if metric is not None and is_fresh(metric.status, now_s, expiration_s):
                found.append(load_of(node, pods_of.get(name, ()), metric.status, names))
        except ValueError as error:  # a time or a quantity
            log.warning(
                "node left out: its NodeMetric is malformed", extra={"node": name, "error": str(error)}
            )
    return found


def load_of(
    node: Node, pods: Iterable[Pod], status: NodeMetricStatus, names: Sequence[str]
) -> NodeUtilization:
    """Usage of one node: the system's and that of all reported pods, known or not.

    Raises: QuantityError.
    """
    active = tuple(pod for pod in pods if facts.is_active(pod))
    prod = tuple(pod for pod in active if priority.default(pod) is PriorityClass.PROD)
    prod_keys = {pod.key for pod in prod}
    system = status.node_metric.system_usage.resources if status.node_metric is not None else {}
    usage = {name: quantity.of(system.get(name)).nanos for name in names}
    prod_usage = dict.fromkeys(names, 0)
    pod_usage: dict[str, Nanos] = {}
    for entry in status.pods_metric:
        key = f"{entry.namespace}/{entry.name}"
        own = {name: quantity.of(raw).nanos for name, raw in entry.pod_usage.resources.items()}
        pod_usage[key] = own
        for name in names:
            usage[name] += own.get(name, 0)
            if key in prod_keys:
                prod_usage[name] += own.get(name, 0)
    usage[PODS], prod_usage[PODS] = len(active) * NANO, len(prod) * NANO
    return NodeUtilization(node, active, prod, capacity_of(node), usage, prod_usage, pod_usage)


def capacity_of(node: Node) -> dict[str, int]:
    """Return the amounts that limits are parts of: allocatable before amplification where known, milli-cores and
    units.
    """
    try:
        raw: ResourceList | None = RAW_ALLOCATABLE.read(node.metadata.annotations)
        if raw is not None:
            return {name: facts.amount(name, amount) for name, amount in raw.items()}
    except KoordinatorError:  # malformed counts as absent: the reference's defined answer
        pass
    return {name: facts.amount(name, amount) for name, amount in node.status.allocatable.items()}


def columns(amounts: Iterable[Nanos], names: Sequence[str]) -> Columns:
    """(nodes, resources) array of amounts rounded up."""
    rows = [[rounded_up(name, own.get(name, 0)) for name in names] for own in amounts]
    return np.array(rows, np.int64).reshape(len(rows), len(names))


def capacity_columns(found: Iterable[NodeUtilization], names: Sequence[str]) -> Columns:
    """(nodes, resources) array of capacities; 0 where a node lacks the resource."""
    rows = [[load.capacity.get(name, 0) for name in names] for load in found]
    return np.array(rows, np.int64).reshape(len(rows), len(names))
