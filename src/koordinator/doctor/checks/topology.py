"""Does ClusterNetworkTopology describe a tree, and do nodes have a place in it?"""

from collections.abc import Iterator, Sequence

from koordinator.api.core import Node
from koordinator.api.network_topology import (
    CLUSTER_LAYER,
    NODE_LAYER,
    OBJECT_NAME,
    ClusterNetworkTopology,
    NetworkTopologySpec,
)
from koordinator.doctor.finding import Finding, edit, some_of
from koordinator.doctor.snapshot import ClusterSnapshot

BUILD_S = 60.0
"""The scheduler builds the tree within seconds."""
_NO_TREE = "without a valid tree, gangs are placed without network topology, or by the last valid tree"


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield the object, its layers, the labels of nodes."""
    others = [
        each.metadata.name
        for each in snapshot.of(ClusterNetworkTopology)
        if each.metadata.name != OBJECT_NAME
    ]
    if others:
        yield Finding.warning(
            ("ClusterNetworkTopology", others),
            f"only the one named {OBJECT_NAME} is used",
            why="this one has no effect",
            do=(f"kubectl delete clusternetworktopology {' '.join(sorted(others)[:5])}",),
        )
    found = snapshot.find(ClusterNetworkTopology, OBJECT_NAME)
    if found is None:
        return
    specs = found.spec.network_topology_spec
    problems = list(chain_problems(specs))
    for problem in problems:
        yield Finding.error(found, problem, why=_NO_TREE, do=(edit(found),))
    if problems:
        return
    if not found.status.detail_status and snapshot.age_s(found) > BUILD_S:
        yield Finding.warning(
            found,
            "its status is empty: no scheduler has built the tree",
            why="the scheduler reads it only with --enable-network-topology-manager",
            do=("run the scheduler with --enable-network-topology-manager=true",),
        )
    yield from _nodes(snapshot.of(Node), found)


def chain_problems(specs: Sequence[NetworkTopologySpec]) -> Iterator[str]:
    """Yield why the layers do not form one line from the nodes up to the cluster."""
    names = [spec.topology_layer for spec in specs]
    by_name = dict(zip(names, specs, strict=True))
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield f"listed more than once: {', '.join(twice)}"
    if CLUSTER_LAYER in by_name:
        yield f"{CLUSTER_LAYER} is built in, and must not be listed"
    if NODE_LAYER not in by_name:
        yield f"{NODE_LAYER} is not listed, so the layer above the nodes is unknown"
        return
    chain: list[str] = []
    layer = NODE_LAYER
    while layer and layer != CLUSTER_LAYER:
        if layer in chain:
            yield f"layers form a cycle: {' → '.join([*chain[chain.index(layer) :], layer])}"
            return
        if layer not in by_name:
            yield f"layer {layer}, the parent of {chain[-1]}, is not listed"
            return
        chain.append(layer)
        layer = by_name[layer].parent_topology_layer
    if beside := sorted(set(names) - set(chain) - {CLUSTER_LAYER}):
        yield f"not above the nodes: {', '.join(beside)} (the layers are {' → '.join(chain)})"
    if blank := [name for name in chain if name != NODE_LAYER and not by_name[name].label_key]:
        yield f"no labelKey for {', '.join(blank)}: no node belongs to these layers"


def _nodes(nodes: Sequence[Node], topology: ClusterNetworkTopology) -> Iterator[Finding]:
    """Yield nodes that lack the label of a layer."""
    specs = topology.spec.network_topology_spec
    lowest = next(spec.parent_topology_layer for spec in specs if spec.topology_layer == NODE_LAYER)
    for spec in specs:
        if spec.topology_layer == NODE_LAYER:
            continue
        without = [
            node.metadata.name
            for node in nodes
            if not any(node.metadata.labels.get(key) for key in spec.label_key)
        ]
        if not without:
            continue
        label = f"kubectl label node {min(without)} {spec.label_key[0]}=NAME"
        if spec.topology_layer == lowest:
            yield Finding.notice(
                ("Node", without),
                f"no label of {lowest} ({some_of(spec.label_key)})",
                why="the node forms a domain of its own in that layer",
                do=(label,),
            )
        else:
            yield Finding.warning(
                ("Node", without),
                f"no label of {spec.topology_layer} ({some_of(spec.label_key)})",
                why="the node is not in the tree, and gets no pods of gangs that require network topology",
                do=(label, edit(topology)),
            )
