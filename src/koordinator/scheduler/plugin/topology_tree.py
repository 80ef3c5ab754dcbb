"""The network as a tree: switches of each layer, nodes as leaves. Source: behaviour/gangs 13."""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.errors import KoordinatorError
from koordinator.api.network_topology import (
    CLUSTER_LAYER,
    NODE_LAYER,
    NetworkTopologySpec,
    TopologyDetail,
    TopologyInfo,
)
from koordinator.api.resource_vector import I64

Indices = npt.NDArray[np.intp]
Path = tuple[str, ...]
"""Names from below the root down to the place itself."""


class TopologySpecError(KoordinatorError, ValueError):
    """The layers of a ClusterNetworkTopology do not form a tree; the caller keeps the former one."""

    def __init__(self, layer: str) -> None:
        super().__init__(layer)
        self.layer = layer

    def __str__(self) -> str:
        return f'topology layer "{self.layer}" not found in spec'


class TopologyLayer(msgspec.Struct, frozen=True, eq=False, dict=True):
    """All places of one layer: those below one parent are neighbours, by name.

    Shapes: `parents` (places,), indices of the level above; `first_child` (places + 1,), where the children of
    each place begin in the level below (empty for the nodes, which have none).
    """

    layer: str
    names: tuple[str, ...]
    parents: Indices
    first_child: Indices

    def __len__(self) -> int:
        return len(self.names)

    @functools.cached_property
    def repeated_names(self) -> frozenset[str]:
        """Names that several places of the layer have, below different parents."""
        return frozenset(name for name, count in Counter(self.names).items() if count > 1)

    @functools.cached_property
    def name_ranks(self) -> Indices:
        """(places,): the position of each place among all of the layer by name."""
        ranks = np.empty(len(self.names), np.intp)
        ranks[sorted(range(len(self.names)), key=self.names.__getitem__)] = np.arange(len(self.names))
        return ranks


class TopologyTree(msgspec.Struct, frozen=True, eq=False):
    """The tree as arrays, one level per layer from the cluster down to the nodes; never changed once built.

    `leaf_of` finds nodes in the last level. Nodes that have no place are left out. `version` grows with each
    tree that a manager builds.
    """

    levels: tuple[TopologyLayer, ...]
    leaf_of: Mapping[str, int]
    version: int = 0

    @property
    def layers(self) -> tuple[str, ...]:
        """From the cluster down to the nodes."""
        return tuple(level.layer for level in self.levels)

    @property
    def depth(self) -> int:
        """Position of the node layer."""
        return len(self.levels) - 1

    def depth_of(self, layer: str) -> int | None:
        """Position of a layer, 0 for the cluster; None when there is no such layer."""
        return next((depth for depth, level in enumerate(self.levels) if level.layer == layer), None)

    def by_leaf(self, of_nodes: Mapping[str, int]) -> I64:
        """(nodes,) from numbers by name; 0 for those that are not named."""
        found = np.zeros(len(self.levels[-1]), np.int64)
        for name, number in of_nodes.items():
            if (leaf := self.leaf_of.get(name)) is not None:
                found[leaf] = number
        return found

    def sums(self, of_leaves: I64) -> list[I64]:
        """Return per level the sums (places,) over all nodes at or below each place; `of_leaves` is (nodes,)."""
        found = [of_leaves]
        for level in reversed(self.levels[:-1]):
            found.append(self.sum_of_children(level, found[-1]))
        return found[::-1]

    @staticmethod
    def sum_of_children(level: TopologyLayer, of_children: I64) -> I64:
        """(places,) of a level from numbers of the places below."""
        total = np.zeros(of_children.size + 1, np.int64)
        np.cumsum(of_children, out=total[1:])
        return total[level.first_child[1:]] - total[level.first_child[:-1]]

    def leaves_below(self, depth: int, index: int) -> tuple[int, int]:
        """Return the nodes at or below a place: from, to (exclusive)."""
        first, end = index, index + 1
        for level in self.levels[depth:-1]:
            first, end = int(level.first_child[first]), int(level.first_child[end])
        return first, end

    def ancestors(self, depth: int, indices: Indices, above: int) -> Indices:
        """Return the places of the level `above` that `indices` (places,) of the level at `depth` are below of."""
        for level in reversed(self.levels[above + 1 : depth + 1]):
            indices = level.parents[indices]
        return indices

    def title(self, depth: int, index: int) -> str:
        """`layer/name`, with the parent's name in between where the layer has several places of the name."""
        level = self.levels[depth]
        name = level.names[index]
        if name in level.repeated_names:
            name = f"{self.levels[depth - 1].names[level.parents[index]]}/{name}"
        return f"{level.layer}/{name}"


