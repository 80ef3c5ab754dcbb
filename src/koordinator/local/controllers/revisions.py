"""Find which ReplicaSet carries a Deployment's template, under which name and revision (pure); keep the history of
StatefulSets and DaemonSets: one numbered ControllerRevision per template.

A ControllerRevision's `data` is the strategic merge patch with which `kubectl rollout undo` brings a template back.

Source: kube-controller-manager's deployment controller and controller history; the hash is our own (any stable one
will do).
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api.apps import ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet
from koordinator.api.labels import without_last_applied
from koordinator.api.meta import is_controlled_by
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster, delete_if_same, patch_same
from koordinator.local.controllers import rollout
from koordinator.local.controllers.ownership import is_deleting, owner_reference
from koordinator.local.registry.metadata import GENERATED_CHARS

log = logging.getLogger(__name__)

TEMPLATE_HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
HISTORY = "deployment.kubernetes.io/revision-history"
HISTORY_LENGTH_MAX = 2_000  # characters of the annotation, as upstream
HISTORY_LIMIT_DEFAULT = 10

# Annotations of a Deployment that say nothing about its ReplicaSets.
_OWN = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        REVISION,
        HISTORY,
        rollout.DESIRED,
        rollout.MAX_REPLICAS,
        "deprecated.deployment.rollback.to",
    }
)
_HASH_LENGTH = 10  # 27 letters to the power of ten are more than 47 bits


def template_hash(template: Mapping[str, Any], collisions: int = 0) -> str:
    """Return a label value that stands for a template (without its own hash label); `collisions` makes another."""
    text = msgspec.json.encode(plain_template(template), order="deterministic")
    digest = hashlib.blake2b(text, digest_size=8, salt=collisions.to_bytes(8, "big")).digest()
    number = int.from_bytes(digest, "big")
    letters = []
    for _ in range(_HASH_LENGTH):
        number, rest = divmod(number, len(GENERATED_CHARS))
        letters.append(GENERATED_CHARS[rest])
    return "".join(letters)


def plain_template(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a template without its hash label and without what the API writes for nothing."""
    meta = dict(template.get("metadata") or {})
    labels = {key: value for key, value in (meta.get("labels") or {}).items() if key != TEMPLATE_HASH_LABEL}
    meta["labels"] = labels
    return {**template, "metadata": {key: value for key, value in meta.items() if value}}


def find_new(deployment: Deployment, sets: Iterable[ReplicaSet]) -> ReplicaSet | None:
    """Return the ReplicaSet with the Deployment's template; the oldest, should there be several."""
    template = plain_template(deployment.spec.template)
    same = [one for one in sets if plain_template(one.spec.template) == template]
    return min(same, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name), default=None)


