"""NodeSLO specs: layers, broken keys, and what each node gets."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import labels
from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.slo import DEFAULT_NODE_SLO_SPEC, NodeSLOSpec, SystemStrategy
from koordinator.manager.config import node_slo_spec

KEYS = (
    "resource-threshold-config",
    "resource-qos-config",
    "cpu-burst-config",
    "system-config",
    "host-application-config",
)
TEXT = st.sampled_from(
    [
        "",
        "{",
        "{}",
        '{"clusterStrategy": {"enable": true, "policy": "auto", "minFreeKbytesFactor": 7}}',
        '{"nodeStrategies": [{"nodeSelector": {}, "cpuBurstPercent": 5, "totalNetworkBandwidth": "1G"}]}',
        '{"applications": [{"name": "nginx"}], "nodeConfigs": [{"nodeSelector": {}}]}',
    ]
)
DATA = st.one_of(st.none(), st.dictionaries(st.sampled_from(KEYS), TEXT))


def node(pool: str = "", **annotations: str) -> Node:
    metadata = {"name": "n1", "labels": {"pool": pool}, "annotations": annotations}
    return from_builtins({"metadata": metadata}, Node)


def config_of(**sections: Any) -> node_slo_spec.NodeSLOConfig:
    data = {key.replace("_", "-"): json.dumps(value) for key, value in sections.items()}
    outcome = node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, data)
    assert outcome.problems == {}
    return outcome.config


def test_without_a_config_map_a_node_gets_the_defaults() -> None:
    outcome = node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, None)

    assert not outcome.changed
    assert node_slo_spec.wanted_spec(outcome.config, node()) == DEFAULT_NODE_SLO_SPEC


@given(data=DATA, before=DATA)
def test_reading_the_same_config_map_again_changes_nothing(
    data: dict[str, str] | None, before: dict[str, str] | None
) -> None:
    old = node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, before).config
    first = node_slo_spec.sync(old, data)

    again = node_slo_spec.sync(first.config, data)

    assert not again.changed
    assert again.problems == first.problems


@given(data=DATA, before=DATA)
def test_a_broken_key_keeps_its_old_section_and_no_other(
    data: dict[str, str] | None, before: dict[str, str] | None
) -> None:
    old = node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, before).config

    outcome = node_slo_spec.sync(old, data)

    mended = {key: text for key, text in (data or {}).items() if key not in outcome.problems}
    fresh = node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, mended).config
    fields = dict(zip(KEYS, node_slo_spec.NodeSLOConfig.__struct_fields__, strict=True))
    for key, field in fields.items():
        source = old if key in outcome.problems else fresh
        assert getattr(outcome.config, field) == getattr(source, field)


@given(data=DATA)
def test_a_spec_that_was_written_and_read_again_needs_no_other_write(data: dict[str, str] | None) -> None:
    wanted = node_slo_spec.wanted_spec(node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, data).config, node())

    assert from_builtins(msgspec.to_builtins(wanted), NodeSLOSpec) == wanted


def test_a_node_strategy_inherits_the_bandwidth_that_it_does_not_name() -> None:
    config = config_of(
        system_config={
            "clusterStrategy": {"totalNetworkBandwidth": "10G"},
            "nodeStrategies": [{"nodeSelector": {"matchLabels": {"pool": "a"}}, "minFreeKbytesFactor": 9}],
        }
    )

    wanted = node_slo_spec.wanted_spec(config, node("a")).system_strategy

    assert wanted == SystemStrategy(min_free_kbytes_factor=9, total_network_bandwidth="10G")


def test_a_broken_bandwidth_annotation_leaves_the_configured_bandwidth() -> None:
    config = config_of(system_config={"clusterStrategy": {"totalNetworkBandwidth": "10G"}})
    broken = node(**{labels.NODE_NETWORK_BANDWIDTH: "fast"})

    assert node_slo_spec.wanted_spec(config, broken).system_strategy == SystemStrategy(
        total_network_bandwidth="10G"
    )


def test_block_devices_of_a_node_strategy_replace_those_of_the_cluster() -> None:
    text = json.dumps(
        {
            "clusterStrategy": {
                "beClass": {
                    "blkioQOS": {"blocks": [{"name": "sda", "ioCfg": {"readIOPS": 9}}, {"name": "sdb"}]}
                }
            },
            "nodeStrategies": [
                {"nodeSelector": {}, "beClass": {"blkioQOS": {"blocks": [{"ioCfg": {"writeIOPS": 5}}]}}}
            ],
        }
    )

    outcome = node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, {"resource-qos-config": text})
    spec = msgspec.to_builtins(node_slo_spec.wanted_spec(outcome.config, node()))

    assert spec["resourceQOSStrategy"]["beClass"]["blkioQOS"]["blocks"] == [{"ioCfg": {"writeIOPS": 5}}]


def test_host_applications_of_the_first_match_replace_those_of_the_cluster_even_if_empty() -> None:
    config = config_of(
        host_application_config={
            "applications": [{"name": "nginx"}],
            "nodeConfigs": [
                {"name": "none", "nodeSelector": {"matchLabels": {"pool": "a"}}},
                {"name": "late", "nodeSelector": {}, "applications": [{"name": "late"}]},
            ],
        }
    )

    def names(of: Node) -> list[str]:
        return [app.name for app in node_slo_spec.wanted_spec(config, of).host_applications]

    assert names(node("a")) == []
    assert names(node("b")) == ["late"]


class Addon:
    """Wants `policy` on every node; None removes it, an error keeps what is there."""

    def __init__(self, name: str, policy: Any) -> None:
        self.name = name
        self._policy = policy

    def parse(self, data: Mapping[str, str]) -> Any:
        return data

    def of_node(self, _config: Any, _node: Node) -> Any:
        if isinstance(self._policy, ProtocolError):
            raise self._policy
        return self._policy


def test_extensions_change_by_their_own_addons_only() -> None:
    malformed = ProtocolError("ConfigMap slo-controller-config", "acme", "malformed")
    addons = [Addon("new", {"a": 1}), Addon("gone", None), Addon("kept", malformed), Addon("unread", {})]
    old = {"Object": {"gone": 1, "kept": {"b": 2}}}

    found = node_slo_spec.node_extensions(old, addons, dict.fromkeys(("new", "gone", "kept")), node())

    assert found == {"kept": {"b": 2}, "new": {"a": 1}}
    spec = node_slo_spec.wanted_spec(node_slo_spec.DEFAULT_CONFIG, node(), extensions=found)
    assert msgspec.to_builtins(spec)["extensions"] == found


@given(data=DATA, pool=st.sampled_from(["", "a"]), bandwidth=st.sampled_from([None, "1G", "1000M", "fast"]))
def test_nodes_that_share_a_spec_have_the_one_of_their_own(
    data: dict[str, str] | None, pool: str, bandwidth: str | None
) -> None:
    config = node_slo_spec.sync(node_slo_spec.DEFAULT_CONFIG, data).config
    table = node_slo_spec.SpecTable(config)
    noted = {} if bandwidth is None else {labels.NODE_NETWORK_BANDWIDTH: bandwidth}

    for _ in range(2):
        assert table.of(node(pool, **noted)) == node_slo_spec.wanted_spec(config, node(pool, **noted))
    assert table.of(node(pool, **noted)) is table.of(node(pool, **noted))


def test_amounts_that_are_written_in_another_way_are_no_difference() -> None:
    ours = NodeSLOSpec(system_strategy=SystemStrategy(total_network_bandwidth="1G"))
    theirs = NodeSLOSpec(system_strategy=SystemStrategy(total_network_bandwidth="1000M"))
    broken = NodeSLOSpec(system_strategy=SystemStrategy(total_network_bandwidth="x"))

    assert node_slo_spec.is_same(ours, theirs)
    assert not node_slo_spec.is_same(ours, broken)
