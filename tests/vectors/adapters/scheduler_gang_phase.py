"""Area `podgroup-phase`: one step, and steps until nothing changes."""

from typing import Any

from koordinator.api.decode import from_builtins
from koordinator.api.sigs import PodGroup, PodGroupStatus
from koordinator.scheduler.plugins.coscheduling.phase import Member, QueueReason, next_status, worth_a_look

Case = dict[str, Any]
NOW = "NOW"
STEPS_MAX = 20
COUNTERS = ("scheduled", "running", "succeeded", "failed")


def phase(case: Case) -> Any:
    body = {"metadata": {"namespace": "default", "name": "g"}, **case["podGroup"]}
    group = from_builtins(body, PodGroup)
    if case.get("check") == "enqueue":
        return {"enqueued": worth_a_look(group) is QueueReason.OK}
    members = [
        Member(
            each.get("namespace", "default"),
            each.get("phase", ""),
            bool(each.get("nodeName")),
            tuple(each.get("owners") or ()),
        )
        for each in case["pods"]
    ]
    minimum, first = group.spec.min_member, next_status(group.status, group.spec.min_member, members, NOW)
    settled = first
    for _ in range(STEPS_MAX):
        settled = next_status(settled, minimum, members, NOW)
    return {"afterOneSync": _shown(first), "settledPhase": settled.phase}


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
