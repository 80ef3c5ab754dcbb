"""A server with its controllers, on which lives are led: a fake kubelet, and the wait until all is quiet.

Both kinds of server are used by the same client calls; ours lives on virtual time.
"""

import asyncio
import contextlib
from collections import defaultdict
from typing import Any

from koordinator.api import apps, core, groups, kinds, sigs, storage
from koordinator.api.meta import Object, controller_of
from koordinator.api.node_metric import NodeMetric
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.api.reservation import Reservation
from koordinator.api.slo import NodeSLO
from koordinator.clock import rfc3339
from koordinator.cluster import errors
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster
from tests.local.controllers.fake_kubelet import pinned_node
from tests.real.lives.rooms import Rooms, namespace_of

Json = dict[str, Any]
Step = list[Any]

VIEWS: tuple[type[Object], ...] = (
    core.Pod,
    core.Service,
    apps.ReplicaSet,
    apps.Deployment,
    apps.StatefulSet,
    apps.DaemonSet,
    apps.ControllerRevision,
    apps.Job,
    apps.CronJob,
    groups.EndpointSlice,
    groups.Endpoints,
    groups.PodDisruptionBudget,
    groups.ResourceQuota,
    storage.PersistentVolumeClaim,
    storage.PersistentVolume,
    core.ConfigMap,
    core.Event,
)
KOORDINATOR_VIEWS: tuple[type[Object], ...] = (
    sigs.ElasticQuota,
    Reservation,
    PodMigrationJob,
    NodeMetric,
    NodeSLO,
)
"""Changes of these, and of nodes, keep a life from being quiet."""
EARLY_S = 1_700_000_000.0
LEASE_S = 20.0
PATIENCE_S = 90.0
"""A life that is never quiet is looked at after this."""
PLACES = ("apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index")
OURS = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


