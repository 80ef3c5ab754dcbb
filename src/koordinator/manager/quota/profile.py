"""The root quota that an ElasticQuotaProfile keeps for the nodes that it selects (behaviour/manager 19).

Pure: profile and nodes in, the quota's wanted labels, annotations and spec out, and the patches for it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api import labels, quantity, quota_labels, resource_list, resources, scalars
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import ElasticQuotaProfile
from koordinator.api.meta import is_condition_true
from koordinator.api.quantity import RawQuantity, ResourceList
from koordinator.api.resource_list import Amounts
from koordinator.api.sigs import ElasticQuota

RESYNC_S = 10.0
"""Interval at which a quota is compared with its profile even if nothing seems to have changed."""
RETRY_S = 2.0
MAX_AMOUNT = (2**63 - 1) // 2000
"""`max` of every resource: no bound, but small enough for the scheduler to multiply by 1000."""
REASON_CREATE_FAILED = "CreateQuotaFailed"
REASON_UPDATE_FAILED = "UpdateQuotaFailed"
REASON_INVALID = "InvalidQuotaProfile"
REASON_TAKEN = "QuotaNameTaken"

_FNV_OFFSET, _FNV_PRIME, _MASK_64 = 0xCBF29CE484222325, 0x100000001B3, 2**64 - 1


class WantedQuota(msgspec.Struct, frozen=True):
    """The wanted content of the profile's quota; labels and annotations besides these stay."""

    namespace: str
    name: str
    tree_id: str
    labels: dict[str, str]
    annotations: dict[str, str]
    min: ResourceList
    max: ResourceList


def wanted_quota(profile: ElasticQuotaProfile, total: Amounts, unschedulable: Amounts) -> WantedQuota:
    """Return the quota of a profile, given what the nodes that it selects have, and what of it is on nodes that
    take no pods (`NodeTotals`).

    Those count in the total: the quota must not shrink while they are mended.
    """
    ratio = resource_ratio(profile.spec.resource_ratio)
    total, unschedulable = _scaled(total, ratio), _scaled(unschedulable, ratio)
    metadata = profile.metadata
    tree = tree_id(profile)
    keys = quota_labels.resource_keys(metadata.annotations)
    return WantedQuota(
        namespace=metadata.namespace,
        name=profile.spec.quota_name,
        tree_id=tree,
        labels={
            labels.QUOTA_PROFILE: metadata.name,
            **profile.spec.quota_labels,
            labels.QUOTA_TREE_ID: tree,
            labels.QUOTA_IS_ROOT: "true",
        },
        annotations={
            labels.QUOTA_TOTAL_RESOURCE: _encoded(total),
            labels.QUOTA_UNSCHEDULABLE_RESOURCE: _encoded(unschedulable),
        },
        min={key: total.get(key, quantity.ZERO).text for key in sorted(keys)},
        max={key: str(MAX_AMOUNT) for key in sorted(keys)},
    )


def tree_id(profile: ElasticQuotaProfile) -> str:
    """Return the tree of the profile's label, else a number that depends on its name only."""
    metadata = profile.metadata
    given = quota_labels.tree_id(metadata.labels)
    return given or str(fnv1a_64(f"{metadata.namespace}/{metadata.name}".encode()))


def fnv1a_64(data: bytes) -> int:
    """Return the 64-bit FNV-1a hash."""
    found = _FNV_OFFSET
    for byte in data:
        found = (found ^ byte) * _FNV_PRIME & _MASK_64
    return found


def is_schedulable(node: Node) -> bool:
    """Return whether pods can be placed on the node: it is ready and not cordoned."""
    return is_condition_true(node.status.conditions, "Ready") and not node.spec.unschedulable


def resource_ratio(text: str | None) -> float | None:
    """Return the share of the nodes that the tree gets, None when it is not set; one that is no share counts as 1."""
    if text is None:
        return None
    try:
        ratio = scalars.parse_float(text)
    except scalars.ScalarError:
        return 1.0
    return ratio if 0 < ratio <= 1 else 1.0


def _scaled(amounts: Amounts, ratio: float | None) -> Amounts:
    """Return a share of each amount: cpu cut off to milli-cores, all others to whole units."""
    if ratio is None:
        return amounts
    return {
        name: resource_list.multiply_milli(amount, ratio)
        if name == resources.CPU
        else resource_list.multiply_units(amount, ratio)
        for name, amount in amounts.items()
    }


def _encoded(amounts: Amounts) -> str:
    return quota_labels.TOTAL_RESOURCE.encode(resource_list.to_wire(amounts))


def profile_patch(profile: ElasticQuotaProfile) -> dict[str, Any]:
    """Merge patch that notes the tree id on the profile; {} when it has one."""
    if quota_labels.tree_id(profile.metadata.labels):
        return {}
    return {"metadata": {"labels": {labels.QUOTA_TREE_ID: tree_id(profile)}}}


def new_quota(wanted: WantedQuota) -> dict[str, Any]:
    """Return the body of a quota to create."""
    return {
        "metadata": {
            "name": wanted.name,
            "namespace": wanted.namespace,
            "labels": dict(wanted.labels),
            "annotations": dict(wanted.annotations),
        },
        "spec": {"min": dict(wanted.min), "max": dict(wanted.max)},
    }


def quota_patch(wanted: WantedQuota, quota: ElasticQuota) -> dict[str, Any]:
    """Merge patch that makes an existing quota as wanted; {} when it is."""
    metadata: dict[str, Any] = {}
    have = quota.metadata
    if changes := {key: text for key, text in wanted.labels.items() if have.labels.get(key) != text}:
        metadata["labels"] = changes
    if changes := {
        key: text
        for key, text in wanted.annotations.items()
        if not _is_same_list(have.annotations.get(key), text)
    }:
        metadata["annotations"] = changes
    spec: dict[str, Any] = {}
    for field, amounts, wanted_amounts in (
        ("min", quota.spec.min, wanted.min),
        ("max", quota.spec.max, wanted.max),
    ):
        if amount_changes := _amount_changes(amounts, wanted_amounts):
            spec[field] = amount_changes
    patch = {"metadata": metadata, "spec": spec}
    return {field: changes for field, changes in patch.items() if changes}


def _is_same_list(have: str | None, want: str) -> bool:
    """Return whether two texts of resource lists say the same; which unit a sum is written in depends on its nodes."""
    if have is None or have == want:
        return have == want
    try:
        amounts = [resource_list.of(quota_labels.TOTAL_RESOURCE.decode(text) or {}) for text in (have, want)]
    except (ProtocolError, quantity.QuantityError):
        return False
    return amounts[0] == amounts[1]


def _amount_changes(
    have: Mapping[str, RawQuantity], want: Mapping[str, RawQuantity]
) -> dict[str, RawQuantity | None]:
    """Return what a merge patch must say: new amounts, and null for those that must go."""
    changes: dict[str, RawQuantity | None] = dict.fromkeys(have.keys() - want.keys())
    for name, raw in want.items():
        if name not in have or quantity.of(have[name]) != quantity.of(raw):
            changes[name] = raw
    return changes
