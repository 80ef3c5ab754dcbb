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
    return replace(
        default_plugins.shipped_config(),
        profiles=[
            replace(
                profile,
                plugins=replace(profile.plugins or Plugins(), score=_scorers(score)),
                plugin_config=[*_others(profile.plugin_config, score), *_args(score)],
            )
            for profile in default_plugins.shipped_config().profiles
        ],
    )


def _scorers(score: GpuScore) -> PluginSet:
    names = (
        [score.value] if score is GpuScore.FRAGMENTATION_GRADIENT else [default_plugins.FIT, _DEVICE_SHARE]
    )
    return PluginSet(
        enabled=[PluginRef(name=name, weight=1) for name in names], disabled=[PluginRef(name="*")]
    )


def _others(given: list[PluginConfig], score: GpuScore) -> list[PluginConfig]:
    own = {each.name for each in _args(score)}
    return [each for each in given if each.name not in own]


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
