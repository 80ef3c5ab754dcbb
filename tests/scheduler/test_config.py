"""The configuration file: what is accepted, what is refused and how that is said, how plugins merge."""

from contextlib import nullcontext
from typing import Any

import pytest

from koordinator.scheduler.config import config, default_plugins
from koordinator.scheduler.config.config import PluginRef, Plugins, PluginSet, SchedulerConfigError
from koordinator.scheduler.engine.profile import merge_plugins, read_args, read_plugins
from koordinator.scheduler.plugin.framework import FilterPlugin
from koordinator.scheduler.plugins import built_in

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
        pytest.param(
            HEAD + "profile: []",
            'profile: unknown field "profile" (did you mean "profiles"?)',
            id="misspelt field",
        ),
        pytest.param("kind: Pod", "kind: must be KubeSchedulerConfiguration, not 'Pod'", id="another kind"),
        pytest.param(
            HEAD + "profiles: [{percentageOfNodesToScore: 101}]",
            "profiles[0].percentageOfNodesToScore: Expected `int` <= 100, got 101",
            id="out of range",
        ),
        pytest.param(
            HEAD + "podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 2",
            "podMaxBackoffSeconds: must not be below podInitialBackoffSeconds (5)",
            id="backoffs the wrong way round",
        ),
        pytest.param(
            HEAD + "profiles: [{schedulerName: a}, {schedulerName: a}]", "'a' appears twice", id="same name"
        ),
        pytest.param(
            HEAD + "profiles: [{schedulerName: a}, {}]",
            "profiles[1].schedulerName: must not be empty",
            id="one of two profiles without a name",
        ),
        pytest.param(
            HEAD + "extenders: [{urlPrefix: 'http://x', prioritizeVerb: score}]",
            "extenders[0].weight: must be positive",
            id="extender without a weight",
        ),
        pytest.param(
            HEAD + "extenders: [{urlPrefix: 'http://x', bindVerb: b}, {urlPrefix: 'http://y', bindVerb: b}]",
            "extenders[1].bindVerb",
            id="two extenders that bind",
        ),
        pytest.param(
            HEAD + "parallelism: 1\nparallelism: 2",
            'line 4: key "parallelism" already set in map',
            id="key twice",
        ),
        pytest.param(
            HEAD + "leaderElection: {leaseDuration: soon}", "leaderElection.leaseDuration: ", id="no duration"
        ),
        pytest.param(
            HEAD + "leaderElection: {leaseDuration: 5s}",
            "leaderElection.leaseDuration: must be greater than renewDeadline",
            id="lease ends before it is renewed",
        ),
        pytest.param(
            HEAD + "leaderElection: {resourceLock: endpoints}",
            'resourceLock: must be "leases"',
            id="resource lock",
        ),
        pytest.param("parallelism: 2", "apiVersion: is missing; write kubescheduler", id="no version"),
        pytest.param(
            "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration",
            "must be kubescheduler.config.k8s.io/v1, not 'kubescheduler.config.k8s.io/v1beta3'",
            id="old version",
        ),
        pytest.param("a: [", "no YAML", id="broken YAML"),
        pytest.param(
            HEAD + "extenders: [{urlPrefix: 'ftp://x'}]", "extenders[0].urlPrefix: 'ftp://x' is not", id="ftp"
        ),
        pytest.param(
            HEAD + "extenders: [{urlPrefix: 'http://x', httpTimeout: -1ms}]",
            "extenders[0].httpTimeout: must not be negative",
            id="negative timeout",
        ),
        *(
            pytest.param(
                HEAD + f"extenders: [{{urlPrefix: 'http://x', managedResources: [{{name: {name}}}]}}]",
                "extenders[0].managedResources[0].name",
                id=f"managed {name}",
            )
            for name in ("cpu", "kubernetes.io/x", "a.kubernetes.io/x")
        ),
        pytest.param(
            HEAD + "extenders: [{urlPrefix: 'http://x', managedResources: [{name: x.io/y}]}, "
            "{urlPrefix: 'http://y', managedResources: [{name: x.io/z}, {name: x.io/y}]}]",
            "extenders[1].managedResources[1].name: 'x.io/y' is managed by extenders[0] too",
            id="managed twice",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(SchedulerConfigError) as caught:
        config.parse(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "profiles: [{percentageOfNodesToScore: 100}]",
        "profiles: [{percentageOfNodesToScore: 0}]",
        "podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 5",
        "parallelism: 1",
        "leaderElection: {leaseDuration: 11s, renewDeadline: 10s}",
        "profiles: [{schedulerName: a}, {schedulerName: b}]",
        "extenders: [{urlPrefix: 'http://x', prioritizeVerb: score, weight: 1, httpTimeout: 0s}]",
        "extenders: [{urlPrefix: 'https://x', bindVerb: b, httpTimeout: 1ms}, {urlPrefix: 'http://y'}]",
        "extenders: [{urlPrefix: 'http://x', weight: 0, managedResources: [{name: mykubernetes.io/y}]}]",
    ],
)
def test_what_is_just_allowed_is_read(text: str) -> None:
    config.parse(HEAD + text)


