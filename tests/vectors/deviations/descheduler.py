"""What the reference answers about the descheduler, worked out from what we answer."""

from typing import Any
from unittest import mock

from koordinator.descheduler.migration import state
from tests.vectors.deviations.question import Ask, Case

MISSING = "MissingReservation"


def with_missing_reservations_looked_for_again(case: Case, ask: Ask) -> Any:
    """A job whose Reservation is missing ends the step with an error, before it notes anything, and goes on."""
    found, given = ask(case), case
    for _ in case["steps"]:
        failed = next((n for n, step in enumerate(found["steps"]) if _is_missing(step)), None)
        if failed is None:
            break
        steps = [dict(step) for step in given["steps"]]
        steps[failed]["world"] = {
            **steps[failed]["world"],
            "reservation": {"metadata": {"name": ""}, "spec": {}, "status": {}},
            "reservation_order_error": "not found",
        }
        given = {**given, "steps": steps}
        found = ask(given)
    if given is case:
        return None
    unwritten = "set-reservation-order:"
    steps = [{**step, "actions": [a for a in step["actions"] if a != unwritten]} for step in found["steps"]]
    return {"steps": steps}


def _is_missing(step: Case) -> bool:
    return step["reason"] == MISSING and not step["error"]


def held_back_by_its_own_eviction(case: Case, ask: Ask) -> Any:
    """The limiter that a job's eviction has used up stops the job itself."""
    with mock.patch.object(state, "_has_begun", return_value=False):
        return ask(case)


def without_counters_of_anomalies(case: Case, ask: Ask) -> Any:
    """Only the first counter has a default where both are missing, and so the arguments are refused."""
    condition = case["args"].get("anomalyCondition")
    if case["plugin"] != "LowNodeLoad" or condition is None:
        return None
    counters = ("consecutiveAbnormalities", "consecutiveNormalities")
    return None if any(condition.get(name) for name in counters) else {"valid": False}


def with_cordons_in_a_dry_run(case: Case, ask: Ask) -> Any:
    """A dry run cordons the nodes that would be drained."""
    if not case["args"].get("dryRun"):
        return None
    wet = ask({**case, "args": {**case["args"], "dryRun": False}, "evictions_that_fail": []})
    return {"evicted": [], "node_updates": wet["node_updates"]}


def with_all_nodes_returned(case: Case, ask: Ask) -> Any:
    """A node from which a pod cannot be evicted is opened, also one that was closed before."""
    closed = [node["metadata"]["name"] for node in case["nodes"] if node["spec"].get("unschedulable")]
    if not closed:
        return None
    found = ask({**case, "nodes": [_open_but_full(node, case["args"]) for node in case["nodes"]]})
    known = [f"cordon:{name}" for name in closed]
    return {**found, "node_updates": [update for update in found["node_updates"] if update not in known]}


def _open_but_full(node: Case, args: Case) -> Case:
    """The node as one that is not closed and yet takes no pod."""
    if not node["spec"].get("unschedulable"):
        return node
    spec = {name: member for name, member in node["spec"].items() if name != "unschedulable"}
    if not args.get("nodeFit", True):
        return {**node, "spec": spec}
    taints = [*spec.get("taints", ()), {"key": "closed", "value": "", "effect": "NoSchedule"}]
    room = {"cpu": "0", "memory": "0", "pods": "0"}
    return {**node, "spec": {**spec, "taints": taints}, "status": {"allocatable": room}}
