"""Marks nodes whose kubelet has fallen silent, taints nodes by their conditions, and evicts pods that do not tolerate
NoExecute taints, or no longer; removes pods whose node is gone: nobody else would ever end them.

Source: kube-controller-manager's node lifecycle and taint eviction controllers and its pod garbage collector. A node
that is not ready gets NoExecute taints at a limited rate per zone, and none at all while every node of the cluster is
silent: then more likely we are cut off than they are dead.
"""

import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api.affinity import Taint, Toleration
from koordinator.api.core import Node, Pod
from koordinator.api.groups import Lease
from koordinator.api.meta import Condition, find_condition
from koordinator.api.pod_labels import is_terminated
from koordinator.api.tolerations import tolerates
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, Rate, TokenBucket
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import RECONNECT, InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster, delete_if_same, patch_if_there, patch_same
from koordinator.cluster.supervise import Guard, supervise

log = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
ZONE_LABEL = "topology.kubernetes.io/zone"
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"

_CONDITION_TAINTS = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
_OWNED = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE, *_CONDITION_TAINTS.values()})
_SILENT_MESSAGES = ("NodeStatusUnknown", "Kubelet stopped posting node status.")
_SILENT_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


# The periods of kube-controller-manager, with its defaults.
PERIOD_S, GRACE_S, START_GRACE_S = 5.0, 50.0, 60.0
BY_NODE = "node"
EVICTION_PER_S, DISRUPTED_EVICTION_PER_S = 0.1, 0.01
# With more of a zone's nodes than this not ready (and more than two) the zone is disrupted; small zones then stop
# evicting, large ones go on at the second rate.
UNHEALTHY_RATIO, LARGE_ZONE_NODES = 0.55, 50


def ready_status(node: Node) -> str:
    """Status of the Ready condition: True, False, Unknown, or empty when the node has none yet."""
    ready = find_condition(node.status.conditions, "Ready")
    return ready.status if ready is not None else ""


def wanted_taints(node: Node, *, evicts: bool, now: str) -> list[Taint]:
    """Return the node's taints as they should be: those of others, then ours; known ones keep their time.

    `evicts` allows new NoExecute taints. An unschedulable node is cordoned.
    """
    status = ready_status(node)
    effects: dict[tuple[str, str], None] = {}
    if node.spec.unschedulable:
        effects[UNSCHEDULABLE, "NoSchedule"] = None
    for condition in node.status.conditions:
        key = _CONDITION_TAINTS.get(condition.type)
        if key is not None and condition.status == "True":
            effects[key, "NoSchedule"] = None
    trouble = {"False": NOT_READY, "Unknown": UNREACHABLE, "": NOT_READY}.get(status)
    if trouble is not None:
        effects[trouble, "NoSchedule"] = None
        if status and (evicts or any(t.effect == "NoExecute" and t.key in _OWNED for t in node.spec.taints)):
            effects[trouble, "NoExecute"] = None
    known = {(t.key, t.effect): t for t in node.spec.taints}
    kept = [taint for taint in node.spec.taints if taint.key not in _OWNED]
    return kept + [
        known.get((key, effect), Taint(key=key, effect=effect, time_added=now)) for key, effect in effects
    ]


def silent_conditions(node: Node, now: str) -> list[Condition]:
    """Return the conditions of a node that nobody hears from: what the kubelet would say is unknown."""
    reason, message = _SILENT_MESSAGES
    known = {condition.type: condition for condition in node.status.conditions}
    for kind in _SILENT_CONDITIONS:
        old = known.get(kind)
        if old is not None and old.status == "Unknown":
            continue
        heartbeat = old.last_heartbeat_time if old is not None else node.metadata.creation_timestamp
        known[kind] = Condition(
            type=kind,
            status="Unknown",
            reason=reason if old is not None else "NodeStatusNeverUpdated",
            message=message if old is not None else "Kubelet never posted node status.",
            last_heartbeat_time=heartbeat,
            last_transition_time=now,
        )
    return list(known.values())