def test_all_mistakes_of_a_file_are_reported_at_once() -> None:
    text = HEAD + "parallelism: 0\nprofiles:\n- schedulerName: a\n  plugin: {}\n- schedulerName: 3\n"

    with pytest.raises(SchedulerConfigError) as caught:
        config.parse(text)

    assert [problem.field for problem in caught.value.problems] == [
        "parallelism",
        "profiles[0].plugin",
        "profiles[1].schedulerName",
    ]
    assert str(caught.value).startswith("scheduler configuration: 3 problems:\n  parallelism: ")


def test_mistakes_in_arguments_are_found_at_their_place_in_the_file() -> None:
    fit = {
        "name": "NodeResourcesFit",
        "args": {"scoringStrategy": {"resources": [{"name": "cpu", "weight": 101}]}},
    }
    spread = {"name": "PodTopologySpread", "args": {"defaultConstraint": []}}
    gang = {"name": "Coscheduling", "args": {"controllerWorkers": 0}}
    unknown = {"name": "Nonsense"}
    settings = config.decode(
        {"profiles": [{}, {"schedulerName": "b", "pluginConfig": [fit, spread, gang, unknown]}]}
    )

    with pytest.raises(SchedulerConfigError) as caught:
        read_args(settings.profiles, built_in.PLUGINS)

    assert [problem.field for problem in caught.value.problems] == [
        "profiles[1].pluginConfig[0].args.scoringStrategy.resources[0].weight",
        "profiles[1].pluginConfig[1].args.defaultConstraint",
        "profiles[1].pluginConfig[2].args.controllerWorkers",
        "profiles[1].pluginConfig[3].name",
    ]


def test_mistakes_in_plugin_lists_are_found_at_their_place_in_the_file() -> None:
    wrong = {"plugins": {"preFilter": {"enabled": [{"name": "PrioritySort"}]}}}
    double = {"plugins": {"score": {"enabled": [{"name": "NodeAffinity"}, {"name": "NodeAffinity"}]}}}
    fit = {"pluginConfig": [{"name": "NodeResourcesFit", "args": {"ignored": []}}]}
    bodies = [{"schedulerName": name, **body} for name, body in (("a", wrong), ("b", double), ("c", fit))]

    with pytest.raises(SchedulerConfigError) as caught:
        read_plugins(config.decode({"profiles": bodies}).profiles, built_in.PLUGINS)

    assert [problem.field for problem in caught.value.problems] == [
        "profiles[0].plugins.preFilter.enabled",
        "profiles[1].plugins.score.enabled",
        "profiles[2].pluginConfig[0].args.ignored",
    ]


def test_a_file_without_a_scheduler_name_replaces_the_stock_scheduler() -> None:
    for text in (HEAD, HEAD + "profiles: [{percentageOfNodesToScore: 50}]", HEAD + "profiles: null"):
        assert [profile.scheduler_name for profile in config.parse(text).profiles] == ["default-scheduler"]
    assert config.parse(HEAD).leader_election.resource_name == "kube-scheduler"


