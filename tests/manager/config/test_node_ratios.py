"""CPU normalization and resource amplification: ratios of nodes, and what spoils them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.api.annotations.node import CPU_BASIC_INFO, CPUBasicInfo
from koordinator.api.errors import ProtocolError
from koordinator.api.slo_config import ResourceAmplificationConfig
from koordinator.manager.config import amplification, cpu_normalization

BASIC = labels.NODE_CPU_BASIC_INFO
NORMALIZATION = labels.NODE_CPU_NORMALIZATION_RATIO
KEY = "cpu-normalization-config"
CONFIG = '{"enable": true, "ratioModel": {"X": {"baseRatio": 1.5}, "Y": {"baseRatio": 9}}}'


def normalization(text: str = CONFIG) -> cpu_normalization.CPUNormalizationConfig:
    outcome = cpu_normalization.sync(cpu_normalization.DEFAULT_CONFIG, {KEY: text})
    assert outcome.problem == ""
    return outcome.config


def reported(annotations: dict[str, str]) -> Callable[[], CPUBasicInfo]:
    """What the node agent says about the CPUs."""

    def read() -> CPUBasicInfo:
        info = CPU_BASIC_INFO.read(annotations, "NodeResourceTopology n")
        assert info is not None
        return info

    return read


def test_node_entries_stand_on_the_cluster_strategy() -> None:
    config = normalization(
        '{"enable": true, "defaultRatio": 2, "ratioModel": {"X": {"baseRatio": 1.5, "turboEnabledRatio": 3}},'
        ' "nodeConfigs": [{"nodeSelector": {"matchLabels": {"pool": "a"}},'
        ' "ratioModel": {"X": {"baseRatio": 1.2}}}]}'
    )

    def ratio(model: str, *, turbo: bool) -> float:
        info = f'{{"cpuModel": "{model}", "turboEnabled": {str(turbo).lower()}}}'
        return cpu_normalization.node_ratio(config, "n", {"pool": "a"}, reported({BASIC: info}))

    assert ratio("X", turbo=False) == 1.2
    assert ratio("X", turbo=True) == 2  # a model's entry is replaced as a whole
    assert ratio("Z", turbo=False) == 2


@pytest.mark.parametrize(
    ("node_labels", "annotations", "said"),
    [
        pytest.param({}, {BASIC: "{"}, "not JSON", id="malformed basic information"),
        pytest.param({}, {BASIC: '{"cpuModel": "Q"}'}, "Node n: .*model 'Q'", id="a model without ratio"),
        pytest.param(
            {},
            {BASIC: '{"cpuModel": "Q", "hyperThreadEnabled": true}'},
            "with hyper-threads, without turbo",
            id="a model without ratio, by its features",
        ),
        pytest.param({}, {BASIC: '{"cpuModel": "Y"}'}, "ratio 9 is not within 1 to 5", id="out of bounds"),
        pytest.param(
            {labels.NODE_CPU_NORMALIZATION_ENABLED: "maybe"},
            {},
            "not a boolean",
            id="a label that is no switch",
        ),
    ],
)
def test_a_ratio_that_cannot_be_reported(
    node_labels: dict[str, str], annotations: dict[str, str], said: str
) -> None:
    with pytest.raises(ProtocolError, match=said):
        cpu_normalization.node_ratio(normalization(), "n", node_labels, reported(annotations))


def test_a_configuration_that_cannot_be_read_keeps_the_old_one() -> None:
    old = normalization()

    for text in ("", "{", '{"enable": "yes"}'):
        outcome = cpu_normalization.sync(old, {KEY: text})
        assert outcome.config == old and outcome.problem.startswith("ConfigMap slo-controller-config")
    assert cpu_normalization.sync(old, None).config == cpu_normalization.DEFAULT_CONFIG


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        pytest.param({}, {BASIC: '{"cpuModel": "X"}'}, True, id="it came"),
        pytest.param(
            {BASIC: '{"cpuModel": "X"}'}, {BASIC: '{"cpuModel": "X", "vendorID": "v"}'}, False, id="same"
        ),
        pytest.param({BASIC: '{"cpuModel": "X"}'}, {BASIC: '{"turboEnabled": true}'}, True, id="another CPU"),
        pytest.param({BASIC: '{"cpuModel": "X"}'}, {BASIC: "{"}, False, id="it broke"),
        pytest.param({BASIC: "{"}, {BASIC: '{"cpuModel": "X"}'}, True, id="it was mended"),
    ],
)
def test_topologies_that_make_a_node_be_looked_at_again(
    old: dict[str, str], new: dict[str, str], differs: bool
) -> None:
    assert cpu_normalization.has_other_cpu(old, new) is differs


def amplified(text: str, annotations: dict[str, str]) -> dict[str, float]:
    outcome = amplification.sync(amplification.DEFAULT_CONFIG, {"resource-amplification-config": text})
    assert outcome.problem == ""
    return amplification.node_ratios(outcome.config, "n", {}, annotations)


@given(cpu=st.floats(1, 10), speed=st.floats(1, 5))
def test_cpu_is_amplified_by_both_ratios(cpu: float, speed: float) -> None:
    text = f'{{"enable": true, "resourceAmplificationRatio": {{"cpu": {cpu!r}}}}}'

    ratios = amplified(text, {NORMALIZATION: repr(speed)})

    assert ratios["cpu"] == pytest.approx(cpu * speed)


@pytest.mark.parametrize("text", ["fast", "0", "-1", ""])
def test_a_bad_normalization_annotation_leaves_no_amplification(text: str) -> None:
    with pytest.raises(ProtocolError, match=r"^Node n: node\.koordinator"):
        amplified("{}", {NORMALIZATION: text})


def test_a_ratio_below_one_names_its_resource() -> None:
    text = '{"enable": true, "resourceAmplificationRatio": {"cpu": 2, "memory": 0.5}}'

    with pytest.raises(ProtocolError, match=r"ratio 0\.5 of memory is below 1"):
        amplified(text, {})


def test_the_amplification_annotation_goes_when_nothing_is_amplified() -> None:
    wanted = amplification.annotation_text({})

    assert wanted is None
    assert amplification.needs_sync("{}", wanted)
    assert not amplification.needs_sync(None, wanted) and not amplification.needs_sync("", wanted)


def test_a_node_is_amplified_by_the_entry_that_selects_it_others_by_the_clusters() -> None:
    text = (
        '{"enable": true, "resourceAmplificationRatio": {"cpu": 2}, "nodeConfigs": ['
        '{"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "resourceAmplificationRatio": {"cpu": 3}}]}'
    )
    outcome = amplification.sync(amplification.DEFAULT_CONFIG, {"resource-amplification-config": text})
    assert outcome.problem == ""
    found = [amplification.node_ratios(outcome.config, "n", {"pool": pool}, {})["cpu"] for pool in ("a", "b")]
    assert found == [3, 2]


@pytest.mark.parametrize(
    ("old", "new", "is_written"),
    [
        pytest.param("fast", "1.10", True, id="the old text is none"),
        pytest.param("fast", "faster", True, id="neither is one"),
        pytest.param("1.10", "0", False, id="the new one is no ratio"),
        pytest.param(None, "0", False, id="the new one is no ratio, and there was none"),
        pytest.param("1.10", None, True, id="it went"),
    ],
)
def test_a_ratio_is_written_where_the_present_text_tells_another_or_none(
    old: str | None, new: str | None, is_written: bool
) -> None:
    assert cpu_normalization.needs_sync(old, new) is is_written


@pytest.mark.parametrize("text", ["NaN", "inf", "-Inf", "-1", "0", "", "1e7", "1e300", "1e400", "0x1p1"])
def test_a_normalization_ratio_that_is_no_factor_amplifies_nothing(text: str) -> None:
    with pytest.raises(ProtocolError):
        amplification.node_ratios(amplification.DEFAULT_CONFIG, "n", {}, {NORMALIZATION: text})


def test_factors_whose_product_is_none_amplify_nothing() -> None:
    config = ResourceAmplificationConfig(enable=True, resource_amplification_ratio={"cpu": 1e4})
    with pytest.raises(ProtocolError, match="above"):
        amplification.node_ratios(config, "n", {}, {NORMALIZATION: "1e4"})
