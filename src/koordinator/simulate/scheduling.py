"""The scheduler's configuration in a simulation: the shipped profile, with or without load awareness."""

from typing import Any

import msgspec

from koordinator.scheduler.config import config, default_plugins
from koordinator.scheduler.config.config import PluginSet, SchedulerConfig

LOAD_AWARE = "LoadAwareScheduling"
# The shipped thresholds are 0 (filter off). 55 % for CPU is ten points below where the node agent suppresses
# batch: what is placed now shall still run when services wake up.
LOAD_AWARE_ARGS: dict[str, Any] = {
    "filterExpiredNodeMetrics": True,
    "nodeMetricExpirationSeconds": 600,
    "resourceWeights": {"cpu": 1, "memory": 1},
    "usageThresholds": {"cpu": 55, "memory": 75},
    "estimatedScalingFactors": {"cpu": 85, "memory": 70},
}


def scheduler_config(*, load_aware: bool) -> SchedulerConfig:
    """The shipped profile; load awareness filters by the thresholds above, or is not there at all."""
    shipped = default_plugins.shipped_profile()
    assert shipped.plugins is not None
    plugins = shipped.plugins
    args = [c for c in shipped.plugin_config if c.name != LOAD_AWARE]
    if load_aware:
        args.append(config.PluginConfig(name=LOAD_AWARE, args=LOAD_AWARE_ARGS))
    else:
        points = {name: _without(getattr(plugins, name), LOAD_AWARE) for name in plugins.__struct_fields__}
        plugins = config.Plugins(**points)
    profile = msgspec.structs.replace(shipped, plugins=plugins, plugin_config=args)
    return SchedulerConfig(profiles=[profile])


def _without(points: PluginSet, plugin: str) -> PluginSet:
    return PluginSet(
        enabled=[ref for ref in points.enabled if ref.name != plugin], disabled=list(points.disabled)
    )
