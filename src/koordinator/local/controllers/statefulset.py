"""Keep the pods of a StatefulSet, each with its own name and storage: names stay, and storage stays with them. Pure
functions decide which pods to create and delete next, and what the set says about itself.

With ordered management nothing happens to a pod before all earlier ones are ready; with parallel management only
updates go one by one.

Source: kube-controller-manager's statefulset controller.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api.apps import ClaimRetentionPolicy, ControllerRevision, StatefulSet, StatefulSetStatus
from koordinator.api.core import Pod
from koordinator.api.meta import Object, OwnerReference
from koordinator.api.pod_labels import is_terminated
from koordinator.api.storage import PersistentVolumeClaim
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster, delete_if_same, patch_same
from koordinator.local.controllers import pod_control, pod_health, revisions, rollout
from koordinator.local.controllers.ownership import Children, is_deleting, owner_reference
from koordinator.local.controllers.replicaset import next_available_s
from koordinator.local.controllers.revisions import POD_LABEL

log = logging.getLogger(__name__)

PARALLEL = "Parallel"
ON_DELETE = "OnDelete"


class NewStatefulPod(msgspec.Struct, frozen=True):
    """The pod `ordinal` is missing; `is_current` takes the template from before the update."""

    ordinal: int
    is_current: bool


class StatefulPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`scaled_down` are those of `delete` that leave for good."""

    create: list[NewStatefulPod] = []
    delete: list[Pod] = []
    scaled_down: list[Pod] = []


class Revisions(msgspec.Struct, frozen=True):
    """Names of the revision before an update and of the newest; equal when there is no update."""

    current: str
    update: str


def ordinal_of(obj: StatefulSet, pod: Pod) -> int | None:
    """Return the number in the pod's name; None when the name is not one of the set's."""
    base, dash, number = pod.metadata.name.rpartition("-")
    is_member = base == obj.metadata.name and dash and number.isascii() and number.isdecimal()
    return int(number) if is_member and str(int(number)) == number else None


def start_of(obj: StatefulSet) -> int:
    """Return the first ordinal."""
    return obj.spec.ordinals.start if obj.spec.ordinals is not None else 0


def revision_of(pod: Pod) -> str:
    return pod.metadata.labels.get(POD_LABEL, "")


def is_running_and_ready(pod: Pod) -> bool:
    return pod.status.phase == "Running" and pod_health.is_ready(pod)


def is_healthy(pod: Pod) -> bool:
    return is_running_and_ready(pod) and not is_deleting(pod)


def plan_pods(obj: StatefulSet, pods: Sequence[Pod], revisions: Revisions, now_s: float) -> StatefulPlan:
    """Return the next step. Raises: ProtocolError (maxUnavailable)."""
    start = start_of(obj)
    by_ordinal = {ordinal: pod for pod in pods if (ordinal := ordinal_of(obj, pod)) is not None}
    wanted = range(start, start + obj.spec.replicas)
    replicas = [by_ordinal.get(ordinal) for ordinal in wanted]
    condemned = [by_ordinal[ordinal] for ordinal in sorted(by_ordinal, reverse=True) if ordinal not in wanted]
    ordered = obj.spec.pod_management_policy != PARALLEL
    made = StatefulPlan()
    if not _fill(obj, wanted, replicas, ordered, made, now_s):
        return made
    if not _scale_down(obj, replicas, condemned, ordered, made, now_s):
        return made
    if obj.spec.update_strategy.type != ON_DELETE and not made.create and not made.delete:
        made.delete.extend(_to_update(obj, replicas, revisions))
    return made


def _fill(
    obj: StatefulSet,
    wanted: range,
    replicas: Sequence[Pod | None],
    ordered: bool,
    made: StatefulPlan,
    now_s: float,
) -> bool:
    """Create what is missing and remove what has ended; whether there may be further steps."""
    for ordinal, pod in zip(wanted, replicas, strict=True):
        if pod is None:
            made.create.append(NewStatefulPod(ordinal, _keeps_current(obj, ordinal)))
        elif is_terminated(pod):
            if not is_deleting(pod):
                made.delete.append(pod)
        elif is_healthy(pod) and pod_health.is_available(pod, obj.spec.min_ready_seconds, now_s):
            continue
        if ordered:
            return False
    return True


