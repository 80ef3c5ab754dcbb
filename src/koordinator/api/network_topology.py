"""Typed view of ClusterNetworkTopology: the tree of switches above the nodes. Source: behaviour/crds 9."""

from typing import Annotated, ClassVar

from koordinator.api.meta import Object, Resource, ViewPart
from koordinator.api.schema import INT32, REQUIRED, always

CLUSTER_LAYER = "ClusterTopologyLayer"
NODE_LAYER = "NodeTopologyLayer"
OBJECT_NAME = "default"
"""The only object that is looked at."""


class NetworkTopologySpec(ViewPart, frozen=True, kw_only=True):
    """One layer of the tree."""

    topology_layer: Annotated[str, REQUIRED, "Name of the layer; NodeTopologyLayer is the lowest."] = always(
        ""
    )
    parent_topology_layer: Annotated[str, "Name of the layer above."] = ""
    label_key: Annotated[
        list[str], "Node labels that name the switch of this layer; the first that a node has counts."
    ] = []


class ClusterNetworkTopologySpec(ViewPart, frozen=True, kw_only=True):
    """Layers of the network."""

    network_topology_spec: Annotated[list[NetworkTopologySpec], REQUIRED, "The layers, in any order."] = (
        always([])
    )


class TopologyInfo(ViewPart, frozen=True, kw_only=True):
    """A switch, or whatever connects the nodes of a layer."""

    topology_layer: Annotated[str, REQUIRED, "Layer of the switch."] = always("")
    topology_name: Annotated[str, REQUIRED, "Name of the switch."] = always("")


class TopologyDetail(ViewPart, frozen=True, kw_only=True):
    """A switch with what is below it."""

    topology_info: Annotated[TopologyInfo, REQUIRED, "The switch."] = always(TopologyInfo())
    parent_topology_info: Annotated[TopologyInfo | None, "The switch above."] = None
    child_topology_layer: Annotated[str, "The layer below."] = ""
    child_topology_names: Annotated[list[str], "Switches of the layer below."] = []
    node_num: Annotated[int, REQUIRED, INT32, "Nodes below the switch."] = always(0)


class ClusterNetworkTopologyStatus(ViewPart, frozen=True, kw_only=True):
    """The tree that the scheduler found."""

    detail_status: Annotated[list[TopologyDetail], "All switches."] = []


class ClusterNetworkTopology(Object, frozen=True, kw_only=True):
    """Says which node labels describe the network, so that gangs can be placed close together."""

    resource: ClassVar[Resource] = Resource(
        group="scheduling.koordinator.sh",
        version="v1alpha1",
        kind="ClusterNetworkTopology",
        plural="clusternetworktopologies",
        namespaced=False,
        subresources=("status",),
    )

    spec: ClusterNetworkTopologySpec = ClusterNetworkTopologySpec()
    status: ClusterNetworkTopologyStatus = ClusterNetworkTopologyStatus()
