"""Where the members of a gang go, so that they sit close together. Source: spec 05, sections 14 to 16."""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from koordinator.api.annotations.placement import GatherStrategy
from koordinator.api.network_topology import NODE_LAYER
from koordinator.scheduler.plugins.network_topology.tree import Place, TopologyTree

MUST_GATHER = "MustGather"
SCORE_MAX = 100


class Demand(msgspec.Struct, frozen=True):
    """What a gang asks of the network."""

    must_layer: str = ""
    """The gang must sit below one place of this layer; empty: anywhere."""
    multiples: Mapping[str, int] = {}
    """Layer → each place of it takes a multiple of this many members."""


def demand_of(rules: Iterable[GatherStrategy], layers: Sequence[str]) -> Demand:
    """The rules of a gang in terms of the cluster's `layers`, from the top down.

    The deepest layer that must gather counts; the others follow from it.
    """
    rules = list(rules)
    must = [rule.layer for rule in rules if rule.strategy == MUST_GATHER]
    depth = {layer: number for number, layer in enumerate(layers)}
    deepest = max(must, key=lambda layer: depth.get(layer, len(layers)), default="")
    multiples = {rule.layer: rule.pod_count_multiple for rule in rules if rule.pod_count_multiple > 1}
    return Demand(deepest, multiples)


class PlanReason(enum.Enum):
    """Whether there is a place for all members."""

    OK = "placed"
    NO_MEMBERS = "no pending pods"
    NO_ROOM = "no candidate topology nodes can accommodate job"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A node for each member, or why not."""

    reason: PlanReason
    nodes: Mapping[str, str] = {}
    """Member → node."""
    place_layer: str = ""
    place_name: str = ""
    """The place that holds all members."""
    wanted: int = 0
    offers: tuple[tuple[str, str, int], ...] = ()
    """Layer, name and slots of the places that could have held the gang."""
    multiples: tuple[tuple[str, int], ...] = ()

    def message(self, fit_error: str) -> str:
        """The words for people; `fit_error` tells what the nodes lack. Empty when placed."""
        if self.reason is PlanReason.OK:
            return ""
        if self.reason is PlanReason.NO_MEMBERS:
            return PlanReason.NO_MEMBERS.value
        offers = ";".join(
            sorted(f"topology topologyNode {layer}/{name}: {slots}" for layer, name, slots in self.offers)
        )
        text = f"{PlanReason.NO_ROOM.value}, desiredOfferSlot: {self.wanted}, {offers}, {fit_error}"
        if self.multiples:
            rules = ", ".join(f"{layer}={count}" for layer, count in sorted(self.multiples))
            text += f"; podCountMultiple constraints: {rules}"
        return text


class Offers:
    """How many members each place can take, and how many pods there attract them."""

    def __init__(
        self,
        tree: TopologyTree,
        slots: Mapping[str, int],
        existing: Mapping[str, int],
        multiples: Mapping[str, int],
    ) -> None:
        self._multiples = multiples
        self.slots: dict[Place, int] = {}
        self.existing: dict[Place, int] = {}
        levels = list(tree.levels([tree.root]))
        for level in reversed(levels):
            for place in level:
                self.existing[place] = self._sum(place, existing, self.existing)
                self.slots[place] = self.floor(place, self._sum(place, slots, self.slots))

    @staticmethod
    def _sum(place: Place, of_nodes: Mapping[str, int], of_places: Mapping[Place, int]) -> int:
        if place.layer == NODE_LAYER:
            return of_nodes.get(place.name, 0)
        return sum(of_places[child] for child in place.children.values())

    def floor(self, place: Place, count: int) -> int:
        """The most members up to `count` that the place may take at once."""
        multiple = self._multiples.get(place.layer, 1)
        return count // multiple * multiple

    def key(self, place: Place, *, most_slots_first: bool = False) -> tuple[object, ...]:
        """Sorts places, the best first: near pods that attract, then the tightest fit, then by name."""
        sign = -1 if most_slots_first else 1
        upwards = list(place.upwards)
        return (
            tuple(-self.existing[each] for each in upwards),
            tuple(sign * self.slots[each] for each in upwards),
            place.name,
        )

    def distribute(self, place: Place, wanted: int) -> list[tuple[str, int]]:
        """Nodes below the place with how many members each takes, up to `wanted` in all."""
        most = self.floor(place, min(self.slots[place], wanted))
        if most <= 0:
            return []
        if place.layer == NODE_LAYER:
            return [(place.name, most)]
        taken: list[tuple[str, int]] = []
        children = place.children.values()
        for child in sorted(children, key=lambda each: self.key(each, most_slots_first=True)):
            left = most - sum(count for _, count in taken)
            if left <= 0:
                break
            taken += self.distribute(child, left)
        return taken


def count_slots(members: Sequence[str], fits: Callable[[Sequence[str]], bool]) -> int:
    """How many of the members, in order, fit on a node together: the first that does not ends the count."""
    for count in range(len(members)):
        if not fits(members[: count + 1]):
            return count
    return len(members)


def plan(
    tree: TopologyTree,
    demand: Demand,
    members: Iterable[str],
    slots: Mapping[str, int],
    existing: Mapping[str, int],
) -> Plan:
    """Nodes for all members, in the lowest and tightest place that holds them.

    `slots` tells how many members each node can take, `existing` how many pods on it attract them. Nodes
    that are in no place do not count.
    """
    names = sorted(members)
    wanted = len(names)
    if not names:
        return Plan(reason=PlanReason.NO_MEMBERS)
    offers = Offers(tree, slots, existing, demand.multiples)
    top = tree.of_layer(demand.must_layer) if demand.must_layer else [tree.root]
    candidates: list[Place] = []
    kept = [place for place in top if offers.slots[place] >= wanted]
    while kept:
        candidates = kept
        below = [child for place in kept for child in place.children.values()]
        kept = [place for place in below if offers.slots[place] >= wanted]
    for place in sorted(candidates, key=offers.key):
        shares = offers.distribute(place, wanted)
        if sum(count for _, count in shares) == wanted:
            nodes = [node for node, count in shares for _ in range(count)]
            return Plan(
                reason=PlanReason.OK,
                nodes=dict(zip(names, nodes, strict=True)),
                place_layer=place.layer,
                place_name=place.name,
                wanted=wanted,
            )
    return Plan(
        reason=PlanReason.NO_ROOM,
        wanted=wanted,
        offers=tuple((place.layer, place.name, offers.slots[place]) for place in top),
        multiples=tuple(sorted(demand.multiples.items())),
    )


def rank_nodes(tree: TopologyTree, feasible: Sequence[str], existing: Mapping[str, int]) -> list[str]:
    """Feasible nodes for a single pod, nearest to the pods that attract it first; those without a place last."""
    offers = Offers(tree, dict.fromkeys(feasible, 1), existing, {})
    inside = [tree.nodes[name] for name in feasible if name in tree.nodes]
    outside = sorted(name for name in feasible if name not in tree.nodes)
    return [place.name for place in sorted(inside, key=offers.key)] + outside


def scores(order: Sequence[str]) -> dict[str, int]:
    """Scores of nodes by their rank: 100 for the first, 0 for the last."""
    last = len(order) - 1
    if last <= 0:
        return dict.fromkeys(order, SCORE_MAX)
    return {name: SCORE_MAX - SCORE_MAX * position // last for position, name in enumerate(order)}