def order(specs: Sequence[NetworkTopologySpec]) -> list[NetworkTopologySpec]:
    """Return the layers from the nodes up. Raises: TopologySpecError when a layer on the way is missing."""
    by_name = {spec.topology_layer: spec for spec in specs}
    ordered: list[NetworkTopologySpec] = []
    layer = NODE_LAYER
    while len(ordered) < max(len(specs), 1):
        if layer not in by_name:
            raise TopologySpecError(layer)
        ordered.append(by_name[layer])
        layer = by_name[layer].parent_topology_layer
    return ordered


class PathFinder:
    """Finds the place of nodes in the network, by their labels.

    A node without a name for its lowest switch gets one of its own; one without a name for another switch has no place.
    """

    def __init__(self, specs: Sequence[NetworkTopologySpec]) -> None:
        """Raises: TopologySpecError."""
        upwards = order(specs)
        downwards = list(reversed(upwards[1:]))
        self.layers = (CLUSTER_LAYER, *(spec.topology_layer for spec in reversed(upwards)))
        self._keys = [spec.label_key for spec in downwards]

    def path(self, node: str, labels: Mapping[str, str]) -> Path | None:
        """Return the names of the switches above a node and its own; None when it has no place."""
        names = [next((labels[key] for key in keys if labels.get(key)), "") for keys in self._keys]
        if names and not names[-1]:
            names[-1] = node
        return (*names, node) if all(names) else None


def assemble(layers: Sequence[str], paths: Iterable[Path], *, version: int = 0) -> TopologyTree:
    """Return the tree of these nodes. Paths that end above the nodes are switches without any."""
    of_depth: list[set[Path]] = [set() for _ in layers]
    for path in paths:
        of_depth[len(path)].add(path)
    levels: list[TopologyLayer] = []
    no_children = np.empty(0, np.intp)
    child_parents: Indices = no_children
    for depth in range(len(layers) - 1, -1, -1):
        found = sorted(of_depth[depth]) if depth else [()]
        if depth:
            of_depth[depth - 1].update({path[:-1] for path in found})
        first_child = no_children
        if depth + 1 < len(layers):
            numbers = {path: number for number, path in enumerate(found)}
            below = sorted(of_depth[depth + 1])
            child_parents = np.fromiter((numbers[path[:-1]] for path in below), np.intp, len(below))
            first_child = np.searchsorted(child_parents, np.arange(len(found) + 1))
            levels[-1] = msgspec.structs.replace(levels[-1], parents=child_parents)
        names = tuple([path[-1] for path in found]) if depth else ("",)
        levels.append(TopologyLayer(layers[depth], names, no_children, first_child))
    levels.reverse()
    return TopologyTree(tuple(levels), {name: index for index, name in enumerate(levels[-1].names)}, version)


def build(
    specs: Sequence[NetworkTopologySpec], nodes: Iterable[tuple[str, Mapping[str, str]]]
) -> TopologyTree:
    """Return the tree of these nodes (name, labels).

    Switches of one name below different parents are different ones. In the reference such a switch stays with the
    parent that was seen first, with all nodes that name it.

    Raises: TopologySpecError.
    """
    finder = PathFinder(specs)
    paths = [path for name, labels in nodes if (path := finder.path(name, labels)) is not None]
    return assemble(finder.layers, paths)


def details(tree: TopologyTree) -> list[TopologyDetail]:
    """Return what the status of the ClusterNetworkTopology says: all switches, each before those below it."""
    counts = tree.sums(np.ones(len(tree.levels[-1]), np.int64))
    found: list[TopologyDetail] = []

    def info(depth: int, index: int) -> TopologyInfo:
        level = tree.levels[depth]
        return TopologyInfo(topology_layer=level.layer, topology_name=level.names[index])

    def visit(depth: int, index: int) -> None:
        level, below = tree.levels[depth], tree.levels[depth + 1]
        first, end = int(level.first_child[index]), int(level.first_child[index + 1])
        is_lowest = depth + 1 == tree.depth
        found.append(
            TopologyDetail(
                topology_info=info(depth, index),
                parent_topology_info=info(depth - 1, int(level.parents[index])) if depth else None,
                child_topology_layer=below.layer if end > first else "",
                child_topology_names=[] if is_lowest else list(below.names[first:end]),
                node_num=int(counts[depth][index]),
            )
        )
        if not is_lowest:
            for child in range(first, end):
                visit(depth + 1, child)

    visit(0, 0)
    return found