def _keeps_current(obj: StatefulSet, ordinal: int) -> bool:
    """Return whether a missing pod comes back as it was before the update."""
    is_rolling = obj.spec.update_strategy.type != ON_DELETE
    return is_rolling and ordinal < start_of(obj) + _partition(obj)


def _partition(obj: StatefulSet) -> int:
    """Return how many of the lowest pods an update leaves alone."""
    rolling = obj.spec.update_strategy.rolling_update
    return (rolling.partition or 0) if rolling is not None else 0


def _scale_down(
    obj: StatefulSet,
    replicas: Sequence[Pod | None],
    condemned: Sequence[Pod],
    ordered: bool,
    made: StatefulPlan,
    now_s: float,
) -> bool:
    """Delete what is too much, the highest ordinal first; whether there may be further steps."""
    every = [pod for pod in (*replicas, *reversed(condemned)) if pod is not None]
    first_unhealthy = next((pod for pod in every if not is_healthy(pod)), None)
    for pod in condemned:
        if is_deleting(pod):
            if ordered:
                return False
            continue
        is_fine = is_running_and_ready(pod) and pod_health.is_available(
            pod, obj.spec.min_ready_seconds, now_s
        )
        if ordered and not is_fine and pod is not first_unhealthy:
            return False
        made.delete.append(pod)
        made.scaled_down.append(pod)
        if ordered:
            return False
    return True


def _to_update(obj: StatefulSet, replicas: Sequence[Pod | None], revisions: Revisions) -> list[Pod]:
    """Old pods to delete now, from the highest ordinal down to the partition."""
    rolling = obj.spec.update_strategy.rolling_update
    most = rolling.max_unavailable if rolling is not None else None
    field = "spec.updateStrategy.rollingUpdate.maxUnavailable"
    left = max(rollout.resolved(1 if most is None else most, obj.spec.replicas, field, up=False), 1)
    doomed: list[Pod] = []
    for pod in reversed(replicas[_partition(obj) :]):
        is_old = pod is not None and revision_of(pod) != revisions.update and not is_deleting(pod)
        if is_old and pod is not None:
            doomed.append(pod)
        if is_old or pod is None or not is_healthy(pod):
            left -= 1
        if left == 0:
            break
    return doomed


def status_of(
    obj: StatefulSet, pods: Sequence[Pod], revisions: Revisions, collisions: int, now_s: float
) -> StatefulSetStatus:
    """The counts and revisions; a finished update makes its revision the current one."""
    living = [pod for pod in pods if not is_deleting(pod)]
    ready = [pod for pod in pods if is_running_and_ready(pod)]
    updated = sum(revision_of(pod) == revisions.update for pod in living)
    current, current_count = revisions.current, sum(revision_of(pod) == revisions.current for pod in living)
    wanted = obj.spec.replicas
    is_rolling = obj.spec.update_strategy.type != ON_DELETE
    if is_rolling and updated == wanted and len(ready) == wanted and len(pods) == wanted:
        current, current_count = revisions.update, updated
    return msgspec.structs.replace(
        obj.status,
        replicas=len(pods),
        ready_replicas=len(ready),
        available_replicas=sum(
            pod_health.is_available(pod, obj.spec.min_ready_seconds, now_s) for pod in ready
        ),
        current_replicas=current_count,
        updated_replicas=updated,
        current_revision=current,
        update_revision=revisions.update,
        collision_count=collisions,
        observed_generation=obj.metadata.generation,
    )


WORKERS = 5
STALE_CLAIM_S = 1.0  # a claim that goes with an earlier pod of the same name; nobody tells us when it is gone
_ALWAYS_WRITTEN = ("replicas", "availableReplicas")


