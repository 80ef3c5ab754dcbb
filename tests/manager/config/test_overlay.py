"""Layers of configuration: what the upper one says counts, and nothing else."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import slo_config
from koordinator.api.core import Node
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.api.slo_config import ColocationStrategy
from koordinator.api.slo_qos import CPUQOS, MemoryQOS, QOSPolicies, ResourceQOS, ResourceQOSStrategy
from koordinator.manager.config import colocation_config
from koordinator.manager.config.colocation_config import ColocationState
from koordinator.manager.config.node_entries import overlay

SWITCH = st.none() | st.booleans()
NUMBER = st.none() | st.integers(-1, 3)
CPU = st.none() | st.builds(CPUQOS, enable=SWITCH, group_identity=NUMBER)
MEMORY = st.none() | st.builds(MemoryQOS, enable=SWITCH, wmark_ratio=NUMBER)
QOS = st.none() | st.builds(ResourceQOS, cpu_qos=CPU, memory_qos=MEMORY)
POLICIES = st.none() | st.builds(QOSPolicies, cpu_policy=st.sampled_from(["", "coreSched"]))
LAYERS = st.builds(ResourceQOSStrategy, policies=POLICIES, be_class=QOS, ls_class=QOS)


def leaves(layer: Any, path: str = "") -> dict[str, Any]:
    """What a layer says, member by member."""
    found = {}
    for name in layer.__struct_fields__:
        value = getattr(layer, name)
        if hasattr(value, "__struct_fields__"):
            found.update(leaves(value, f"{path}.{name}"))
        elif value not in (None, "", [], {}):
            found[f"{path}.{name}"] = value
    return found


@given(base=LAYERS, upper=LAYERS)
def test_every_member_is_the_upper_layers_or_else_the_lower_ones(
    base: ResourceQOSStrategy, upper: ResourceQOSStrategy
) -> None:
    assert leaves(overlay(base, upper)) == leaves(base) | leaves(upper)


@given(base=LAYERS, upper=LAYERS)
def test_a_layer_laid_twice_is_laid_once_and_an_empty_one_changes_nothing(
    base: ResourceQOSStrategy, upper: ResourceQOSStrategy
) -> None:
    once = overlay(base, upper)

    assert overlay(once, upper) == once
    assert overlay(base, ResourceQOSStrategy()) == base
    assert leaves(overlay(ResourceQOSStrategy(), upper)) == leaves(upper)


@given(one=LAYERS, two=LAYERS, three=LAYERS)
def test_it_does_not_matter_which_layers_are_laid_together_first(
    one: ResourceQOSStrategy, two: ResourceQOSStrategy, three: ResourceQOSStrategy
) -> None:
    assert leaves(overlay(overlay(one, two), three)) == leaves(overlay(one, overlay(two, three)))


def test_false_and_zero_count_and_empty_text_only_where_it_means_something() -> None:
    base = ResourceThresholdStrategy(enable=True, cpu_suppress_min_percent=5, cpu_suppress_policy="cpuset")
    upper = ResourceThresholdStrategy(enable=False, cpu_suppress_min_percent=0, cpu_suppress_policy="")
    assert overlay(base, upper) == ResourceThresholdStrategy(
        enable=False, cpu_suppress_min_percent=0, cpu_suppress_policy="cpuset"
    )

    mode = ColocationStrategy(mid_reclaim_mode="static")
    unset = ColocationStrategy(mid_reclaim_mode="")
    assert overlay(mode, unset) == mode
    assert overlay(mode, unset, empty_text_counts=frozenset({"mid_reclaim_mode"})) == unset


def test_maps_merge_per_key_and_a_keys_value_is_replaced_whole() -> None:
    base = ColocationStrategy(extensions={"a": {"x": 1}, "b": 1})

    merged = overlay(base, ColocationStrategy(extensions={"a": {"y": 2}}))

    assert merged.extensions == {"a": {"y": 2}, "b": 1}
    assert base.extensions == {"a": {"x": 1}, "b": 1}


def test_empty_text_of_the_cluster_reaches_nodes_and_entries() -> None:
    text = '{"midReclaimMode": "", "nodeConfigs": [{"name": "a", "nodeSelector": {}}]}'

    config = colocation_config.sync(ColocationState(), {slo_config.COLOCATION.key: text}).state.config

    assert config.node_configs[0].mid_reclaim_mode == ""
    plain = msgspec.structs.replace(config, node_configs=[])
    assert colocation_config.node_strategy(plain, Node()).mid_reclaim_mode == ""
