"""The history of StatefulSets and DaemonSets: one numbered ControllerRevision per template.

`data` is the strategic merge patch with which `kubectl rollout undo` brings a template back.
Source: kube-controller-manager's controller history.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api.apps import ControllerRevision, DaemonSet, StatefulSet
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.local.controllers.deployment_revision import template_hash
from koordinator.local.controllers.ownership import controller_of, owner_reference

log = logging.getLogger(__name__)

POD_LABEL = "controller-revision-hash"
HASH_LABEL = "controller.kubernetes.io/hash"
LIMIT_DEFAULT = 10
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_NAME_BASE_LENGTH_MAX = 223  # what is left of 253 characters after the hash, as upstream

Owner = StatefulSet | DaemonSet


class Newest(msgspec.Struct, frozen=True):
    """The revision of the owner's template, and how often a name was found taken by another one."""

    revision: ControllerRevision
    collisions: int


def data_of(template: Mapping[str, Any]) -> dict[str, Any]:
    """`data` of the revision that keeps a template."""
    return {"spec": {"template": {**template, "$patch": "replace"}}}


def template_of(revision: ControllerRevision) -> dict[str, Any]:
    """Return the template that a revision keeps; empty when there is none in it."""
    found = (revision.data.get("spec") or {}).get("template") or {}
    return {key: value for key, value in found.items() if key != "$patch"}


def new_revision(owner: Owner, number: int, collisions: int) -> dict[str, Any]:
    """Return the revision to create for the owner's template."""
    template = owner.spec.template
    value = template_hash(template, collisions)
    labels = {**((template.get("metadata") or {}).get("labels") or {}), HASH_LABEL: value}
    if isinstance(owner, DaemonSet):
        labels[POD_LABEL] = value
    annotations = {key: text for key, text in owner.metadata.annotations.items() if key != _LAST_APPLIED}
    return {
        "metadata": {
            "name": f"{owner.metadata.name[:_NAME_BASE_LENGTH_MAX]}-{value}",
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference(owner)],
        },
        "data": data_of(template),
        "revision": number,
    }


async def ensure(cluster: Cluster, owner: Owner, revisions: Sequence[ControllerRevision]) -> Newest:
    """Return the revision of the owner's template, made or made the newest where it is not.

    Raises: ApiError; Conflict when a revision changed since it was read.
    """
    collisions = owner.status.collision_count or 0
    data = data_of(owner.spec.template)
    equal = [one for one in revisions if one.data == data]
    kept = max(equal, key=lambda one: one.revision, default=None)
    number = max((one.revision for one in revisions if one is not kept), default=0) + 1
    if kept is not None:
        return Newest(kept if kept.revision >= number else await _renumber(cluster, kept, number), collisions)
    namespace = owner.metadata.namespace
    while True:
        body = new_revision(owner, number, collisions)
        name = body["metadata"]["name"]
        try:
            return Newest(await cluster.create(ControllerRevision, body, namespace), collisions)
        except errors.AlreadyExists:
            found = await cluster.get(ControllerRevision, name, namespace)
        holder = controller_of(found)
        if found.data == data and holder is not None and holder.uid == owner.metadata.uid:
            return Newest(found, collisions)
        collisions += 1


async def _renumber(cluster: Cluster, one: ControllerRevision, number: int) -> ControllerRevision:
    meta = one.metadata
    guard = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    patch = {"metadata": guard, "revision": number}
    return await cluster.patch(ControllerRevision, meta.name, patch, meta.namespace)


def outdated(
    owner: Owner, revisions: Sequence[ControllerRevision], live: Collection[str]
) -> list[ControllerRevision]:
    """Revisions beyond the history limit, the oldest first; those named in `live` do not count."""
    limit = owner.spec.revision_history_limit
    idle = sorted((one for one in revisions if one.metadata.name not in live), key=lambda one: one.revision)
    return idle[: max(len(idle) - (LIMIT_DEFAULT if limit is None else limit), 0)]


async def truncate(
    cluster: Cluster, owner: Owner, revisions: Sequence[ControllerRevision], live: Collection[str]
) -> None:
    """Delete what `outdated` names."""
    for one in outdated(owner, revisions, live):
        meta = one.metadata
        try:
            await cluster.delete(ControllerRevision, meta.name, meta.namespace, uid=meta.uid)
        except (errors.NotFound, errors.Conflict):
            continue
        log.info("old revision deleted", extra={"owner": owner.key, "revision": one.revision})
