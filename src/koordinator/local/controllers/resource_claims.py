"""Makes claims for pods that name a template, and gives devices back when the pods that used them are done.

Source: kube-controller-manager's resource claim controller.
"""

import logging
from typing import Any

import msgspec

from koordinator.api.core import Pod, PodResourceClaim
from koordinator.api.dra import (
    FINALIZER,
    POD_CLAIM_NAME,
    ConsumerReference,
    ResourceClaim,
    ResourceClaimTemplate,
)
from koordinator.api.meta import controller_of
from koordinator.api.pod_labels import is_terminated
from koordinator.cluster import errors
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory, Key, key_of
from koordinator.cluster.protocol import Cluster, get_if_there, patch_same
from koordinator.local.controllers.ownership import (
    BY_CONTROLLER,
    controller_uid,
    is_deleting,
    owner_reference,
)

log = logging.getLogger(__name__)

WORKERS = 4
BY_USER = "uid of a pod that the claim is reserved for"
BY_TEMPLATE = "claim template that the pod names"
NAME_MAX_CHARS = 63 - 6
"""Longest generated name before its suffix of five characters."""

WorkKey = tuple[str, Key]
"""(`pod` or `claim`, its key)"""


def is_done(pod: Pod) -> bool:
    """Return whether the pod needs its devices no more: it ended, or goes without having been on a node."""
    return is_terminated(pod) or (is_deleting(pod) and not pod.spec.node_name)


def new_claim(pod: Pod, wanted: PodResourceClaim, template: ResourceClaimTemplate) -> dict[str, Any]:
    """Return the claim that a template asks for, for one entry of a pod's `spec.resourceClaims`."""
    meta = template.spec.metadata
    base = f"{pod.metadata.name}-{wanted.name}"[:NAME_MAX_CHARS]
    return {
        "metadata": {
            "generateName": f"{base}-",
            "labels": dict(meta.labels),
            "annotations": {**meta.annotations, POD_CLAIM_NAME: wanted.name},
            "ownerReferences": [owner_reference(pod)],
        },
        "spec": template.spec.spec,
    }


