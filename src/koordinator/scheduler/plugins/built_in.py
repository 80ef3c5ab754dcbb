"""The plugins of this package by name; other packages add theirs through entry points."""

from typing import Any

from koordinator.cluster import plugin_registry
from koordinator.cluster.plugin_registry import PluginRegistry
from koordinator.scheduler.plugin.framework import ENTRY_POINTS, Plugin
from koordinator.scheduler.plugins.batch_duration import BatchDuration
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.plugins.default_binder import DefaultBinder, DefaultPreBind
from koordinator.scheduler.plugins.device_share.plugin import DeviceShare
from koordinator.scheduler.plugins.dynamic_resources.plugin import DynamicResources
from koordinator.scheduler.plugins.elastic_quota.plugin import ElasticQuota
from koordinator.scheduler.plugins.fragmentation.plugin import FragmentationGradient
from koordinator.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity
from koordinator.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from koordinator.scheduler.plugins.node_filters import (
    NodeAffinity,
    NodeName,
    NodePorts,
    NodeUnschedulable,
    RequiresIsolation,
    TaintToleration,
)
from koordinator.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from koordinator.scheduler.plugins.node_resources_fit import NodeResourcesFit
from koordinator.scheduler.plugins.pod_rules import (
    PrioritySort,
    RequiredReservation,
    SchedulingGates,
    SchedulingHint,
)
from koordinator.scheduler.plugins.preemption.plugin import DefaultPreemption
from koordinator.scheduler.plugins.reservation.plugin import ReservationPlugin
from koordinator.scheduler.plugins.scorers import (
    ImageLocality,
    NodeResourcesBalancedAllocation,
    NodeResourcesFitPlus,
    ScarceResourceAvoidance,
)
from koordinator.scheduler.plugins.topology_spread.plugin import PodTopologySpread
from koordinator.scheduler.plugins.volumes.binding import VolumeBinding
from koordinator.scheduler.plugins.volumes.limits import NodeVolumeLimits
from koordinator.scheduler.plugins.volumes.restrictions import VolumeRestrictions, VolumeZone

PLUGINS: dict[str, type[Plugin[Any]]] = {
    plugin.name: plugin
    for plugin in (
        BatchDuration,
        Coscheduling,
        DefaultBinder,
        DefaultPreBind,
        DefaultPreemption,
        DeviceShare,
        DynamicResources,
        ElasticQuota,
        FragmentationGradient,
        ImageLocality,
        InterPodAffinity,
        LoadAwareScheduling,
        NodeAffinity,
        NodeName,
        NodeNUMAResource,
        NodePorts,
        NodeResourcesBalancedAllocation,
        NodeResourcesFit,
        NodeResourcesFitPlus,
        NodeUnschedulable,
        NodeVolumeLimits,
        PodTopologySpread,
        PrioritySort,
        RequiredReservation,
        RequiresIsolation,
        ReservationPlugin,
        ScarceResourceAvoidance,
        SchedulingGates,
        SchedulingHint,
        TaintToleration,
        VolumeBinding,
        VolumeRestrictions,
        VolumeZone,
    )
}


def installed_plugins() -> PluginRegistry[Plugin[Any]]:
    """Return the plugins of this package and those of all installed packages."""
    return plugin_registry.installed(Plugin, PLUGINS, ENTRY_POINTS)
