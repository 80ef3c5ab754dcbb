"""One pass over a tidal pool: from what is there to everything that has to be written. Pure. Source: behaviour/tidal 4.

The controller carries a pass out; `koordinator explain tidalpool` makes the same one, and tells it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from koordinator import clock
from koordinator.api import label_selector
from koordinator.api.core import Node, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.groups import PodDisruptionBudget
from koordinator.api.meta import is_condition_true
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.manager.tidal import survey
from koordinator.manager.tidal.decide import PoolDecision, PoolState, decide
from koordinator.manager.tidal.drain import BLOCKED_S, Drain, MigrationTry, drain
from koordinator.manager.tidal.marks import NodeMarks
from koordinator.manager.tidal.nodes import TidalNode, TidalPhase, TidalPod
from koordinator.manager.tidal.plan import PhaseStep
from koordinator.manager.tidal.policy import PoolPolicy

DELETION_COST = "-1000"
"""Deletion cost of pods on nodes that are lent next: scale-in takes them first."""
LETS_GO = "the pool lets the node go"


class PoolObjects(Protocol):
    """The source of objects for a pass."""

    def node(self, name: str) -> Node | None:
        """Return a node."""

    def survey(self, name: str, policy: PoolPolicy) -> TidalNode | None:
        """Return a node with its pods."""

    def pending(self) -> Sequence[Pod]:
        """Return the pods that found no node."""

    def jobs(self, pod_uid: str) -> Sequence[PodMigrationJob]:
        """Return the migration jobs of a pod."""

    def budgets(self, namespace: str) -> Sequence[PodDisruptionBudget]:
        """Return the disruption budgets of a namespace."""


class PoolPlaces(msgspec.Struct, frozen=True):
    """Nodes of a pool: its members, those that it has to let go, and those that an older pool has."""

    members: Sequence[str] = ()
    leaving: Sequence[str] = ()
    lost: Sequence[str] = ()


class PoolMemory(msgspec.Struct, frozen=True):
    """Facts that earlier passes left. `refused` says why pods of a node fit nowhere else, as the scheduler said."""

    hold_until_s: float = 0.0
    low_percent: float | None = None
    refused: Mapping[str, str] = {}


class CostChange(msgspec.Struct, frozen=True):
    """The deletion cost that a pod gets, None to take ours back."""

    pod: TidalPod
    cost: str | None


class PoolPass(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one look at a pool leads to. `marks`: what nodes are to say, None for nothing; `steps`: which of
    them change their phase; `obsolete_jobs`: jobs of nodes that turned back."""

    pool: str
    places: PoolPlaces
    nodes: tuple[TidalNode, ...]
    decision: PoolDecision
    marks: Mapping[str, NodeMarks | None]
    steps: Mapping[str, PhaseStep]
    drains: Mapping[str, Drain]
    costs: tuple[CostChange, ...]
    obsolete_jobs: tuple[str, ...]


def look(
    pool: str, policy: PoolPolicy, places: PoolPlaces, objects: PoolObjects, memory: PoolMemory, now_s: float
) -> PoolPass:
    """Look at a pool once."""
    members = list(_surveyed(places.members, objects, policy))
    leaving = list(_surveyed(places.leaving, objects, policy))
    state = PoolState(
        nodes=[node for node in members if _is_available(objects.node(node.name))],
        pending=survey.pending_pods(objects.pending(), policy, objects.node) if members else [],
        hold_until_s=memory.hold_until_s,
        low_percent=memory.low_percent,
        hindrance=lambda node: (
            memory.refused.get(node.name, "") or _hindrance(node, objects, surges=policy.surges)
        ),
    )
    decision = decide(policy, state, now_s)
    steps = {step.node: step for step in decision.plan.steps}
    drains = _drains(
        [node for node in (*members, *leaving) if node.name not in steps], policy, objects, now_s
    )
    steps.update((name, each.step) for name, each in drains.items() if each.step is not None)
    for node in leaving:
        if node.phase is TidalPhase.BATCH:
            steps[node.name] = PhaseStep(node.name, TidalPhase.TO_ONLINE, LETS_GO)
        elif node.phase is TidalPhase.TO_BATCH:
            steps[node.name] = PhaseStep(node.name, TidalPhase.ONLINE, LETS_GO)
    available = {node.name for node in state.nodes}
    marks: dict[str, NodeMarks | None] = {}
    for node in members:
        reserve = decision.reserved.get(node.name) if node.name in available else node.reserve
        wanted = _marks(pool, node, steps.get(node.name), drains.get(node.name), objects, now_s)
        wanted = _completed(wanted, policy)
        marks[node.name] = msgspec.structs.replace(wanted, reserve=reserve)
    for node in leaving:
        wanted = _marks(pool, node, steps.get(node.name), None, objects, now_s)
        is_over = wanted.phase is TidalPhase.ONLINE
        marks[node.name] = None if is_over else _completed(wanted, policy)
    turned_back = [
        node
        for node in (*members, *leaving)
        if node.phase is TidalPhase.TO_BATCH
        and node.name in steps
        and steps[node.name].to is TidalPhase.ONLINE
    ]
    return PoolPass(
        pool=pool,
        places=places,
        nodes=tuple(members),
        decision=decision,
        marks=marks,
        steps=steps,
        drains=drains,
        costs=tuple(_costs(members, leaving, decision.plan.next_nodes, steps)),
        obsolete_jobs=tuple(_obsolete(turned_back, objects)),
    )


