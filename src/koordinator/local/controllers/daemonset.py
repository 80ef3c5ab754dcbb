"""Keep a pod of a DaemonSet on every node that wants one. Pure functions decide which nodes may run it, which pods to
create and delete, and what the DaemonSet says about itself.

Source: kube-controller-manager's daemon controller (node selector, affinity, tolerations; manage, rolling update with
and without surge).
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api import node_affinity
from koordinator.api.affinity import NAME_FIELD, Taint, Toleration
from koordinator.api.apps import ControllerRevision, DaemonSet, DaemonSetStatus
from koordinator.api.core import Node, Pod, PodSpec
from koordinator.api.pod_labels import is_terminated
from koordinator.api.tolerations import NO_EXECUTE, NO_SCHEDULE, is_tolerated
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster
from koordinator.local.controllers import pod_control, pod_health, revisions, rollout
from koordinator.local.controllers.ownership import Children, is_deleting
from koordinator.local.controllers.pod_control import PodControl
from koordinator.local.controllers.replicaset import next_available_s
from koordinator.local.controllers.revisions import POD_LABEL
from koordinator.local.schema.builtin.defaults import TEMPLATE_GENERATION

BURST_MAX = 250  # pods created or deleted in one go, as upstream
ON_DELETE = "OnDelete"
# How often the template changed, as the API server counts it for old clients.
GENERATION_LABEL = "pod-template-generation"


_ALWAYS_TOLERATED = (
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/unschedulable", NO_SCHEDULE),
)
_NETWORK = ("node.kubernetes.io/network-unavailable", NO_SCHEDULE)


class Eligibility(msgspec.Struct, frozen=True):
    """The answer whether a daemon pod should be started on a node, and whether one that is there may stay."""

    starts: bool
    stays: bool


def daemon_tolerations(spec: PodSpec) -> list[Toleration]:
    """Return the tolerations that every daemon pod has, whatever its template says."""
    tolerated = [*_ALWAYS_TOLERATED, *([_NETWORK] if spec.host_network else [])]
    return [Toleration(key=key, operator="Exists", effect=effect) for key, effect in tolerated]


def eligibility(spec: PodSpec) -> Callable[[Node], Eligibility]:
    """Return a function that tells about nodes, for a template's pod spec."""
    tolerations = [*spec.tolerations, *daemon_tolerations(spec)]

    def judge(node: Node) -> Eligibility:
        if spec.node_name not in ("", node.metadata.name) or not node_affinity.selects(spec, node):
            return Eligibility(False, False)
        hard = _untolerated(node.spec.taints, tolerations)
        return Eligibility(not hard, all(taint.effect != NO_EXECUTE for taint in hard))

    return judge


def _untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> list[Taint]:
    return [
        taint
        for taint in taints
        if taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not is_tolerated(tolerations, taint)
    ]


class OnNode(msgspec.Struct, frozen=True):
    """A node and the daemon pods on it or meant for it, the oldest first."""

    name: str
    fit: Eligibility
    pods: list[Pod]


class DaemonPlan(msgspec.Struct, frozen=True):
    """Nodes that need a pod, pods to delete, and among those the ones that ended by themselves."""

    create: list[str]
    delete: list[Pod]
    ended: list[Pod]


class PodCriteria(msgspec.Struct, frozen=True):
    """The measure by which pods are judged: the newest revision, and what makes a pod available."""

    revision: str
    min_ready_s: int
    now_s: float

    def is_new(self, pod: Pod) -> bool:
        return is_updated(pod, self.revision)

    def is_available(self, pod: Pod) -> bool:
        return pod_health.is_available(pod, self.min_ready_s, self.now_s)


def target_node(pod: Pod) -> str:
    """Return the node that a pod is on, or that its affinity names; empty when it has none."""
    if pod.spec.node_name:
        return pod.spec.node_name
    required = node_affinity.required(pod.spec)
    for term in required.node_selector_terms if required is not None else []:
        for field in term.match_fields:
            if field.key == NAME_FIELD and field.operator == "In" and len(field.values) == 1:
                return field.values[0]
    return ""


