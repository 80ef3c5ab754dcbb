"""Marks nodes whose kubelet has fallen silent, and taints nodes by their conditions.

Source: kube-controller-manager's node lifecycle controller. A node that is not ready gets NoExecute taints at
a limited rate per zone, and none at all while every node of the cluster is silent: then more likely we are
cut off than they are dead.
"""

import logging
import random
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api.affinity import Taint
from koordinator.api.core import Node
from koordinator.api.groups import Lease
from koordinator.api.meta import Condition
from koordinator.cluster import errors
from koordinator.cluster.backoff import Backoff, Rate, TokenBucket
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import RECONNECT, InformerFactory
from koordinator.cluster.protocol import Cluster
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


class NodeMonitor(msgspec.Struct, frozen=True, kw_only=True):
    """Periods of kube-controller-manager, with its defaults.

    `unhealthy_ratio` of a zone's nodes (and more than two of them) not ready means that the zone is
    disrupted; small zones then stop evicting, large ones go on at the second rate.
    """

    period_s: float = 5.0
    grace_s: float = 40.0
    eviction_per_s: float = 0.1
    disrupted_eviction_per_s: float = 0.01
    large_zone_nodes: int = 50
    unhealthy_ratio: float = 0.55


def ready_status(node: Node) -> str:
    """Status of the Ready condition: True, False, Unknown, or empty when the node has none yet."""
    return next((c.status for c in node.status.conditions if c.type == "Ready"), "")


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
        heard = old.last_heartbeat_time if old is not None else node.metadata.creation_timestamp
        known[kind] = Condition(
            type=kind,
            status="Unknown",
            reason=reason if old is not None else "NodeStatusNeverUpdated",
            message=message if old is not None else "Kubelet never posted node status.",
            last_heartbeat_time=heard,
            last_transition_time=now,
        )
    return list(known.values())


def eviction_rate(ready: int, not_ready: int, settings: NodeMonitor) -> float:
    """NoExecute taints per second in a zone of so many nodes; 0 stops them."""
    total = ready + not_ready
    if not_ready > 2 and not_ready / total >= settings.unhealthy_ratio and ready > 0:
        return settings.disrupted_eviction_per_s if total > settings.large_zone_nodes else 0.0
    return settings.eviction_per_s


class NodeLifecycleController:
    """The loop."""

    def __init__(
        self,
        cluster: Cluster,
        factory: InformerFactory,
        events: EventRecorder,
        rng: random.Random,
        settings: NodeMonitor = NodeMonitor(),  # noqa: B008
    ) -> None:
        self.guard = Guard("controller node lifecycle")
        self._cluster = cluster
        self._events = events
        self._settings = settings
        self._backoff = Backoff(RECONNECT, rng)
        self._nodes = factory.informer(Node)
        self._leases = factory.informer(Lease, LEASE_NAMESPACE)
        self._heard: dict[str, tuple[tuple[str, str], float]] = {}
        self._buckets: dict[str, tuple[float, TokenBucket]] = {}
        self._nodes.add_handler(None, None, lambda node: self._heard.pop(node.metadata.name, None))

    async def run(self) -> None:
        """Work until cancelled."""
        await self._nodes.synced.wait()
        await self._leases.synced.wait()
        await supervise(self._step, self._backoff, self.guard)

    async def _step(self) -> float:
        now_s = self._cluster.clock.now()
        nodes = list(self._nodes.objects.values())
        silent = [node for node in nodes if self._is_silent(node, now_s)]
        for node in silent:
            if ready_status(node) != "Unknown":
                await self._declare_silent(node, now_s)
        evicting = self._zones(nodes, now_s)
        for node in nodes:
            await self._taint(node, evicting, now_s)
        return self._settings.period_s

    def _is_silent(self, node: Node, now_s: float) -> bool:
        """Return whether neither lease nor status has changed for the grace period, by our own clock."""
        name = node.metadata.name
        lease = self._leases.get(name, LEASE_NAMESPACE)
        beat = next((c.last_heartbeat_time or "" for c in node.status.conditions if c.type == "Ready"), "")
        signs = (lease.spec.renew_time or "" if lease is not None else "", beat)
        known = self._heard.get(name)
        if known is None or known[0] != signs:
            self._heard[name] = (signs, now_s)
            return False
        return now_s - known[1] > self._settings.grace_s

    async def _declare_silent(self, node: Node, now_s: float) -> None:
        conditions = silent_conditions(node, clock.rfc3339(now_s))
        if await self._patch(node, {"status": {"conditions": msgspec.to_builtins(conditions)}}, "status"):
            name = node.metadata.name
            log.warning("node silent", extra={"node": name, "grace_s": self._settings.grace_s})
            self._events.normal(node, "NodeNotReady", f"Node {name} status is now: NodeNotReady")

    def _zones(self, nodes: Iterable[Node], now_s: float) -> Mapping[str, TokenBucket | None]:
        """Per zone the budget of NoExecute taints, None where there must be none now."""
        counts: dict[str, list[int]] = {}
        for node in nodes:
            counts.setdefault(_zone(node), [0, 0])[ready_status(node) != "True"] += 1
        if counts and not any(ready for ready, _ in counts.values()):
            return dict.fromkeys(counts)
        budgets: dict[str, TokenBucket | None] = {}
        for zone, (ready, not_ready) in counts.items():
            per_s = eviction_rate(ready, not_ready, self._settings)
            known = self._buckets.get(zone)
            if known is None or known[0] != per_s:
                if per_s > 0:
                    self._buckets[zone] = (per_s, TokenBucket(Rate(per_s=per_s, burst=1), now_s))
                else:
                    self._buckets.pop(zone, None)
            budgets[zone] = self._buckets[zone][1] if per_s > 0 else None
        return budgets

    async def _taint(self, node: Node, budgets: Mapping[str, TokenBucket | None], now_s: float) -> None:
        evicts = False
        if ready_status(node) in ("False", "Unknown"):
            is_marked = any(t.effect == "NoExecute" and t.key in _OWNED for t in node.spec.taints)
            budget = budgets.get(_zone(node))
            evicts = is_marked or (budget is not None and budget.try_take(now_s))
        taints = wanted_taints(node, evicts=evicts, now=clock.rfc3339(now_s))
        if taints != node.spec.taints:
            await self._patch(node, {"spec": {"taints": msgspec.to_builtins(taints) or None}}, "")

    async def _patch(self, node: Node, patch: dict[str, Any], subresource: str) -> bool:
        # Conditions and taints are lists: only the version that we read may be replaced.
        guard = {"metadata": {"resourceVersion": node.metadata.resource_version}}
        try:
            await self._cluster.patch(Node, node.metadata.name, {**guard, **patch}, subresource=subresource)
        except (errors.NotFound, errors.Conflict):
            return False  # changed or gone meanwhile: the next round sees it
        return True


def _zone(node: Node) -> str:
    return node.metadata.labels.get(ZONE_LABEL, "")