class ResourceClaimController(ControllerLoop):
    """The loop; its keys are pods that use claims, and claims."""

    def __init__(self, cluster: Cluster, factory: InformerFactory, events: EventRecorder) -> None:
        self._cluster = cluster
        self._events = events
        self._pods = factory.informer(Pod)
        self._claims = factory.informer(ResourceClaim)
        self._templates = factory.informer(ResourceClaimTemplate)
        self._claims.add_index(BY_CONTROLLER, controller_uid)
        self._claims.add_index(BY_USER, lambda claim: [user.uid for user in claim.status.reserved_for])
        self._pods.add_index(BY_TEMPLATE, _template_names)
        self._made: dict[tuple[str, str], ResourceClaim] = {}
        """Claims made that the cache may not show yet, by pod uid and the pod's name for the claim."""
        self._controller: Controller[WorkKey] = Controller(
            "resource claims", self._reconcile, workers=WORKERS
        )
        self._controller.watch(self._pods, self._keys_of_pod)
        self._controller.watch(self._claims, self._keys_of_claim)
        self._controller.watch(self._templates, self._keys_of_template)
        self._informers = [self._pods, self._claims, self._templates]

    def _keys_of_pod(self, pod: Pod) -> list[WorkKey]:
        if not pod.spec.resource_claims:
            return []
        uid = pod.metadata.uid
        claims = [*self._claims.by_index(BY_USER, uid), *self._claims.by_index(BY_CONTROLLER, uid)]
        return [("pod", key_of(pod)), *(("claim", key_of(claim)) for claim in claims)]

    def _keys_of_claim(self, claim: ResourceClaim) -> list[WorkKey]:
        owner = controller_of(claim)
        found: list[WorkKey] = [("claim", key_of(claim))]
        if owner is not None and owner.kind == "Pod":
            found.append(("pod", (claim.metadata.namespace, owner.name)))
        return found

    def _keys_of_template(self, template: ResourceClaimTemplate) -> list[WorkKey]:
        return [("pod", key_of(pod)) for pod in self._pods.by_index(BY_TEMPLATE, template.key)]

    async def _reconcile(self, key: WorkKey) -> None:
        kind, where = key
        try:
            if kind == "pod":
                await self._reconcile_pod(where)
            else:
                await self._reconcile_claim(where)
        except errors.NotFound:
            return  # gone meanwhile: its deletion is on the way to us

    # Claims for pods

    async def _reconcile_pod(self, key: Key) -> None:
        pod = self._pods.get(key[1], key[0])
        if pod is None or is_deleting(pod) or is_done(pod):
            return
        made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
        wanted = dict(made)
        for each in pod.spec.resource_claims:
            if each.resource_claim_template_name is not None:
                claim = self._known(pod, each, made.get(each.name)) or await self._make(pod, each)
                if claim is None:
                    continue
                wanted[each.name] = claim.metadata.name
        if wanted != made:
            statuses = [{"name": name, "resourceClaimName": claim} for name, claim in wanted.items()]
            patch = {"status": {"resourceClaimStatuses": statuses}}
            await patch_same(self._cluster, pod, patch, "status", any_version=True)

    def _known(self, pod: Pod, wanted: PodResourceClaim, name: str | None) -> ResourceClaim | None:
        """Return the claim made for an entry, when there is one."""
        uid = pod.metadata.uid
        if name is not None:
            found = self._claims.get(name, pod.metadata.namespace)
            if found is not None and uid in controller_uid(found):
                self._made.pop((uid, wanted.name), None)
                return found
        for claim in self._claims.by_index(BY_CONTROLLER, uid):
            if claim.metadata.annotations.get(POD_CLAIM_NAME) == wanted.name and not is_deleting(claim):
                return claim
        return self._made.get((uid, wanted.name))

    async def _make(self, pod: Pod, wanted: PodResourceClaim) -> ResourceClaim | None:
        """None when the template is not there, or the namespace goes away."""
        name, namespace = wanted.resource_claim_template_name, pod.metadata.namespace
        assert name is not None
        template = self._templates.get(name, namespace)
        if template is None:
            missing = (
                f'resource claim template "{name}": resourceclaimtemplate.resource.k8s.io "{name}" not found'
            )
            message = f"PodResourceClaim {wanted.name}: {missing}"
            self._events.warning(pod, "FailedResourceClaimCreation", message)
            return None
        try:
            made = await self._cluster.create(ResourceClaim, new_claim(pod, wanted, template), namespace)
        except errors.Forbidden:
            return None  # a namespace that is going away takes no new objects
        except errors.Invalid as refusal:
            message = f"PodResourceClaim {wanted.name}: {refusal.message}"
            self._events.warning(pod, "FailedResourceClaimCreation", message)
            raise
        self._made[pod.metadata.uid, wanted.name] = made
        log.info("claim created", extra={"pod": pod.key, "claim": made.key})
        return made

    # Claims of pods that are done

    async def _reconcile_claim(self, key: Key) -> None:
        claim = self._claims.get(key[1], key[0])
        if claim is None:
            self._forget(key)
            return
        users = claim.status.reserved_for
        valid = [user for user in users if not await self._is_gone(user, key[0])]
        is_unused = not valid and (bool(users) or is_deleting(claim))
        if len(valid) < len(users) or (is_unused and claim.status.allocation is not None):
            status: dict[str, Any] = {"reservedFor": [msgspec.to_builtins(user) for user in valid] or None}
            if is_unused:
                status |= {"allocation": None, "devices": None}
                log.info("claim deallocated", extra={"claim": claim.key})
            claim = await patch_same(self._cluster, claim, {"status": status}, "status")
        if is_unused and FINALIZER in claim.metadata.finalizers:
            kept = [each for each in claim.metadata.finalizers if each != FINALIZER]
            claim = await patch_same(self._cluster, claim, {"metadata": {"finalizers": kept}})
        if not valid and not is_deleting(claim) and await self._is_owner_done(claim):
            await self._cluster.delete(ResourceClaim, key[1], key[0], uid=claim.metadata.uid)

    def _forget(self, key: Key) -> None:
        """Note that the claim is gone: should its pod still want it, another one is made."""
        for known, claim in list(self._made.items()):
            if key_of(claim) == key:
                del self._made[known]

    async def _is_gone(self, user: ConsumerReference, namespace: str) -> bool:
        """Return whether a pod does not need the claim any more. Asked of the API before a pod counts as gone."""
        if user.api_group or user.resource != "pods":
            return False  # somebody else looks after other users
        pod = self._pods.get(user.name, namespace)
        if pod is None or pod.metadata.uid != user.uid:
            pod = await get_if_there(self._cluster, Pod, user.name, namespace)
        return pod is None or pod.metadata.uid != user.uid or is_done(pod)

    async def _is_owner_done(self, claim: ResourceClaim) -> bool:
        owner = controller_of(claim)
        if owner is None or owner.kind != "Pod":
            return False
        pod = self._pods.get(owner.name, claim.metadata.namespace)
        return pod is not None and pod.metadata.uid == owner.uid and is_done(pod)


def _template_names(pod: Pod) -> list[str]:
    namespace = pod.metadata.namespace
    return [
        f"{namespace}/{each.resource_claim_template_name}"
        for each in pod.spec.resource_claims
        if each.resource_claim_template_name is not None
    ]
