"""A cluster as columns: nodes, the services on them, what runs as batch already. Read once from objects.

CPU counts milli-cores, memory bytes, unless said otherwise.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from koordinator.api import pod_resources, quantity
from koordinator.api.core import Node, Pod
from koordinator.api.errors import KoordinatorError, ProtocolError
from koordinator.api.meta import controller_of
from koordinator.api.node_metric import NodeMetric
from koordinator.api.quantity import QuantityError
from koordinator.host import cgroup_knobs
from koordinator.local.nodes import behaviour
from koordinator.local.nodes.pod_shape import UNLIMITED_MILLI
from koordinator.local.nodes.usage import F64, Index, Mask
from koordinator.manager.noderesource import account, rows
from koordinator.manager.noderesource.account import NANO_PER_MILLI, AccountedPod, MetricFigures
from koordinator.manager.noderesource.batch import CPU, I64, MEMORY, MILLI
from koordinator.manager.noderesource.columns import PodColumns

UNIT_SERVICE_MS = 1.0
"""Latencies of services whose request time is not known count in units of it."""
_TEMPLATE_HASH = "pod-template-hash"
_PODS_DEFAULT = 110


class WhatIfError(KoordinatorError, ValueError):
    """The question cannot be answered from what was given; the text says what is missing and what to do."""


class WhatIfNodes(msgspec.Struct, frozen=True, eq=False):
    """The nodes. `capacity` and `reserved` are (nodes, 2) in thousandths as the manager counts, `pods` (nodes,) is how
    many a node takes; `system` (nodes, 2) is what was used outside of pods, NaN where nobody reported, and `pods_milli`
    (nodes,) the CPU that all pods used then, batch included."""

    objects: tuple[Node, ...]
    capacity: I64
    reserved: I64
    pods: Index
    system: F64
    pods_milli: F64

    @property
    def names(self) -> tuple[str, ...]:
        """Return their names."""
        return tuple(node.metadata.name for node in self.objects)

    @property
    def cpu_milli(self) -> F64:
        """Return the CPU capacity, (nodes,)."""
        return self.capacity[:, CPU].astype(np.float64)

    @property
    def memory_bytes(self) -> F64:
        """Return the memory capacity, (nodes,)."""
        return self.capacity[:, MEMORY] / MILLI


class WhatIfServices(msgspec.Struct, frozen=True, eq=False):
    """The pods that keep what they need: neither batch nor free by priority.

    All (pods,) but for `request` (pods, 2), thousandths, and `usage` (pods, 2): milli-cores and bytes as reported last,
    the request where nobody reported. `workload` is a position in `workloads`.
    """

    keys: tuple[str, ...]
    workloads: tuple[str, ...]
    workload: Index
    node: Index
    request: I64
    usage: F64
    is_reported: Mask
    is_exclusive: Mask
    weight: F64
    limit_milli: F64
    service_time_ms: F64

    def columns(self) -> PodColumns:
        """Return them as the manager counts them; what is measured is known of all."""
        return PodColumns(self.node, self.request, self.is_exclusive, np.ones(len(self.keys), np.bool_))


class BatchToday(msgspec.Struct, frozen=True):
    """The batch pods that the cluster runs already: how many, what they use, and what waits for a node."""

    pods: int = 0
    used_milli: float = 0.0
    used_bytes: float = 0.0
    waiting_pods: int = 0


class WhatIfCluster(msgspec.Struct, frozen=True, eq=False):
    """A cluster at the moment of its dump. `reports` is the number of nodes with a NodeMetric that can be believed."""

    nodes: WhatIfNodes
    services: WhatIfServices
    batch: BatchToday
    reports: int
    notes: tuple[str, ...]


class _Row(msgspec.Struct):
    """A service pod on its way into the columns."""

    key: str
    workload: str
    node: int
    request: tuple[int, int]
    usage: tuple[float, float] | None
    is_exclusive: bool
    limit_milli: float
    service_time_ms: float


def of_objects(nodes: Sequence[Node], pods: Iterable[Pod], metrics: Iterable[NodeMetric]) -> WhatIfCluster:
    """Return the cluster that these objects describe; pods are read one at a time. Raises: WhatIfError."""
    notes: list[str] = []
    nodes = _readable(nodes, notes)
    if not nodes:
        raise WhatIfError("there are no nodes with CPUs; make a dump with `koordinator dump`")
    row_of = {node.metadata.name: row for row, node in enumerate(nodes)}
    reports = _reports(metrics, row_of)
    found: list[_Row] = []
    batch = BatchToday()
    unreadable = 0
    seen: set[tuple[int, str]] = set()
    for pod in pods:
        try:
            facts = account.pod_facts(pod)
        except QuantityError:
            unreadable += 1
            continue
        row = row_of.get(pod.spec.node_name)
        if facts is None:
            continue
        usage = _usage(reports.get(row), pod.key) if row is not None else None
        if not facts.is_high_priority:
            batch = _with_batch(batch, usage, waits=row is None)
        elif row is not None:
            seen.add((row, pod.key))
            found.append(_service(pod, facts, row, usage))
    found += _gone(reports, seen)
    if unreadable:
        notes.append(f"{unreadable:,} pods have requests that cannot be read, and are left out")
    return WhatIfCluster(_nodes(nodes, reports), _services(found), batch, len(reports), tuple(notes))


def _readable(nodes: Sequence[Node], notes: list[str]) -> list[Node]:
    """Return the nodes with CPUs; who cannot be read lends nothing in a live cluster either, and is noted."""
    found = []
    for node in nodes:
        try:
            if account.node_facts(node).capacity[CPU] > 0:
                found.append(node)
        except QuantityError as error:
            notes.append(f"node {node.metadata.name} is left out: {error}")
    return found


def _reports(metrics: Iterable[NodeMetric], row_of: dict[str, int]) -> dict[int, MetricFigures]:
    found = {}
    for metric in metrics:
        row = row_of.get(metric.metadata.name)
        reading = rows.reading_of(metric.status)
        if row is not None and not reading.problem and reading.report.has_node:
            found[row] = reading.report
    return found


def _usage(report: MetricFigures | None, key: str) -> tuple[float, float] | None:
    known = report.pods.get(key) if report is not None else None
    return None if known is None else (known[0] / NANO_PER_MILLI, known[1] / MILLI)


def _with_batch(batch: BatchToday, usage: tuple[float, float] | None, *, waits: bool) -> BatchToday:
    if waits:
        return msgspec.structs.replace(batch, waiting_pods=batch.waiting_pods + 1)
    cpu_milli, memory = usage or (0.0, 0.0)
    return BatchToday(
        batch.pods + 1, batch.used_milli + cpu_milli, batch.used_bytes + memory, batch.waiting_pods
    )


def _service(pod: Pod, facts: AccountedPod, row: int, usage: tuple[float, float] | None) -> _Row:
    limit = pod_resources.cpu_limit_milli(pod)
    service_ms = UNIT_SERVICE_MS
    if behaviour.ANNOTATION in pod.metadata.annotations:
        try:
            told = behaviour.decode(pod.metadata.annotations[behaviour.ANNOTATION])
            service_ms = told.service_time_ms or UNIT_SERVICE_MS
        except ProtocolError:
            service_ms = UNIT_SERVICE_MS  # as hollow nodes take it: the defaults count
    return _Row(
        key=pod.key,
        workload=workload_of(pod),
        node=row,
        request=facts.request,
        usage=usage,
        is_exclusive=facts.is_exclusive,
        limit_milli=float(limit) if limit > 0 else UNLIMITED_MILLI,
        service_time_ms=service_ms,
    )


def workload_of(pod: Pod) -> str:
    """Return the name of what a pod is a replica of, `namespace/name`: of a ReplicaSet, its Deployment's."""
    meta = pod.metadata
    owner = controller_of(pod)
    if owner is None:
        name = meta.labels.get("app.kubernetes.io/name") or meta.labels.get("app") or meta.name
        return f"{meta.namespace}/{name}"
    template = meta.labels.get(_TEMPLATE_HASH)
    name = owner.name
    if owner.kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        name = name.removesuffix(f"-{template}")
    return f"{meta.namespace}/{name}"


