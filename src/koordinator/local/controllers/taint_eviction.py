"""Evict pods from nodes with NoExecute taints that they do not tolerate, or no longer, and remove pods whose node is
gone: nobody else would ever end them.

Source: kube-controller-manager's taint eviction controller and its pod garbage collector.
"""

import logging
from collections.abc import Iterable, Sequence

from koordinator.api.affinity import Taint, Toleration
from koordinator.api.core import Node, Pod
from koordinator.api.tolerations import tolerates
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key
from koordinator.cluster.protocol import Cluster

log = logging.getLogger(__name__)

WORKERS = 8
BY_NODE = "node"


def no_execute(taints: Iterable[Taint]) -> list[Taint]:
    """Return the taints that evict."""
    return [taint for taint in taints if taint.effect == "NoExecute"]


def stay_s(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> float | None:
    """Return how long a pod may stay: None for ever, 0 when some taint is not tolerated at all."""
    if not taints:
        return None
    limits = []
    for taint in taints:
        fitting = [toleration for toleration in tolerations if tolerates(toleration, taint)]
        if not fitting:
            return 0.0
        limits += [t.toleration_seconds for t in fitting if t.toleration_seconds is not None]
    return float(max(min(limits), 0)) if limits else None


class TaintEvictionController(ControllerLoop):
    """The loop; a pod on a tainted node is looked at when its time has come."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._nodes = factory.informer(Node)
        self._pods = factory.informer(Pod)
        self._pods.add_index(BY_NODE, node_of)
        # When a pod's time began, as upstream by our own clock: kubectl sets no timeAdded on taints.
        self._since_s: dict[Key, float] = {}
        self._controller: Controller[Key] = Controller("taint eviction", self._reconcile, workers=WORKERS)
        self._nodes.add_handler(self._on_node, self._on_node_changed)
        self._pods.add_handler(self._on_pod, self._on_pod_changed)
        self._informers = [self._nodes, self._pods]

    def _on_node(self, node: Node) -> None:
        if no_execute(node.spec.taints) or self._since_s:
            for pod in self._pods.by_index(BY_NODE, node.metadata.name):
                self._controller.queue.add((pod.metadata.namespace, pod.metadata.name))

    def _on_node_changed(self, old: Node, new: Node) -> None:
        if no_execute(old.spec.taints) != no_execute(new.spec.taints):
            self._on_node(new)

    def _on_pod(self, pod: Pod) -> None:
        node = self._nodes.get(pod.spec.node_name) if pod.spec.node_name else None
        if node is not None and no_execute(node.spec.taints):
            self._controller.queue.add((pod.metadata.namespace, pod.metadata.name))

    def _on_pod_changed(self, old: Pod, new: Pod) -> None:
        if old.spec.node_name != new.spec.node_name or old.spec.tolerations != new.spec.tolerations:
            self._on_pod(new)

    async def _reconcile(self, key: Key) -> float | None:
        namespace, name = key
        pod = self._pods.get(name, namespace)
        allowed_s = None if pod is None else self._stay_s(pod)
        if pod is None or allowed_s is None:
            self._since_s.pop(key, None)
            return None
        now_s = self._cluster.clock.now()
        left_s = self._since_s.setdefault(key, now_s) + allowed_s - now_s
        if left_s > 0:
            return left_s
        await self._evict(pod)
        self._since_s.pop(key, None)
        return None

    def _stay_s(self, pod: Pod) -> float | None:
        if pod.metadata.deletion_timestamp is not None or not pod.spec.node_name:
            return None
        node = self._nodes.get(pod.spec.node_name)
        return None if node is None else stay_s(no_execute(node.spec.taints), pod.spec.tolerations)

    async def _evict(self, pod: Pod) -> None:
        meta = pod.metadata
        self._events.normal(pod, "TaintManagerEviction", f"Marking for deletion Pod {pod.key}")
        try:
            await self._cluster.delete(Pod, meta.name, meta.namespace, uid=meta.uid)
        except (errors.NotFound, errors.Conflict):
            return
        log.info("pod evicted by taint", extra={"pod": pod.key, "node": pod.spec.node_name})


def node_of(pod: Pod) -> list[str]:
    """Values of the index `BY_NODE`."""
    return [pod.spec.node_name] if pod.spec.node_name else []


QUARANTINE_S = 40.0  # a node that is registered anew within this time keeps its pods


class PodGarbageCollector(ControllerLoop):
    """The loop; its keys are names of nodes that pods are bound to."""

    def __init__(self, cluster: Cluster, factory: InformerFactory) -> None:
        self._cluster = cluster
        self._nodes = factory.informer(Node)
        self._pods = factory.informer(Pod)
        self._pods.add_index(BY_NODE, node_of)
        self._controller: Controller[str] = Controller("pod garbage collector", self._reconcile)
        self._nodes.add_handler(None, None, lambda node: self._look_later(node.metadata.name))
        self._pods.add_handler(self._on_pod, lambda _, pod: self._on_pod(pod))
        self._informers = [self._nodes, self._pods]

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
