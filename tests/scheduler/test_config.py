"""The configuration file: what is accepted, what is refused and how that is said, how plugins merge."""

import pytest

from koordinator.scheduler import config, default_plugins
from koordinator.scheduler.config import ConfigError, PluginRef, Plugins, PluginSet
from koordinator.scheduler.plugins import built_in
from koordinator.scheduler.profile import merge_plugins, missing_plugins

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def names(refs: list[PluginRef]) -> list[str]:
    return [ref.name for ref in refs]


def enabled(*refs: tuple[str, int], disabled: tuple[str, ...] = ()) -> PluginSet:
    return PluginSet(
        enabled=[PluginRef(name=name, weight=weight) for name, weight in refs],
        disabled=[PluginRef(name=name) for name in disabled],
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param(HEAD + "profile: []", "unknown field `profile`", id="misspelt field"),
        pytest.param("kind: Pod", "kind must be KubeSchedulerConfiguration", id="another kind"),
        pytest.param(
            HEAD + "profiles: [{percentageOfNodesToScore: 101}]",
            "$.profiles[0].percentageOfNodesToScore: Expected `int` <= 100",
            id="out of range",
        ),
        pytest.param(
            HEAD + "podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 2",
            "podMaxBackoffSeconds must not be below",
            id="backoffs the wrong way round",
        ),
        pytest.param(
            HEAD + "profiles: [{schedulerName: a}, {schedulerName: a}]", "'a' appears twice", id="same name"
        ),
        pytest.param(HEAD + "extenders: [{urlPrefix: http://x}]", "not supported", id="extenders"),
        pytest.param("a: [", "no YAML", id="broken YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("plugin", "args", "complaint"),
    [
        pytest.param("LoadAwareScheduling", {"usageThresholds": {"cpu": 101}}, "<= 100", id="threshold"),
        pytest.param(
            "LoadAwareScheduling", {"resourceWeights": {"x/y": 1}}, "needs an entry", id="weight alone"
        ),
        pytest.param(
            "LoadAwareScheduling", {"aggregated": {"usageAggregationType": "p42"}}, "'p42'", id="percentile"
        ),
        pytest.param(
            "NodeResourcesFit",
            {"scoringStrategy": {"type": "RequestedToCapacityRatio"}},
            "at least one point",
            id="no shape",
        ),
        pytest.param("NodeResourcesFit", {"kind": "OtherArgs"}, "expected NodeResourcesFitArgs", id="kind"),
    ],
)
def test_wrong_arguments_name_the_plugin(plugin: str, args: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.decode_args(plugin, args, built_in.PLUGINS[plugin].args)
    assert f"pluginConfig[{plugin}].args" in str(caught.value)
    assert complaint in str(caught.value)


def test_without_configuration_the_stock_plugins_run_in_their_order() -> None:
    merged = merge_plugins(None, built_in.PLUGINS)

    assert names(merged["filter"]) == [
        "NodeUnschedulable",
        "NodeName",
        "TaintToleration",
        "NodeAffinity",
        "NodePorts",
        "NodeResourcesFit",
        "VolumeRestrictions",
        "NodeVolumeLimits",
        "VolumeBinding",
        "VolumeZone",
        "PodTopologySpread",
        "InterPodAffinity",
    ]
    weights = {ref.name: ref.weight for ref in merged["score"]}
    assert (weights["TaintToleration"], weights["NodeAffinity"], weights["NodeResourcesFit"]) == (3, 2, 1)
    assert names(merged["pre_bind"]) == ["VolumeBinding"]


def test_the_shipped_profile_appends_to_the_stock_plugins() -> None:
    merged = merge_plugins(default_plugins.SHIPPED_PLUGINS, built_in.PLUGINS)

    assert names(merged["filter"])[-1] == "LoadAwareScheduling"
    assert names(merged["bind"]) == ["DefaultBinder"]
    assert names(merged["pre_bind"]) == ["VolumeBinding", "DefaultPreBind"]
    assert "NodeNUMAResource" in missing_plugins(default_plugins.shipped_config(), built_in.PLUGINS)


def test_a_plugin_listed_again_takes_the_new_weight_and_comes_first() -> None:
    plugins = Plugins(score=enabled(("NodeAffinity", 7)))
    merged = merge_plugins(plugins, built_in.PLUGINS)

    assert (merged["score"][0].name, merged["score"][0].weight) == ("NodeAffinity", 7)
    assert names(merged["score"]).count("NodeAffinity") == 1
    assert names(merged["pre_bind"]) == ["VolumeBinding", "DefaultPreBind"]


def test_a_star_takes_all_defaults_out_of_a_point() -> None:
    merged = merge_plugins(Plugins(filter=enabled(("NodePorts", 0), disabled=("*",))), built_in.PLUGINS)

    assert names(merged["filter"]) == ["NodePorts"]
    assert "NodeResourcesFit" in names(merged["score"])


@pytest.mark.parametrize(
    ("plugins", "complaint"),
    [
        pytest.param(Plugins(filter=enabled(("Nonsense", 0))), "no plugin is called", id="unknown"),
        pytest.param(Plugins(filter=enabled(("PrioritySort", 0))), "does not implement", id="wrong point"),
        pytest.param(Plugins(bind=PluginSet(disabled=[PluginRef(name="*")])), "at least one", id="no bind"),
        pytest.param(
            Plugins(queue_sort=PluginSet(disabled=[PluginRef(name="*")])), "exactly one", id="no sort"
        ),
        pytest.param(Plugins(score=enabled(("NodeAffinity", 1), ("NodeAffinity", 2))), "twice", id="twice"),
        pytest.param(Plugins(score=enabled(("NodeAffinity", 30_000_000))), "add up", id="weights"),
    ],
)
def test_plugin_lists_that_cannot_work_are_refused(plugins: Plugins, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        merge_plugins(plugins, built_in.PLUGINS)
    assert complaint in str(caught.value)
