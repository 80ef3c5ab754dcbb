"""What questions to the descheduler must keep to."""

from typing import Any

from tests.reference.descheduler import draws, draws_of_jobs

Json = dict[str, Any]

NOT_RELEASED = "the plugin came after this release"
EITHER_ORDER = "two nodes are equally hot: the original takes them in the order of a map"


def _alone(one: Json, *names: str) -> None:
    """Keep the first of those with the same name in these lists."""
    for name in names:
        seen: dict[Any, Json] = {}
        for each in one.get(name) or []:
            meta = each["metadata"]
            seen.setdefault((meta.get("namespace"), meta["name"]), each)
        one[name] = list(seen.values())


def _nodes_and_pods(asked: Json) -> Json | None:
    _alone(asked, "nodes", "pods")
    return asked


def _pod_and_others(asked: Json) -> Json | None:
    """The pod is not one of the others."""
    _alone(asked, "nodes", "other_pods")
    return asked


def _detector(asked: Json) -> Json | None:
    """Time goes on."""
    asked["operations"].sort(key=lambda each: each["at"])
    return asked


def _object_limiter(asked: Json) -> Json | None:
    """Time goes on; nothing is below 0."""
    limits = [asked["replicas"]]
    limits += [each.get("maxMigrating") for each in asked["object_limiters"].values()]
    if any(str(limit).startswith("-") for limit in limits):
        return None
    asked["events"].sort(key=lambda each: each["at"])
    return asked


def _cycles(asked: Json) -> Json | None:
    """Time goes on."""
    asked["cycles"].sort(key=lambda each: each["now"])
    return _nodes_and_pods(asked)


def _reason(asked: Json) -> Json | None:
    """A pool has the same resources in all its thresholds, and its nodes have them; usage is not negative."""
    if any(amount.startswith("-") for kind in ("", "prod_") for amount in asked[f"{kind}usage"].values()):
        return None
    high = asked["high_thresholds"]
    if not asked["prod_high_thresholds"].keys() <= high.keys() <= asked["allocatable"].keys():
        return None
    if any(not asked[f"{kind}usage"].keys() <= high.keys() for kind in ("", "prod_")):
        return None
    return asked


def _usage_score(asked: Json) -> Json | None:
    """No amount is negative; what has a weight is exceeded."""
    if any(
        amount.startswith("-")
        for name in ("usage", "capacity", "excess")
        for amount in asked.get(name, {}).values()
    ):
        return None
    if asked["kind"] == "pod":
        asked["excess"] = {
            name: amount for name, amount in asked.get("excess", {}).items() if not amount.startswith("0")
        }
        asked["weights"] = {
            name: weight for name, weight in asked["weights"].items() if name in asked["excess"]
        }
    return asked


def _arbitrate_filter(asked: Json) -> Json | None:
    """The pod is one of the pods, and workloads have replicas. The arguments pass validation."""
    namespaces = asked["args"].get("namespaces") or {}
    if all(namespaces.get(name) for name in ("include", "exclude")) or any(
        number < 0 for number in asked["args"].values() if isinstance(number, int)
    ):
        return None
    for workload in asked["workloads"].values():
        workload.setdefault("replicas", 0)
    own = asked["pod"]
    asked["pods"] = [own, *asked["pods"]]
    _alone(asked, "pods", "jobs")
    _uids(asked["pods"])
    _uids(asked["jobs"])
    return asked


def _uids(objects: list[Json]) -> None:
    """All have uids of their own."""
    seen: set[str] = set()
    for one in objects:
        meta = one["metadata"]
        if meta.get("uid") in seen:
            meta["uid"] = f"uid-{meta.get('namespace', '')}-{meta['name']}"
        seen.add(meta.get("uid"))


def _arbitrate_sort(asked: Json) -> Json | None:
    jobs = {"jobs": [*asked["waiting_jobs"], *asked["other_jobs"]]}
    waiting = {id(each) for each in asked["waiting_jobs"]}
    _alone(jobs, "jobs")
    _alone(asked, "pods")
    _uids(jobs["jobs"])
    _uids(asked["pods"])
    asked["waiting_jobs"] = [each for each in jobs["jobs"] if id(each) in waiting]
    asked["other_jobs"] = [each for each in jobs["jobs"] if id(each) not in waiting]
    names = {each["metadata"]["uid"]: each["metadata"]["name"] for each in asked["pods"]}
    for ref in (each["spec"]["podRef"] for each in jobs["jobs"]):  # name and uid are of one pod
        ref["name"] = names.get(ref["uid"], ref["name"])
    return asked


