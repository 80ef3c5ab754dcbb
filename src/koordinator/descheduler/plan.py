"""Find a small set of moves that brings every hot node below its limits, each proven by all that came before. Pure.

A plan grows step by step: one pod that leaves a hot node, or two that change places where one node is hot in another
resource than the other is. A node's steps count only if they bring the whole node below its limits; else they are
taken back, and it is told what is missing. Where a pod goes is answered by `Place`, after all earlier moves.

The rules for any step: a resource of a node that was within its limit stays so, one that was above it does not rise; no
pod moves twice, none goes to a node that another pod of its workload left, and none leaves where such a one arrived.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float64]

PODS_TRIED = 16
"""Pods of a hot node that are tried for one step, the best first; more are rarely better."""
PARTNERS_TRIED = 4
"""Swaps that are tried for one pod."""


class PlanNodes(msgspec.Struct, frozen=True, eq=False):
    """Nodes with fresh measurements. `used` and `limit` (nodes, resources) are in the same units; above is hot.

    `gives` (nodes,) are cooled if they are hot, `takes` (nodes,) may be targets. `pools` (nodes, pools): pods move
    between nodes that share a pool.
    """

    names: tuple[str, ...]
    used: I64
    limit: I64
    gives: Mask
    takes: Mask
    pools: Mask


class PlanPods(msgspec.Struct, frozen=True, eq=False):
    """Pods that may move. `leaves` and `arrives` (pods, resources) are their usage, rounded down and up.

    `rows` (pods,) are their nodes, `rank` (pods,) says who goes first among equals (lower), `workloads` (pods,) are
    numbers. `groups` names by pod the limits that it counts against. `history` are earlier moves, which bind a plan as
    its own do: workload, the row that was left and the one that was reached, -1 where that is no node of the plan.
    """

    keys: tuple[str, ...]
    rows: Rows
    leaves: I64
    arrives: I64
    rank: I64
    workloads: I64
    groups: tuple[tuple[str, ...], ...]
    history: tuple[tuple[int, int, int], ...] = ()


class Move(msgspec.Struct, frozen=True):
    """A pod leaves `source` for `target`, both rows of the nodes; moves of one step belong together.

    `cools` is the row of the hot node for whose sake it moves.
    """

    pod: int
    source: int
    target: int
    step: int
    cools: int


Place = Callable[[int, Rows, Sequence[Move]], int | str]
"""Return which of the rows the scheduler gives a pod after these moves, or why none."""


class OverloadedNode(msgspec.Struct, frozen=True, eq=False):
    """A node that stays hot. `excess` (resources,) is how far it is above its limits when nothing more can be moved.

    `pod` (-1: none) is the one whose move would help most, `why` says what keeps it there.
    """

    row: int
    excess: I64
    pod: int
    why: str


class Plan(msgspec.Struct, frozen=True, eq=False):
    """Moves in order of execution, the usage after them (nodes, resources), and the nodes that stay hot."""

    moves: tuple[Move, ...]
    used: I64
    stuck: tuple[OverloadedNode, ...]


NOBODY = "no pod that may move uses what it has too much of"
COOL = "its node is not hot any more"
PARTNER_STAYS = "the pod with which it changes places stays"
NO_ROOM = "no node that may take pods has room for it below its limits"


def excess_of(used: I64, limit: I64) -> I64:
    """Return how far usage is above its limits, 0 where it is not; arrays of one shape."""
    return np.asarray(np.maximum(used - limit, 0), np.int64)


def hot_rows(nodes: PlanNodes, used: I64) -> list[int]:
    """Return rows above a limit, the hottest first; `used` is (nodes, resources)."""
    heat = _weighted(excess_of(used, nodes.limit), nodes.limit).sum(axis=1)
    hot = np.flatnonzero((used > nodes.limit).any(axis=1))
    return sorted(hot.tolist(), key=lambda row: (-heat[row], nodes.names[row]))


def find(
    nodes: PlanNodes, pods: PlanPods, left: Mapping[str, int], place: Place, most: int | None = None
) -> Plan:
    """Return the plan over arrays of (nodes, resources) and (pods, resources).

    `left` is how many pods may move by limit; limits that it does not name do not exist. After `most` moves no other
    node is begun; None: all are.
    """
    assert nodes.used.shape == nodes.limit.shape, (nodes.used.shape, nodes.limit.shape)
    assert pods.leaves.shape == pods.arrives.shape == (len(pods.keys), nodes.used.shape[1])
    draft = _Draft(nodes, pods, left, place)
    waiting = [row for row in hot_rows(nodes, draft.used) if nodes.gives[row]]
    while True:
        stuck: list[OverloadedNode] = []
        count = len(draft.moves)
        for row in waiting:
            if most is not None and len(draft.moves) >= most:
                return Plan(tuple(draft.moves), draft.used, tuple(stuck))
            if (found := draft.cool(row)) is not None:
                stuck.append(found)
        # Nodes that were cooled may have taken heat from others in swaps, or made room by it.
        waiting = [each.row for each in stuck]
        if not stuck or len(draft.moves) == count:
            return Plan(tuple(draft.moves), draft.used, tuple(stuck))


def replay(
    nodes: PlanNodes, pods: PlanPods, left: Mapping[str, int], place: Place, moves: Iterable[Move]
) -> list[str]:
    """Return by move why it cannot be made after those before it that can; empty where it can.

    Arrays, (nodes, resources) and (pods, resources), are those of `find`, whose moves can all be made.
    """
    draft = _Draft(nodes, pods, left, place)
    return [
        why for _, step in itertools.groupby(moves, lambda move: move.step) for why in draft.follow([*step])
    ]


def used_up(groups: Iterable[str], left: Mapping[str, int]) -> str:
    """Return the first limit that lets no more pods go, as a sentence; empty when all do."""
    return next((f"{each} lets no more pods go" for each in groups if left.get(each, 1) <= 0), "")


def _weighted(amounts: I64, limit: I64) -> Floats:
    """Return amounts as parts of the limits, so that those of different resources can be added."""
    return np.asarray(amounts / np.maximum(limit, 1))


class _Draft:
    """The plan so far, and what it has used up."""

    def __init__(self, nodes: PlanNodes, pods: PlanPods, left: Mapping[str, int], place: Place) -> None:
        self.moves: list[Move] = []
        self.used = nodes.used.copy(order="K")
        self._nodes = nodes
        self._pods = pods
        self._left = dict(left)
        self._place = place
        self._steps = 0
        self._sources: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._targets: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for workload, source, target in pods.history:
            self._sources[workload][source] += 1
            self._targets[workload][target] += 1
        self._moved = np.zeros(len(pods.keys), np.bool_)
        self._refusal: tuple[int, str] = (-1, NOBODY)
        order = np.argsort(pods.rows, kind="stable")
        bounds = np.searchsorted(pods.rows[order], np.arange(len(nodes.names) + 1))
        self._on = [order[bounds[row] : bounds[row + 1]] for row in range(len(nodes.names))]

    def cool(self, row: int) -> OverloadedNode | None:
        """Bring one node below its limits; None when it is. Else nothing is moved."""
        count = len(self.moves)
        while (self.used[row] > self._nodes.limit[row]).any():
            self._refusal = (-1, NOBODY)
            if not self._move_one(row) and not self._swap(row):
                excess = excess_of(self.used[row], self._nodes.limit[row])
                pod, why = self._refusal
                if pod < 0:
                    why = next(filter(None, map(self._limited, self._on[row].tolist())), why)
                self._take_back(count)
                return OverloadedNode(row, excess, pod, why)
        return None

    def follow(self, step: Sequence[Move]) -> list[str]:
        """Make the moves of a step that somebody else made up, all or none; what speaks against each."""
        count, before = len(self.moves), self.used.copy()
        limit, gives = self._nodes.limit, self._nodes.gives
        was_hot = any(
            gives[move.source] and (before[move.source] > limit[move.source]).any() for move in step
        )
        found = [COOL if not was_hot else self._make_if_allowed(move) for move in step]
        limit = np.maximum(limit, before)
        for index, move in enumerate(step):
            if not found[index] and (self.used[move.target] > limit[move.target]).any():
                found[index] = f"{self._nodes.names[move.target]} would be above its limits with it"
        if any(found):
            self._take_back(count)
            found = [why or PARTNER_STAYS for why in found]
        return found

    def _make_if_allowed(self, move: Move) -> str:
        """Make one move; why not, empty when it is made."""
        if why := self._limited(move.pod):
            return why
        if not self._may_move(move.pod):
            return "it, or another pod of its workload, came to its node a move before"
        if not self._open_to(move.pod)[move.target]:
            return f"{self._nodes.names[move.target]} is no target for it"
        found = self._place(move.pod, np.array([move.target], np.intp), tuple(self.moves))
        if isinstance(found, str):
            return f"{self._nodes.names[move.target]} does not take it: {found}"
        self._make(move)
        return ""

    # One pod

    def _move_one(self, row: int) -> bool:
        for pod in self._helpful(row)[:PODS_TRIED]:
            fits = (self.used + self._pods.arrives[pod] <= self._nodes.limit).all(axis=1)
            rows = np.flatnonzero(fits & self._open_to(pod))
            if self._try(((pod, rows),), row):
                return True
        return False

    def _helpful(self, row: int) -> list[int]:
        """Return pods whose leaving helps: those that alone are enough first, of these the least important and then
        the largest, which leaves room for usage to grow; then those that help most."""
        pods, limit = self._pods, self._nodes.limit[row]
        there = [pod for pod in self._on[row].tolist() if self._may_move(pod)]
        over = excess_of(self.used[row], limit)
        leaves = pods.leaves[there].reshape(len(there), over.size)
        help_ = _weighted(np.minimum(leaves, over), limit).sum(axis=1)
        is_enough = (self.used[row] - leaves <= limit).all(axis=1)
        size = _weighted(leaves, limit).sum(axis=1)
        best = sorted(
            (index for index in range(len(there)) if help_[index] > 0),
            key=lambda index: (
                (0, pods.rank[there[index]], -size[index], pods.keys[there[index]])
                if is_enough[index]
                else (1, -help_[index], pods.rank[there[index]], pods.keys[there[index]])
            ),
        )
        return [there[index] for index in best]

    # Two pods

    def _swap(self, row: int) -> bool:
        """Let a pod and one of another node change places, so that both nodes together are less hot."""
        if not self._nodes.takes[row]:
            return False
        for pod in self._helpful(row)[:PODS_TRIED]:
            for partner in self._partners(pod, row):
                other = int(self._pods.rows[partner])
                there, back = (pod, np.array([other])), (partner, np.array([row]))
                if self._try((there, back), row) or self._try((back, there), row):
                    return True
        return False

    def _partners(self, pod: int, row: int) -> Iterator[int]:
        """Yield pods elsewhere that may come for `pod`, those first that leave the least heat."""
        pods, limit = self._pods, self._nodes.limit
        rows = pods.rows
        here = self.used[row] - pods.leaves[pod] + pods.arrives
        there = self.used[rows] - pods.leaves + pods.arrives[pod]
        allowed = (here <= np.maximum(limit[row], self.used[row])).all(axis=1)
        allowed &= (there <= np.maximum(limit[rows], self.used[rows])).all(axis=1)
        allowed &= self._open_to(pod)[rows] & (pods.workloads != pods.workloads[pod]) & ~self._moved
        before = _weighted(excess_of(self.used[row], limit[row]), limit[row]).sum()
        heat = _weighted(excess_of(here, limit[row]), limit[row]).sum(axis=1)
        found = np.flatnonzero(allowed & (heat < before))
        tried = 0
        for partner in found[np.lexsort((pods.rank[found], heat[found]))].tolist():
            if self._may_move(partner) and self._open_to(partner)[row]:
                yield partner
                tried += 1
            if tried == PARTNERS_TRIED:
                return

    # Books

    def _may_move(self, pod: int) -> bool:
        arrived = self._targets[int(self._pods.workloads[pod])]
        if self._moved[pod] or arrived[int(self._pods.rows[pod])] > 0:
            return False
        return not self._limited(pod)

    def _limited(self, pod: int) -> str:
        return used_up(self._pods.groups[pod], self._left)

    def _open_to(self, pod: int) -> Mask:
        """(nodes,): others of its pools that take pods and that no pod of its workload has left."""
        nodes, row = self._nodes, self._pods.rows[pod]
        found: Mask = nodes.takes & (nodes.pools & nodes.pools[row]).any(axis=1)
        found[row] = False
        left = self._sources[int(self._pods.workloads[pod])]
        found[[row for row, count in left.items() if count > 0 and row >= 0]] = False
        return found

    def _try(self, step: Iterable[tuple[int, Rows]], cooled: int) -> bool:
        """Make the moves of one step for a hot row, or none of them."""
        count = len(self.moves)
        for pod, rows in step:
            found: int | str = NO_ROOM
            if rows.size:
                found = self._limited(pod) or self._place(pod, rows, tuple(self.moves))
            if isinstance(found, str):
                if self._refusal[0] < 0:
                    self._refusal = (pod, found)
                self._take_back(count)
                return False
            assert found in rows, (found, rows)
            self._make(Move(pod, int(self._pods.rows[pod]), found, self._steps, cooled))
        self._steps += 1
        return True

    def _make(self, move: Move) -> None:
        self.moves.append(move)
        self._count(move, 1)

    def _take_back(self, count: int) -> None:
        """Forget all moves but the first `count`."""
        while len(self.moves) > count:
            self._count(self.moves.pop(), -1)

    def _count(self, move: Move, sign: int) -> None:
        self.used[move.source] -= sign * self._pods.leaves[move.pod]
        self.used[move.target] += sign * self._pods.arrives[move.pod]
        self._moved[move.pod] = sign > 0
        workload = int(self._pods.workloads[move.pod])
        self._sources[workload][move.source] += sign
        self._targets[workload][move.target] += sign
        for group in self._pods.groups[move.pod]:
            if group in self._left:
                self._left[group] -= sign
