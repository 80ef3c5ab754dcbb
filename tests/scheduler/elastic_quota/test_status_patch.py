"""What is written on an ElasticQuota: only what it does not say, and child-request downwards only when it may."""

import json
from typing import Any

from koordinator.api import labels, resource_list
from koordinator.api.decode import from_builtins
from koordinator.api.sigs import ElasticQuota
from koordinator.scheduler.plugins.elastic_quota.accounts import status_patch
from koordinator.scheduler.plugins.elastic_quota.quota import Quota, QuotaPodRequest, QuotaSpec
from koordinator.scheduler.plugins.elastic_quota.tree import GroupQuotaTree


def quota(*cores: int) -> Quota:
    """A quota with pods on nodes."""
    tree, ceiling = GroupQuotaTree(), resource_list.of({"cpu": 100})
    tree.total = ceiling
    tree.set_quota(QuotaSpec(name="q", lends=True, max=ceiling, weight=ceiling))
    for number, each in enumerate(cores):
        request = resource_list.of({"cpu": each})
        tree.add_pod("q", QuotaPodRequest(key=str(number), request=request, is_on_node=True))
    found = tree.bring_up_to_date("q")
    assert found is not None
    return found


def saying(patch: dict[str, Any]) -> ElasticQuota:
    metadata = {"name": "q", "namespace": "default", **patch.get("metadata", {})}
    return from_builtins({"metadata": metadata, "status": patch.get("status", {})}, ElasticQuota)


def amounts(patch: dict[str, Any], key: str) -> Any:
    return json.loads(patch["metadata"]["annotations"][key])


def test_what_an_object_says_already_is_not_written_again() -> None:
    first = status_patch(saying({}), quota(2, 3))
    assert first["status"] == {"used": {"cpu": "5"}}
    assert amounts(first, labels.QUOTA_CHILD_REQUEST) == {"cpu": "5"}
    assert status_patch(saying(first), quota(2, 3)) == {}


def test_a_resource_that_nothing_uses_any_more_is_taken_out() -> None:
    before = saying({"status": {"used": {"cpu": "2", "nvidia.com/gpu": "1"}}})
    assert status_patch(before, quota(2))["status"] == {"used": {"cpu": "2", "nvidia.com/gpu": None}}
    assert status_patch(before, quota())["status"] == {"used": {"cpu": None, "nvidia.com/gpu": None}}


def test_only_child_request_waits_until_it_may_fall() -> None:
    before = saying(status_patch(saying({}), quota(2, 3)))
    patch = status_patch(before, quota(2), may_lower=False)
    assert patch["status"] == {"used": {"cpu": "2"}}
    assert amounts(patch, labels.QUOTA_REQUEST) == {"cpu": "2"}
    assert labels.QUOTA_CHILD_REQUEST not in patch["metadata"]["annotations"]
    assert amounts(status_patch(before, quota(2)), labels.QUOTA_CHILD_REQUEST) == {"cpu": "2"}
    risen = status_patch(before, quota(2, 6), may_lower=False)
    assert amounts(risen, labels.QUOTA_CHILD_REQUEST) == {"cpu": "8"}
