"""Make the status of a TidalPool out of a pass. Pure. Source: behaviour/tidal 3."""

from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import readable
from koordinator.api.meta import StandardCondition, find_condition
from koordinator.api.tidal_pool import TidalNodeStatus, TidalPhaseCounts, TidalPool, TidalPoolStatus
from koordinator.manager.tidal.nodes import TidalNode, TidalPhase
from koordinator.manager.tidal.pool_pass import PoolPass

READY, CONFLICT, EMERGENCY_RETURN, DRAIN_BLOCKED = "Ready", "Conflict", "EmergencyReturn", "DrainBlocked"
INVALID = "InvalidSpec"
_NAMES_MAX = 5


def status_of(pool: TidalPool, found: PoolPass, now_s: float) -> TidalPoolStatus:
    """Return the status after a pass."""
    decision = found.decision
    phases = {node.name: _phase_after(node, found) for node in found.nodes}
    count = list(phases.values()).count
    reserved = list(decision.reserved.values())
    hold_s = decision.hold_until_s if decision.hold_until_s > now_s else 0.0
    return TidalPoolStatus(
        observed_generation=pool.metadata.generation,
        members=decision.sides.online + decision.sides.batch + decision.sides.tidal,
        phases=TidalPhaseCounts(
            online=count(TidalPhase.ONLINE),
            to_batch=count(TidalPhase.TO_BATCH),
            batch=count(TidalPhase.BATCH),
            to_online=count(TidalPhase.TO_ONLINE),
            reserved_online=sum(side.value == "online" for side in reserved),
            reserved_batch=sum(side.value == "batch" for side in reserved),
        ),
        target=decision.target.nodes,
        target_reason=decision.target.reason.value,
        next_transition=clock.rfc3339(decision.next_change_s) if decision.next_change_s is not None else None,
        hold_until=clock.rfc3339(hold_s) if hold_s else None,
        nodes=[_node_status(node, found) for node in found.nodes if _is_reported(node, found)],
        conditions=_conditions(pool, found, hold_s, now_s),
    )


def invalid_status(pool: TidalPool, problem: str, now_s: float) -> TidalPoolStatus:
    """Return the status of a pool that cannot be read: nothing moves until it can."""
    ready = _condition(pool, READY, False, INVALID, problem, now_s)
    rest = [each for each in pool.status.conditions if each.type != READY]
    return msgspec.structs.replace(
        pool.status, observed_generation=pool.metadata.generation, conditions=[ready, *rest]
    )


def patch_of(status: TidalPoolStatus) -> dict[str, Any]:
    """Return the merge patch of a status, with nulls for what is not said any more."""
    body: dict[str, Any] = msgspec.to_builtins(status)
    for name in ("nextTransition", "holdUntil", "nodes", "targetReason", "observedGeneration"):
        body.setdefault(name, None)
    return {"status": body}


def _phase_after(node: TidalNode, found: PoolPass) -> TidalPhase:
    step = found.steps.get(node.name)
    return step.to if step is not None else node.phase


def _is_reported(node: TidalNode, found: PoolPass) -> bool:
    return _phase_after(node, found) is not TidalPhase.ONLINE or node.name in found.decision.plan.blocked


def _node_status(node: TidalNode, found: PoolPass) -> TidalNodeStatus:
    marks = found.marks.get(node.name)
    drained = found.drains.get(node.name)
    step = found.steps.get(node.name)
    reason = node.reason
    if step is not None:
        reason = step.reason
    elif drained is not None:
        reason = f"waits for {drained.waits_for}"
    elif node.name in found.decision.plan.blocked:
        reason = f"stays online: {found.decision.plan.blocked[node.name]}"
    return TidalNodeStatus(
        name=node.name,
        phase=_phase_after(node, found).value,
        since=clock.rfc3339(marks.since_s) if marks is not None else None,
        reason=reason,
    )


def _conditions(pool: TidalPool, found: PoolPass, hold_s: float, now_s: float) -> list[StandardCondition]:
    is_ready, reason, message = _readiness(found)
    lost = found.places.lost
    conditions = [
        _condition(pool, READY, is_ready, reason, message, now_s),
        _condition(
            pool,
            CONFLICT,
            bool(lost),
            "OlderPool" if lost else "NoConflict",
            f"older pools have {readable.some_of(lost)}" if lost else "",
            now_s,
        ),
    ]
    urgent = found.decision.emergency
    before = find_condition(pool.status.conditions, EMERGENCY_RETURN)
    if urgent is not None:
        text = f"{readable.some_of([step.node for step in urgent.steps])} returned: {urgent.reason}"
    else:
        text = before.message if before is not None and hold_s else ""
    is_urgent = urgent is not None or bool(hold_s)
    emergency_reason = "ServicesNeedNodes" if is_urgent else "NoEmergency"
    conditions.append(_condition(pool, EMERGENCY_RETURN, is_urgent, emergency_reason, text, now_s))
    blocked = [
        node for node in found.nodes if (marks := found.marks.get(node.name)) and marks.blocked_until_s
    ]
    told = "; ".join(f"{node.name}: {_blocked_reason(node, found)}" for node in blocked[:_NAMES_MAX])
    conditions.append(
        _condition(
            pool,
            DRAIN_BLOCKED,
            bool(blocked),
            "PodsDidNotLeave" if blocked else "NotBlocked",
            told,
            now_s,
        )
    )
    return conditions


def _blocked_reason(node: TidalNode, found: PoolPass) -> str:
    step = found.steps.get(node.name)
    return step.reason if step is not None else node.reason


def _readiness(found: PoolPass) -> tuple[bool, str, str]:
    """Return whether as many nodes are lent as should be, and what is missing."""
    decision = found.decision
    missing = decision.target.nodes - decision.lent
    moving = [node.name for node in found.nodes if node.is_moving or node.name in found.steps]
    if not found.nodes:
        return False, "NoMembers", "no node matches spec.nodeSelector"
    if missing > 0 and not moving and decision.plan.blocked:
        name, why = next(iter(sorted(decision.plan.blocked.items())))
        return False, "Blocked", f"{missing} nodes cannot be lent; {name}: {why}"
    if missing > 0 and not moving and decision.hold_until_s:
        return False, "Held", "services needed nodes at once lately: nothing is lent before holdUntil"
    if missing or moving:
        return (
            False,
            "Moving",
            f"changing sides: {readable.some_of(moving)}" if moving else "waits for the cool-down",
        )
    return True, "AsWanted", ""


def _condition(
    pool: TidalPool, kind: str, holds: bool, reason: str, message: str, now_s: float
) -> StandardCondition:
    """Return a condition, with the time of the last one while the status is the same."""
    status = "True" if holds else "False"
    before = find_condition(pool.status.conditions, kind)
    since = clock.rfc3339(now_s)
    if before is not None and before.status == status:
        since = before.last_transition_time
    return StandardCondition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=pool.metadata.generation,
    )
