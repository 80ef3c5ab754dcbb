"""Decide what changes in a tidal pool now: target, reserves, emergencies, steps. Pure. Source: behaviour/tidal 4."""

from collections.abc import Callable, Sequence

import msgspec

from koordinator.manager.tidal import emergency, plan, target
from koordinator.manager.tidal.emergency import EmergencyReturn, PendingPod
from koordinator.manager.tidal.nodes import Side, TidalNode
from koordinator.manager.tidal.plan import StepRules, TidalPlan
from koordinator.manager.tidal.policy import PoolPolicy
from koordinator.manager.tidal.target import LendTarget, OnlineLoad, PoolFacts, Reserves, TargetReason

_FORCED = {Side.ONLINE: TargetReason.ALL_ONLINE, Side.BATCH: TargetReason.ALL_BATCH}


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a pool. `nodes`: members that are ready and not cordoned; `hold_until_s`: nothing is lent
    before; `low_percent`: the highest load that one node less would have made within the window of the load rule, None
    while that is not known."""

    nodes: Sequence[TidalNode]
    pending: Sequence[PendingPod] = ()
    hold_until_s: float = 0.0
    low_percent: float | None = None
    hindrance: Callable[[TidalNode], str] = lambda _: ""


class PoolDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to make, and their reasons. `load_percent`: online load now; `spare_percent`: with one node less;
    None where no online node would be left."""

    sides: Reserves
    reserved: dict[str, Side]
    target: LendTarget
    lent: int
    load_percent: float | None
    spare_percent: float | None
    plan: TidalPlan
    emergency: EmergencyReturn | None
    hold_until_s: float
    next_change_s: float | None


def decide(policy: PoolPolicy, state: PoolState, now_s: float) -> PoolDecision:
    """One look at a pool."""
    nodes = state.nodes
    sides = target.reserves(len(nodes), policy.online_reserve, policy.batch_reserve)
    reserved = plan.assign_reserves(nodes, sides)
    lent = sum(node.is_lent and node.name not in reserved for node in nodes)
    percent = plan.online_percent(nodes)
    spare = plan.cheapest(nodes, reserved)
    wanted = _target(policy, state, sides, lent, percent, now_s)
    urgent = emergency.emergency(nodes, reserved, state.pending, percent, now_s)
    hold_s = state.hold_until_s
    if urgent is not None:
        hold_s = now_s + max(policy.cooldown_s, emergency.HOLD_S)
        steps = TidalPlan(urgent.steps)
    else:
        steps = plan.plan(nodes, reserved, wanted.nodes, _rules(policy, state, wanted, now_s), now_s)
        steps = _with_next(policy, state, sides, reserved, lent, steps, now_s)
    return PoolDecision(
        sides=sides,
        reserved=reserved,
        target=wanted,
        lent=lent,
        load_percent=percent,
        spare_percent=plan.online_percent(nodes, spare.name) if spare is not None else None,
        plan=steps,
        emergency=urgent,
        hold_until_s=hold_s,
        next_change_s=policy.next_change_s(now_s),
    )


def _facts(
    policy: PoolPolicy, state: PoolState, lent: int, at_s: float, *, by_load: bool = True
) -> PoolFacts:
    return PoolFacts(
        members=len(state.nodes),
        online_reserve=policy.online_reserve,
        batch_reserve=policy.batch_reserve,
        windows=policy.windows(at_s),
        lead_s=policy.lead_s,
        rule=policy.rule if by_load else None,
        suspended=policy.suspended,
        lent=lent,
    )


def _target(
    policy: PoolPolicy, state: PoolState, sides: Reserves, lent: int, percent: float | None, now_s: float
) -> LendTarget:
    if policy.forced is not None:
        return LendTarget(sides.tidal if policy.forced is Side.BATCH else 0, _FORCED[policy.forced])
    load = OnlineLoad(float("inf") if percent is None else percent, state.low_percent)
    return target.target(_facts(policy, state, lent, now_s), now_s, load)


def _rules(policy: PoolPolicy, state: PoolState, wanted: LendTarget, now_s: float) -> StepRules:
    """A window that is over is no time to wait: neither cool-down nor the limit of steps holds nodes back then."""
    is_over = wanted.reason is TargetReason.NO_WINDOW and policy.schedule is not None
    members = len(state.nodes)
    return StepRules(
        in_flight_max=members if is_over else max(policy.per_step.up(members), 1),
        cooldown_s=0.0 if is_over else policy.cooldown_s,
        load_max_percent=policy.load_max_percent,
        may_lend=now_s >= state.hold_until_s and wanted.reason is not TargetReason.RAMP and not is_over,
        hindrance=state.hindrance,
    )


def _with_next(
    policy: PoolPolicy,
    state: PoolState,
    sides: Reserves,
    reserved: dict[str, Side],
    lent: int,
    found: TidalPlan,
    now_s: float,
) -> TidalPlan:
    """Add the nodes that a window lends which opens within the lead time: what leaves by itself need not be moved."""
    soon_s = now_s + policy.lead_s
    if found.next_nodes or found.steps or policy.forced is not None or policy.schedule is None:
        return found
    ahead = target.target(_facts(policy, state, lent, soon_s, by_load=False), soon_s, None)
    if ahead.nodes <= lent or ahead.reason is not TargetReason.WINDOW:
        return found
    rules = StepRules(in_flight_max=0, load_max_percent=policy.load_max_percent, hindrance=state.hindrance)
    foreseen = plan.plan(state.nodes, reserved, min(ahead.nodes, sides.tidal), rules, now_s)
    return msgspec.structs.replace(found, next_nodes=foreseen.next_nodes)
