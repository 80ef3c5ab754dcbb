"""Plan mode of LowNodeLoad: choose the moves of a cycle together, and evict only what the scheduler would place.

Room is reserved for all moves before any pod goes, so a destination must do while everything still runs. A first guess
goes by requests, labels and taints; what the scheduler refuses is planned anew without it.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from koordinator.api import gang_labels, pod_labels, pod_resources
from koordinator.api.core import Pod
from koordinator.api.meta import controller_of
from koordinator.cluster.proof import MoveQuestion, Prove
from koordinator.descheduler import node_fit, plan, pod_filter
from koordinator.descheduler.config.low_node_load import LowNodeLoadArgs
from koordinator.descheduler.measurements import Observation
from koordinator.descheduler.node_fit import Rooms
from koordinator.descheduler.plan import Move, Plan, Rows
from koordinator.descheduler.plan_input import PlanInput, PlanRules, gather
from koordinator.descheduler.plugin import LiveHandle
from koordinator.descheduler.plugins.low_node_load.usage import Classified

MOVES_MIN, MOVES_MAX, NODES_PER_MOVE = 100, 500, 10
"""Moves of one cycle: one for ten nodes, but not fewer and not more than that. The scheduler tries them all in one go,
in about a millisecond each."""
ROUNDS_MAX = 4
"""Most times that a cycle plans anew after refusals; a node whose moves are refused then waits for the next cycle."""
TRIED_MAX = 64
"""Nodes that are tried for one pod, the coolest first."""
LEFT_S = 3_600.0
"""For how long a workload does not come back to a node."""
IN_A_GANG = "it belongs to a gang, whose other pods would stop with it"


class PlannedMove(msgspec.Struct, frozen=True):
    """A pod that moves to `target` so that `cools` is not hot any more."""

    pod: Pod
    target: str
    cools: str


class PlanOutcome(msgspec.Struct, frozen=True):
    """The moves of a cycle, and why nodes stay hot, by name."""

    moves: list[PlannedMove]
    stuck: dict[str, str]


Refused = dict[tuple[int, str], str]
"""(Number of a workload, node) → the reason for which the scheduler places none of its pods there."""


def rules_of(args: LowNodeLoadArgs, handle: LiveHandle, left: Sequence[tuple[str, str]]) -> PlanRules:
    """Return the rules of the profile for pods, with limits and budgets as they are now; `left`: see `PlanRules`."""
    caches, migration = handle.caches, handle.migration
    assert caches.budgets is not None, "plans keep disruption budgets"
    return PlanRules(
        refusal=refusal_of(args, handle.refusal),
        budgets=list(caches.budgets.objects.values()),
        workload_of=migration.workloads.of,
        migration=migration.args,
        limits=handle.limits,
        jobs=list(caches.jobs.objects.values()),
        left=left,
    )


def refusal_of(args: LowNodeLoadArgs, profile: Callable[[Pod], str]) -> Callable[[Pod], str]:
    """Return why a pod is not moved; `profile` says what its filters say."""
    chosen = pod_filter.compose(args.evictable_namespaces, args.pod_selectors, lambda _: True)

    def refusal(pod: Pod) -> str:
        meta = pod.metadata
        if gang_labels.gang_name(meta.labels, meta.annotations) and not pod_labels.is_reserve_pod(
            meta.annotations
        ):
            return IN_A_GANG
        if why := profile(pod):
            return why
        return "" if chosen(pod) else "LowNodeLoad: its namespace or labels are not chosen"

    return refusal


class LeftNodes:
    """Remembers which nodes pods were moved away from, longer than there are jobs: what made a node hot comes again,
    and a workload that goes to and fro with it gains nothing."""

    def __init__(self) -> None:
        self._at_s: dict[tuple[str, str], float] = {}

    def add(self, pod: Pod, now_s: float) -> None:
        """Remember that a pod leaves its node."""
        if (owner := controller_of(pod)) is not None:
            self._at_s[owner.uid, pod.spec.node_name] = now_s

    def known(self, now_s: float) -> list[tuple[str, str]]:
        """Return UIDs of controllers and the nodes that they left; a clock that went back forgets what is to come."""
        self._at_s = {key: at_s for key, at_s in self._at_s.items() if 0 <= now_s - at_s < LEFT_S}
        return list(self._at_s)


async def planned(
    seen: Observation, pools: Sequence[Classified], sources: set[str], rules: PlanRules, prove: Prove
) -> PlanOutcome:
    """Return moves that cool the `sources`, each of which the scheduler accepts. Raises: ProofError."""
    if not sources:
        return PlanOutcome([], {})
    most = moves_max(len(seen.nodes))
    given = gather(seen, pools, rules, sources=sources, most=most)
    refused: Refused = {}
    for _ in range(ROUNDS_MAX):
        guess = _Guess(given, seen, refused)
        found = plan.find(given.nodes, given.pods, given.left, guess.place, most)
        moves = _whole_nodes(found.moves, most)
        new = await _refusals(given, moves, prove) if moves else {}
        if not new:
            return _outcome(given, found, moves)
        refused |= new
    names = given.nodes.names
    failed = {names[move.cools]: why for move in moves if (why := new.get(_subject(given, move)))}
    kept = [move for move in moves if names[move.cools] not in failed]
    whys = plan.replay(given.nodes, given.pods, given.left, _Guess(given, seen, refused).place, kept)
    failed |= {names[move.cools]: why for move, why in zip(kept, whys, strict=True) if why}
    kept = [move for move in kept if names[move.cools] not in failed]
    outcome = _outcome(given, found, kept)
    return msgspec.structs.replace(outcome, stuck=outcome.stuck | failed)


def moves_max(nodes: int) -> int:
    """Return how many moves a cycle makes at most in a cluster of so many nodes."""
    return min(max(nodes // NODES_PER_MOVE, MOVES_MIN), MOVES_MAX)


def _whole_nodes(moves: Sequence[Move], most: int) -> list[Move]:
    """Return the first moves, but of each node all or none."""
    if len(moves) <= most:
        return list(moves)
    cut = {move.cools for move in moves[most:]}
    return [move for move in moves[:most] if move.cools not in cut]


async def _refusals(given: PlanInput, moves: Sequence[Move], prove: Prove) -> Refused:
    names = given.nodes.names
    asked = [MoveQuestion(given.chosen[move.pod].metadata.uid, (names[move.target],)) for move in moves]
    answers = await prove(asked)
    return {_subject(given, move): one.why for move, one in zip(moves, answers, strict=True) if not one.node}


def _subject(given: PlanInput, move: Move) -> tuple[int, str]:
    return int(given.pods.workloads[move.pod]), given.nodes.names[move.target]


def _outcome(given: PlanInput, found: Plan, moves: Sequence[Move]) -> PlanOutcome:
    names = given.nodes.names
    made = [PlannedMove(given.chosen[move.pod], names[move.target], names[move.cools]) for move in moves]
    return PlanOutcome(made, {names[each.row]: each.why for each in found.stuck})


class _Guess:
    """Chooses the node whose usage stays furthest below its limits of those that have room by requests, and bear the
    pod by labels and taints."""

    def __init__(self, given: PlanInput, seen: Observation, refused: Refused) -> None:
        self._given = given
        self._refused = refused
        self._rooms = Rooms(seen.nodes, seen.pods_of)
        self._used = given.nodes.used.copy(order="F")
        self._limit = np.maximum(given.nodes.limit, 1)
        self._moves: list[Move] = []
        self._arrivals: defaultdict[int, list[Pod]] = defaultdict(list)

    def place(self, pod: int, rows: Rows, moves: Sequence[Move]) -> int | str:
        """Return one of `rows` (nodes,) for a pod, or why there is none; see `plan.Place`."""
        nodes, pods = self._given.nodes, self._given.pods
        self._follow(moves)
        whole = self._given.chosen[pod]
        why = ""
        for row in self._coolest(rows, pods.arrives[pod]):
            name = nodes.names[row]
            said = self._refused.get((int(pods.workloads[pod]), name))
            if said is None and self._has_room(whole, name, self._arrivals[row]):
                return row
            why = why or said or ""
        return (
            why or "no node below its limits has room for it by requests, and bears it by labels and taints"
        )

    def _coolest(self, rows: Rows, arrives: plan.I64) -> list[int]:
        """Return those of `rows` (nodes,) that are furthest below their limits with `arrives` (resources,)."""
        if rows.size > 1:
            heat = ((self._used + arrives) / self._limit).max(axis=1)[rows]
            if rows.size > TRIED_MAX:  # sorting all of them would cost more than all else
                cool = np.flatnonzero(heat <= np.partition(heat, TRIED_MAX - 1)[TRIED_MAX - 1])
                rows, heat = rows[cool], heat[cool]
            rows = rows[np.argsort(heat, kind="stable")[:TRIED_MAX]]
        return [int(row) for row in rows]

    def _follow(self, moves: Sequence[Move]) -> None:
        """Book `moves`: those of the last question but for some at the end that were taken back, and new ones."""
        mine = self._moves
        while mine and (len(mine) > len(moves) or mine[-1] is not moves[len(mine) - 1]):
            self._count(mine.pop(), -1)
        for move in moves[len(mine) :]:
            mine.append(move)
            self._count(move, 1)

    def _count(self, move: Move, sign: int) -> None:
        pods, arrivals = self._given.pods, self._arrivals[move.target]
        self._used[move.source] -= sign * pods.leaves[move.pod]
        self._used[move.target] += sign * pods.arrives[move.pod]
        if sign > 0:
            arrivals.append(self._given.chosen[move.pod])
        else:
            arrivals.pop()

    def _has_room(self, pod: Pod, node: str, arrivals: Sequence[Pod]) -> bool:
        """Return whether the pod fits beside those that come before it; whom they replace is still there."""
        room = self._rooms[node]
        if arrivals:
            free = dict(room.free_milli)
            for each in arrivals:
                for name, amount in pod_resources.requests(each).items():
                    free[name] = free.get(name, 0) - amount.milli
            room = msgspec.structs.replace(room, free_milli=free)
        return node_fit.fits(pod, room)
