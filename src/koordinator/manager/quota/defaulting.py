"""Give a new ElasticQuota its parent, the tree of its parent, and a weight (behaviour/manager 17.1).

JSON in, JSON out; the input is kept.
"""

from typing import Any

from koordinator.api import labels, quota_labels, resource_list
from koordinator.api.annotations import quota as quota_annotations
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import ResourceList
from koordinator.manager.quota.tree import ROOT, QuotaTree
from koordinator.manager.quota.validation import Refusal


class DefaultingError(ProtocolError):
    """The quota cannot be completed, so it is refused; `refusal` is the rule that it breaks."""

    def __init__(self, obj: str, field: str, reason: str, refusal: Refusal) -> None:
        super().__init__(obj, field, reason)
        self.refusal = refusal


def complete(quota: dict[str, Any], tree: QuotaTree) -> dict[str, Any]:
    """The quota with parent and tree labels and a shared weight for exactly the resources of `spec.max`.

    Raises: DefaultingError when its parent is unknown or its shared weight malformed.
    """
    metadata = quota.get("metadata") or {}
    name = metadata.get("name", "")
    if name == ROOT:
        return quota
    obj = f"ElasticQuota {metadata.get('namespace', '')}/{name}"
    own = dict(metadata.get("labels") or {})
    parent = own[labels.QUOTA_PARENT] = quota_labels.parent_name(name, own)
    if not quota_labels.tree_id(own) and parent != ROOT:
        known = tree.get(parent)
        if known is None:
            reason = f"fill quota {name} failed, parent not exist: {parent}"
            raise DefaultingError(obj, labels.QUOTA_PARENT, reason, Refusal.PARENT_MISSING)
        if known.tree_id:
            own[labels.QUOTA_TREE_ID] = known.tree_id
    annotations = dict(metadata.get("annotations") or {})
    spec_max = (quota.get("spec") or {}).get("max") or {}
    annotations[labels.QUOTA_SHARED_WEIGHT] = quota_annotations.SHARED_WEIGHT.encode(
        _weight(obj, annotations, spec_max)
    )
    return {**quota, "metadata": {**metadata, "labels": own, "annotations": annotations}}


def _weight(obj: str, annotations: dict[str, str], spec_max: ResourceList) -> ResourceList:
    try:
        given = quota_annotations.SHARED_WEIGHT.read(annotations, obj) or {}
    except ProtocolError as error:
        raise DefaultingError(obj, error.field, error.reason, Refusal.SHARED_WEIGHT) from error
    aligned = {name: given.get(name, amount) for name, amount in spec_max.items()}
    return resource_list.to_wire(resource_list.of(aligned))
