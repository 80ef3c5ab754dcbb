"""The ConfigMap's webhook: which values, selectors and combinations it refuses, and in which words."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import defaults, slo_config
from koordinator.api.affinity import LabelSelector, LabelSelectorRequirement
from koordinator.manager.config import validation, validation_rules
from koordinator.manager.config.validation import ValidationReason


def validate(
    new: dict[str, Any],
    *,
    old: dict[str, Any] | None = None,
    nodes: dict[str, dict[str, str]] | None = None,
    names_needed: bool = False,
) -> validation.ConfigVerdict:
    before, after = (
        {key.replace("_", "-"): v if isinstance(v, str) else json.dumps(v) for key, v in data.items()}
        for data in (old or {}, new)
    )
    return validation.validate_config_map(before, after, nodes or {}, names_needed=names_needed)


def entry(name: str, **match: str) -> dict[str, Any]:
    return {"name": name, "nodeSelector": {"matchLabels": match}}


def test_the_config_map_that_is_shipped_is_accepted() -> None:
    assert validate(defaults.slo_config()["data"]).allowed


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(
            {"colocation_config": {"nodeConfigs": [{**entry("a", x="1"), "resourceDiffThreshold": 2}]}},
            "nodeConfigs[0].resourceDiffThreshold must be above 0 and at most 1, not 2",
            id="a node entry is named by its place",
        ),
        pytest.param(
            {"colocation_config": {"metricMemoryCollectPolicy": "usageWithCache"}},
            "metricMemoryCollectPolicy must be one of usageWithHotPageCache, usageWithoutPageCache, ",
            id="a word that no NodeMetric may have",
        ),
        pytest.param(
            {"resource_threshold_config": {"clusterStrategy": {"memoryEvictThresholdPercent": 70}}},
            "clusterStrategy.memoryEvictThresholdPercent needs memoryEvictLowerPercent next to it",
            id="half a pair",
        ),
        pytest.param(
            {
                "resource_threshold_config": {
                    "clusterStrategy": {"cpuEvictThresholdPercent": 60, "cpuEvictLowerPercent": 60}
                }
            },
            "cpuEvictThresholdPercent must be above cpuEvictLowerPercent",
            id="a pair that is no range",
        ),
        pytest.param(
            {"resource_qos_config": {"clusterStrategy": {"beClass": {"memoryQOS": {"wmarkMinAdj": 51}}}}},
            "clusterStrategy.beClass.memoryQOS.wmarkMinAdj must be at least -25 and at most 50, not 51",
            id="the path goes down to the member",
        ),
        pytest.param(
            {"cpu_burst_config": {"nodeStrategies": [{"name": "a"}]}},
            "nodeStrategies[0].nodeSelector is missing or empty",
            id="an entry without selector",
        ),
        pytest.param(
            {"eviction_config": {"clusterStrategy": {"PSIEvict": {"memoryUsedPercent": 101}}}},
            "clusterStrategy.PSIEvict.memoryUsedPercent: Expected `int` <= 100",
            id="settings of an eviction strategy out of range",
        ),
        pytest.param(
            {"eviction_config": {"nodeStrategies": [{**entry("a", x="1"), "PSIEvict": {"enable": 1}}]}},
            "nodeStrategies[0].PSIEvict.enable: Expected `bool`, got `int`",
            id="settings of an eviction strategy of another type",
        ),
        pytest.param(
            {"eviction_config": {"nodeStrategies": [{"name": "a", "PSIEvict": {}}]}},
            "nodeStrategies[0].nodeSelector is missing",
            id="an entry of eviction strategies without selector",
        ),
        pytest.param(
            {"interference_config": {"clusterStrategy": {"slackLowPercent": 40}}},
            "clusterStrategy.slackLowPercent must be below slackHighPercent, but 40 is not below 15",
            id="a slack band of the closed loop upside down",
        ),
        pytest.param(
            {"interference_config": {"nodeStrategies": [{**entry("a", x="1"), "resources": ["gpu"]}]}},
            "nodeStrategies[0].resources[0]: Expected `str` matching regex",
            id="a resource that the closed loop does not know",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_key_member_and_rule(data: dict[str, Any], said: str) -> None:
    verdict = validate(data)

    (key,) = data
    assert verdict.reason is ValidationReason.PARAMETER
    assert verdict.message.startswith(f"{key.replace('_', '-')}: ") and said in verdict.message
    assert verdict.text.startswith('___{"reason":"ConfigParamInvalid","message":')


NUMBERS = [
    field.name
    for field in msgspec.structs.fields(slo_config.ColocationStrategy)
    if field.name.endswith(("_percent", "_seconds", "_minutes", "_threshold"))
]


@given(values=st.dictionaries(st.sampled_from(NUMBERS), st.integers(-1, 101)))
def test_the_controller_takes_what_the_webhook_accepts(values: dict[str, int]) -> None:
    strategy = slo_config.ColocationStrategy(**values)  # type: ignore[arg-type]

    if not validation_rules.colocation(strategy):
        assert slo_config.colocation_problems(strategy) == []


def test_settings_of_eviction_strategies_of_packages_pass_and_text_that_is_no_json_does_not() -> None:
    entries = [{**entry(name, x="1"), "PSIEvict": {"enable": True}} for name in ("a", "b")]

    assert validate(
        {"eviction_config": {"clusterStrategy": {"Theirs": 7}, "nodeStrategies": entries}}
    ).allowed
    refused = validate({"eviction_config": "{"})
    assert refused.reason is ValidationReason.PARSE and "eviction-config" in refused.message


def test_a_null_among_windows_is_refused_by_its_place() -> None:
    refused = validate({"colocation_config": {"metricAggregatePolicy": {"durations": ["5m", None]}}})

    assert refused.reason is ValidationReason.PARSE
    assert "colocation-config: metricAggregatePolicy.durations[1]: expected text, got null" in refused.message


def test_an_entry_of_the_closed_loop_need_not_name_what_its_values_relate_to() -> None:
    above_the_default = {**entry("a", x="1"), "slackLowPercent": 40, "slackHighPercent": 60}
    alone = {**entry("b", x="2"), "cpuThresholdMinPercent": 96}
    cluster = {"cpuThresholdMaxPercent": 100}

    assert validate(
        {"interference_config": {"clusterStrategy": cluster, "nodeStrategies": [above_the_default, alone]}}
    ).allowed


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"strategies": ["CPUSuppress", "Prediction"]}, ""),
        ({"strategies": []}, ""),
        (
            {"strategies": ["Suppress"]},
            "'Suppress' has no shadow mode: expected some of BatchGPUEvict, CPUBurst",
        ),
        ({"strategies": "CPUBurst"}, "Expected `array`"),
        ({"strategy": ["CPUBurst"]}, "unknown member 'strategy'"),
    ],
)
def test_a_list_of_strategies_in_shadow_names_strategies_that_have_one(layer: Any, words: str) -> None:
    for config in ({"clusterStrategy": layer}, {"nodeStrategies": [{**entry("a", x="1"), **layer}]}):
        verdict = validate({"shadow_config": config})
        assert verdict.allowed == (not words) and words in verdict.message


def test_only_changed_keys_are_checked() -> None:
    broken = {"colocation_config": "{", "cpu_burst_config": {"clusterStrategy": {}}}

    assert validate(broken, old={"colocation_config": "{"}).allowed
    assert validate(broken).reason is ValidationReason.PARSE


def test_overlapping_entries_are_reported_with_a_node_that_matches_both() -> None:
    entries = {"cpu_burst_config": {"nodeStrategies": [entry("a", x="1"), entry("b", y="1")]}}

    verdict = validate(entries, nodes={"n2": {"x": "1", "y": "1"}, "n1": {"x": "1"}})

    assert verdict.reason is ValidationReason.CONFLICT
    assert json.loads(verdict.message) == {
        "config": "cpu-burst-config",
        "strategies": ["a", "b"],
        "exampleNodes": ["n2"],
    }
    assert json.loads(verdict.text.strip("_")) == {
        "reason": "ExistNodeConfict",
        "message": json.loads(verdict.message),
    }, "an object within the object, as tools parse it"
    assert validate(entries, nodes={"n1": {"x": "1"}}).allowed


def test_the_refusal_of_overlapping_selectors_names_no_nodes() -> None:
    entries = {"cpu_burst_config": {"nodeStrategies": [entry("a", x="1"), entry("b", x="1")]}}

    assert json.loads(validate(entries).text.strip("_")) == {
        "reason": "NodeStrategiesOverlap",
        "message": {"config": "cpu-burst-config", "strategies": ["a", "b"]},
    }


def test_a_selector_with_countless_combinations_is_answered_in_bounded_time() -> None:
    expressions = [
        LabelSelectorRequirement(key=f"k{n}", operator="In", values=[str(v) for v in range(n)])
        for n in (97, 101, 103, 107, 109)
    ]
    many = slo_config.NodeCPUBurst(name="a", node_selector=LabelSelector(match_expressions=expressions))
    other = slo_config.NodeCPUBurst(name="b", node_selector=LabelSelector(match_labels={"x": "1"}))

    assert not validation.overlap([many, other])


LABELS = st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), max_size=3)
ENTRIES = st.lists(LABELS, min_size=1, max_size=4)


@given(entries=ENTRIES, nodes=st.lists(LABELS, max_size=4))
def test_a_conflict_is_exactly_a_node_with_two_entries(
    entries: list[dict[str, str]], nodes: list[dict[str, str]]
) -> None:
    given_entries = [
        slo_config.NodeCPUBurst(name=str(index), node_selector=LabelSelector(match_labels=match))
        for index, match in enumerate(entries)
    ]
    named = {f"n{index}": own for index, own in enumerate(nodes)}

    found = validation.conflict(given_entries, named)

    matches = [sum(match.items() <= own.items() for match in entries) for own in nodes]
    assert bool(found) is any(count > 1 for count in matches)


@given(entries=ENTRIES)
def test_entries_that_overlap_do_so_in_any_order(entries: list[dict[str, str]]) -> None:
    given_entries = [
        slo_config.NodeCPUBurst(name=str(index), node_selector=LabelSelector(match_labels=match))
        for index, match in enumerate(entries)
    ]

    assert bool(validation.overlap(given_entries)) is bool(validation.overlap(given_entries[::-1]))


def network(*requests: Any, total: str | None = None) -> list[str]:
    classes = ("lsrClass", "lsClass", "beClass")
    qos = {
        name: {"networkQOS": {"ingressRequest": request}}
        for name, request in zip(classes, requests, strict=False)
    }
    system = {} if total is None else {"clusterStrategy": {"totalNetworkBandwidth": total}}
    return validation.content_problems(
        "resource-qos-config",
        slo_config.RESOURCE_QOS.decode(json.dumps({"clusterStrategy": qos})),
        slo_config.SYSTEM.decode(json.dumps(system)),
    )


def test_bandwidths_in_quantities_must_fit_the_node_and_those_in_percent_a_hundred() -> None:
    assert network("50M", "40M", total="100M") == []
    assert network("60M", "50M", total="100M") != []
    assert network("60M", "50M") == []  # nobody knows the total
    assert network(60, 40, total="1M") == []
    assert network(60, 41) != []
    assert network(60, "1M") == [
        "clusterStrategy: bandwidth requests must be all percentages or all quantities"
    ]


def test_a_node_may_take_labels_that_match_one_entry_only() -> None:
    entries = json.dumps({"nodeStrategies": [entry("a", x="1"), entry("b", y="1")]})
    data = {"cpu-burst-config": entries, "colocation-config": "{"}

    def labelled(old: dict[str, str], new: dict[str, str]) -> ValidationReason:
        return validation.NodeRules(data).check("n1", old, new).reason

    both = {"x": "1", "y": "1"}
    assert labelled({}, {"x": "1"}) is ValidationReason.NONE
    assert labelled({"x": "1"}, both) is ValidationReason.CONFLICT
    assert labelled(both, both) is ValidationReason.NONE


@pytest.mark.parametrize(
    "selector",
    [
        pytest.param({}, id="all other nodes"),
        pytest.param(None, id="none"),
        pytest.param({"matchExpressions": [{"key": "z", "operator": "In"}]}, id="invalid"),
    ],
)
def test_keys_with_an_unusable_selector_hold_back_no_labels_of_nodes(selector: dict[str, Any] | None) -> None:
    entries = [entry("a", x="1"), entry("b", y="1"), {"name": "rest", "nodeSelector": selector}]
    rules = validation.NodeRules({"cpu-burst-config": json.dumps({"nodeStrategies": entries})})

    assert rules.check("n1", {}, {"x": "1"}).allowed
    assert rules.check("n1", {}, {"x": "1", "y": "1"}).allowed


NAMED, NAMELESS = entry("a", x="1"), {"nodeSelector": {"matchLabels": {"x": "1"}}}
BAD_VALUE = {**NAMED, "cpuBurstPercent": -1}


@pytest.mark.parametrize(
    ("entries", "said", "said_where_names_are_needed"),
    [
        pytest.param([NAMED, entry("b", x="2")], "", "", id="nothing wrong"),
        pytest.param([NAMELESS], "", "[0].name is missing", id="no name"),
        pytest.param([NAMED, entry("a", x="2")], "", "[1].name 'a' is used twice", id="a name twice"),
        pytest.param([BAD_VALUE], "cpuBurstPercent", "cpuBurstPercent", id="a bad value, well named"),
        pytest.param(
            [{"name": "a"}],
            "nodeSelector is missing",
            "nodeSelector is missing",
            id="no selector, well named",
        ),
        pytest.param([{}], "nodeSelector is missing", "nodeSelector is missing", id="neither"),
    ],
)
def test_where_names_are_needed_all_else_is_refused_as_ever(
    entries: list[dict[str, Any]], said: str, said_where_names_are_needed: str
) -> None:
    data = {"cpu_burst_config": {"nodeStrategies": entries}}

    for names_needed, words in ((False, said), (True, said_where_names_are_needed)):
        verdict = validate(data, names_needed=names_needed)
        assert verdict.allowed == (not words) and words in verdict.message
        assert verdict.message.count("nodeStrategies") <= 1, "one thing at a time"


def test_entries_that_may_overlap_need_no_names() -> None:
    entries = [{"nodeSelector": {"matchLabels": {"x": "1"}}, "applications": []} for _ in range(2)]

    assert validate({"host_application_config": {"nodeConfigs": entries}}, names_needed=True).allowed
