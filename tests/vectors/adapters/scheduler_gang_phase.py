"""Area `podgroup-phase`: one step, and steps until nothing changes."""

from typing import Any

from koordinator.api.decode import from_builtins
from koordinator.api.sigs import PodGroup, PodGroupStatus
from koordinator.scheduler.plugins.coscheduling.controller import (
    MemberCounts,
    QueueReason,
    next_status,
    queue_reason,
)

Case = dict[str, Any]
NOW = "NOW"
STEPS_MAX = 20
COUNTERS = ("scheduled", "running", "succeeded", "failed")


def phase(case: Case) -> Any:
    body = {"metadata": {"namespace": "default", "name": "g"}, **case["podGroup"]}
    group = from_builtins(body, PodGroup)
    if case.get("check") == "enqueue":
        return {"enqueued": queue_reason(group) is QueueReason.OK}
    members = _members(case["pods"])

    def step(status: PodGroupStatus) -> PodGroupStatus:
        return next_status(status, group.spec.min_member, members, NOW)

    first = settled = step(group.status)
    for _ in range(STEPS_MAX):
        settled = step(settled)
    return {"afterOneSync": _shown(first), "settledPhase": settled.phase}


def _members(pods: list[Case]) -> MemberCounts:
    phases = [each.get("phase", "") for each in pods]
    first: Case = pods[0] if pods else {}
    namespace = first.get("namespace", "default")
    return MemberCounts(
        total=len(pods),
        scheduled=sum(bool(each.get("nodeName")) for each in pods),
        running=phases.count("Running"),
        succeeded=phases.count("Succeeded"),
        failed=phases.count("Failed"),
        occupied_by=",".join(sorted(f"{namespace}/{owner}" for owner in first.get("owners") or ())),
    )


def _shown(status: PodGroupStatus) -> Case:
    shown: Case = {name: getattr(status, name) for name in COUNTERS}
    shown["phase"] = status.phase
    if status.occupied_by:
        shown["occupiedBy"] = status.occupied_by
    if status.schedule_start_time:
        shown["scheduleStartTime"] = status.schedule_start_time
    return shown


def same(expected: Any, actual: Any) -> bool:
    """Missing counters are zero."""
    if "afterOneSync" not in expected:
        return bool(expected == actual)
    wanted = {**dict.fromkeys(COUNTERS, 0), **expected["afterOneSync"]}
    return bool(wanted == actual["afterOneSync"] and expected["settledPhase"] == actual["settledPhase"])


ADAPTERS = {"podgroup-phase": phase}
COMPARE = {"podgroup-phase": same}