def by_node(nodes: Mapping[str, Eligibility], pods: Sequence[Pod]) -> list[OnNode]:
    """Return the pods by node: all nodes of the cluster, then those that are gone and for which pods still wait.

    Pods that were on a node which is gone are the pod garbage collector's.
    """
    found: dict[str, list[Pod]] = {name: [] for name in nodes}
    for pod in sorted(pods, key=_age):
        if is_deleting(pod) and is_terminated(pod):
            continue
        if pod.spec.node_name in found or not pod.spec.node_name:
            found.setdefault(target_node(pod), []).append(pod)
    gone = Eligibility(False, False)
    return [OnNode(name, nodes.get(name, gone), there) for name, there in found.items()]


def _age(pod: Pod) -> tuple[bool, str, str]:
    """Return a key that sorts pods that have a node first, then older ones."""
    return not pod.spec.node_name, pod.metadata.creation_timestamp or "", pod.metadata.name


def is_updated(pod: Pod, revision: str) -> bool:
    return pod.metadata.labels.get(POD_LABEL) == revision


def plan_pods(places: Sequence[OnNode], by: PodCriteria, *, surges: bool) -> DaemonPlan:
    """Bring one pod to each node that wants one. `surges`: an old and a new pod may share a node."""
    made = DaemonPlan([], [], [])
    for place in places:
        living = [pod for pod in place.pods if not is_deleting(pod)]
        if not place.fit.stays:
            made.delete.extend(living)
            continue
        over = [pod for pod in living if not pod_health.is_active(pod)]
        made.ended.extend(over)
        made.delete.extend(over)
        running = [pod for pod in living if pod_health.is_active(pod)]
        made.delete.extend(_surplus(running, by) if surges else running[1:])
        # With a surge, a pod that stops or has failed may go in its own time.
        if place.fit.starts and (not place.pods or (surges and not running)):
            made.create.append(place.name)
    return made


def _surplus(running: Sequence[Pod], by: PodCriteria) -> list[Pod]:
    """Return all but the oldest of each template, and the old one once it is not ready or the new one available."""
    old = [pod for pod in running if not by.is_new(pod)]
    new = [pod for pod in running if by.is_new(pod)]
    surplus = [*old[1:], *new[1:]]
    if old and new and (not pod_health.is_ready(old[0]) or by.is_available(new[0])):
        surplus.append(old[0])
    return surplus


def bounds_of(obj: DaemonSet, desired: int) -> rollout.RolloutBounds:
    """Return surge and unavailability in pods, both rounded up. Raises: ProtocolError."""
    rolling = obj.spec.update_strategy.rolling_update
    surge = rolling.max_surge if rolling is not None else None
    unavailable = rolling.max_unavailable if rolling is not None else None
    least = 1 if unavailable is None else unavailable
    return rollout.bounds(surge or 0, least, desired, "spec.updateStrategy.rollingUpdate", up=True)


def _one_of_each(place: OnNode, by: PodCriteria) -> tuple[Pod | None, Pod | None] | None:
    """Return the old and the new pod that live on a node; None while there are more, which `plan_pods` mends."""
    living = [pod for pod in place.pods if not is_deleting(pod)]
    old = [pod for pod in living if not by.is_new(pod)]
    new = [pod for pod in living if by.is_new(pod)]
    if len(old) > 1 or len(new) > 1:
        return None
    return old[0] if old else None, new[0] if new else None


def plan_update(places: Sequence[OnNode], bounds: rollout.RolloutBounds, by: PodCriteria) -> DaemonPlan:
    """Return the next step of a rolling update, after `plan` has nothing left to do."""
    concerned = [place for place in places if place.fit.starts or place.pods]
    if bounds.surge:
        return _surge(concerned, bounds.surge, by)
    unavailable = 0
    replaceable: list[Pod] = []
    candidates: list[Pod] = []
    for place in concerned:
        old, new = _one_of_each(place, by) or (None, None)
        only = new if old is None else old if new is None else None
        is_up = only is not None and by.is_available(only)
        unavailable += not is_up
        if only is not None and only is old:
            (candidates if is_up else replaceable).append(only)
    # Old pods that do not work may go at any time; of those that work, as many as may be missing.
    spare = max(bounds.unavailable - unavailable, 0)
    return DaemonPlan([], [*replaceable, *candidates[:spare]], [])


