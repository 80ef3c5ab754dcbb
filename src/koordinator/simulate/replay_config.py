"""The configurations of replays: nothing is evicted, and `--gpu share` places pods by one score."""

from msgspec.structs import replace

from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig, PluginRef, Plugins, PluginSet, SchedulerConfig
from koordinator.simulate.replay_options import GpuScore

_DEVICE_SHARE = "DeviceShare"
_FIT_RESOURCES = ("cpu", "memory", "koordinator.sh/gpu-core")


def without_preemption(config: SchedulerConfig) -> SchedulerConfig:
    """Return the configuration with no PostFilter plugins."""
    none = PluginSet(disabled=[PluginRef(name="*")])
    profiles = [
        replace(profile, plugins=replace(profile.plugins or Plugins(), post_filter=none))
        for profile in config.profiles
    ]
    return replace(config, profiles=profiles)


def config_of(score: GpuScore) -> SchedulerConfig:
    """Return the shipped profile with one score in place of all others."""
    own, shipped = _args(score), default_plugins.shipped_config()
    names = {each.name for each in own}
    profiles = [
        replace(
            profile,
            plugins=replace(profile.plugins or Plugins(), score=_scorers(score)),
            plugin_config=[*(each for each in profile.plugin_config if each.name not in names), *own],
        )
        for profile in shipped.profiles
    ]
    return replace(shipped, profiles=profiles)


def _scorers(score: GpuScore) -> PluginSet:
    names = (
        [score.value] if score is GpuScore.FRAGMENTATION_GRADIENT else [default_plugins.FIT, _DEVICE_SHARE]
    )
    return PluginSet(
        enabled=[PluginRef(name=name, weight=1) for name in names], disabled=[PluginRef(name="*")]
    )


def _args(score: GpuScore) -> list[PluginConfig]:
    if score is GpuScore.FRAGMENTATION_GRADIENT:
        return []
    counted = [{"name": name, "weight": 1} for name in _FIT_RESOURCES]
    fit = {"scoringStrategy": {"type": score.value, "resources": counted}}
    return [
        PluginConfig(
            name=default_plugins.FIT, args={"ignoredResources": ["koordinator.sh/gpu.shared"], **fit}
        ),
        PluginConfig(name=_DEVICE_SHARE, args={"scoringStrategy": {"type": score.value}}),
    ]
