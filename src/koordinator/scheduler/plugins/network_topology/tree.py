"""The network as a tree: switches of each layer, nodes as leaves. Source: spec 05, section 13."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.api.network_topology import (
    CLUSTER_LAYER,
    NODE_LAYER,
    NetworkTopologySpec,
    TopologyDetail,
    TopologyInfo,
)


class TopologySpecError(KoordinatorError, ValueError):
    """The layers of a ClusterNetworkTopology do not form a tree; the caller keeps the former one."""

    def __init__(self, layer: str) -> None:
        super().__init__(layer)
        self.layer = layer

    def __str__(self) -> str:
        return f'topology layer "{self.layer}" not found in spec'


class Place(msgspec.Struct, eq=False):
    """A switch, a node, or the whole cluster (the root). Places are compared by identity."""

    layer: str
    name: str
    parent: "Place | None" = None
    children: "dict[str, Place]" = msgspec.field(default_factory=dict)

    @property
    def upwards(self) -> "Iterator[Place]":
        """The place itself, the one above, and so on to the root."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.parent

    @property
    def node_count(self) -> int:
        """Nodes at or below the place."""
        if self.layer == NODE_LAYER:
            return 1
        return sum(child.node_count for child in self.children.values())


class TopologyTree(msgspec.Struct, frozen=True):
    """The tree; `nodes` are its leaves by name. Nodes that have no place are left out."""

    root: Place
    layers: tuple[str, ...]
    """From the cluster down to the nodes."""
    nodes: dict[str, Place]

    def levels(self, top: Iterable[Place]) -> Iterator[list[Place]]:
        """The places, then those one layer below, and so on."""
        level = list(top)
        while level:
            yield level
            level = [child for place in level for child in place.children.values()]

    def of_layer(self, layer: str) -> list[Place]:
        """All places of a layer; none when there is no such layer."""
        if layer not in self.layers:
            return []
        depth = self.layers.index(layer)
        return next((level for number, level in enumerate(self.levels([self.root])) if number == depth), [])


def order(specs: Sequence[NetworkTopologySpec]) -> list[NetworkTopologySpec]:
    """The layers from the nodes up.

    Raises: TopologySpecError when a layer on the way is missing.
    """
    by_name = {spec.topology_layer: spec for spec in specs}
    ordered: list[NetworkTopologySpec] = []
    layer = NODE_LAYER
    while len(ordered) < len(specs):
        if layer not in by_name:
            raise TopologySpecError(layer)
        ordered.append(by_name[layer])
        layer = by_name[layer].parent_topology_layer
    return ordered


def build(
    specs: Sequence[NetworkTopologySpec], nodes: Iterable[tuple[str, Mapping[str, str]]]
) -> TopologyTree:
    """The tree of these nodes (name, labels), in their order.

    A node without a name for its lowest switch gets one of its own; one without a name for another switch is
    left out. A switch that seems to hang below two others stays with the first.

    Raises: TopologySpecError.
    """
    upwards = order(specs)
    downwards = list(reversed(upwards[1:]))
    layers = (CLUSTER_LAYER, *(spec.topology_layer for spec in reversed(upwards)))
    root = Place(CLUSTER_LAYER, "")
    known: dict[tuple[str, str], Place] = {}
    leaves: dict[str, Place] = {}
    for node, labels in nodes:
        names = [next((labels[key] for key in spec.label_key if labels.get(key)), "") for spec in downwards]
        if names and not names[-1]:
            names[-1] = node
        if not all(names):
            continue
        path = [(spec.topology_layer, name) for spec, name in zip(downwards, names, strict=True)]
        place = root
        for layer, name in (*path, (NODE_LAYER, node)):
            below = known.get((layer, name))
            if below is None:
                below = known[(layer, name)] = Place(layer, name, place)
                place.children[name] = below
            place = below
        leaves[node] = place
    return TopologyTree(root, layers, leaves)


def details(tree: TopologyTree) -> list[TopologyDetail]:
    """What the status of the ClusterNetworkTopology says: all switches, each before those below it."""
    found: list[TopologyDetail] = []

    def visit(place: Place) -> None:
        if place.layer == NODE_LAYER:
            return
        parent, names = place.parent, sorted(place.children)
        child_layer = place.children[names[0]].layer if names else ""
        found.append(
            TopologyDetail(
                topology_info=TopologyInfo(topology_layer=place.layer, topology_name=place.name),
                parent_topology_info=None
                if parent is None
                else TopologyInfo(topology_layer=parent.layer, topology_name=parent.name),
                child_topology_layer=child_layer,
                child_topology_names=[] if child_layer == NODE_LAYER else names,
                node_num=place.node_count,
            )
        )
        for name in names:
            visit(place.children[name])

    visit(tree.root)
    return found
