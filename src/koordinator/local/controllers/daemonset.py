"""Keeps a pod of a DaemonSet on every node that wants one. Decisions are in `daemon_plan`.

Source: kube-controller-manager's daemon controller.
"""

import functools

import msgspec

from koordinator.api.affinity import LabelSelector
from koordinator.api.apps import ControllerRevision, DaemonSet
from koordinator.api.core import Node, Pod, PodSpec
from koordinator.cluster.controller import Controller
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key
from koordinator.cluster.protocol import Cluster
from koordinator.local.controllers import controller_revision, daemon_plan, pod_control, status_write
from koordinator.local.controllers.controller_revision import POD_LABEL
from koordinator.local.controllers.daemon_plan import DaemonPlan, OnNode, PodCriteria
from koordinator.local.controllers.ownership import Children, is_deleting, key_of
from koordinator.local.controllers.pod_control import PodControl
from koordinator.local.controllers.replicaset import next_available_s

WORKERS = 2
# A large DaemonSet hears from all its nodes at once; each look costs a pass over the nodes.
BATCH_S = 0.1
# Pauses before a pod that ends by itself is made again on the same node, as upstream.
ENDED_S, ENDED_S_MAX = 1.0, 900.0
_ALWAYS_WRITTEN = (
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
)


def _selector_of(obj: DaemonSet) -> LabelSelector:
    return obj.spec.selector


