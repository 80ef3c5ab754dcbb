"""Removes pods whose node is gone: nobody else would ever end them.

Source: kube-controller-manager's pod garbage collector.
"""

import logging

from koordinator.api.core import Node, Pod
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster
from koordinator.local.controllers.taint_eviction import BY_NODE, node_of

log = logging.getLogger(__name__)

QUARANTINE_S = 40.0  # a node that is registered anew within this time keeps its pods


class PodGarbageCollector:
    """The loop; its keys are names of nodes that pods are bound to."""

    def __init__(self, cluster: Cluster, factory: InformerFactory) -> None:
        self._cluster = cluster
        self._nodes = factory.informer(Node)
        self._pods = factory.informer(Pod)
        self._pods.add_index(BY_NODE, node_of)
        self._controller: Controller[str] = Controller("pod garbage collector", self._reconcile)
        self._nodes.add_handler(None, None, lambda node: self._look_later(node.metadata.name))
        self._pods.add_handler(self._on_pod, lambda _, pod: self._on_pod(pod))

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run([self._nodes, self._pods])

    def _on_pod(self, pod: Pod) -> None:
        if pod.spec.node_name and self._nodes.get(pod.spec.node_name) is None:
            self._look_later(pod.spec.node_name)

    def _look_later(self, name: str) -> None:
        self._controller.queue.add_after(name, QUARANTINE_S)

    async def _reconcile(self, name: str) -> None:
        if self._nodes.get(name) is not None:
            return
        for pod in list(self._pods.by_index(BY_NODE, name)):
            meta = pod.metadata
            try:
                await self._cluster.delete(Pod, meta.name, meta.namespace, uid=meta.uid, grace_period_s=0)
            except (errors.NotFound, errors.Conflict):
                continue
            log.info("orphaned pod deleted", extra={"pod": pod.key, "node": name})
