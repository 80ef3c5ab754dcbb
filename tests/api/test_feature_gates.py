"""Feature gates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api.feature_gates import (
    KOORDLET,
    REGISTRIES,
    Component,
    FeatureGateError,
    FeatureGates,
    FeatureStage,
    NodeSwitch,
    node_switch,
)

settings = st.dictionaries(st.sampled_from([*KOORDLET, "AllAlpha", "AllBeta"]), st.booleans())


@given(settings)
def test_a_named_gate_is_as_named_and_others_as_their_stage(named: dict[str, bool]) -> None:
    flag = ",".join(f"{name}={str(state).lower()}" for name, state in named.items())
    gates = FeatureGates.of(Component.KOORDLET, flag)
    for name, gate in KOORDLET.items():
        of_stage = {FeatureStage.ALPHA: named.get("AllAlpha"), FeatureStage.BETA: named.get("AllBeta")}.get(
            gate.stage
        )
        assert gates.is_on(name) == named.get(name, gate.default if of_stage is None else of_stage)


@pytest.mark.parametrize(
    "flag", ["X=true", "BECPUEvict", "BECPUEvict=maybe", "=true", " ", "BECPUEvict==true"]
)
def test_a_flag_that_cannot_be_understood_is_refused(flag: str) -> None:
    with pytest.raises(FeatureGateError):
        FeatureGates.of(Component.KOORDLET, flag)


@pytest.mark.parametrize("component", Component)
def test_every_registry_starts_with_its_defaults(component: Component) -> None:
    gates = FeatureGates.of(component)
    assert gates.states == {name: gate.default for name, gate in REGISTRIES[component].items()}


def test_only_features_with_a_switch_obey_the_node() -> None:
    assert {node_switch("CPUBurst", enable) for enable in (None, False, True)} == {NodeSwitch.UNKNOWN}
    assert node_switch("CPUEvict", None) is NodeSwitch.UNKNOWN
    assert node_switch("CPUEvict", False) is NodeSwitch.OFF
    assert node_switch("CPUEvict", True) is NodeSwitch.ON