def eviction_rate(ready: int, not_ready: int) -> float:
    """NoExecute taints per second in a zone of so many nodes; 0 stops them."""
    total = ready + not_ready
    if not_ready > 2 and not_ready / total >= UNHEALTHY_RATIO and ready > 0:
        return DISRUPTED_EVICTION_PER_S if total > LARGE_ZONE_NODES else 0.0
    return EVICTION_PER_S


class NodeLifecycleController:
    """The loop."""

    def __init__(
        self, cluster: Cluster, factory: InformerFactory, events: EventRecorder, rng: random.Random
    ) -> None:
        self.guard = Guard("controller node lifecycle")
        self._cluster = cluster
        self._events = events
        self._backoff = Backoff(RECONNECT, rng)
        self._nodes = factory.informer(Node)
        self._pods = factory.informer(Pod)
        self._pods.add_index(BY_NODE, node_of)
        self._leases = factory.informer(Lease, LEASE_NAMESPACE)
        self._waiting_s: dict[str, float] = {}  # since when nodes wait for a NoExecute taint
        self._ready_beyond: set[str] = set()  # silent nodes with pods that may still be called ready
        self._heartbeats: dict[str, tuple[tuple[str, str], float]] = {}
        self._buckets: dict[str, tuple[float, TokenBucket]] = {}
        self._nodes.add_handler(on_delete=self._forget)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._nodes.synced.wait()
        await self._leases.synced.wait()
        await self._pods.synced.wait()
        await supervise(self._step, self._backoff, self.guard)

    async def _step(self) -> float:
        now_s = self._cluster.clock.now()
        nodes = list(self._nodes.objects.values())
        silent = [node for node in nodes if self._is_silent(node, now_s)]
        for node in silent:
            if ready_status(node) != "Unknown":
                await self._declare_silent(node, now_s)
            if node.metadata.name in self._ready_beyond:
                await self._call_pods_unready(node.metadata.name, now_s)
        evicting = self._zones(nodes, now_s)
        # Whoever has waited longest for a NoExecute taint is first.
        for node in sorted(nodes, key=lambda node: self._waiting_s.get(node.metadata.name, now_s)):
            await self._taint(node, evicting, now_s)
        return PERIOD_S

    def _forget(self, node: Node) -> None:
        self._heartbeats.pop(node.metadata.name, None)
        self._ready_beyond.discard(node.metadata.name)
        self._waiting_s.pop(node.metadata.name, None)

    def _is_silent(self, node: Node, now_s: float) -> bool:
        """Return whether neither lease nor status has changed for the grace period, by our own clock."""
        name = node.metadata.name
        lease = self._leases.get(name, LEASE_NAMESPACE)
        ready = find_condition(node.status.conditions, "Ready")
        beat = (ready.last_heartbeat_time or "") if ready is not None else ""
        signs = (lease.spec.renew_time or "" if lease is not None else "", beat)
        known = self._heartbeats.get(name)
        if known is None or known[0] != signs:
            self._heartbeats[name] = (signs, now_s)
            return False
        return now_s - known[1] > (START_GRACE_S if ready is None else GRACE_S)

    async def _declare_silent(self, node: Node, now_s: float) -> None:
        conditions = silent_conditions(node, clock.rfc3339(now_s))
        if await self._patch(node, {"status": {"conditions": msgspec.to_builtins(conditions)}}, "status"):
            name = node.metadata.name
            log.warning("node stopped reporting", extra={"node": name, "grace_s": GRACE_S})
            self._events.normal(node, "NodeNotReady", f"Node {name} status is now: NodeNotReady")
            if ready_status(node) == "True":
                self._ready_beyond.add(name)

    async def _call_pods_unready(self, node: str, now_s: float) -> None:
        """Services must not lead to pods of which nobody hears; whoever changed meanwhile is tried again."""
        is_done = True
        for pod in list(self._pods.by_index(BY_NODE, node)):
            ready = find_condition(pod.status.conditions, "Ready")
            if ready is None or ready.status == "False":
                continue
            unready = msgspec.structs.replace(
                ready, status="False", last_transition_time=clock.rfc3339(now_s)
            )
            try:
                await patch_same(self._cluster, pod, {"status": _conditions_with(pod, unready)}, "status")
            except (errors.NotFound, errors.Conflict):
                is_done = False
                continue
            self._events.warning(pod, "NodeNotReady", "Node is not ready")
        if is_done:
            self._ready_beyond.discard(node)

    def _zones(self, nodes: Iterable[Node], now_s: float) -> Mapping[str, TokenBucket | None]:
        """Per zone the budget of NoExecute taints, None where there must be none now."""
        counts: dict[str, list[int]] = {}
        for node in nodes:
            counts.setdefault(_zone(node), [0, 0])[ready_status(node) != "True"] += 1
        if counts and not any(ready for ready, _ in counts.values()):
            return dict.fromkeys(counts)
        budgets: dict[str, TokenBucket | None] = {}
        for zone, (ready, not_ready) in counts.items():
            per_s = eviction_rate(ready, not_ready)
            known = self._buckets.get(zone)
            if known is None or known[0] != per_s:
                if per_s > 0:
                    self._buckets[zone] = (per_s, TokenBucket(Rate(per_s=per_s, burst=1), now_s))
                else:
                    self._buckets.pop(zone, None)
            budgets[zone] = self._buckets[zone][1] if per_s > 0 else None
        return budgets

    async def _taint(self, node: Node, budgets: Mapping[str, TokenBucket | None], now_s: float) -> None:
        evicts, name = False, node.metadata.name
        if ready_status(node) in ("False", "Unknown"):
            is_marked = any(t.effect == "NoExecute" and t.key in _OWNED for t in node.spec.taints)
            budget = budgets.get(_zone(node))
            self._waiting_s.setdefault(name, now_s)
            evicts = is_marked or (budget is not None and budget.try_take(now_s))
        if evicts or ready_status(node) == "True":
            self._waiting_s.pop(name, None)
        taints = wanted_taints(node, evicts=evicts, now=clock.rfc3339(now_s))
        if taints != node.spec.taints:
            await self._patch(node, {"spec": {"taints": msgspec.to_builtins(taints) or None}}, "")

    async def _patch(self, node: Node, patch: dict[str, Any], subresource: str) -> bool:
        try:
            await patch_same(self._cluster, node, patch, subresource)
        except (errors.NotFound, errors.Conflict):
            return False  # changed or gone meanwhile: the next round sees it
        return True