class DaemonSetController:
    """The loop."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._sets = factory.informer(DaemonSet)
        self._nodes = factory.informer(Node)
        reconcile = pod_control.telling_bad_input(events, self._sets, self._reconcile)
        self._controller: Controller[Key] = Controller("daemonsets", reconcile, workers=WORKERS)
        self._pods: Children[DaemonSet, Pod] = Children(
            cluster, factory, self._sets, Pod, self._controller, _selector_of, batch_s=BATCH_S
        )
        self._revisions: Children[DaemonSet, ControllerRevision] = Children(
            cluster, factory, self._sets, ControllerRevision, self._controller, _selector_of
        )
        self._control = PodControl(cluster, events, self._pods.expectations)
        # By uid and generation of the set, and node: how often a pod ended there, and when the last was deleted.
        self._ended: dict[tuple[str, int, str], tuple[int, float]] = {}
        self._controller.watch(self._sets, lambda obj: [key_of(obj)])
        self._sets.add_handler(on_delete=self._set_gone)
        self._nodes.add_handler(self._wake_all, self._node_changed, self._wake_all)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run([self._sets, self._nodes, self._pods.informer, self._revisions.informer])

    def _wake_all(self, _: Node) -> None:
        for namespace, name in self._sets.objects:
            self._controller.queue.add_after((namespace, name), BATCH_S)

    def _node_changed(self, old: Node, new: Node) -> None:
        # Heartbeats change neither.
        if old.metadata.labels != new.metadata.labels or old.spec.taints != new.spec.taints:
            self._wake_all(new)

    def _set_gone(self, obj: DaemonSet) -> None:
        self._pods.expectations.forget(obj.metadata.uid)
        self._forget_ended(obj.metadata.uid)

    async def _reconcile(self, key: Key) -> float | None:
        obj = self._sets.get(key[1], key[0])
        if obj is None or is_deleting(obj):
            return None
        revisions = await self._revisions.claim(obj)
        newest = await controller_revision.ensure(self._cluster, obj, revisions)
        revision = newest.revision.metadata.labels[controller_revision.HASH_LABEL]
        waits_s = self._pods.expectations.left_s(obj.metadata.uid, self._cluster.clock.now())
        pods = await self._pods.claim(obj)
        spec = msgspec.convert(obj.spec.template.get("spec") or {}, PodSpec)
        nodes = daemon_plan.nodes_of(list(self._nodes.objects.values()), spec)
        places = daemon_plan.by_node(nodes, pods)
        pause_s = None
        if waits_s is None:
            pause_s = await self._manage(obj, places, revision)
        live = {one.metadata.name for one in revisions if _is_used(one, pods)}
        live.add(newest.revision.metadata.name)
        await controller_revision.truncate(self._cluster, obj, revisions, live)
        now_s = self._cluster.clock.now()
        status = daemon_plan.status_of(obj, places, revision, now_s)
        if newest.collisions:
            status = msgspec.structs.replace(status, collision_count=newest.collisions)
        await status_write.write(self._cluster, obj, obj.status, status, _ALWAYS_WRITTEN)
        soon_s = next_available_s(pods, obj.spec.min_ready_seconds, now_s)
        return min((s for s in (waits_s, pause_s, soon_s) if s is not None), default=None)

    async def _manage(self, obj: DaemonSet, places: list[OnNode], revision: str) -> float | None:
        """Create and delete pods; seconds until a pod that ended may be replaced."""
        now_s = self._cluster.clock.now()
        bounds = daemon_plan.bounds_of(obj, sum(place.fit.starts for place in places))
        by = PodCriteria(revision, obj.spec.min_ready_seconds, now_s)
        is_rolling = obj.spec.update_strategy.type != daemon_plan.ON_DELETE
        plan = daemon_plan.plan(places, by, surges=is_rolling and bounds.surge > 0)
        pause_s, held = self._held_back(obj, plan, now_s)
        doomed = [pod for pod in plan.delete if pod.metadata.uid not in held]
        nodes = plan.create
        if is_rolling and not nodes and not doomed:
            update = daemon_plan.plan_update(places, bounds, by)
            nodes, doomed = update.create, update.delete
        await self._act(obj, nodes, doomed, revision)
        return pause_s

    def _held_back(self, obj: DaemonSet, plan: DaemonPlan, now_s: float) -> tuple[float | None, set[str]]:
        """Return pods that ended too soon after the last one there to be deleted yet: the shortest pause, their
        uids.
        """
        held: set[str] = set()
        pauses: list[float] = []
        for pod in plan.ended:
            place = (obj.metadata.uid, obj.metadata.generation, daemon_plan.target_node(pod))
            count, last_s = self._ended.get(place, (0, 0.0))
            pause_s = min(ENDED_S * 2.0 ** min(count, 16), ENDED_S_MAX) if count else 0.0
            if last_s + pause_s > now_s:
                held.add(pod.metadata.uid)
                pauses.append(last_s + pause_s - now_s)
                continue
            self._ended[place] = (count + 1, now_s)
            self._tell_ended(obj, pod)
        return min(pauses, default=None), held

    def _tell_ended(self, obj: DaemonSet, pod: Pod) -> None:
        where = f"pod {pod.key} on node {daemon_plan.target_node(pod)}, will try to"
        if pod.status.phase == "Failed":
            self._events.warning(obj, "FailedDaemonPod", f"Found failed daemon {where} kill it")
        else:
            self._events.normal(obj, "SucceededDaemonPod", f"Found succeeded daemon {where} delete it")

    async def _act(self, obj: DaemonSet, nodes: list[str], doomed: list[Pod], revision: str) -> None:
        async def create(node: str) -> None:
            await self._control.create(obj, daemon_plan.new_pod(obj, node, revision))

        creates = [functools.partial(create, node) for node in nodes[: daemon_plan.BURST_MAX]]
        refused = await pod_control.slow_start(creates)
        error = refused or await self._control.delete_all(obj, doomed[: daemon_plan.BURST_MAX])
        if error is not None:
            raise error

    def _forget_ended(self, uid: str) -> None:
        for place in [place for place in self._ended if place[0] == uid]:
            del self._ended[place]


def _is_used(one: ControllerRevision, pods: list[Pod]) -> bool:
    value = one.metadata.labels.get(controller_revision.HASH_LABEL, "")
    return any(pod.metadata.labels.get(POD_LABEL) == value for pod in pods)
