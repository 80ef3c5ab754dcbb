"""The pods and claims of a StatefulSet: names that stay, storage that stays with them. Pure.

Source: kube-controller-manager's statefulset controller.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordinator.api.apps import ClaimRetentionPolicy, StatefulSet
from koordinator.api.core import Pod
from koordinator.api.meta import Object, OwnerReference
from koordinator.local.controllers import pod_control
from koordinator.local.controllers.controller_revision import POD_LABEL

NAME_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"
DELETE = "Delete"


def identity_labels(name: str, ordinal: int) -> dict[str, str]:
    return {NAME_LABEL: name, INDEX_LABEL: str(ordinal)}


def new_pod(obj: StatefulSet, template: dict[str, Any], revision: str, ordinal: int) -> dict[str, Any]:
    """The pod `ordinal`, made from the template of `revision`."""
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
    """The claim to create for a pod; it has no owner yet unless it goes with the set."""
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
