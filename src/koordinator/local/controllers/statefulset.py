"""Keeps the pods of a StatefulSet, each with its own name and storage: names stay, and storage stays with them.
Decisions are in `stateful_plan`.

Source: kube-controller-manager's statefulset controller.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api.affinity import LabelSelector
from koordinator.api.apps import ClaimRetentionPolicy, ControllerRevision, StatefulSet
from koordinator.api.core import Pod
from koordinator.api.meta import Object, OwnerReference
from koordinator.api.storage import PersistentVolumeClaim
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key
from koordinator.cluster.protocol import Cluster
from koordinator.local.controllers import controller_revision, pod_control, stateful_plan, status_write
from koordinator.local.controllers.controller_revision import POD_LABEL
from koordinator.local.controllers.ownership import Children, is_deleting, key_of
from koordinator.local.controllers.replicaset import next_available_s
from koordinator.local.controllers.stateful_plan import Revisions, StatefulPlan

log = logging.getLogger(__name__)


WORKERS = 5
STALE_CLAIM_S = 1.0  # a claim that goes with an earlier pod of the same name; nobody tells us when it is gone
_ALWAYS_WRITTEN = ("replicas", "availableReplicas")


def _selector_of(obj: StatefulSet) -> LabelSelector:
    return obj.spec.selector


class StatefulSetController:
    """The loop."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._sets = factory.informer(StatefulSet)
        self._claims = factory.informer(PersistentVolumeClaim)
        reconcile = pod_control.telling_bad_input(events, self._sets, self._reconcile)
        self._controller: Controller[Key] = Controller("statefulsets", reconcile, workers=WORKERS)
        self._pods: Children[StatefulSet, Pod] = Children(
            cluster, factory, self._sets, Pod, self._controller, _selector_of
        )
        self._revisions: Children[StatefulSet, ControllerRevision] = Children(
            cluster, factory, self._sets, ControllerRevision, self._controller, _selector_of
        )
        self._controller.watch(self._sets, lambda obj: [key_of(obj)])
        self._sets.add_handler(on_delete=lambda obj: self._pods.expectations.forget(obj.metadata.uid))

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run([self._sets, self._claims, self._pods.informer, self._revisions.informer])

    async def _reconcile(self, key: Key) -> float | None:
        obj = self._sets.get(key[1], key[0])
        if obj is None or is_deleting(obj):
            return None
        now_s = self._cluster.clock.now()
        history = await self._revisions.claim(obj)
        newest = await controller_revision.ensure(self._cluster, obj, history)
        current = _current(obj, history) or newest.revision
        revisions = Revisions(current.metadata.name, newest.revision.metadata.name)
        pods = await self._pods.claim(obj, lambda pod: stateful_plan.ordinal_of(obj, pod) is not None)
        waits_s = self._pods.expectations.left_s(obj.metadata.uid, now_s)
        failure: errors.ApiError | None = None
        stale_s = None
        if waits_s is None:
            plan = stateful_plan.plan(obj, pods, revisions, now_s)
            if any(self._has_stale_claim(obj, new.ordinal) for new in plan.create):
                plan, stale_s = msgspec.structs.replace(plan, create=[]), STALE_CLAIM_S
            templates = {True: current, False: newest.revision}
            try:
                await self._keep_identities(obj, pods)
                await self._keep_claims(obj, pods, plan)
                await self._act(obj, plan, templates)
            except errors.ApiError as error:
                failure = error
        status = stateful_plan.status_of(obj, pods, revisions, newest.collisions, now_s)
        await status_write.write(self._cluster, obj, obj.status, status, _ALWAYS_WRITTEN)
        live = {revisions.update, status.current_revision, *(stateful_plan.revision_of(pod) for pod in pods)}
        await controller_revision.truncate(self._cluster, obj, history, live)
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
            template = controller_revision.template_of(revision)
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
            self._tell(obj, "create", f"Pod {name} in StatefulSet", error)
            raise
        self._pods.expectations.created(obj.metadata.uid, pod, self._cluster.clock.now())
        self._tell(obj, "create", f"Pod {name} in StatefulSet")

    async def _delete(self, obj: StatefulSet, pod: Pod) -> None:
        meta = pod.metadata
        try:
            await self._cluster.delete(Pod, meta.name, meta.namespace, uid=meta.uid)
        except (errors.NotFound, errors.Conflict):
            return  # gone, or another pod of that name: its own events tell
        except errors.ApiError as error:
            self._tell(obj, "delete", f"Pod {meta.name} in StatefulSet", error)
            raise
        self._pods.expectations.deleted(obj.metadata.uid, pod, self._cluster.clock.now())
        self._tell(obj, "delete", f"Pod {meta.name} in StatefulSet")

    async def _keep_identities(self, obj: StatefulSet, pods: Sequence[Pod]) -> None:
        """Give adopted pods the labels that name them."""
        for pod in pods:
            ordinal = stateful_plan.ordinal_of(obj, pod)
            assert ordinal is not None, pod.key
            wanted = identity_labels(pod.metadata.name, ordinal)
            if any(pod.metadata.labels.get(key) != value for key, value in wanted.items()):
                patch = {"metadata": {"uid": pod.metadata.uid, "labels": wanted}}
                await self._cluster.patch(Pod, pod.metadata.name, patch, pod.metadata.namespace)

    # Claims

    async def _make_claims(self, obj: StatefulSet, pod: str, ordinal: int) -> None:
        namespace = obj.metadata.namespace
        for template in obj.spec.volume_claim_templates:
            body = new_claim(obj, template, ordinal)
            name = body["metadata"]["name"]
            if self._claims.get(name, namespace) is not None:
                continue
            what = f"Claim {name} Pod {pod} in StatefulSet"
            try:
                await self._cluster.create(PersistentVolumeClaim, body, namespace)
            except errors.AlreadyExists:
                continue
            except errors.ApiError as error:
                self._tell(obj, "create", what, error)
                raise
            self._tell(obj, "create", what)

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
            ordinal = stateful_plan.ordinal_of(obj, pod)
            assert ordinal is not None, pod.key
            start = stateful_plan.start_of(obj)
            is_wanted = start <= ordinal < start + obj.spec.replicas
            if not is_wanted and pod.metadata.uid not in leaving:
                continue  # told before its deletion, or not its turn yet
            if pod.status.phase == "Pending" and is_wanted and not is_deleting(pod):
                await self._make_claims(obj, pod.metadata.name, ordinal)
            for name in claim_names(obj, ordinal):
                await self._own(obj, name, None if is_wanted else pod, uids)

    async def _own(self, obj: StatefulSet, name: str, leaving: Pod | None, uids: Sequence[str]) -> None:
        claim = self._claims.get(name, obj.metadata.namespace)
        if claim is None:
            return
        meta = claim.metadata
        owners = wanted_owners(obj, leaving, meta.owner_references, uids)
        if {owner.uid for owner in owners} == {owner.uid for owner in meta.owner_references}:
            return
        guard = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        patch = {"metadata": {**guard, "ownerReferences": msgspec.to_builtins(owners) or None}}
        await self._cluster.patch(PersistentVolumeClaim, name, patch, meta.namespace)

    def _tell(self, obj: StatefulSet, verb: str, what: str, error: errors.ApiError | None = None) -> None:
        where = f"{verb} {what} {obj.metadata.name}"
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
    own = {obj.metadata.uid, *pod_uids}
    if leaving is not None:
        own.add(leaving.metadata.uid)
    owners = [owner for owner in present if owner.uid not in own]
    if leaving is not None and policy.when_scaled == DELETE:
        owners.append(_owner(leaving))
    elif policy.when_deleted == DELETE:
        owners.append(_owner(obj))
    return owners


def _owner(obj: Object) -> OwnerReference:
    resource, meta = obj.resource, obj.metadata
    return OwnerReference(api_version=resource.api_version, kind=resource.kind, name=meta.name, uid=meta.uid)


def _claim_template_name(claim: Mapping[str, Any]) -> str:
    return str((claim.get("metadata") or {}).get("name", ""))
