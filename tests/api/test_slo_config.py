"""The values of the ConfigMap `slo-controller-config`."""

import json

import msgspec
import pytest

from koordinator.api import slo_config
from koordinator.api.errors import ProtocolError
from koordinator.api.slo_config import DEFAULT_COLOCATION_STRATEGY, ColocationStrategy, colocation_problems


def test_overrides_stand_beside_name_and_selector() -> None:
    override = {"name": "big", "nodeSelector": {"matchLabels": {"a": "b"}}, "enable": False}
    config = slo_config.COLOCATION.decode(json.dumps({"enable": True, "nodeConfigs": [override]}))
    assert config.enable is True
    assert config.node_configs[0].name == "big"
    assert config.node_configs[0].enable is False
    assert config.node_configs[0].cpu_reclaim_threshold_percent is None


def test_an_absent_selector_and_an_empty_one_are_told_apart() -> None:
    config = slo_config.RESOURCE_THRESHOLD.decode('{"nodeStrategies":[{"name":"a"},{"nodeSelector":{}}]}')
    assert config.node_strategies[0].node_selector is None
    assert config.node_strategies[1].node_selector is not None


def test_the_default_is_written_as_documented() -> None:
    text = slo_config.NODE_COLOCATION_STRATEGY.encode(DEFAULT_COLOCATION_STRATEGY)
    written = json.loads(text)
    assert written["metricAggregatePolicy"] == {"durations": ["5m0s", "10m0s", "30m0s"]}
    assert written["midCPUThresholdPercent"] == 100
    assert written["midStaticCPUReservedPercent"] == 0
    assert "batchCPUThresholdPercent" not in written and "midReclaimMode" not in written
    assert slo_config.NODE_COLOCATION_STRATEGY.decode(text) == DEFAULT_COLOCATION_STRATEGY


def test_a_wrong_type_spoils_the_whole_key() -> None:
    for text in ('{"enable":"true"}', '{"degradeTimeMinutes":1.5}', '{"nodeConfigs":{}}'):
        with pytest.raises(ProtocolError, match="colocation-config"):
            slo_config.COLOCATION.decode(text)


@pytest.mark.parametrize(
    ("member", "bad", "good"),
    [
        ("degradeTimeMinutes", 0, 1),
        ("resourceDiffThreshold", 0.0, 0.01),
        ("cpuReclaimThresholdPercent", -1, 150),
        ("midCPUThresholdPercent", 101, 100),
        ("metricMemoryCollectPolicy", "", "usageWithPageCache"),
        ("metricMemoryCollectPolicy", "anything", "usageWithHotPageCache"),
    ],
)
def test_a_value_out_of_range_is_named(member: str, bad: object, good: object) -> None:
    (problem,) = colocation_problems(msgspec.convert({member: bad}, ColocationStrategy))
    assert problem.startswith(f"{member} ")
    assert colocation_problems(msgspec.convert({member: good}, ColocationStrategy)) == []


def test_the_defaults_are_valid() -> None:
    assert colocation_problems(DEFAULT_COLOCATION_STRATEGY) == []
    assert colocation_problems(ColocationStrategy()) == []
