"""Following the cluster: one row per node, kept current by events, and word of which rows must be looked at.

Kubelets' heartbeats and pods that come and go make no work: a pod counts from its node's next report on (or
whatever else makes the node be looked at), as in the reference.
"""

import logging
from collections.abc import Callable

from koordinator.api.core import Node, Pod
from koordinator.api.device import Device
from koordinator.api.node_metric import NodeMetric
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.quantity import QuantityError
from koordinator.clock import Clock
from koordinator.cluster.informer import InformerFactory
from koordinator.manager.config import cpu_normalization
from koordinator.manager.noderesource import account, rows
from koordinator.manager.noderesource.account import AccountedPod
from koordinator.manager.noderesource.rows import NO_READING, NodeRow, ReadMetric

log = logging.getLogger(__name__)


class NodeFleet:
    """`rows` by node name. `changed` is called with the name of a node to look at, `gone` when one is deleted."""

    def __init__(
        self,
        factory: InformerFactory,
        clock: Clock,
        *,
        publishes_shared: bool,
        changed: Callable[[str], None],
        gone: Callable[[str], None],
    ) -> None:
        self.rows: dict[str, NodeRow] = {}
        self._clock = clock
        self._publishes_shared = publishes_shared
        self._changed = changed
        self._gone = gone
        nodes, metrics, pods = factory.informer(Node), factory.informer(NodeMetric), factory.informer(Pod)
        topologies, devices = factory.informer(NodeResourceTopology), factory.informer(Device)
        nodes.add_handler(self.see_node, self._on_node_changed, self._on_node_gone)
        metrics.add_handler(self._on_metric, lambda _, m: self._on_metric(m), self._on_metric_gone)
        pods.add_handler(self._on_pod, lambda _, pod: self._on_pod(pod), self._on_pod_gone)
        topologies.add_handler(self._on_topology, self._on_topology_changed, self._on_topology_gone)
        devices.add_handler(self._on_device, self._on_device_changed, self._on_device_gone)
        self._informers = (nodes, metrics, pods, topologies, devices)

    async def wait_synced(self) -> None:
        """Until every cache has its first list."""
        for informer in self._informers:
            await informer.synced.wait()

    def _row(self, name: str) -> NodeRow:
        row = self.rows.get(name)
        if row is None:
            row = self.rows[name] = NodeRow(name)
        return row

    def _tidy(self, row: NodeRow) -> None:
        if row.is_empty:
            self.rows.pop(row.name, None)

    def see_node(self, node: Node) -> None:
        """Take a node from the watch, or ahead of it from the API's answer to our own write."""
        row = self._row(node.metadata.name)
        old = row.node
        if old is not None and rows.is_same_to_us(old, node):
            row.node = node
            return
        row.see_node(node)
        self._changed(row.name)

    def _on_node_changed(self, old: Node, new: Node) -> None:
        self.see_node(new)
        if old is new:  # a resync: everything is to be looked at again
            self._changed(new.metadata.name)

    def _on_node_gone(self, node: Node) -> None:
        row = self._row(node.metadata.name)
        row.see_node(None)
        self._gone(row.name)
        self._tidy(row)

    def _on_metric(self, metric: NodeMetric) -> None:
        row = self._row(metric.metadata.name)
        reading = metric.reading if isinstance(metric, ReadMetric) else rows.reading_of(metric.status)
        if reading != row.reading:  # else only the policy in its spec has changed
            row.see_reading(reading, self._clock.now())
            self._changed(row.name)

    def _on_metric_gone(self, metric: NodeMetric) -> None:
        row = self._row(metric.metadata.name)
        row.see_reading(NO_READING, self._clock.now())
        self._changed(row.name)
        self._tidy(row)

    def _on_pod(self, pod: Pod) -> None:
        if not pod.spec.node_name:
            return
        facts = _pod_facts(pod)
        if facts is None:
            self._on_pod_gone(pod)
            return
        row = self._row(pod.spec.node_name)
        if row.pods.get(pod.key) != facts:
            row.pods[pod.key] = facts
            row.forget_demand()

    def _on_pod_gone(self, pod: Pod) -> None:
        row = self.rows.get(pod.spec.node_name)
        if not pod.spec.node_name and not pod.spec.containers:
            # The end of a pod that nobody could read any more tells its name only, which is rare.
            row = next((each for each in self.rows.values() if pod.key in each.pods), None)
        if row is not None and row.pods.pop(pod.key, None) is not None:
            row.forget_demand()
            self._tidy(row)

    def _on_topology(self, topology: NodeResourceTopology) -> None:
        row = self._row(topology.metadata.name)
        row.see_topology(topology)
        self._changed(row.name)

    def _on_topology_changed(self, old: NodeResourceTopology, new: NodeResourceTopology) -> None:
        row = self._row(new.metadata.name)
        row.see_topology(new)
        if old.zones != new.zones or cpu_normalization.has_other_cpu(
            old.metadata.annotations, new.metadata.annotations
        ):
            self._changed(row.name)

    def _on_topology_gone(self, topology: NodeResourceTopology) -> None:
        row = self._row(topology.metadata.name)
        row.see_topology(None)
        self._changed(row.name)
        self._tidy(row)

    def _on_device(self, device: Device) -> None:
        row = self._row(device.metadata.name)
        row.see_device(device, publishes_shared=self._publishes_shared)
        self._changed(row.name)

    def _on_device_changed(self, old: Device, new: Device) -> None:
        if old.spec != new.spec or old.metadata.labels != new.metadata.labels:
            self._on_device(new)

    def _on_device_gone(self, device: Device) -> None:
        row = self._row(device.metadata.name)
        row.see_device(None, publishes_shared=self._publishes_shared)
        self._changed(row.name)
        self._tidy(row)


def _pod_facts(pod: Pod) -> AccountedPod | None:
    try:
        return account.pod_facts(pod)
    except QuantityError as error:
        # What it uses counts all the same; the API server lets no such pod in.
        log.warning("request of pod counted as 0", extra={"pod": pod.key, "error": str(error)})
        return AccountedPod(is_high_priority=True, request=account.ZERO)
