"""The peer of `network_topology`: the same plan on a tree of objects, node after node and place after place."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec


class Place(msgspec.Struct, eq=False):
    """A switch or node. Places are compared by identity."""

    name: str
    parent: "Place | None" = None
    children: "dict[str, Place]" = msgspec.field(default_factory=dict)

    @property
    def upwards(self) -> "Iterator[Place]":
        place: Place | None = self
        while place is not None:
            yield place
            place = place.parent


def build(paths: Iterable[tuple[str, ...]]) -> Place:
    """The root of the tree of these paths."""
    root = Place("")
    for path in paths:
        place = root
        for name in path:
            below = place.children.get(name)
            if below is None:
                below = place.children[name] = Place(name, place)
            place = below
    return root


def levels(top: Iterable[Place]) -> Iterator[list[Place]]:
    """The places, then those one layer below, and so on."""
    level = list(top)
    while level:
        yield level
        level = [child for place in level for child in place.children.values()]


class Offers:
    """Slots and attracting pods of all places."""

    def __init__(self, root: Place, slots: Mapping[str, int], existing: Mapping[str, int]) -> None:
        self.slots: dict[Place, int] = {}
        self.existing: dict[Place, int] = {}
        for level in reversed(list(levels([root]))):
            for place in level:
                below = place.children.values()
                is_node = not below
                self.slots[place] = slots[place.name] if is_node else sum(self.slots[each] for each in below)
                self.existing[place] = (
                    existing.get(place.name, 0) if is_node else sum(self.existing[each] for each in below)
                )

    def key(self, place: Place, *, most_slots_first: bool = False) -> tuple[object, ...]:
        """Sorts places, the best first."""
        sign = -1 if most_slots_first else 1
        upwards = list(place.upwards)
        return (
            tuple(-self.existing[each] for each in upwards),
            tuple(sign * self.slots[each] for each in upwards),
            place.name,
        )

    def distribute(self, place: Place, wanted: int) -> list[tuple[str, int]]:
        """Nodes below the place with how many members each takes."""
        most = min(self.slots[place], wanted)
        if most <= 0:
            return []
        if not place.children:
            return [(place.name, most)]
        taken: list[tuple[str, int]] = []
        for child in sorted(place.children.values(), key=lambda each: self.key(each, most_slots_first=True)):
            left = most - sum(count for _, count in taken)
            if left <= 0:
                break
            taken += self.distribute(child, left)
        return taken


def plan(
    root: Place, members: Iterable[str], slots: Mapping[str, int], existing: Mapping[str, int]
) -> dict[str, str]:
    """Member → node, in the lowest and tightest place that holds all of them."""
    names = sorted(members)
    offers = Offers(root, slots, existing)
    candidates: list[Place] = []
    kept = [root]
    while kept:
        candidates = kept
        below = [child for place in kept for child in place.children.values()]
        kept = [place for place in below if offers.slots[place] >= len(names)]
    for place in sorted(candidates, key=offers.key):
        shares = offers.distribute(place, len(names))
        if sum(count for _, count in shares) == len(names):
            return dict(zip(names, (node for node, count in shares for _ in range(count)), strict=True))
    return {}
