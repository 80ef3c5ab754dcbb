"""What a local cluster's scheduler is given."""

import pytest

from koordinator.local.cluster import scheduler_config
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig, ProfileConfig, SchedulerConfig


def profile(name: str, **args: bool) -> ProfileConfig:
    return ProfileConfig(scheduler_name=name, plugin_config=[PluginConfig(name="Coscheduling", args=args)])


@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        pytest.param(
            [profile("koord-scheduler", enablePreemption=True)],
            profile("default-scheduler", enablePreemption=True),
            id="what was changed counts for everybody",
        ),
        pytest.param(
            [profile("koord-scheduler"), profile("default-scheduler", enablePreemption=True)],
            profile("default-scheduler", enablePreemption=True),
            id="an own one stays",
        ),
        pytest.param(
            [profile("mine", enablePreemption=True)],
            default_plugins.shipped_profile("default-scheduler"),
            id="beside another one the shipped one",
        ),
    ],
)
def test_pods_that_name_no_scheduler_are_placed_too(
    profiles: list[ProfileConfig], expected: ProfileConfig
) -> None:
    found = scheduler_config(SchedulerConfig(profiles=profiles))

    assert [each for each in found.profiles if each.scheduler_name == "default-scheduler"] == [expected]
    assert found.profiles[: len(profiles)] == profiles