def _surveyed(names: Iterable[str], objects: PoolObjects, policy: PoolPolicy) -> Iterator[TidalNode]:
    for name in names:
        if (found := objects.survey(name, policy)) is not None:
            yield found


def _is_available(node: Node | None) -> bool:
    """Return whether a node counts as a member: it is ready and not cordoned."""
    if node is None or node.spec.unschedulable:
        return False
    return is_condition_true(node.status.conditions, "Ready")


def _hindrance(node: TidalNode, objects: PoolObjects, *, surges: bool) -> str:
    """Return why a node's pods cannot leave, empty when nothing speaks against it. A pod whose successor is ready
    first needs no disruption budget."""
    for pod in node.online_pods:
        if not pod.workload:
            return f"pod {pod.key} has no controller, so nobody would make its successor"
        for budget in () if surges else objects.budgets(pod.namespace):
            if budget.status.disruptions_allowed <= 0 and _protects(budget, pod):
                return f"PodDisruptionBudget {budget.key} allows no disruption of pod {pod.key}"
    return ""


def _protects(budget: PodDisruptionBudget, pod: TidalPod) -> bool:
    if budget.spec.selector is None:
        return False
    try:
        return label_selector.matches(budget.spec.selector, pod.labels)
    except ProtocolError:
        return False


def _drains(
    nodes: Sequence[TidalNode], policy: PoolPolicy, objects: PoolObjects, now_s: float
) -> dict[str, Drain]:
    """Return what to do with each node that changes sides."""
    moving: dict[str, int] = Counter()
    tries: dict[str, dict[str, MigrationTry]] = {}
    for node in nodes:
        if node.phase is not TidalPhase.TO_BATCH:
            continue
        found = tries[node.name] = {}
        for pod in node.online_pods:
            if (last := survey.last_try(objects.jobs(pod.uid), node.since_s)) is not None:
                found[pod.uid] = last
                moving[pod.workload] += last.ended_s is None
    return {
        node.name: drain(node, policy, tries.get(node.name, {}), moving, now_s)
        for node in nodes
        if node.is_moving
    }


def _marks(
    pool: str,
    node: TidalNode,
    step: PhaseStep | None,
    drained: Drain | None,
    objects: PoolObjects,
    now_s: float,
) -> NodeMarks:
    """Return what a node is to say, its reserve left out. A time to come is a clock that was wrong."""
    blocked_s = node.blocked_until_s if now_s < node.blocked_until_s <= now_s + BLOCKED_S else 0.0
    if step is None:
        found = objects.node(node.name)
        created = found.metadata.creation_timestamp if found is not None else None
        since_s = node.since_s or (clock.parse_rfc3339(created) if created else now_s)
        return NodeMarks(
            pool=pool,
            phase=node.phase,
            since_s=min(since_s, now_s),
            reason=node.reason,
            blocked_until_s=blocked_s,
        )
    if drained is not None and drained.is_blocked:
        blocked_s = now_s + BLOCKED_S
    return NodeMarks(pool=pool, phase=step.to, since_s=now_s, reason=step.reason, blocked_until_s=blocked_s)


def _completed(wanted: NodeMarks, policy: PoolPolicy) -> NodeMarks:
    """Return the marks with what the pool says: by when batch work has to be off a node that returns, whose labels it
    keeps besides ours."""
    return_at_s = wanted.since_s + policy.grace_s if wanted.phase is TidalPhase.TO_ONLINE else 0.0
    return msgspec.structs.replace(wanted, return_at_s=return_at_s, has_katalyst=policy.adopts_katalyst)


def _costs(
    members: Sequence[TidalNode],
    leaving: Sequence[TidalNode],
    next_nodes: Sequence[str],
    steps: Mapping[str, PhaseStep],
) -> Iterator[CostChange]:
    """Yield the deletion costs to change: those of pods on nodes next in line are low, values of users are kept."""
    in_line = set(next_nodes)
    for node in (*members, *leaving):
        step = steps.get(node.name)
        phase = step.to if step is not None else node.phase
        is_next = phase is TidalPhase.TO_BATCH or node.name in in_line
        if not (is_next or node.has_our_costs):
            continue
        for pod in node.online_pods:
            if pod.is_cost_ours and not is_next:
                yield CostChange(pod, None)
            elif is_next and pod.is_scaled and pod.cost is None and not pod.is_going:
                yield CostChange(pod, DELETION_COST)


def _obsolete(nodes: Sequence[TidalNode], objects: PoolObjects) -> Iterator[str]:
    """Yield the jobs of ours that have not begun to evict."""
    for node in nodes:
        for pod in node.online_pods:
            for job in objects.jobs(pod.uid):
                if survey.is_ours(job) and survey.is_open(job) and not survey.has_begun(job):
                    yield job.metadata.name
