"""What the scheduler's own API tells of quotas. Source: behaviour/elastic-quota 16."""

from typing import Any

from koordinator.api import labels, resource_list
from koordinator.scheduler.plugin.capabilities import ApiAnswer, ApiRequest
from koordinator.scheduler.plugins.elastic_quota.amounts import Nanos, amounts_of
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.quota import Quota


def one(book: QuotaBook, request: ApiRequest) -> ApiAnswer:
    """`GET quotas/{name}`."""
    name = request.path["name"]
    tree = book.forest.tree(book.forest.tree_ids.get(name, ""))
    quota = tree.get(name) if tree is not None else None
    if tree is None or quota is None or name == labels.ROOT_QUOTA_NAME:
        return ApiAnswer(f"cannot find quota {name}", 404)
    tree.bring_up_to_date(name)
    return ApiAnswer(described(quota, book.forest.tree_ids.get(name, ""), with_pods=_wants_pods(request)))


def many(book: QuotaBook, request: ApiRequest) -> ApiAnswer:
    """`GET quotas?tree=`: all quotas by name, or those of one tree."""
    wanted, with_pods = request.query.get("tree", ""), _wants_pods(request)
    found: dict[str, Any] = {}
    for tree_id, tree, quota in book.quotas():
        if not wanted or wanted == tree_id:
            tree.bring_up_to_date(quota.spec.name)
            found[quota.spec.name] = described(quota, tree_id, with_pods=with_pods)
    return ApiAnswer(found)


def _wants_pods(request: ApiRequest) -> bool:
    return request.query.get("includePods", "").lower() in ("1", "t", "true")


def described(quota: Quota, tree_id: str, *, with_pods: bool) -> dict[str, Any]:
    """A quota as it stands, with the field names of upstream."""
    own, below = quota.own, quota.below
    body: dict[str, Any] = {
        "name": quota.spec.name,
        "parentName": quota.spec.parent,
        "isParent": quota.spec.is_parent,
        "runtimeVersion": quota.runtime_version,
        "allowLentResource": quota.lends,
        "tree": tree_id,
    }
    amounts: dict[str, Nanos] = {
        "max": quota.max,
        "min": quota.min,
        "autoScaleMin": quota.auto_min,
        "used": below.used,
        "nonPreemptibleUsed": below.non_preemptible_used,
        "request": quota.request,
        "nonPreemptibleRequest": below.non_preemptible_request,
        "sharedWeight": quota.weight,
        "runtime": quota.runtime,
        "childRequest": below.request,
        "allocated": quota.allocated,
        "guaranteed": quota.guaranteed,
        "selfUsed": own.used,
        "selfNonPreemptibleUsed": own.non_preemptible_used,
        "selfRequest": own.request,
        "selfNonPreemptibleRequest": own.non_preemptible_request,
    }
    body.update((name, resource_list.to_wire(amounts_of(nanos))) for name, nanos in amounts.items())
    if with_pods:
        body["podCache"] = {
            key: {
                "isAssigned": counted.is_assigned,
                "resource": resource_list.to_wire(amounts_of(counted.amounts)),
            }
            for key, counted in sorted(quota.pods.items())
        }
    return body
