"""Decide where the members of a gang go, so that they sit close together, and which node suits a single pod that
others attract. Source: behaviour/gangs 14 to 16.

Numbers are per level of the tree and per place; nodes are the places of the last level.
"""

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from koordinator.api.annotations.placement import GatherStrategy
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import SCORE_MAX
from koordinator.scheduler.plugin.topology_tree import Indices, TopologyTree

MUST_GATHER, PREFER_GATHER = "MustGather", "PreferGather"

OFFERS_MAX = 100
"""Places named in a message at most: with a node as the place, it would be the whole cluster."""
COMPARED_MAX = 64
"""Candidates of which the spread over preferred layers is worked out: about 0.2 ms each for 1,000 members."""


class TopologyRequirement(msgspec.Struct, frozen=True):
    """The demand of a gang on the network."""

    must_layer: str = ""
    """The gang must sit below one place of this layer; empty: anywhere."""
    multiples: Mapping[str, int] = {}
    """Layer → each place of it takes a multiple of this many members."""
    preferred: tuple[str, ...] = ()
    """Layers of which the gang should use as few places as it can, the most important first."""


def demand_of(rules: Iterable[GatherStrategy], layers: Sequence[str]) -> TopologyRequirement:
    """Return the rules of a gang in terms of the cluster's `layers`, from the top down.

    The deepest layer that must gather counts; the others follow from it. Of several rules for a layer the first one
    says the multiple.
    """
    rules = list(rules)
    must = [rule.layer for rule in rules if rule.strategy == MUST_GATHER]
    depth = {layer: number for number, layer in enumerate(layers)}
    deepest = max(must, key=lambda layer: depth.get(layer, len(layers)), default="")
    multiples = {
        rule.layer: rule.pod_count_multiple for rule in reversed(rules) if rule.pod_count_multiple > 1
    }
    preferred = [rule.layer for rule in rules if rule.strategy == PREFER_GATHER and rule.layer in depth]
    return TopologyRequirement(deepest, multiples, tuple(preferred))


class PlanReason(enum.Enum):
    """The reason whether there is a place for all members."""

    OK = "placed"
    NO_MEMBERS = "no pending pods"
    NO_ROOM = "no candidate topology nodes can accommodate job"
    NO_MULTIPLE = "the number of members is no multiple of what places take"


class Offer(msgspec.Struct, frozen=True):
    """The number of members that a place could take."""

    title: str
    """`layer/name`"""
    slots: int


class TopologyPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """A node for each member, or why not."""

    reason: PlanReason
    nodes: Mapping[str, str] = {}
    """Member → node."""
    place_layer: str = ""
    place_name: str = ""
    """The place that holds all members."""
    wanted: int = 0
    offers: tuple[Offer, ...] = ()
    """The places that could have held the gang."""
    offer_count: int = 0
    """Number of all of them; no more than `OFFERS_MAX` are in `offers`, those with most slots."""
    multiples: tuple[tuple[str, int], ...] = ()

    @property
    def is_placed(self) -> bool:
        return self.reason is PlanReason.OK

    def message(self, fit_error: str) -> str:
        """Return the words for people; `fit_error` tells what the nodes lack. Empty when placed."""
        if self.is_placed:
            return ""
        if self.reason is PlanReason.NO_MEMBERS:
            return PlanReason.NO_MEMBERS.value
        offers = ";".join(sorted(f"topology topologyNode {each.title}: {each.slots}" for each in self.offers))
        if more := self.offer_count - len(self.offers):
            offers += f";{more} more with fewer"
        text = f"{PlanReason.NO_ROOM.value}, desiredOfferSlot: {self.wanted}, {offers}, {fit_error}"
        if self.multiples:
            rules = ", ".join(f"{layer}={count}" for layer, count in sorted(self.multiples))
            text += f"; podCountMultiple constraints: {rules}"
        return text