@pytest.mark.parametrize(("qps", "limit"), [(None, None), (-1, None), (0, 50.0), (20, 20.0)])
def test_requests_are_limited_when_the_file_says_so(qps: float | None, limit: float | None) -> None:
    settings = config.decode({"clientConnection": {"qps": qps, "burst": 30}})
    assert (settings.client_connection.requests_per_s, settings.client_connection.burst) == (limit, 30)


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
        pytest.param("NodeResourcesFit", {"kind": "OtherArgs"}, "must be NodeResourcesFitArgs", id="kind"),
        pytest.param(
            "NodeAffinity",
            {"addedAffinity": {"requiredDuringScheduling": {}}},
            'unknown field "requiredDuringScheduling"',
            id="a field of an API object",
        ),
        pytest.param(
            "NodeResourcesBalancedAllocation",
            {"resources": [{"name": "cpu"}, {"name": "cpu"}]},
            "named once",
            id="a resource twice",
        ),
        pytest.param("DynamicResources", {"filterTimeout": "-1s"}, "is negative", id="negative timeout"),
        pytest.param(
            "DynamicResources", {"bindingTimeout": "900ms"}, "less than a second", id="short timeout"
        ),
    ],
)
def test_wrong_arguments_name_the_plugin(plugin: str, args: dict[str, object], complaint: str) -> None:
    with pytest.raises(SchedulerConfigError) as caught:
        config.decode_args(plugin, args, built_in.PLUGINS[plugin].args)
    assert f"pluginConfig[{plugin}].args" in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("condition", "complaint"),
    [
        ({"key": "zone", "operator": "Is", "values": ["a"]}, "operator 'Is' of key 'zone' is unknown"),
        ({"key": "zone", "operator": "NotIn"}, "operator 'NotIn' of key 'zone' needs values"),
        ({"key": "zone", "operator": "Exists", "values": ["a"]}, "takes no values"),
        ({"key": "zone", "operator": "Gt", "values": ["1.5"]}, "needs one whole number"),
        ({"key": "zone", "operator": "Lt", "values": [str(1 << 63)]}, "of at most 64 bits"),
        ({"key": "zone", "operator": "Gt", "values": ["-1"]}, ""),
        ({"key": "zone", "operator": "In", "values": ["a", "b"]}, ""),
    ],
)
def test_an_affinity_that_is_added_to_all_pods_must_be_possible(
    condition: dict[str, object], complaint: str
) -> None:
    term = {"matchExpressions": [condition]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]}
    for added in (required, preferred):
        expected = pytest.raises(SchedulerConfigError, match=complaint) if complaint else nullcontext()
        with expected:
            config.decode_args(
                "NodeAffinity", {"addedAffinity": added}, built_in.PLUGINS["NodeAffinity"].args
            )


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
        "DynamicResources",
    ]
    weights = {ref.name: ref.weight for ref in merged["score"]}
    assert weights == {
        "TaintToleration": 3,
        "NodeAffinity": 2,
        "NodeResourcesFit": 1,
        "VolumeBinding": 1,
        "PodTopologySpread": 2,
        "InterPodAffinity": 2,
        "DynamicResources": 2,
        "NodeResourcesBalancedAllocation": 1,
        "ImageLocality": 1,
    }
    assert names(merged["pre_bind"]) == ["VolumeBinding", "DynamicResources"]
    assert names(merged["post_filter"]) == ["DynamicResources", "DefaultPreemption"]