class StatefulSetController(ControllerLoop):
    """The loop."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._sets = factory.informer(StatefulSet)
        self._claims = factory.informer(PersistentVolumeClaim)
        reconcile = pod_control.reporting_bad_input(events, self._sets, self._reconcile)
        self._controller: Controller[Key] = Controller("statefulsets", reconcile, workers=WORKERS)
        self._pods: Children[StatefulSet, Pod] = Children(cluster, factory, self._sets, Pod, self._controller)
        self._revisions: Children[StatefulSet, ControllerRevision] = Children(
            cluster, factory, self._sets, ControllerRevision, self._controller
        )
        self._controller.watch(self._sets, lambda obj: [key_of(obj)])
        self._sets.add_handler(on_delete=lambda obj: self._pods.expectations.forget(obj.metadata.uid))
        self._informers = [self._sets, self._claims, self._pods.informer, self._revisions.informer]

    async def _reconcile(self, key: Key) -> float | None:
        obj = self._sets.get(key[1], key[0])
        if obj is None or is_deleting(obj):
            return None
        now_s = self._cluster.clock.now()
        history = await self._revisions.claim(obj)
        newest = await revisions.ensure(self._cluster, obj, history)
        current = _current(obj, history) or newest.revision
        names = Revisions(current.metadata.name, newest.revision.metadata.name)
        pods = await self._pods.claim(obj, lambda pod: ordinal_of(obj, pod) is not None)
        waits_s = self._pods.expectations.left_s(obj.metadata.uid, now_s)
        failure: errors.ApiError | None = None
        stale_s = None
        if waits_s is None:
            plan = plan_pods(obj, pods, names, now_s)
            if any(self._has_stale_claim(obj, new.ordinal) for new in plan.create):
                plan, stale_s = msgspec.structs.replace(plan, create=[]), STALE_CLAIM_S
            templates = {True: current, False: newest.revision}
            try:
                await self._keep_identities(obj, pods)
                await self._keep_claims(obj, pods, plan)
                await self._act(obj, plan, templates)
            except errors.ApiError as error:
                failure = error
        status = status_of(obj, pods, names, newest.collisions, now_s)
        await pod_control.write(self._cluster, obj, obj.status, status, _ALWAYS_WRITTEN)
        live = {names.update, status.current_revision, *(revision_of(pod) for pod in pods)}
        await revisions.truncate(self._cluster, obj, history, live)
        if failure is not None:
            raise failure
        soon_s = next_available_s(pods, obj.spec.min_ready_seconds, now_s)
        return min((s for s in (waits_s, stale_s, soon_s) if s is not None), default=None)

    # Pods

    async def _act(
        self, obj: StatefulSet, plan: StatefulPlan, templates: dict[bool, ControllerRevision]
    ) -> None:
        for pod in plan.delete:
            await self._delete(obj, pod)
        for new in plan.create:
            revision = templates[new.is_current]
            template = revisions.template_of(revision)
            body = new_pod(obj, template, revision.metadata.name, new.ordinal)
            await self._create(obj, body, new.ordinal)

    async def _create(self, obj: StatefulSet, body: dict[str, Any], ordinal: int) -> None:
        name = body["metadata"]["name"]
        await self._make_claims(obj, name, ordinal)
        try:
            pod = await self._cluster.create(Pod, body, obj.metadata.namespace)
        except errors.AlreadyExists:
            raise  # the cache is behind, or a stranger has the name: we try until it is gone
        except errors.ApiError as error:
            if pod_control.is_namespace_ending(error):
                return
            self._record_event(obj, "create", f"Pod {name} in StatefulSet", error)
            raise
        self._pods.expectations.created(obj.metadata.uid, pod, self._cluster.clock.now())
        self._record_event(obj, "create", f"Pod {name} in StatefulSet")

    async def _delete(self, obj: StatefulSet, pod: Pod) -> None:
        what = f"Pod {pod.metadata.name} in StatefulSet"
        try:
            if not await delete_if_same(self._cluster, pod):
                return
        except errors.ApiError as error:
            self._record_event(obj, "delete", what, error)
            raise
        self._pods.expectations.deleted(obj.metadata.uid, pod, self._cluster.clock.now())
        self._record_event(obj, "delete", what)

    async def _keep_identities(self, obj: StatefulSet, pods: Sequence[Pod]) -> None:
        """Give adopted pods the labels that name them."""
        for pod in pods:
            ordinal = ordinal_of(obj, pod)
            assert ordinal is not None, pod.key
            wanted = identity_labels(pod.metadata.name, ordinal)
            if any(pod.metadata.labels.get(key) != value for key, value in wanted.items()):
                await patch_same(self._cluster, pod, {"metadata": {"labels": wanted}}, any_version=True)
                self._record_event(obj, "update", f"Pod {pod.metadata.name} in StatefulSet")

    # Claims

    async def _make_claims(self, obj: StatefulSet, pod: str, ordinal: int) -> None:
        namespace = obj.metadata.namespace
        for template in obj.spec.volume_claim_templates:
            body = new_claim(obj, template, ordinal)
            name = body["metadata"]["name"]
            if self._claims.get(name, namespace) is not None:
                continue
            what = f"Claim {name}"
            try:
                await self._cluster.create(PersistentVolumeClaim, body, namespace)
            except errors.AlreadyExists:
                continue
            except errors.ApiError as error:
                self._record_event(obj, "create", f"{what} for Pod {pod} in StatefulSet", error)
                raise
            self._record_event(obj, "create", f"{what} Pod {pod} in StatefulSet")

    def _has_stale_claim(self, obj: StatefulSet, ordinal: int) -> bool:
        """Return whether a claim of a pod to be made still belongs to its predecessor, and will go with that."""
        found = (self._claims.get(name, obj.metadata.namespace) for name in claim_names(obj, ordinal))
        pod = f"{obj.metadata.name}-{ordinal}"
        return any(
            owner.kind == "Pod" and owner.name == pod
            for claim in found
            if claim is not None
            for owner in claim.metadata.owner_references
        )

    async def _keep_claims(self, obj: StatefulSet, pods: Sequence[Pod], plan: StatefulPlan) -> None:
        """Let claims belong to whom the retention policy says, before any pod is scaled away."""
        if not obj.spec.volume_claim_templates:
            return
        leaving = {pod.metadata.uid for pod in plan.scaled_down}
        uids = [pod.metadata.uid for pod in pods]
        for pod in pods:
            ordinal = ordinal_of(obj, pod)
            assert ordinal is not None, pod.key
            start = start_of(obj)
            is_wanted = start <= ordinal < start + obj.spec.replicas
            if not is_wanted and pod.metadata.uid not in leaving:
                continue  # told before its deletion, or not its turn yet
            if pod.status.phase == "Pending" and is_wanted and not is_deleting(pod):
                await self._make_claims(obj, pod.metadata.name, ordinal)
            changed = [
                await self._own(obj, name, None if is_wanted else pod, uids)
                for name in claim_names(obj, ordinal)
            ]
            if is_wanted and any(changed):
                self._record_event(obj, "update", f"Pod {pod.metadata.name} in StatefulSet")

    async def _own(self, obj: StatefulSet, name: str, leaving: Pod | None, uids: Sequence[str]) -> bool:
        """Give a claim its owners; whether it had others."""
        claim = self._claims.get(name, obj.metadata.namespace)
        if claim is None:
            return False
        present = claim.metadata.owner_references
        owners = wanted_owners(obj, leaving, present, uids)
        if owners != present:
            patch = {"metadata": {"ownerReferences": msgspec.to_builtins(owners) or None}}
            await patch_same(self._cluster, claim, patch)
        return owners != present

    def _record_event(
        self, obj: StatefulSet, verb: str, what: str, error: errors.ApiError | None = None
    ) -> None:
        where = f"{verb.capitalize()} {what} {obj.metadata.name}"
        if error is None:
            done = "success" if what.startswith("Claim") else "successful"
            self._events.normal(obj, f"Successful{verb.capitalize()}", f"{where} {done}")
        else:
            self._events.warning(obj, f"Failed{verb.capitalize()}", f"{where} failed error: {error}")


def _current(obj: StatefulSet, history: Sequence[ControllerRevision]) -> ControllerRevision | None:
    name = obj.status.current_revision
    return next((one for one in history if one.metadata.name == name), None)


NAME_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"
DELETE = "Delete"


def identity_labels(name: str, ordinal: int) -> dict[str, str]:
    return {NAME_LABEL: name, INDEX_LABEL: str(ordinal)}


def new_pod(obj: StatefulSet, template: dict[str, Any], revision: str, ordinal: int) -> dict[str, Any]:
    """Return the pod `ordinal`, made from the template of `revision`."""
    name = f"{obj.metadata.name}-{ordinal}"
    body = pod_control.pod_from_template(template, obj, name=name)
    labels = body["metadata"].get("labels", {})
    body["metadata"]["labels"] = {**labels, **identity_labels(name, ordinal), POD_LABEL: revision}
    spec = {**body["spec"], "hostname": name}
    if obj.spec.service_name:
        spec["subdomain"] = obj.spec.service_name
    claims = {
        _claim_template_name(claim): {"claimName": claim_name(obj, claim, ordinal)}
        for claim in obj.spec.volume_claim_templates
    }
    if claims:
        others = [volume for volume in spec.get("volumes") or [] if volume.get("name") not in claims]
        own = [{"name": name, "persistentVolumeClaim": source} for name, source in claims.items()]
        spec["volumes"] = [*own, *others]
    return {**body, "spec": spec}


def claim_name(obj: StatefulSet, claim: Mapping[str, Any], ordinal: int) -> str:
    return f"{_claim_template_name(claim)}-{obj.metadata.name}-{ordinal}"


def claim_names(obj: StatefulSet, ordinal: int) -> list[str]:
    return [claim_name(obj, claim, ordinal) for claim in obj.spec.volume_claim_templates]


def new_claim(obj: StatefulSet, claim: Mapping[str, Any], ordinal: int) -> dict[str, Any]:
    """Return the claim to create for a pod; it has no owner yet unless it goes with the set."""
    meta = claim.get("metadata") or {}
    made: dict[str, Any] = {
        "name": claim_name(obj, claim, ordinal),
        "labels": {**(meta.get("labels") or {}), **obj.spec.selector.match_labels},
        "annotations": dict(meta.get("annotations") or {}),
    }
    owners = wanted_owners(obj, None, [])
    if owners:
        made["ownerReferences"] = [msgspec.to_builtins(owner) for owner in owners]
    return {"metadata": made, "spec": claim.get("spec") or {}}


def wanted_owners(
    obj: StatefulSet, leaving: Pod | None, present: Sequence[OwnerReference], pod_uids: Sequence[str] = ()
) -> list[OwnerReference]:
    """Owners of a claim, by the retention policy; those of others stay.

    `leaving` is the pod when it is scaled away. `pod_uids` are pods of the set that may be owners by now.
    """
    policy = obj.spec.persistent_volume_claim_retention_policy or ClaimRetentionPolicy()
    pods = {*pod_uids, *([leaving.metadata.uid] if leaving is not None else [])}
    own = {obj.metadata.uid, *pods}
    if any(_is_stale(owner, obj, pods) for owner in present):
        return list(present)
    owner: Object | None = None
    if leaving is not None and policy.when_scaled == DELETE:
        owner = leaving
    elif policy.when_deleted == DELETE:
        owner = obj
    others = [one for one in present if one.uid not in own]
    if owner is None or any(one.controller for one in others):
        return others  # nobody's, or somebody else's
    wanted = msgspec.convert(owner_reference(owner), OwnerReference)
    return list(present) if wanted in present and len(others) + 1 == len(present) else [*others, wanted]


def _is_stale(owner: OwnerReference, obj: StatefulSet, pods: Collection[str]) -> bool:
    """Return whether a claim belongs to an earlier set or pod of the same name, and goes with that."""
    if (owner.kind, owner.name) == (obj.resource.kind, obj.metadata.name):
        return owner.uid != obj.metadata.uid
    return owner.kind == "Pod" and owner.uid not in pods and owner.name.startswith(f"{obj.metadata.name}-")


def _claim_template_name(claim: Mapping[str, Any]) -> str:
    return str((claim.get("metadata") or {}).get("name", ""))
