"""Keep what the operator knows of each node as objects of Kubernetes change: its NodeManager, what pods hold, its pool.

One row per node with a NodeManager, batch pods or an entry of ours; asking about a node costs nothing of the cluster.
Source: behaviour/yarn 3.4.
"""

from collections.abc import Callable, Iterator

import msgspec

from koordinator.api import labels, pod_labels, resources
from koordinator.api.core import Container, Node, Pod, PodSpec, ResourceRequirements
from koordinator.api.quantity import ResourceList
from koordinator.yarn import amounts, node_sync
from koordinator.yarn.amounts import BatchAmount, YarnResource
from koordinator.yarn.node_sync import HeldFigure, NodeFacts, NodeId

NOTHING = BatchAmount()

NodeManagerKey = tuple[str, NodeId]
"""YARN cluster and node."""


class NodeRow(msgspec.Struct):
    """One node. `pod` is the one of `managers` that counts, `manager` the NodeManager that it announces, None without
    one to talk about; `recorded` is our entry on it, which stands since `recorded_s`; `belonged` is the NodeManager
    that it had last, `held` that one's last figure, `granted` the total with which it may come back; `sent` the total
    that was told at `sent_s` and is not reported yet. Seconds are those of the event loop."""

    name: str
    node: Node | None = None
    managers: dict[str, Pod] = {}
    pod: Pod | None = None
    requested: dict[str, BatchAmount] = {}
    taken: BatchAmount = NOTHING
    known: NodeFacts = NodeFacts()
    manager: NodeManagerKey | None = None
    recorded: BatchAmount | None = None
    recorded_s: float = 0.0
    belonged: NodeManagerKey | None = None
    held: HeldFigure | None = None
    used: YarnResource | None = None
    total: YarnResource | None = None
    granted: YarnResource | None = None
    sent: YarnResource | None = None
    sent_s: float = 0.0
    record: BatchAmount | None = None
    """The entry that the node should have; None: it stays."""
    problem: str = ""


class NodeTable:
    """All rows; `changed` names those to look at again, by YARN cluster ("" for nodes without a NodeManager)."""

    def __init__(self, on_change: Callable[[str], object] = lambda cluster: None) -> None:
        """`on_change` hears of YARN clusters with a node to look at."""
        self._on_change = on_change
        self.rows: dict[str, NodeRow] = {}
        self.changed: dict[str, dict[str, None]] = {}
        self.nodes_of: dict[NodeManagerKey, dict[str, None]] = {}
        """Nodes by the NodeManager that their pod announces: one, unless two pods announce the same."""

    def begin(self, now_s: float) -> None:
        """Go by what nodes say now: whoever led before has recorded it. All nodes are to be looked at."""
        for row in self.rows.values():
            row.belonged = row.sent = row.record = None
            row.granted = None if row.recorded is None else amounts.from_batch(row.recorded)
            row.held = None if row.granted is None else HeldFigure(row.granted, now_s)
            row.recorded_s = now_s
            self.mark(row.name)

    # What Kubernetes says

    def node_changed(self, node: Node, now_s: float) -> None:
        """Take a node, as `slim_node` leaves it, that is there."""
        row = self._row(node.metadata.name)
        before, row.node = row.node, node
        if before is not None and _says_the_same(before, node):
            return
        recorded = amounts.recorded(node.metadata.annotations.get(labels.NODE_THIRD_PARTY_ALLOCATIONS))
        if recorded != row.recorded:
            row.recorded, row.recorded_s = recorded, now_s
        if before is None and recorded is not None and row.held is None:
            # An earlier process has recorded it: believed until the ResourceManager says better.
            row.granted = amounts.from_batch(recorded)
            row.held = HeldFigure(row.granted, now_s)
        self._settle(row)

    def node_gone(self, node: Node) -> None:
        """Forget a node; its pods may come to an end later."""
        row = self.rows.get(node.metadata.name)
        if row is not None:
            row.node = row.record = row.recorded = None
            self._settle(row)
            self._drop_empty(row)

    def pod_changed(self, pod: Pod) -> None:
        """Take a pod that is there."""
        name = pod.spec.node_name
        if not name:
            return
        requested = node_sync.batch_requested(pod)
        is_manager = node_sync.is_node_manager(pod)
        if requested == NOTHING and not is_manager and name not in self.rows:
            return
        row = self._row(name)
        key = pod.metadata.uid or pod.key
        before = (row.requested.get(key, NOTHING), row.managers.get(key))
        self._count(row, key, requested, pod if is_manager and not pod_labels.is_terminated(pod) else None)
        if before != (requested, row.managers.get(key)):
            self._settle(row)

    def pod_gone(self, pod: Pod) -> None:
        """Forget a pod."""
        row = self.rows.get(pod.spec.node_name)
        if row is None:
            return
        key = pod.metadata.uid or pod.key
        if key in row.requested or key in row.managers:
            self._count(row, key, NOTHING, None)
            self._settle(row)
            self._drop_empty(row)

    def mark(self, name: str) -> None:
        """Have a node looked at again."""
        row = self.rows.get(name)
        if row is not None:
            self.changed.setdefault(row.known.cluster, {})[name] = None
            self._on_change(row.known.cluster)

    def mark_cluster(self, cluster: str) -> None:
        """Have all nodes of a cluster looked at again."""
        for row in self.rows_with_a_manager():
            if row.known.cluster == cluster:
                self.mark(row.name)

    def take_changed(self, cluster: str) -> list[NodeRow]:
        """Return the rows of a cluster that are to be looked at, which they are from now on."""
        names = self.changed.pop(cluster, {})
        return [row for name in names if (row := self.rows.get(name)) is not None]

    def rival_of(self, row: NodeRow) -> str:
        """Return the node whose pod announces the same NodeManager with better reason; empty when there is none."""
        key = row.manager
        names = self.nodes_of.get(key, {}) if key is not None else {}
        if len(names) < 2:
            return ""
        pods = {name: self.rows[name].pod for name in names}
        best = node_sync.node_manager(pod for pod in pods.values() if pod is not None)
        return next((name for name, pod in pods.items() if pod is best and name != row.name), "")

    def twin_of(self, row: NodeRow) -> str:
        """Return another node whose pod announces the same NodeManager; empty when there is none."""
        names = self.nodes_of.get(row.manager, {}) if row.manager is not None else {}
        return next((name for name in names if name != row.name), "")

    def rows_with_a_manager(self) -> Iterator[NodeRow]:
        """Rows of nodes whose NodeManager is known."""
        return (row for row in self.rows.values() if row.known.node is not None)

    def _row(self, name: str) -> NodeRow:
        return self.rows.setdefault(name, NodeRow(name))

    def _count(self, row: NodeRow, key: str, requested: BatchAmount, manager: Pod | None) -> None:
        before = row.requested.pop(key, NOTHING)
        if requested != NOTHING:
            row.requested[key] = requested
        row.taken = BatchAmount(
            row.taken.cpu_milli + requested.cpu_milli - before.cpu_milli,
            row.taken.memory_bytes + requested.memory_bytes - before.memory_bytes,
        )
        if manager is not None:
            row.managers[key] = manager
        else:
            row.managers.pop(key, None)
        row.pod = node_sync.node_manager(row.managers.values())

    def _settle(self, row: NodeRow) -> None:
        """Work out what is known of a node anew, and have it looked at."""
        before = row.manager
        known = node_sync.facts(row.node, row.pod, row.taken)
        after = None if known.node is None else (known.cluster, known.node)
        row.known, row.manager = known, after
        if before != after:
            if before is not None:
                names = self.nodes_of.get(before, {})
                names.pop(row.name, None)
                if not names:
                    self.nodes_of.pop(before, None)
                for name in names:
                    self.mark(name)
            if after is not None:
                for name in self.nodes_of.setdefault(after, {}):
                    self.mark(name)
                self.nodes_of[after][row.name] = None
        self.mark(row.name)

    def _drop_empty(self, row: NodeRow) -> None:
        if row.node is None and not row.managers and not row.requested:
            self.rows.pop(row.name, None)