def test_the_shipped_profile_appends_to_the_stock_plugins() -> None:
    merged = merge_plugins(default_plugins.SHIPPED_PLUGINS, built_in.PLUGINS)

    assert names(merged["filter"])[-3:] == ["NodeNUMAResource", "DeviceShare", "Reservation"]
    assert names(merged["bind"]) == ["Reservation", "DefaultBinder"]
    assert names(merged["pre_bind"]) == [
        "VolumeBinding",
        "DynamicResources",
        "NodeNUMAResource",
        "DeviceShare",
        "Reservation",
        "Coscheduling",
        "DefaultPreBind",
    ]
    assert names(merged["post_filter"]) == [
        "Reservation",
        "Coscheduling",
        "ElasticQuota",
        "DynamicResources",
        "DefaultPreemption",
    ]


def test_every_profile_keeps_pods_that_require_a_reservation_waiting_unless_reservations_run() -> None:
    class Reservation(FilterPlugin[None]):
        name = "Reservation"

        def filter(self, state: None, rows: Any) -> Any:
            raise NotImplementedError

    with_it = {**built_in.PLUGINS, "Reservation": Reservation}
    own = Plugins(filter=enabled(("Reservation", 0)))
    assert names(merge_plugins(None, built_in.PLUGINS)["pre_filter"])[0] == "RequiredReservation"
    nothing = Plugins(pre_filter=PluginSet(disabled=[PluginRef(name="*")]))
    assert names(merge_plugins(nothing, built_in.PLUGINS)["pre_filter"]) == ["RequiredReservation"]
    assert "RequiredReservation" not in names(merge_plugins(own, with_it)["pre_filter"])


def test_a_plugin_listed_again_takes_the_new_weight_and_comes_first() -> None:
    plugins = Plugins(score=enabled(("NodeAffinity", 7)))
    merged = merge_plugins(plugins, built_in.PLUGINS)

    assert (merged["score"][0].name, merged["score"][0].weight) == ("NodeAffinity", 7)
    assert names(merged["score"]).count("NodeAffinity") == 1
    assert names(merged["pre_bind"]) == ["VolumeBinding", "DynamicResources", "DefaultPreBind"]


def test_a_star_takes_all_defaults_out_of_a_point() -> None:
    merged = merge_plugins(Plugins(filter=enabled(("NodePorts", 0), disabled=("*",))), built_in.PLUGINS)

    assert names(merged["filter"]) == ["NodePorts"]
    assert "NodeResourcesFit" in names(merged["score"])


@pytest.mark.parametrize(
    ("plugins", "complaint"),
    [
        pytest.param(Plugins(filter=enabled(("Nonsense", 0))), "no plugin is called", id="unknown"),
        pytest.param(
            Plugins(pre_filter=enabled(("PrioritySort", 0))), "does not implement preFilter", id="wrong point"
        ),
        pytest.param(Plugins(bind=PluginSet(disabled=[PluginRef(name="*")])), "at least one", id="no bind"),
        pytest.param(
            Plugins(queue_sort=PluginSet(disabled=[PluginRef(name="*")])), "exactly one", id="no sort"
        ),
        pytest.param(Plugins(score=enabled(("NodeAffinity", 1), ("NodeAffinity", 2))), "twice", id="twice"),
        pytest.param(Plugins(score=enabled(("NodeAffinity", 30_000_000))), "add up", id="weights"),
    ],
)
def test_plugin_lists_that_cannot_work_are_refused(plugins: Plugins, complaint: str) -> None:
    with pytest.raises(SchedulerConfigError) as caught:
        merge_plugins(plugins, built_in.PLUGINS)
    assert complaint in str(caught.value)


def test_the_shipped_profile_runs_only_its_own_where_only_one_may_decide() -> None:
    plugins = default_plugins.SHIPPED_PLUGINS
    assert {ref.name: ref.weight for ref in plugins.score.enabled} == {
        "LoadAwareScheduling": 1,
        "NodeNUMAResource": 1,
        "DeviceShare": 1,
        "Reservation": 5000,
        "Coscheduling": 1,
        "BatchDuration": 2,
    }
    alone = {point for point in plugins.__struct_fields__ if names(getattr(plugins, point).disabled) == ["*"]}
    assert alone == {"queue_sort", "post_filter", "bind"}
    assert {ref.weight for ref in plugins.filter.enabled} == {0}
