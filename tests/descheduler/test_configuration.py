"""The configuration file: strict, all problems at once, defaults merged as the reference merges them; and plugins of
other packages."""

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from koordinator.cluster import plugin_registry
from koordinator.descheduler import configuration
from koordinator.descheduler.configuration import DeschedulerConfig, DeschedulerConfigError
from koordinator.descheduler.plugin import (
    ENTRY_POINTS,
    Actions,
    BalancePlugin,
    DeschedulePlugin,
    Observation,
    Plugin,
)
from koordinator.descheduler.plugins.built_in import BUILT_IN, installed_plugins
from koordinator.descheduler.plugins.stock.common import CommonArgs
from koordinator.descheduler.plugins.stock.strategies import STRATEGIES
from koordinator.install import configs

HEAD = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n"


class Installed(DeschedulePlugin):
    """A plugin of another package."""

    name = "Installed"

    def deschedule(self, seen: Observation) -> Actions[None]:
        yield from ()


def parsed(text: str) -> DeschedulerConfig:
    return configuration.parse(HEAD + text, installed_plugins())


def problems(text: str) -> list[str]:
    with pytest.raises(DeschedulerConfigError) as caught:
        parsed(text)
    return [str(one) for one in caught.value.problems]


@pytest.mark.parametrize("text", ["", "profiles: []\n"])
def test_a_file_that_says_nothing_runs_one_profile_that_only_carries_out_jobs(text: str) -> None:
    config = parsed(text)

    [profile] = config.profiles
    assert (profile.name, config.interval_s) == ("koord-descheduler", 0.0)
    assert profile.enabled.evict == profile.enabled.filter == ["MigrationController"]
    assert profile.enabled.deschedule == profile.enabled.balance == []
    assert configuration.socket_address(config.healthz_bind_address) == ("0.0.0.0", 10251)


def test_what_does_not_fit_is_told_at_once_with_its_place() -> None:
    found = problems(
        "dryrun: true\ndeschedulingInterval: soon\nmaxNoOfPodsToEvictTotal: -1\n"
        "nodeSelector: {matchLables: {pool: a}}\n"
    )

    assert [one.partition(":")[0] for one in found] == [
        "dryrun",
        "deschedulingInterval",
        "maxNoOfPodsToEvictTotal",
        "nodeSelector.matchLables",
    ]
    assert 'did you mean "dryRun"?' in found[0]


def test_what_contradicts_itself_is_told_for_each_plugin() -> None:
    found = problems("""
healthzBindAddress: nowhere
leaderElection: {leaseDuration: 5s}
profiles:
- name: a
  plugins:
    balance: {enabled: [{name: LowNodeLod}, {name: PodLifeTime}]}
    evict: {enabled: [{name: DefaultEvictor}]}
  pluginConfig:
  - name: LowNodeLoad
    args: {lowThresholds: {cpu: 80}, highThresholds: {cpu: 50}, numberOfNode: 1}
  - name: MigrationController
    args: {evictQPS: 0}
- name: a
""")

    for told in (
        "leaderElection.leaseDuration: must be greater than renewDeadline",
        "healthzBindAddress: 'nowhere' is no host:port",
        "profiles[0].name: 'a' appears twice",
        "profiles[0].plugins.balance: no plugin is called 'LowNodeLod'; did you mean 'LowNodeLoad'?",
        "profiles[0].plugins.balance: PodLifeTime cannot be enabled here, only at deschedule",
        "profiles[0].plugins.evict: only one evict plugin can be enabled",
        'profiles[0].pluginConfig[0].args.numberOfNode: unknown field "numberOfNode"'
        ' (did you mean "numberOfNodes"?)',
        "profiles[0].pluginConfig[1].args.evictQPS: 0 is not above 0",
    ):
        assert told in found, found


@pytest.mark.parametrize("disabled", ["", "disabled: [{name: MigrationController}], "])
def test_a_default_that_is_enabled_twice_is_told(disabled: str) -> None:
    found = problems(f"""
profiles:
- plugins:
    filter: {{{disabled}enabled: [{{name: MigrationController}}, {{name: MigrationController}}]}}
""")
    assert any("MigrationController" in one and "twice" in one for one in found), found


def test_two_profiles_cannot_want_the_shared_controller_in_two_ways() -> None:
    [told] = problems("""
profiles:
- {name: a}
- name: b
  pluginConfig: [{name: MigrationController, args: {evictBurst: 5}}]
""")
    assert "they share a controller" in told


def test_arguments_of_stock_plugins_may_have_members_that_we_do_not_know() -> None:
    plugins = "plugins: {deschedule: {enabled: [{name: PodLifeTime}]}}"
    args = "{name: PodLifeTime, args: {maxPodLifeTimeSeconds: 60, later: true}}"
    parsed(f"profiles:\n- {plugins}\n  pluginConfig: [{args}]\n")
    assert "maxPodLifeTimeSeconds" in problems(f"profiles:\n- {plugins}\n")[0]


def test_arguments_that_would_fail_in_every_cycle_are_refused_at_the_start() -> None:
    def problem(kind: Any, args: str) -> str:
        point = "balance" if issubclass(kind, BalancePlugin) else "deschedule"
        plugins = f"plugins: {{{point}: {{enabled: [{{name: {kind.name}}}]}}}}"
        config = f"pluginConfig: [{{name: {kind.name}, args: {{{args}}}}}]"
        return " ".join(problems(f"profiles:\n- {plugins}\n  {config}\n"))

    both = "namespaces: {include: [a], exclude: [b]}"
    selector = "labelSelector: {matchExpressions: [{key: app, operator: Has}]}"
    for kind in STRATEGIES:
        if issubclass(kind.args, CommonArgs):
            assert "only one of include and exclude may be set" in problem(kind, both)
            assert "unknown operator 'Has'" in problem(kind, selector)


def test_a_storage_class_of_default_evictor_has_a_name() -> None:
    [told] = problems("""
profiles:
- plugins: {filter: {enabled: [{name: DefaultEvictor}]}}
  pluginConfig:
  - name: DefaultEvictor
    args: {podProtections: {extraEnabled: [PodsWithPVC], config: {PodsWithPVC: {protectedStorageClasses: [fast]}}}}
""")
    assert "config.PodsWithPVC.protectedStorageClasses[0]" in told


def test_the_shipped_configuration_is_one_that_is_accepted() -> None:
    config = configuration.parse(configs.shipped_descheduling("ours", "10251"), installed_plugins())
    assert config.leader_election.resource_namespace == "ours"


def test_plugins_of_other_packages_are_found_by_their_entry_points() -> None:
    good = EntryPoint("Installed", f"{__name__}:Installed", ENTRY_POINTS)
    misnamed = EntryPoint("Other", f"{__name__}:Installed", ENTRY_POINTS)
    broken = EntryPoint("Broken", "no_such_module:X", ENTRY_POINTS)
    taken = EntryPoint("LowNodeLoad", f"{__name__}:Installed", ENTRY_POINTS)

    found = plugin_registry.read_entries(Plugin, BUILT_IN, [good, misnamed, broken, taken])

    assert found["Installed"] is Installed
    assert found["LowNodeLoad"] is BUILT_IN["LowNodeLoad"]
    assert found.unusable.keys() == {"Other", "Broken"}
    assert "no_such_module" in plugin_registry.why_missing("Broken", found, ENTRY_POINTS)