def _conditions_with(pod: Pod, new: Condition) -> dict[str, Any]:
    """Return the member of a pod's status with one condition set."""
    others = [condition for condition in pod.status.conditions if condition.type != new.type]
    return {"conditions": msgspec.to_builtins([*others, new])}


def _disrupted(pod: Pod, reason: str, message: str, now_s: float) -> dict[str, Any]:
    """Return the same where the pod is to learn that it ends through no fault of its own."""
    known = find_condition(pod.status.conditions, "DisruptionTarget")
    is_told = known is not None and known.status == "True"
    return _conditions_with(
        pod,
        Condition(
            type="DisruptionTarget",
            status="True",
            reason=reason,
            message=message,
            last_transition_time=known.last_transition_time if is_told and known else clock.rfc3339(now_s),
            observed_generation=pod.metadata.generation,
        ),
    )


def _zone(node: Node) -> str:
    return node.metadata.labels.get(ZONE_LABEL, "")


WORKERS = 8


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
                self._controller.queue.add(key_of(pod))

    def _on_node_changed(self, old: Node, new: Node) -> None:
        if no_execute(old.spec.taints) != no_execute(new.spec.taints):
            self._on_node(new)

    def _on_pod(self, pod: Pod) -> None:
        node = self._nodes.get(pod.spec.node_name) if pod.spec.node_name else None
        if node is not None and no_execute(node.spec.taints):
            self._controller.queue.add(key_of(pod))

    def _on_pod_changed(self, old: Pod, new: Pod) -> None:
        if old.spec.node_name != new.spec.node_name or old.spec.tolerations != new.spec.tolerations:
            self._on_pod(new)

    async def _reconcile(self, key: Key) -> float | None:
        namespace, name = key
        pod = self._pods.get(name, namespace)
        allowed_s = None if pod is None else self._stay_s(pod)
        if pod is None or allowed_s is None:
            if self._since_s.pop(key, None) is not None and pod is not None and not _is_ending(pod):
                self._events.normal(pod, "TaintManagerEviction", f"Cancelling deletion of Pod {pod.key}")
            return None
        now_s = self._cluster.clock.now()
        left_s = self._since_s.setdefault(key, now_s) + allowed_s - now_s
        if left_s > 0:
            return left_s
        await self._evict(pod)
        self._since_s.pop(key, None)
        return None

    def _stay_s(self, pod: Pod) -> float | None:
        if _is_ending(pod) or not pod.spec.node_name:
            return None
        node = self._nodes.get(pod.spec.node_name)
        return None if node is None else stay_s(no_execute(node.spec.taints), pod.spec.tolerations)

    async def _evict(self, pod: Pod) -> None:
        self._events.normal(pod, "TaintManagerEviction", f"Marking for deletion Pod {pod.key}")
        reason = "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
        told = _disrupted(pod, *reason, self._cluster.clock.now())
        if await patch_if_there(self._cluster, pod, {"status": told}, subresource="status") is None:
            return
        if await delete_if_same(self._cluster, pod):
            log.info("pod evicted by taint", extra={"pod": pod.key, "node": pod.spec.node_name})