def _arbitrate_round(asked: Json) -> Json | None:
    asked["jobs_in_sorted_order"] = list(dict.fromkeys(asked["jobs_in_sorted_order"]))
    return asked


def _migration_state(asked: Json) -> Json | None:
    """Conditions have types of their own."""
    statuses = [asked["job"]["status"]]
    for step in asked["steps"]:
        world = step["world"]
        _alone(world, "pods")
        statuses += [each["status"] for each in (*world["pods"], world.get("reservation") or {"status": {}})]
    for status in statuses:
        if "conditions" in status:
            status["conditions"] = list({each["type"]: each for each in status["conditions"]}.values())
    return asked


def _reservation_template(asked: Json) -> Json | None:
    """What is empty is not written."""
    asked["pod"] = _without_empty_lists(asked["pod"])
    return asked


def _without_empty_lists(given: Any) -> Any:
    if isinstance(given, list):
        return [_without_empty_lists(member) for member in given]
    if isinstance(given, dict):
        return {name: _without_empty_lists(member) for name, member in given.items() if member != []}
    return given


MEND = {
    "descheduler-anomaly-detector": _detector,
    "descheduler-arbitrate-filter": _arbitrate_filter,
    "descheduler-arbitrate-round": _arbitrate_round,
    "descheduler-arbitrate-sort": _arbitrate_sort,
    "descheduler-custom-priority": _nodes_and_pods,
    "descheduler-evictable": _pod_and_others,
    "descheduler-lownodeload-classify": _nodes_and_pods,
    "descheduler-lownodeload-cycles": _cycles,
    "descheduler-lownodeload-evict": _nodes_and_pods,
    "descheduler-lownodeload-reason": _reason,
    "descheduler-migration-state": _migration_state,
    "descheduler-node-fit": _pod_and_others,
    "descheduler-object-limiter": _object_limiter,
    "descheduler-pod-sorter": _nodes_and_pods,
    "descheduler-reservation-template": _reservation_template,
    "descheduler-usage-score": _usage_score,
}
DRAW = {
    "descheduler-arbitrate-filter": draws_of_jobs.arbitrate_filter,
    "descheduler-arbitrate-sort": draws_of_jobs.arbitrate_sort,
    "descheduler-custom-priority": draws.custom_priority,
    "descheduler-evictable": draws.evictable,
    "descheduler-lownodeload-classify": draws.classify,
    "descheduler-lownodeload-cycles": draws.cycles,
    "descheduler-lownodeload-evict": draws.low_node_load,
    "descheduler-migration-state": draws_of_jobs.migration_state,
    "descheduler-node-fit": draws.node_fit,
    "descheduler-object-limiter": draws_of_jobs.object_limiter,
    "descheduler-pod-sorter": draws.pod_sorter,
    "descheduler-usage-score": draws.usage_score,
}
OUTDATED = {
    "descheduler-config-defaults": {
        "fragmentation-explicit-zero-kept": NOT_RELEASED,
        "scaledown-empty": NOT_RELEASED,
        "scaledown-partial": NOT_RELEASED,
        "scaledown-partial-weights": NOT_RELEASED,
    },
    "descheduler-config-validation": {
        "fragmentation-defaults": NOT_RELEASED,
        "fragmentation-duplicate-resources": NOT_RELEASED,
        "scaledown-evict-without-max": NOT_RELEASED,
        "scaledown-evict-max-zero": NOT_RELEASED,
        "scaledown-unknown-strategy": NOT_RELEASED,
        "scaledown-zero-weight": NOT_RELEASED,
        "scaledown-negative-weight": NOT_RELEASED,
    },
    "descheduler-lownodeload-cycles": {"nil-selector-pool-does-not-skip-handled": EITHER_ORDER},
}