def _surge(places: Sequence[OnNode], most: int, by: PodCriteria) -> DaemonPlan:
    """A node whose old pod does not work gets the new one at once, of the others as many as may be too much.

    Old pods on nodes that take no new one go when they do not work, or when enough others do.
    """
    surging = available = 0
    urgent: list[str] = []
    candidates: list[str] = []
    delete: list[Pod] = []
    leaving: list[Pod] = []
    for place in places:
        pair = _one_of_each(place, by)
        if pair is None:
            surging += 1
            continue
        old, new = pair
        first = old or new
        is_up = first is not None and by.is_available(first)
        available += is_up
        if old is None:
            continue
        if new is None and place.fit.starts:
            (candidates if is_up else urgent).append(place.name)
        elif new is None:
            (leaving if is_up else delete).append(old)
        elif by.is_available(new):
            delete.append(old)
        else:
            surging += 1
    delete += leaving[: max(available - sum(place.fit.starts for place in places), 0)]
    return DaemonPlan([*urgent, *candidates[: max(most - surging, 0)]], delete, [])


def status_of(obj: DaemonSet, places: Sequence[OnNode], revision: str, now_s: float) -> DaemonSetStatus:
    """Return the counts that kubectl shows; of several pods on a node the oldest counts."""
    wanted = [place for place in places if place.fit.starts]
    first = [place.pods[0] for place in wanted if place.pods]
    min_ready_s = obj.spec.min_ready_seconds
    available = sum(pod_health.is_available(pod, min_ready_s, now_s) for pod in first)
    return msgspec.structs.replace(
        obj.status,
        desired_number_scheduled=len(wanted),
        current_number_scheduled=len(first),
        number_misscheduled=sum(not place.fit.starts and bool(place.pods) for place in places),
        number_ready=sum(pod_health.is_ready(pod) for pod in first),
        updated_number_scheduled=sum(is_updated(pod, revision) for pod in first),
        number_available=available,
        number_unavailable=len(wanted) - available,
        observed_generation=obj.metadata.generation,
    )


def new_pod(obj: DaemonSet, node: str, revision: str) -> dict[str, Any]:
    """Return the pod to create for a node; the scheduler binds it there, by its affinity."""
    body = pod_control.pod_from_template(obj.spec.template, obj)
    number = obj.metadata.annotations.get(TEMPLATE_GENERATION)
    labels = {POD_LABEL: revision, **({GENERATION_LABEL: number} if number else {})}
    body["metadata"]["labels"] = {**body["metadata"].get("labels", {}), **labels}
    spec = dict(body["spec"])
    added = msgspec.to_builtins(daemon_tolerations(PodSpec(host_network=bool(spec.get("hostNetwork")))))
    present = spec.get("tolerations") or []
    spec["tolerations"] = [*present, *(one for one in added if one not in present)]
    # The node was chosen by the other terms already: only its name is left to say.
    field = {"key": NAME_FIELD, "operator": "In", "values": [node]}
    affinity = dict(spec.get("affinity") or {})
    affinity["nodeAffinity"] = {
        **(affinity.get("nodeAffinity") or {}),
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }
    spec["affinity"] = affinity
    return {**body, "spec": spec}


WORKERS = 2
# A large DaemonSet hears from all its nodes at once; each look costs a pass over the nodes.
BATCH_S = 0.1
# Pauses before a pod that fails is made again on the same node, as upstream.
ENDED_S, ENDED_S_MAX = 1.0, 900.0
_ALWAYS_WRITTEN = (
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
)