def _is_ending(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def node_of(pod: Pod) -> list[str]:
    """Values of the index `BY_NODE`."""
    return [pod.spec.node_name] if pod.spec.node_name else []


QUARANTINE_S = 40.0  # a node that is registered anew within this time keeps its pods
UNPLACED_S = 20.0  # between two looks for pods that end without ever having had a node, as upstream


class PodGarbageCollector(ControllerLoop):
    """The loop; its keys are names of nodes that pods are bound to ("", name), and pods that have none."""

    def __init__(self, cluster: Cluster, factory: InformerFactory) -> None:
        self._cluster = cluster
        self._nodes = factory.informer(Node)
        self._pods = factory.informer(Pod)
        self._pods.add_index(BY_NODE, node_of)
        self._controller: Controller[Key] = Controller("pod garbage collector", self._reconcile)
        self._nodes.add_handler(None, None, lambda node: self._queue_later(node.metadata.name))
        self._pods.add_handler(self._on_pod, lambda _, pod: self._on_pod(pod))
        self._informers = [self._nodes, self._pods]

    def _on_pod(self, pod: Pod) -> None:
        if pod.spec.node_name and self._nodes.get(pod.spec.node_name) is None:
            self._queue_later(pod.spec.node_name)
        elif not pod.spec.node_name and _is_ending(pod):
            self._controller.queue.add_after(key_of(pod), UNPLACED_S)

    def _queue_later(self, name: str) -> None:
        self._controller.queue.add_after(("", name), QUARANTINE_S)

    async def _reconcile(self, key: Key) -> None:
        namespace, name = key
        if namespace:
            pod = self._pods.get(name, namespace)
            if pod is not None and not pod.spec.node_name and _is_ending(pod):
                await self._fail_and_delete(pod, {})
        elif self._nodes.get(name) is None:
            now_s = self._cluster.clock.now()
            for pod in list(self._pods.by_index(BY_NODE, name)):
                told = _disrupted(pod, "DeletionByPodGC", "PodGC: node no longer exists", now_s)
                await self._fail_and_delete(pod, told)

    async def _fail_and_delete(self, pod: Pod, told: dict[str, Any]) -> None:
        """Nobody else would ever say that the pod has ended."""
        if not is_terminated(pod):
            patch = {"status": {"phase": "Failed", **told}}
            if await patch_if_there(self._cluster, pod, patch, subresource="status") is None:
                return
        if await delete_if_same(self._cluster, pod, grace_period_s=0):
            log.info("orphaned pod deleted", extra={"pod": pod.key, "node": pod.spec.node_name})