_OF_NODES = (
    labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE,
    labels.NODE_THIRD_PARTY_ALLOCATIONS,
    labels.TIDAL_RETURN_AT,
)


def _says_the_same(one: Node, other: Node) -> bool:
    """Return whether two slim nodes agree in all that matters here."""
    a, b = one.metadata, other.metadata
    is_same = a.uid == b.uid and a.annotations == b.annotations and a.labels == b.labels
    return is_same and one.status.allocatable == other.status.allocatable


def slim_node(node: Node) -> Node:
    """Return a node with what is read of it here."""
    kept = {key: node.metadata.annotations[key] for key in _OF_NODES if key in node.metadata.annotations}
    phase = node.metadata.labels.get(labels.TIDAL_PHASE)
    said = {} if phase is None else {labels.TIDAL_PHASE: phase}
    listed = node.status.allocatable
    batch: ResourceList = {name: listed[name] for name in resources.BATCH_RESOURCES if name in listed}
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, annotations=kept, labels=said),
        spec=type(node.spec)(),
        status=type(node.status)(allocatable=batch),
    )


def slim_pod(pod: Pod) -> Pod:
    """Return a pod with what is read of it here: its place, its requests as one container, and, of a NodeManager,
    what tells it apart."""
    requested = node_sync.batch_requested(pod)
    asked: ResourceList = {}
    if requested != NOTHING:
        texts = (str(requested.cpu_milli), str(requested.memory_bytes))
        asked = dict(zip(resources.BATCH_RESOURCES, texts, strict=True))
    if node_sync.is_node_manager(pod) and (own := node_sync.machine_requested(pod)) != NOTHING:
        asked |= {resources.CPU: f"{own.cpu_milli}m", resources.MEMORY: str(own.memory_bytes)}
    containers = [Container(name="all", resources=ResourceRequirements(requests=asked))] if asked else []
    meta = pod.metadata
    if not node_sync.is_node_manager(pod):
        meta = msgspec.structs.replace(meta, annotations={}, labels={})
    status = type(pod.status)(phase=pod.status.phase, conditions=pod.status.conditions)
    spec = PodSpec(node_name=pod.spec.node_name, containers=containers)
    return msgspec.structs.replace(pod, metadata=meta, spec=spec, status=status)
