"""List which plugins run where unless the configuration says otherwise, and the shipped profile.

Source: behaviour/scheduler A3 (the shipped profile) and B1 (the stock plugins, in the stock order).
"""

import msgspec

from koordinator.scheduler.config.config import (
    LeaderElection,
    PluginConfig,
    PluginRef,
    Plugins,
    PluginSet,
    ProfileConfig,
    SchedulerConfig,
)

FIT = "NodeResourcesFit"

MULTI_POINT = (
    PluginRef(name="SchedulingGates"),
    PluginRef(name="PrioritySort"),
    PluginRef(name="NodeUnschedulable"),
    PluginRef(name="NodeName"),
    PluginRef(name="TaintToleration", weight=3),
    PluginRef(name="NodeAffinity", weight=2),
    PluginRef(name="NodePorts"),
    PluginRef(name=FIT, weight=1),
    PluginRef(name="VolumeRestrictions"),
    PluginRef(name="NodeVolumeLimits"),
    PluginRef(name="VolumeBinding"),
    PluginRef(name="VolumeZone"),
    PluginRef(name="PodTopologySpread", weight=2),
    PluginRef(name="InterPodAffinity", weight=2),
    PluginRef(name="DynamicResources"),
    PluginRef(name="DefaultPreemption"),
    PluginRef(name="NodeResourcesBalancedAllocation", weight=1),
    PluginRef(name="ImageLocality", weight=1),
    PluginRef(name="DefaultBinder"),
)
"""The stock default plugins."""

NOT_BUILT_IN = frozenset(("Reservation", "DeviceShare"))
"""Names that configurations may use although this version has no such plugin: left out with a warning. The shipped
profile names none of them."""


def _on(*names: str, only: bool = False) -> PluginSet:
    return _weighted(*((name, 0) for name in names), only=only)


def _weighted(*plugins: tuple[str, int], only: bool = False) -> PluginSet:
    """These plugins, of those that there are."""
    disabled = [PluginRef(name="*")] if only else []
    enabled = [PluginRef(name=name, weight=weight) for name, weight in plugins if name not in NOT_BUILT_IN]
    return PluginSet(enabled=enabled, disabled=disabled)


SHIPPED_PLUGINS = Plugins(
    pre_enqueue=_on("Coscheduling"),
    queue_sort=_on("PrioritySort", only=True),
    pre_filter=_on(
        "SchedulingHint", "Reservation", "NodeNUMAResource", "DeviceShare", "Coscheduling", "ElasticQuota"
    ),
    filter=_on("LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Reservation"),
    # The reference leaves DynamicResources out here, and with it what frees devices on the wrong nodes.
    post_filter=_on(
        "Reservation", "Coscheduling", "ElasticQuota", "DynamicResources", "DefaultPreemption", only=True
    ),
    pre_score=_on("Reservation", "Coscheduling"),
    score=_weighted(
        ("LoadAwareScheduling", 1),
        ("NodeNUMAResource", 1),
        ("DeviceShare", 1),
        ("Reservation", 5000),
        ("Coscheduling", 1),
    ),
    reserve=_on(
        "LoadAwareScheduling",
        "NodeNUMAResource",
        "DeviceShare",
        "Reservation",
        "Coscheduling",
        "ElasticQuota",
    ),
    permit=_on("Coscheduling"),
    pre_bind=_on("NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "DefaultPreBind"),
    bind=_on("Reservation", "DefaultBinder", only=True),
    post_bind=_on("Coscheduling"),
)

SHIPPED_ARGS = [
    PluginConfig(
        name=FIT,
        args={
            "scoringStrategy": {
                "type": "LeastAllocated",
                "resources": [
                    {"name": "cpu", "weight": 1},
                    {"name": "memory", "weight": 1},
                    {"name": "kubernetes.io/batch-cpu", "weight": 1},
                    {"name": "kubernetes.io/batch-memory", "weight": 1},
                ],
            }
        },
    ),
    PluginConfig(
        name="LoadAwareScheduling",
        args={
            "filterExpiredNodeMetrics": False,
            "nodeMetricExpirationSeconds": 300,
            "resourceWeights": {"cpu": 1, "memory": 1},
            "usageThresholds": {"cpu": 0, "memory": 0},
            "estimatedScalingFactors": {"cpu": 85, "memory": 70},
        },
    ),
]


def shipped_profile(scheduler_name: str = "koord-scheduler") -> ProfileConfig:
    """Return the profile that an installation brings."""
    return ProfileConfig(scheduler_name=scheduler_name, plugins=SHIPPED_PLUGINS, plugin_config=SHIPPED_ARGS)


def shipped_config(*scheduler_names: str) -> SchedulerConfig:
    """Return the configuration that an installation brings, serving each of the names."""
    names = scheduler_names or ("koord-scheduler",)
    return SchedulerConfig(
        leader_election=LeaderElection(
            resource_name="koord-scheduler", resource_namespace="koordinator-system"
        ),
        profiles=[shipped_profile(name) for name in names],
    )


def without_managed_resources(config: SchedulerConfig) -> SchedulerConfig:
    """Return the configuration in which NodeResourcesFit leaves to extenders what they alone look after."""
    names = {
        resource.name
        for extender in config.extenders
        for resource in extender.managed_resources
        if resource.ignored_by_scheduler
    }
    if not names:
        return config
    profiles = []
    for profile in config.profiles or [shipped_profile()]:
        others = [each for each in profile.plugin_config if each.name != FIT]
        args = next((dict(each.args) for each in profile.plugin_config if each.name == FIT), {})
        args["ignoredResources"] = sorted({*args.get("ignoredResources", []), *names})
        fit = PluginConfig(name=FIT, args=args)
        profiles.append(msgspec.structs.replace(profile, plugin_config=[*others, fit]))
    return msgspec.structs.replace(config, profiles=profiles)
