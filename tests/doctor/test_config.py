"""Checks of `slo-controller-config` and of what it needs."""

import msgspec
import pytest

from koordinator.api import slo_config
from koordinator.api.admission import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from koordinator.api.apps import DaemonSet
from koordinator.api.core import ConfigMap, Node
from koordinator.doctor.checks.config import unknown_members
from koordinator.doctor.finding import FindingSeverity
from tests.doctor import builders
from tests.doctor.builders import config, findings, healthy, only, snapshot

ON = '{"enable": true}'
THRESHOLDS_ON = '{"clusterStrategy": {"enable": true}}'


def with_config(**keys: str) -> dict:
    objects = healthy()
    objects[ConfigMap] = [
        config(**{"colocation_config": ON, "resource_threshold_config": THRESHOLDS_ON, **keys})
    ]
    return objects


def test_a_missing_configuration_means_that_co_location_is_off() -> None:
    found = only("config", snapshot(builders.changed(ConfigMap, lambda _: None)))

    assert found.severity is FindingSeverity.WARNING
    assert found.object == "ConfigMap koordinator-system/slo-controller-config"


def test_flags_of_the_manager_say_where_the_configuration_is() -> None:
    objects = healthy()
    deployments = builders.workload("koord-manager", args=["--slo-config-name=mine", "--v", "4"])
    objects[type(deployments)] = [deployments]

    assert only("config", snapshot(objects)).object == "ConfigMap koordinator-system/mine"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        pytest.param({"colocation_config": "{"}, "not JSON", id="no JSON"),
        pytest.param({"colocation_config": '{"enable": "yes"}'}, "enable", id="a wrong type names its field"),
        pytest.param(
            {"colocation_config": '{"enable": true, "degradeTimeMinutes": 0}'},
            "degradeTimeMinutes must be at least 1, not 0",
            id="a value out of range names field and rule",
        ),
        pytest.param(
            {
                "resource_threshold_config": '{"clusterStrategy": {"enable": true, "cpuSuppressThresholdPercent": 101}}'
            },
            "cpuSuppressThresholdPercent",
            id="values of other keys count, too",
        ),
        pytest.param({"cpu_burst_config": ""}, "empty", id="empty text is not understood"),
        pytest.param(
            {
                "colocation_config": '{"enable": true, "nodeConfigs": [{"name": "a", "nodeSelector": '
                '{"matchExpressions": [{"key": "x", "operator": "Like"}]}}]}'
            },
            "unknown operator 'Like'",
            id="a selector that selects nothing",
        ),
        pytest.param(
            {"host_application_config": "[]"}, "host-application-config", id="keys without rules are read"
        ),
    ],
)
def test_a_key_that_is_not_understood_is_an_error_that_says_why(keys: dict[str, str], words: str) -> None:
    found = only("config", snapshot(with_config(**keys)))

    assert found.severity is FindingSeverity.ERROR
    assert words in found.problem
    assert "ConfigMapValidatingWebhook" in found.remedy[1]


def test_who_already_has_the_webhook_is_not_told_to_turn_it_on() -> None:
    objects = with_config(colocation_config="{")
    mutating, validating = builders.webhook_configurations(more=["/validate-configmap"])
    objects[MutatingWebhookConfiguration], objects[ValidatingWebhookConfiguration] = [mutating], [validating]

    assert len(only("config", snapshot(objects)).remedy) == 1


def test_mistyped_members_and_keys_are_reported_with_what_was_meant() -> None:
    objects = with_config(
        colocation_config='{"enable": true, "cpuReclaimTresholdPercent": 80}', resource_treshold_config="{}"
    )

    member, key = findings("config", snapshot(objects))

    assert "cpuReclaimTresholdPercent (did you mean cpuReclaimThresholdPercent?)" in member.problem
    assert "did you mean resource-threshold-config?" in key.problem


def test_unknown_members_are_found_at_any_depth_and_case_does_not_count() -> None:
    text = (
        '{"CLUSTERSTRATEGY": {"enable": true, "cpuEvict": 1}, '
        '"nodeStrategies": [{"name": "a"}, {"nodeselector": {"matchLabel": {}}}]}'
    )

    found = unknown_members(text, slo_config.ThresholdConfig)

    assert [path.partition(" ")[0] for path in found] == [
        "CLUSTERSTRATEGY.cpuEvict",
        "nodeStrategies[1].nodeselector.matchLabel",
    ]


def test_free_form_parts_have_no_unknown_members() -> None:
    text = '{"enable": true, "extensions": {"anything": {"at": "all"}}, "metricAggregatePolicy": null}'

    assert unknown_members(text, slo_config.ColocationConfig) == []


