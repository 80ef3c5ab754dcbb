"""Keep which nodes belong to which tidal pool, as nodes and pools change. Source: behaviour/tidal 3.

Of several pools that select a node the oldest has it. A node that no pool selects any more belongs to the pool whose
marks it bears until these are gone.
"""

from collections.abc import Callable, Mapping

import msgspec

from koordinator.api.core import Node
from koordinator.api.label_selector import Predicate
from koordinator.api.tidal_pool import TidalPool
from koordinator.manager.tidal.marks import NodeMarks

Labels = Mapping[str, str]


class _Place(msgspec.Struct, frozen=True):
    """The place of a node: its pool, whether that has to let it go, and the pools that select it, too."""

    pool: str
    is_leaving: bool
    rivals: tuple[str, ...]


class Membership:
    """Nodes by pool. `on_change` hears the pools that a change concerns."""

    def __init__(self, on_change: Callable[[str], None] = lambda _: None) -> None:
        self._on_change = on_change
        self._selects: dict[str, tuple[tuple[str, str], Predicate]] = {}
        self._labels: dict[str, tuple[Labels, str]] = {}
        self._places: dict[str, _Place] = {}
        self._members: dict[str, dict[str, None]] = {}
        self._leaving: dict[str, dict[str, None]] = {}
        self._lost: dict[str, dict[str, None]] = {}

    def members(self, pool: str) -> list[str]:
        """Return the nodes that a pool selects and has."""
        return sorted(self._members.get(pool, ()))

    def leaving(self, pool: str) -> list[str]:
        """Return the nodes that bear marks of a pool which does not select them any more."""
        return sorted(self._leaving.get(pool, ()))

    def lost(self, pool: str) -> list[str]:
        """Return the nodes that a pool selects and an older one has."""
        return sorted(self._lost.get(pool, ()))

    def pool_of(self, node: str) -> str:
        """Return the pool that cares for a node, empty when none does."""
        place = self._places.get(node)
        return place.pool if place is not None else ""

    def select(self, pool: TidalPool, selects: Predicate) -> None:
        """Note what a pool selects from now on."""
        age = (pool.metadata.creation_timestamp or "", pool.metadata.name)
        self._selects[pool.metadata.name] = (age, selects)
        self._place_all()

    def drop(self, pool: str) -> None:
        """Note that a pool selects nothing any more: it is gone, or about to go."""
        if self._selects.pop(pool, None) is not None:
            self._place_all()

    def put(self, node: Node) -> None:
        """Note that a node appeared or changed."""
        name = node.metadata.name
        known = (node.metadata.labels, NodeMarks.of(node).pool)
        if self._labels.get(name) != known:
            self._labels[name] = known
            self._place(name)

    def remove(self, name: str) -> None:
        """Note that a node is gone."""
        if self._labels.pop(name, None) is not None:
            self._take(name)

    def _place_all(self) -> None:
        for name in self._labels:
            self._place(name)

    def _place(self, name: str) -> None:
        said, marked = self._labels[name]
        chosen = [
            pool for _, pool in sorted((age, pool) for pool, (age, f) in self._selects.items() if f(said))
        ]
        if chosen:
            place = _Place(chosen[0], False, tuple(chosen[1:]))
        else:
            place = _Place(marked, True, ())
        if self._places.get(name) == place:
            return
        self._take(name)
        if not place.pool:
            return
        self._places[name] = place
        (self._leaving if place.is_leaving else self._members).setdefault(place.pool, {})[name] = None
        for rival in place.rivals:
            self._lost.setdefault(rival, {})[name] = None
        for pool in (place.pool, *place.rivals):
            self._on_change(pool)

    def _take(self, name: str) -> None:
        old = self._places.pop(name, None)
        if old is None:
            return
        (self._leaving if old.is_leaving else self._members)[old.pool].pop(name, None)
        for rival in old.rivals:
            self._lost[rival].pop(name, None)
        for pool in (old.pool, *old.rivals):
            self._on_change(pool)