class Stage:
    """`namespace` of a life is also the prefix of its nodes and the value of their label `life`."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, *, is_koordinator: bool = False) -> None:
        self.cluster = cluster
        self.pods = factory.informer(core.Pod)
        self.kubelets: dict[str, Kubelet] = {}
        self._changed_s: dict[str, float] = defaultdict(float)
        for view in (*VIEWS, *(KOORDINATOR_VIEWS if is_koordinator else ())):
            informer = factory.informer(view)
            informer.add_handler(self._note, lambda _, new: self._note(new), self._note)
        nodes = factory.informer(core.Node)
        nodes.add_handler(self._note_node, lambda _, new: self._note_node(new), self._note_node)

    def _note(self, obj: Object) -> None:
        namespace = namespace_of(obj)
        self._changed_s[namespace] = self._changed_s[""] = asyncio.get_running_loop().time()
        if isinstance(obj, core.Pod) and namespace in self.kubelets:
            self.kubelets[namespace].wake(obj)
        if isinstance(obj, Reservation) and namespace in self.kubelets:
            self.kubelets[namespace].rooms.note(obj)
            self.kubelets[namespace].wake_all()

    def _note_node(self, node: core.Node) -> None:
        life = node.metadata.labels.get("life", "")
        self._changed_s[life] = self._changed_s[""] = asyncio.get_running_loop().time()

    async def quiet(self, namespace: str, quiet_s: float) -> None:
        """Until nothing has changed for `quiet_s`; nowhere without a namespace."""
        loop = asyncio.get_running_loop()
        begun_s = self._changed_s[namespace] = loop.time()
        while loop.time() - begun_s < PATIENCE_S:
            left_s = self._changed_s[namespace] + quiet_s - loop.time()
            if left_s <= 0:
                return
            await asyncio.sleep(left_s)


class Kubelet:
    """Binds and runs the pods of a life as its rules say; the first rule that fits a pod decides.

    A rule is `{"do": ..., "image": ..., "below": ..., "at": [...]}`. `at` are ordinals or completion indexes, `below`
    is how many pods of its owner (of its index, for indexed Jobs) came before. `do`: hold (no node), unplaced (a
    scheduler says so), bind, run, ready, succeed, `fail N`, `restart N`, evicted.

    One that does not bind leaves that to a scheduler, and pods started one minute after the other, so that no two
    started at once.
    """

    def __init__(self, stage: Stage, namespace: str, nodes: int, *, binds: bool = True) -> None:
        self._stage, self.namespace, self.binds = stage, namespace, binds
        self.created: list[tuple[str, str]] = []
        """Kinds and names of what belongs to no namespace, and to this life."""
        self.nodes = dict.fromkeys(f"{namespace}-{letter}" for letter in "abcdef"[:nodes])
        self.silent: set[str] = set()
        self.rules: list[Json] = []
        self.rooms = Rooms(stage.cluster, self.nodes)
        self.lingers = False
        self._order: dict[str, int] = {}
        self._count: dict[str, int] = defaultdict(int)
        self._addresses = 0
        self._queue: asyncio.Queue[str] = asyncio.Queue()

    def wake(self, pod: core.Pod) -> None:
        owner = controller_of(pod)
        if pod.metadata.uid not in self._order:
            key = owner.uid if owner is not None else ""
            self._order[pod.metadata.uid] = self._count[key]
            self._count[key] += 1
        self._queue.put_nowait(pod.metadata.name)

    def wake_all(self) -> None:
        for pod in self._stage.pods.list(self.namespace):
            self.wake(pod)

    async def run(self) -> None:
        while True:
            name = await self._queue.get()
            pod = self._stage.pods.get(name, self.namespace)
            if pod is not None:
                # Another one has its name: the API server says so by refusing to change the uid.
                with contextlib.suppress(errors.NotFound, errors.Conflict, errors.Invalid):
                    await self._tend(pod)

    async def report(self) -> None:
        """Renew the leases of the nodes."""
        cluster, view = self._stage.cluster, groups.Lease
        while True:
            for node in (*self.nodes, f"{self.namespace}-x"):
                if node in self.silent:
                    continue
                spec = {"holderIdentity": node, "leaseDurationSeconds": 40}
                spec["renewTime"] = rfc3339(cluster.clock.now())[:-1] + ".000000Z"
                try:
                    await cluster.patch(view, node, {"spec": spec}, "kube-node-lease")
                except errors.NotFound:
                    body = {"metadata": {"name": node}, "spec": spec}
                    await cluster.create(view, body, "kube-node-lease")
            await asyncio.sleep(LEASE_S)

    async def _tend(self, pod: core.Pod) -> None:
        meta, status, cluster = pod.metadata, pod.status, self._stage.cluster
        has_ended = status.phase in ("Succeeded", "Failed")
        if meta.deletion_timestamp is not None:
            if self.lingers or not pod.spec.node_name or pod.spec.node_name in self.silent:
                return
            if not has_ended:
                await self._write(pod, "fail 137")
            await cluster.delete(core.Pod, meta.name, meta.namespace, uid=meta.uid, grace_period_s=0)
            return
        wanted = self._wanted(pod)
        if has_ended or wanted == "hold":
            return
        if not pod.spec.node_name:
            if not self.binds or (wanted == "unplaced" and await self._is_unplaced(pod)):
                return
            place = _place(pod)
            number = self._order[meta.uid] if place is None else place
            node = pinned_node(pod) or await self.rooms.take(pod) or [*self.nodes][number % len(self.nodes)]
            await cluster.bind(meta.namespace, meta.name, node, uid=meta.uid)
        elif wanted != "bind" and pod.spec.node_name not in self.silent:
            await self._write(pod, wanted)

    async def _is_unplaced(self, pod: core.Pod) -> bool:
        """Say so of a pod, unless it said so before and now there is room."""
        if pod.status.conditions:
            return not self.rooms.has_room(pod)
        refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        patch = {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [refusal]}}
        await self._stage.cluster.patch(
            core.Pod, pod.metadata.name, patch, pod.metadata.namespace, subresource="status"
        )
        return True

    def _wanted(self, pod: core.Pod) -> str:
        annotations, place = pod.metadata.annotations, _place(pod)
        before = int(
            annotations.get("batch.kubernetes.io/job-index-failure-count", self._order[pod.metadata.uid])
        )
        image = pod.spec.containers[0].image
        for rule in self.rules:
            fits_place = "at" not in rule or (place in rule["at"])
            fits_image = rule.get("image") in (None, image)
            if fits_place and fits_image and before < rule.get("below", 1 << 30):
                return str(rule["do"])
        return "ready"

    async def _write(self, pod: core.Pod, wanted: str) -> None:
        now = rfc3339(self._stage.cluster.clock.now())
        verb, _, number = wanted.partition(" ")
        is_ready = verb in ("ready", "restart")
        ends = {"succeed": "Succeeded", "fail": "Failed", "evicted": "Failed"}
        phase = ends.get(verb, "Running")
        code = int(number or 0) if verb == "fail" else 137 if verb == "evicted" else 0
        restarts = int(number) if verb == "restart" else 0
        states: Json = {"running": {"startedAt": now}}
        if verb in ends:
            states = {"terminated": {"exitCode": code, "finishedAt": now, "startedAt": now}}
        old = {each.type: each for each in pod.status.conditions}
        shown = pod.status.container_statuses
        is_same = (
            pod.status.phase == phase
            and ("Ready" in old and (old["Ready"].status == "True") == is_ready)
            and (shown and shown[0].restart_count == restarts)
        )
        if is_same:
            return
        conditions: list[Json] = [
            {"type": each.type, "status": each.status, "reason": each.reason, "message": each.message}
            for each in pod.status.conditions
            if each.type not in OURS
        ]
        if verb == "evicted":
            conditions.append({"type": "DisruptionTarget", "status": "True", "reason": "Evicted"})
        for kind in OURS:
            is_true = is_ready or kind in ("PodScheduled", "Initialized")
            before = old.get(kind)
            is_kept = before is not None and (before.status == "True") == is_true
            since = before.last_transition_time if is_kept and before is not None else now
            conditions.append({"type": kind, "status": str(is_true), "lastTransitionTime": since or now})
        names = [container.name for container in pod.spec.containers]
        status = {
            "phase": phase,
            "startTime": pod.status.start_time or (now if self.binds else rfc3339(self._start_s(pod))),
            "conditions": conditions,
            "containerStatuses": [
                {
                    "name": name,
                    "image": "i",
                    "imageID": "i",
                    "ready": is_ready,
                    "started": is_ready,
                    "restartCount": restarts,
                    "state": states,
                }
                for name in names
            ],
        }
        if not pod.status.pod_ip:
            self._addresses += 1
            address = f"10.200.{self._addresses // 200}.{self._addresses % 200 + 1}"
            status |= {"podIP": address, "podIPs": [{"ip": address}]}
        patch = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        await self._stage.cluster.patch(
            core.Pod, pod.metadata.name, patch, pod.metadata.namespace, subresource="status"
        )

    def _start_s(self, pod: core.Pod) -> float:
        return EARLY_S + 60.0 * self._order[pod.metadata.uid]


def _place(pod: core.Pod) -> int | None:
    """The ordinal or completion index of a pod."""
    found = [pod.metadata.labels[name] for name in PLACES if name in pod.metadata.labels]
    return int(found[0]) if found else None


def view_of(kind: str) -> type[Object]:
    """The view of a kind of the groups that lives are about."""
    known = (*kinds.BUILT_IN, *kinds.CUSTOM)
    found = next(each for each in known if each.kind == kind and each.group != "events.k8s.io")
    return kinds.view_of(found)