def test_entries_that_hide_each_other_on_a_real_node_are_reported() -> None:
    objects = with_config(
        colocation_config='{"enable": true, "nodeConfigs": ['
        '{"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}},'
        '{"name": "ssd", "nodeSelector": {"matchLabels": {"disk": "ssd"}}}]}'
    )
    objects[Node] = [builders.node(labels={"pool": "a", "disk": "ssd"})]

    found = only("config", snapshot(objects))

    assert "node-0 matches several entries of nodeConfigs: a, ssd" in found.problem
    assert "(a)" in found.why


def test_lending_without_suppression_is_a_risk() -> None:
    objects = with_config(resource_threshold_config='{"clusterStrategy": {"enable": false}}')

    found = only("config", snapshot(objects))

    assert found.severity is FindingSeverity.WARNING
    assert "resource-threshold-config is off" in found.problem


def test_suppression_may_be_off_where_nothing_is_lent() -> None:
    objects = with_config(colocation_config='{"enable": false}', resource_threshold_config="{}")

    assert findings("config", snapshot(objects)) == []


def test_amplification_needs_its_webhook() -> None:
    objects = with_config(
        resource_amplification_config='{"enable": true, "resourceAmplificationRatio": {"cpu": 1.5}}'
    )

    found = only("features", snapshot(objects))
    assert found.severity is FindingSeverity.ERROR
    assert "NodeMutatingWebhook" in found.remedy[0]

    mutating, validating = builders.webhook_configurations(more=["/mutate-node-status"])
    objects[MutatingWebhookConfiguration], objects[ValidatingWebhookConfiguration] = [mutating], [validating]
    assert findings("features", snapshot(objects)) == []


def test_an_amplification_below_one_is_told_per_node() -> None:
    objects = with_config(
        resource_amplification_config='{"enable": true, "resourceAmplificationRatio": {"cpu": 0.5}}'
    )

    assert "ratio 0.5 of cpu is below 1" in only("features", snapshot(objects)).problem


@pytest.mark.parametrize(
    ("setting", "gates", "is_told"),
    [
        pytest.param('"gpuReclaimPercent": 50', "", True, id="cards, the agent does not know"),
        pytest.param(
            '"gpuReclaimPercent": 50', "Accelerators=true,BatchGPU=true", False, id="cards, it predicts"
        ),
        pytest.param('"gpuReclaimPercent": 0', "", False, id="the pool lends no cards"),
        pytest.param('"lendAheadMinutes": 60', "", True, id="hours, the agent does not know"),
        pytest.param('"lendAheadMinutes": 60', "PeaksByHour=true", False, id="hours, it predicts"),
    ],
)
def test_what_is_lent_by_prediction_needs_agents_that_predict_it(
    setting: str, gates: str, is_told: bool
) -> None:
    objects = with_config(colocation_config=f'{{"enable": true, {setting}}}')
    [node, *others] = objects[Node]
    allocatable = {**node.status.allocatable, "koordinator.sh/gpu-core": "800"}
    status = msgspec.structs.replace(node.status, allocatable=allocatable)
    objects[Node] = [msgspec.structs.replace(node, status=status), *others]
    agents = builders.workload("koordlet", args=[f"--feature-gates={gates}"])
    objects[type(agents)] = [each for each in objects[type(agents)] if "koordlet" not in each.metadata.name]
    objects[type(agents)].append(agents)
    objects[DaemonSet] = []

    found = findings("features", snapshot(objects))

    assert [each.object for each in found] == ([f"Node {node.metadata.name}"] if is_told else [])


@pytest.mark.parametrize(
    ("enable", "gates", "told"),
    [
        pytest.param(
            "true", "", ["Interference, InterferenceControl"], id="asked for, the agent has no gate on"
        ),
        pytest.param(
            "true", "InterferenceControl=true", ["off: Interference"], id="it acts and knows nothing"
        ),
        pytest.param(
            "false", "InterferenceControl=true", ["on for no node"], id="the agent waits for settings"
        ),
        pytest.param("true", "Interference=true,InterferenceControl=true", [], id="both"),
        pytest.param("false", "", [], id="neither"),
    ],
)
def test_the_closed_loop_needs_settings_and_gates(enable: str, gates: str, told: list[str]) -> None:
    objects = with_config(interference_config=f'{{"clusterStrategy": {{"enable": {enable}}}}}')
    agents = builders.workload("koordlet", args=[f"--feature-gates={gates}"])
    objects[type(agents)] = [each for each in objects[type(agents)] if "koordlet" not in each.metadata.name]
    objects[type(agents)].append(agents)
    objects[DaemonSet] = []

    found = findings("features", snapshot(objects))

    assert len(found) == len(told) and all(
        text in each.problem for text, each in zip(told, found, strict=True)
    )


def test_normalization_needs_the_cpu_model_of_each_node() -> None:
    objects = with_config(cpu_normalization_config=ON)

    found = only("features", snapshot(objects))

    assert found.object == "Node node-0"
    assert "NodeTopologyReport" in found.remedy[0]