class Offers:
    """The number of members that each place can take at once, and of pods there that attract them.

    `slots` (nodes,) are members that each node can take, `existing` (nodes,) pods that attract, `bound` (nodes,)
    members that are there already: they count towards the multiples, and the gang uses their places anyway; `score`
    (nodes,) tells which of otherwise equal places to take. Multiples of layers below a place bind the place, too: its
    own numbers are multiples of all of them.
    """

    def __init__(
        self,
        tree: TopologyTree,
        demand: TopologyRequirement,
        slots: I64,
        existing: I64,
        bound: I64 | None = None,
        score: I64 | None = None,
    ) -> None:
        self._score = tree.sums(score) if score is not None else None
        self.tree = tree
        self._preferred = [depth for layer in demand.preferred if (depth := tree.depth_of(layer)) is not None]
        self.existing = tree.sums(existing)
        self._bound_leaves = np.flatnonzero(bound) if bound is not None else np.empty(0, np.intp)
        self._bound = tree.sums(bound) if bound is not None and bound.any() and demand.multiples else None
        self._multiples: list[int] = []
        self.slots: list[I64] = []
        multiple, total = 1, slots
        for depth in range(tree.depth, -1, -1):
            level = tree.levels[depth]
            if depth < tree.depth:
                total = tree.sum_of_children(level, self.slots[0])
            multiple = math.lcm(multiple, demand.multiples.get(level.layer, 1))
            self._multiples.insert(0, multiple)
            self.slots.insert(0, self._floored(depth, total, multiple))

    def _floored(self, depth: int, count: I64, multiple: int) -> I64:
        if multiple == 1:
            return count
        if self._bound is None:
            return count // multiple * multiple
        bound = self._bound[depth]
        return np.asarray(np.maximum((bound + count) // multiple * multiple - bound, 0), np.int64)

    def floor(self, depth: int, index: int, count: int) -> int:
        """Return the most members up to `count` that the place may take at once."""
        multiple = self._multiples[depth]
        bound = 0 if self._bound is None else int(self._bound[depth][index])
        return max((bound + count) // multiple * multiple - bound, 0)

    @property
    def multiple(self) -> int:
        """Return what the number of all members must be a multiple of."""
        return self._multiples[0]

    def candidates(self, depth: int, top: Indices, wanted: int) -> Iterator[tuple[int, int]]:
        """Places (depth, index) at or below `top` with room for `wanted`, the best first: of the lowest layer that
        has any, then of the layers above."""
        levels: list[Indices] = []
        kept = top[self.slots[depth][top] >= wanted]
        while kept.size:
            levels.append(kept)
            if depth + len(levels) > self.tree.depth:
                break
            below = depth + len(levels)
            is_kept = np.zeros(len(self.tree.levels[below - 1]), np.bool_)
            is_kept[kept] = True
            has_room = is_kept[self.tree.levels[below].parents] & (self.slots[below] >= wanted)
            kept = np.flatnonzero(has_room)
        for position in range(len(levels) - 1, -1, -1):
            at = depth + position
            for index in self._gathered(at, self.sorted(at, levels[position]), wanted):
                yield at, index

    def sorted(self, depth: int, indices: Indices) -> Indices:
        """Places of one level, the best first: near pods that attract, then the tightest fit, the highest score, and
        by name."""
        if indices.size < 2:
            return indices
        level = self.tree.levels[depth]
        above = [self.tree.ancestors(depth, indices, each) for each in range(depth + 1)]
        keys: list[I64 | Indices] = [level.name_ranks[indices]]
        if self._score is not None:
            keys.append(-self._score[depth][indices])
        keys += [self.slots[each][above[each]] for each in range(depth + 1)]
        keys += [-self.existing[each][above[each]] for each in range(depth + 1)]
        return indices[np.lexsort(keys)]

    def _gathered(self, depth: int, ordered: Indices, wanted: int) -> list[int]:
        """Return the same places, those first with which the gang uses fewer places of the preferred layers."""
        indices: list[int] = ordered.tolist()
        deeper = [each for each in self._preferred if each > depth]
        if not deeper or len(indices) < 2:
            return indices
        compared = indices[:COMPARED_MAX]
        spread: dict[int, tuple[int, ...]] = {}
        for index in compared:
            shares = self.distribute(depth, index, wanted)
            leaves = np.append(self._bound_leaves, np.array([leaf for leaf, _ in shares], np.intp))
            used = [np.unique(self.tree.ancestors(self.tree.depth, leaves, each)).size for each in deeper]
            spread[index] = tuple(used)
        return sorted(compared, key=spread.__getitem__) + indices[COMPARED_MAX:]

    def distribute(self, depth: int, index: int, wanted: int) -> list[tuple[int, int]]:
        """Return nodes below the place with how many members each takes, in order, up to `wanted` in all."""
        most = self.floor(depth, index, min(int(self.slots[depth][index]), wanted))
        shares = [(index, most)] if most > 0 else []
        for at in range(depth, self.tree.depth):
            shares = [share for place, count in shares for share in self._shared(at, place, count)]
        return shares

    def _shared(self, depth: int, place: int, wanted: int) -> list[tuple[int, int]]:
        """Return the children that take `wanted` members among them: near pods that attract, then those with most
        slots, the highest score, and by name. The score tells which of them, not in which order they are filled."""
        level = self.tree.levels[depth]
        first, end = int(level.first_child[place]), int(level.first_child[place + 1])
        slots, existing = self.slots[depth + 1][first:end], self.existing[depth + 1][first:end]
        positions = np.flatnonzero(slots)
        keys = [-slots[positions], -existing[positions]]
        positions = positions[np.lexsort(keys)]  # which is stable: by name at last
        places: list[int] | None = None
        if self._score is not None:
            score = self._score[depth + 1][first:end]
            order = np.lexsort((-score[positions], -slots[positions], -existing[positions]))
            positions, places = positions[order], order.tolist()
        left = wanted
        taken: list[tuple[int, int]] = []
        for child, most in zip((positions + first).tolist(), slots[positions].tolist(), strict=True):
            if left <= 0:
                break
            count = self.floor(depth + 1, child, min(most, left))
            taken.append((child, count))
            left -= count
        if places is not None:
            taken = [share for _, share in sorted(zip(places, taken, strict=False))]
        return [(child, count) for child, count in taken if count > 0]


def plan(
    tree: TopologyTree,
    demand: TopologyRequirement,
    members: Sequence[str],
    slots: I64,
    existing: I64,
    bound: I64 | None = None,
    score: I64 | None = None,
) -> TopologyPlacement:
    """Return nodes for all members, who are alike, in the lowest and tightest place that holds them.

    Shapes: all (nodes of the tree,): how many members each node can take, how many pods on it attract them, how
    many members it has already, and which of equal nodes to take. Members go to the nodes in their order.
    """
    if not members:
        return TopologyPlacement(reason=PlanReason.NO_MEMBERS)
    wanted = len(members)
    offers = Offers(tree, demand, slots, existing, bound, score)
    depth, top = places_to_gather(tree, demand, bound)
    total = wanted + (int(bound.sum()) if bound is not None else 0)
    if total % offers.multiple:
        return no_room(PlanReason.NO_MULTIPLE, demand, offers, depth, top, wanted)
    for at, index in offers.candidates(depth, top, wanted):
        shares = offers.distribute(at, index, wanted)
        if sum(count for _, count in shares) == wanted:
            return placed(tree, at, index, dict(zip(members, spread(tree, shares), strict=True)))
    return no_room(PlanReason.NO_ROOM, demand, offers, depth, top, wanted)


def places_to_gather(
    tree: TopologyTree, demand: TopologyRequirement, bound: I64 | None = None
) -> tuple[int, Indices]:
    """Return the places (depth, indices) of which one must hold the gang: those that hold members of it already, if any
    do; none when there is no such layer."""
    depth = tree.depth_of(demand.must_layer) if demand.must_layer else 0
    if depth is None:
        return 0, np.empty(0, np.intp)
    if bound is not None and (leaves := np.flatnonzero(bound)).size:
        return depth, np.unique(tree.ancestors(tree.depth, leaves, depth))
    return depth, np.arange(len(tree.levels[depth]))


def spread(tree: TopologyTree, shares: Iterable[tuple[int, int]]) -> list[str]:
    """Return nodes with how many members each takes as names, one for each member."""
    names = tree.levels[-1].names
    return [names[leaf] for leaf, count in shares for _ in range(count)]


def placed(tree: TopologyTree, depth: int, index: int, nodes: Mapping[str, str]) -> TopologyPlacement:
    """Return the plan that puts members on their nodes, all of them in the place."""
    level = tree.levels[depth]
    return TopologyPlacement(
        reason=PlanReason.OK,
        nodes=nodes,
        place_layer=level.layer,
        place_name=level.names[index],
        wanted=len(nodes),
    )


def no_room(
    reason: PlanReason, demand: TopologyRequirement, offers: Offers, depth: int, top: Indices, wanted: int
) -> TopologyPlacement:
    """Return a plan that says why there is no room, with what the places `top` (places,) of the level at `depth`
    offer."""
    slots = offers.slots[depth][top]
    shown = top[np.argsort(-slots, kind="stable")[:OFFERS_MAX]].tolist()
    return TopologyPlacement(
        reason=reason,
        wanted=wanted,
        offers=tuple(
            Offer(offers.tree.title(depth, index), int(offers.slots[depth][index])) for index in shown
        ),
        offer_count=int(top.size),
        multiples=tuple(sorted(demand.multiples.items())),
    )


def scores(tree: TopologyTree, leaves: Indices, name_of: Callable[[int], str], existing: I64) -> I64:
    """Scores of feasible nodes: 100 for the one nearest to the pods that attract, 0 for the last.

    Shapes: `leaves` (feasible nodes,), where each is in the tree, -1 for nowhere: such nodes come last, by name
    (`name_of` a position). `existing` (nodes of the tree,): how many pods attract. Returns (feasible nodes,).
    """
    inside = np.flatnonzero(leaves >= 0)
    outside = sorted(np.flatnonzero(leaves < 0).tolist(), key=name_of)
    position_of = np.empty(len(tree.levels[-1]), np.intp)
    position_of[leaves[inside]] = inside
    ranked = position_of[_ranked(tree, leaves[inside], existing)]
    found = np.empty(leaves.size, np.int64)
    found[np.concatenate([ranked, np.array(outside, np.intp)])] = by_rank(leaves.size)
    return found


def _ranked(tree: TopologyTree, feasible: Indices, existing: I64) -> Indices:
    """Feasible nodes of the tree, the best first: each of them has room for one."""
    slots = np.zeros(len(tree.levels[-1]), np.int64)
    slots[feasible] = 1
    return Offers(tree, TopologyRequirement(), slots, existing).sorted(tree.depth, feasible)


def by_rank(count: int) -> I64:
    """Return scores (count,): 100 for the first, 0 for the last."""
    if count < 2:
        return np.full(count, SCORE_MAX, np.int64)
    return SCORE_MAX - SCORE_MAX * np.arange(count) // (count - 1)