def revision_of(obj: ReplicaSet | Deployment) -> int:
    """Return the revision in the annotation; 0 when there is none."""
    text = obj.metadata.annotations.get(REVISION, "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def next_revision(old: Iterable[ReplicaSet]) -> int:
    """Return the revision of the newest template, given all ReplicaSets of earlier ones."""
    return max((revision_of(one) for one in old), default=0) + 1


def annotations_for(deployment: Deployment, present: Mapping[str, str], revision: int) -> dict[str, str]:
    """Return the annotations of the new ReplicaSet that must be set, given those it has (none when it is made)."""
    wanted = {key: value for key, value in deployment.metadata.annotations.items() if key not in _OWN}
    before = present.get(REVISION, "")
    if not (before.isascii() and before.isdecimal() and int(before) >= revision):
        wanted[REVISION] = str(revision)
        if before:
            wanted[HISTORY] = _history(present.get(HISTORY, ""), before)
    return {key: value for key, value in wanted.items() if present.get(key) != value}


def _history(text: str, revision: str) -> str:
    """Revisions under which a ReplicaSet served before it was rolled back to; the oldest are forgotten."""
    entries = [*filter(None, text.split(",")), revision]
    while len(entries) > 1 and len(",".join(entries)) > HISTORY_LENGTH_MAX:
        entries.pop(0)
    return ",".join(entries)


def size_annotations(deployment: Deployment) -> dict[str, str]:
    """Return what a ReplicaSet remembers of the Deployment's size, to tell when that changes."""
    replicas = deployment.spec.replicas
    return {
        rollout.DESIRED: str(replicas),
        rollout.MAX_REPLICAS: str(replicas + rollout.bounds_of(deployment).surge),
    }


def new_replica_set(deployment: Deployment, old: Sequence[ReplicaSet]) -> dict[str, Any]:
    """Return the ReplicaSet to create for the Deployment's template."""
    spec = deployment.spec
    label = {TEMPLATE_HASH_LABEL: template_hash(spec.template, deployment.status.collision_count or 0)}
    template = plain_template(spec.template)
    meta = {**template["metadata"], "labels": {**template["metadata"].get("labels", {}), **label}}
    selector = msgspec.to_builtins(spec.selector)
    selector["matchLabels"] = {**selector.get("matchLabels", {}), **label}
    annotations = annotations_for(deployment, {}, next_revision(old)) | size_annotations(deployment)
    body: dict[str, Any] = {
        "metadata": {
            "name": f"{deployment.metadata.name}-{label[TEMPLATE_HASH_LABEL]}",
            "labels": dict(meta["labels"]),
            "annotations": annotations,
            "ownerReferences": [owner_reference(deployment)],
        },
        "spec": {
            "replicas": rollout.new_size(deployment, 0, old),
            "selector": selector,
            "template": {**template, "metadata": meta},
        },
    }
    if spec.min_ready_seconds:
        body["spec"]["minReadySeconds"] = spec.min_ready_seconds
    return body


def outdated_sets(deployment: Deployment, old: Sequence[ReplicaSet]) -> list[ReplicaSet]:
    """Old ReplicaSets beyond the history limit; those with pods, or not seen through yet, stay."""
    limit = deployment.spec.revision_history_limit
    kept = [one for one in old if not is_deleting(one)]
    surplus = len(kept) - (HISTORY_LIMIT_DEFAULT if limit is None else limit)
    oldest = sorted(kept, key=lambda one: (revision_of(one), one.metadata.creation_timestamp or ""))
    return [one for one in oldest[: max(surplus, 0)] if _is_idle(one)]


def _is_idle(one: ReplicaSet) -> bool:
    is_seen = one.metadata.generation <= one.status.observed_generation
    return one.status.replicas == 0 and one.spec.replicas == 0 and is_seen


POD_LABEL = "controller-revision-hash"
HASH_LABEL = "controller.kubernetes.io/hash"
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
    labels = {**((template.get("metadata") or {}).get("labels") or {}), hash_label(owner): value}
    annotations = dict(without_last_applied(owner.metadata.annotations))
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


def hash_label(owner: Owner) -> str:
    """Return the label by which a revision tells its hash."""
    return POD_LABEL if isinstance(owner, DaemonSet) else HASH_LABEL


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
        if kept.revision < number:
            kept = await patch_same(cluster, kept, {"revision": number})
        return Newest(kept, collisions)
    namespace = owner.metadata.namespace
    while True:
        body = new_revision(owner, number, collisions)
        name = body["metadata"]["name"]
        try:
            return Newest(await cluster.create(ControllerRevision, body, namespace), collisions)
        except errors.AlreadyExists:
            found = await cluster.get(ControllerRevision, name, namespace)
        if found.data == data and is_controlled_by(found, owner):
            return Newest(found, collisions)
        collisions += 1


def outdated(
    owner: Owner, revisions: Sequence[ControllerRevision], live: Collection[str]
) -> list[ControllerRevision]:
    """Revisions beyond the history limit, the oldest first; those named in `live` do not count."""
    limit = owner.spec.revision_history_limit
    idle = sorted((one for one in revisions if one.metadata.name not in live), key=lambda one: one.revision)
    return idle[: max(len(idle) - (HISTORY_LIMIT_DEFAULT if limit is None else limit), 0)]


async def truncate(
    cluster: Cluster, owner: Owner, revisions: Sequence[ControllerRevision], live: Collection[str]
) -> None:
    """Delete what `outdated` names."""
    for one in outdated(owner, revisions, live):
        if await delete_if_same(cluster, one):
            log.info("old revision deleted", extra={"owner": owner.key, "revision": one.revision})