def _gone(reports: dict[int, MetricFigures], seen: set[tuple[int, str]]) -> Iterable[_Row]:
    """Yield what reports still say of pods that are gone: the manager counts it, too."""
    for row, report in reports.items():
        for key, (cpu, memory, counts) in report.pods.items():
            if counts and (row, key) not in seen:
                used = (cpu / NANO_PER_MILLI, memory / MILLI)
                yield _Row(key, key, row, account.ZERO, used, False, UNLIMITED_MILLI, UNIT_SERVICE_MS)


def _nodes(nodes: Sequence[Node], reports: dict[int, MetricFigures]) -> WhatIfNodes:
    facts = [account.node_facts(node) for node in nodes]
    system, in_pods = np.full((len(nodes), 2), np.nan), np.zeros(len(nodes))
    for row, report in reports.items():
        cpu, memory = report.system_usage
        system[row] = cpu / NANO_PER_MILLI, memory / MILLI
        in_pods[row] = sum(used for used, _, _ in report.pods.values()) / NANO_PER_MILLI
    return WhatIfNodes(
        objects=tuple(nodes),
        capacity=np.array([each.capacity for each in facts], np.int64),
        reserved=np.array([each.reserved for each in facts], np.int64),
        pods=np.array([_pods_max(node) for node in nodes], np.int64),
        system=system,
        pods_milli=in_pods,
    )


def _pods_max(node: Node) -> int:
    try:
        return quantity.value(node.status.allocatable.get("pods", _PODS_DEFAULT))
    except QuantityError:
        return _PODS_DEFAULT


def _services(found: list[_Row]) -> WhatIfServices:
    found.sort(key=lambda each: (each.node, each.key))
    workloads = sorted({each.workload for each in found})
    position = {name: number for number, name in enumerate(workloads)}
    request = np.array([each.request for each in found], np.int64).reshape(-1, 2)
    asked = request / np.array([1, MILLI])
    usage = np.array([each.usage or (np.nan, np.nan) for each in found], np.float64).reshape(-1, 2)
    weight = [cgroup_knobs.shares_of_milli(each.request[CPU]) for each in found]
    return WhatIfServices(
        keys=tuple(each.key for each in found),
        workloads=tuple(workloads),
        workload=np.array([position[each.workload] for each in found], np.int64),
        node=np.array([each.node for each in found], np.int64),
        request=request,
        usage=np.where(np.isnan(usage), asked, usage),
        is_reported=~np.isnan(usage[:, CPU]),
        is_exclusive=np.array([each.is_exclusive for each in found], np.bool_),
        weight=np.array(weight, np.float64),
        limit_milli=np.array([each.limit_milli for each in found], np.float64),
        service_time_ms=np.array([each.service_time_ms for each in found], np.float64),
    )
