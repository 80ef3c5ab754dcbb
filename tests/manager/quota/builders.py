"""Quotas with defaults."""

from typing import Any

from koordinator.api import labels
from koordinator.api.annotations.codec import dump
from koordinator.api.decode import from_builtins
from koordinator.api.sigs import ElasticQuota

Amounts = dict[str, str]


def quota_body(
    name: str,
    parent: str = "",
    *,
    low: Amounts | None = None,
    high: Amounts | None = None,
    is_parent: bool = False,
    tree: str = "",
    own: dict[str, str] | None = None,
    namespaces: list[str] | None = None,
    guaranteed: Amounts | None = None,
) -> dict[str, Any]:
    """A quota as JSON."""
    own_labels = {labels.QUOTA_IS_PARENT: "true" if is_parent else "false", **(own or {})}
    if parent:
        own_labels[labels.QUOTA_PARENT] = parent
    if tree:
        own_labels[labels.QUOTA_TREE_ID] = tree
    annotations = {}
    if namespaces is not None:
        annotations[labels.QUOTA_NAMESPACES] = dump(namespaces)
    if guaranteed is not None:
        annotations[labels.QUOTA_GUARANTEED] = dump(guaranteed)
    return {
        "metadata": {"name": name, "namespace": "quotas", "labels": own_labels, "annotations": annotations},
        "spec": {"min": low or {}, "max": high if high is not None else {"cpu": "100"}},
    }


def quota(name: str, parent: str = "", **rest: Any) -> ElasticQuota:
    """A quota as view."""
    return from_builtins(quota_body(name, parent, **rest), ElasticQuota)