class DaemonSetController(ControllerLoop):
    """The loop."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._sets = factory.informer(DaemonSet)
        self._nodes = factory.informer(Node)
        reconcile = pod_control.reporting_bad_input(events, self._sets, self._reconcile)
        self._controller: Controller[Key] = Controller("daemonsets", reconcile, workers=WORKERS)
        self._pods: Children[DaemonSet, Pod] = Children(
            cluster, factory, self._sets, Pod, self._controller, batch_s=BATCH_S
        )
        self._revisions: Children[DaemonSet, ControllerRevision] = Children(
            cluster, factory, self._sets, ControllerRevision, self._controller
        )
        self._control = PodControl(cluster, events, self._pods.expectations)
        # By uid and generation of the set, and node: how often a pod ended there, and when the last was deleted.
        self._ended: dict[tuple[str, int, str], tuple[int, float]] = {}
        self._controller.watch(self._sets, lambda obj: [key_of(obj)])
        self._sets.add_handler(on_delete=self._set_gone)
        self._nodes.add_handler(self._wake_all, self._node_changed, self._wake_all)
        self._informers = [self._sets, self._nodes, self._pods.informer, self._revisions.informer]

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
        history = await self._revisions.claim(obj)
        newest = await revisions.ensure(self._cluster, obj, history)
        revision = newest.revision.metadata.labels[POD_LABEL]
        waits_s = self._pods.expectations.left_s(obj.metadata.uid, self._cluster.clock.now())
        pods = await self._pods.claim(obj)
        spec = msgspec.convert(obj.spec.template.get("spec") or {}, PodSpec)
        judge = eligibility(spec)
        nodes = {node.metadata.name: judge(node) for node in self._nodes.objects.values()}
        places = by_node(nodes, pods)
        pause_s = None
        if waits_s is None:
            pause_s = await self._manage(obj, places, revision)
        live = {one.metadata.name for one in history if _is_used(one, pods)}
        live.add(newest.revision.metadata.name)
        await revisions.truncate(self._cluster, obj, history, live)
        now_s = self._cluster.clock.now()
        status = status_of(obj, places, revision, now_s)
        if newest.collisions:
            status = msgspec.structs.replace(status, collision_count=newest.collisions)
        await pod_control.write(self._cluster, obj, obj.status, status, _ALWAYS_WRITTEN)
        soon_s = next_available_s(pods, obj.spec.min_ready_seconds, now_s)
        return min((s for s in (waits_s, pause_s, soon_s) if s is not None), default=None)

    async def _manage(self, obj: DaemonSet, places: list[OnNode], revision: str) -> float | None:
        """Create and delete pods; seconds until a pod that ended may be replaced."""
        now_s = self._cluster.clock.now()
        bounds = bounds_of(obj, sum(place.fit.starts for place in places))
        by = PodCriteria(revision, obj.spec.min_ready_seconds, now_s)
        is_rolling = obj.spec.update_strategy.type != ON_DELETE
        plan = plan_pods(places, by, surges=is_rolling and bounds.surge > 0)
        pause_s, held = self._held_back(obj, plan, now_s)
        doomed = [pod for pod in plan.delete if pod.metadata.uid not in held]
        nodes = plan.create
        if is_rolling and not nodes and not doomed:
            update = plan_update(places, bounds, by)
            nodes, doomed = update.create, update.delete
        await self._act(obj, nodes, doomed, revision)
        return pause_s

    def _held_back(self, obj: DaemonSet, plan: DaemonPlan, now_s: float) -> tuple[float | None, set[str]]:
        """Return pods that failed too soon after the last one there to be deleted yet: the shortest pause, their
        uids.
        """
        held: set[str] = set()
        pauses: list[float] = []
        for pod in plan.ended:
            if pod.status.phase != "Failed":
                self._record_ended_pod(obj, pod)
                continue
            place = (obj.metadata.uid, obj.metadata.generation, target_node(pod))
            count, last_s = self._ended.get(place, (0, 0.0))
            pause_s = min(ENDED_S * 2.0 ** min(count - 1, 16), ENDED_S_MAX) if count else 0.0
            if last_s + pause_s > now_s:
                held.add(pod.metadata.uid)
                pauses.append(last_s + pause_s - now_s)
                continue
            self._ended[place] = (count + 1, now_s)
            self._record_ended_pod(obj, pod)
        return min(pauses, default=None), held

    def _record_ended_pod(self, obj: DaemonSet, pod: Pod) -> None:
        where = f"pod {pod.key} on node {target_node(pod)}, will try to"
        if pod.status.phase == "Failed":
            self._events.warning(obj, "FailedDaemonPod", f"Found failed daemon {where} kill it")
        else:
            self._events.normal(obj, "SucceededDaemonPod", f"Found succeeded daemon {where} delete it")

    async def _act(self, obj: DaemonSet, nodes: list[str], doomed: list[Pod], revision: str) -> None:
        async def create(node: str) -> None:
            await self._control.create(obj, new_pod(obj, node, revision))

        creates = [functools.partial(create, node) for node in nodes[:BURST_MAX]]
        refused = await pod_control.slow_start(creates)
        error = refused or await self._control.delete_all(obj, doomed[:BURST_MAX])
        if error is not None:
            raise error

    def _forget_ended(self, uid: str) -> None:
        for place in [place for place in self._ended if place[0] == uid]:
            del self._ended[place]


def _is_used(one: ControllerRevision, pods: list[Pod]) -> bool:
    value = one.metadata.labels.get(POD_LABEL, "")
    return any(is_updated(pod, value) for pod in pods)
