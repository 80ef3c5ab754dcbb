"""Typed views of NodeResourceTopology: NUMA nodes of the node of the same name. Source: behaviour/crds 12.

Koordinator reads and writes v1alpha1; v1alpha2 is what is stored. There is no conversion, so the fields of
both must fit each other.
"""

from typing import Annotated, ClassVar

from koordinator.api.meta import Object, Resource, ViewPart
from koordinator.api.quantity import RawQuantity
from koordinator.api.schema import REQUIRED, always


class ZoneCost(ViewPart, frozen=True, kw_only=True):
    """Distance to another zone."""

    name: Annotated[str, REQUIRED, "The other zone."] = always("")
    value: Annotated[int, REQUIRED, "Distance, as the kernel reports it."] = always(0)


class Attribute(ViewPart, frozen=True, kw_only=True):
    """A property."""

    name: Annotated[str, REQUIRED, "Name of the property."] = always("")
    value: Annotated[str, REQUIRED, "Value of the property."] = always("")


class ZoneResource(ViewPart, frozen=True, kw_only=True):
    """One resource of a zone."""

    name: Annotated[str, REQUIRED, "Name of the resource."] = always("")
    capacity: Annotated[RawQuantity, REQUIRED, "What the zone has."] = always(0)
    allocatable: Annotated[RawQuantity, REQUIRED, "What pods may request of it."] = always(0)
    available: Annotated[RawQuantity, REQUIRED, "What pods have not yet requested."] = always(0)


class Zone(ViewPart, frozen=True, kw_only=True):
    """A part of the node, such as a NUMA node."""

    name: Annotated[str, REQUIRED, "Name of the zone, such as node-0."] = always("")
    type: Annotated[str, REQUIRED, "What the zone is, such as Node."] = always("")
    parent: Annotated[str, "The zone that this one is a part of."] = ""
    costs: Annotated[list[ZoneCost], "Distances to other zones."] = []
    attributes: Annotated[list[Attribute], "Properties of the zone."] = []
    resources: Annotated[list[ZoneResource], "Resources of the zone."] = []


class NodeResourceTopology(Object, frozen=True, kw_only=True):
    """Zones of the node of the same name with their resources."""

    resource: ClassVar[Resource] = Resource(
        group="topology.node.k8s.io",
        version="v1alpha1",
        kind="NodeResourceTopology",
        plural="noderesourcetopologies",
        namespaced=False,
        short_names=("node-res-topo",),
    )

    topology_policies: Annotated[
        list[str], REQUIRED, "Topology manager policy of the kubelet, such as SingleNUMANodePodLevel."
    ] = always([])
    zones: Annotated[list[Zone], REQUIRED, "Zones of the node."] = always([])


class NodeResourceTopologyV1Alpha2(Object, frozen=True, kw_only=True):
    """Zones of the node of the same name with their resources."""

    resource: ClassVar[Resource] = Resource(
        group="topology.node.k8s.io",
        version="v1alpha2",
        kind="NodeResourceTopology",
        plural="noderesourcetopologies",
        namespaced=False,
        short_names=("node-res-topo",),
    )

    topology_policies: Annotated[list[str], "The old form of the topology manager's attributes."] = []
    zones: Annotated[list[Zone], REQUIRED, "Zones of the node."] = always([])
    attributes: Annotated[
        list[Attribute], "Properties of the node, such as its topology manager policy."
    ] = []
