"""Policies of other packages: how they are found, merged and kept."""

import asyncio
import json
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import defaults, slo_config
from koordinator.api.core import ConfigMap, Node
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.slo import NodeSLO
from koordinator.cluster.memory import MemoryCluster
from koordinator.manager.config import addons, colocation_config
from koordinator.manager.config.addons import Addons, ColocationAddon, LayeredAddon
from koordinator.manager.config.colocation_config import ColocationState, StrategyTable
from tests.manager.config.test_config_rollout import Installation, run

ACME = LayeredAddon("acme", "acme-config", default={"enable": False, "limits": {"cpu": 1, "disk": 2}})
SHARE = ColocationAddon(
    name="share", default=10, problems=lambda value: [] if isinstance(value, int) else ["is no number"]
)
NOT_AN_ADDON = object()


def node(pool: str = "") -> Node:
    return from_builtins({"metadata": {"name": "n1", "labels": {"pool": pool}}}, Node)


def entry(name: str, value: str) -> metadata.EntryPoint:
    return metadata.EntryPoint(name, f"tests.manager.config.test_addons:{value}", addons.ENTRY_POINTS)


def test_add_ons_are_found_by_entry_points_and_bad_ones_cost_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = addons.read_entries(
        [entry("a", "ACME"), entry("s", "SHARE"), entry("none", "NOT_AN_ADDON"), entry("gone", "MISSING")]
    )

    assert found == Addons((ACME,), (SHARE,))
    assert caplog.messages == ["add-on invalid"] * 2
    assert addons.read_entries([entry("a", "ACME"), entry("b", "ACME")]) == addons.NONE


def test_a_layered_add_on_merges_as_the_built_in_keys_do() -> None:
    text = {
        "clusterStrategy": {"enable": True, "limits": {"cpu": 5}, "nothing": None},
        "nodeStrategies": [
            {"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "limits": {"disk": 7}},
            {"name": "late", "nodeSelector": {}, "enable": False},
        ],
    }

    config = ACME.parse({"acme-config": json.dumps(text)})

    assert ACME.of_node(config, node("a")) == {"enable": True, "limits": {"cpu": 5, "disk": 7}}
    assert ACME.of_node(config, node("b")) == {"enable": False, "limits": {"cpu": 5, "disk": 2}}
    assert ACME.of_node(ACME.parse({}), node()) is None
    assert config == ACME.parse({"acme-config": json.dumps(text)}) != ACME.parse({"acme-config": "{}"})
    for malformed in ("{", "[]", '{"nodeStrategies": [{"nodeSelector": 1}]}'):
        with pytest.raises(ProtocolError):
            ACME.parse({"acme-config": malformed})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3),
    lambda inner: st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(base=OBJECTS, one=OBJECTS, other=OBJECTS)
def test_laying_over_is_idempotent_and_the_last_word_counts(
    base: dict[str, Any], one: dict[str, Any], other: dict[str, Any]
) -> None:
    once = addons.laid_over(base, one)

    assert addons.laid_over(once, one) == once
    assert addons.laid_over(addons.laid_over(base, {}), one) == once
    for name, value in other.items():
        if value is not None and not isinstance(value, Mapping):
            assert addons.laid_over(once, other)[name] == value


def test_members_of_colocation_are_checked_and_merged_like_others() -> None:
    def synced(**config: Any) -> colocation_config.ColocationSync:
        data = {"colocation-config": json.dumps(config)}
        return colocation_config.sync(ColocationState(), data, [SHARE])

    pool = {"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "extensions": {"share": 30}}
    good = synced(enable=True, nodeConfigs=[pool])
    table = StrategyTable(good.state.config)
    assert table.of(node("a")).extensions == {"share": 30}
    assert table.of(node("b")).extensions == {"share": 10}

    assert synced(extensions={"share": "x"}).problem == "colocation-config: extensions.share: is no number"
    pool["extensions"] = {"share": "x"}
    (problem,) = synced(nodeConfigs=[pool]).entry_problems
    assert "extensions.share: is no number" in problem


LAYERS = st.fixed_dictionaries(
    {},
    optional={
        "enable": st.booleans(),
        "cpuReclaimThresholdPercent": st.integers(0, 100),
        "degradeTimeMinutes": st.integers(1, 30),
        "cpuCalculatePolicy": st.sampled_from(["usage", "maxUsageRequest", ""]),
        "metricAggregatePolicy": st.sampled_from([{"durations": ["1m"]}, {}]),
        "extensions": st.dictionaries(st.sampled_from("ab"), st.integers(0, 3), max_size=2),
    },
)


@given(cluster=LAYERS, first=LAYERS, second=LAYERS)
def test_strategies_of_nodes_alike_are_shared_and_the_first_entry_counts(
    cluster: dict[str, Any], first: dict[str, Any], second: dict[str, Any]
) -> None:
    selects = {"nodeSelector": {"matchLabels": {"pool": "a"}}}
    data = {
        slo_config.COLOCATION.key: json.dumps(cluster | {"nodeConfigs": [selects | first, selects | second]})
    }
    state = colocation_config.sync(ColocationState(), data).state
    alone = colocation_config.sync(
        ColocationState(),
        {slo_config.COLOCATION.key: json.dumps(cluster | {"nodeConfigs": [selects | first]})},
    ).state
    table = StrategyTable(state.config)

    assert not colocation_config.sync(state, data).changed
    assert table.of(node("a")) is table.of(node("a"))
    for pool in ("a", "b"):
        assert table.of(node(pool)) == colocation_config.node_strategy(state.config, node(pool))
        assert table.of(node(pool)) == colocation_config.node_strategy(alone.config, node(pool))


async def extensions(cluster: MemoryCluster, name: str) -> dict[str, Any]:
    return (await cluster.get(NodeSLO, name)).spec.extensions


def test_extensions_arrive_on_nodes_and_a_broken_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addons, "installed", lambda: Addons((ACME,)))

    async def scenario(here: Installation) -> None:
        assert await extensions(here.cluster, "n0") == {}
        entries = [{"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "enable": True}]
        await here.configure(acme_config={"nodeStrategies": entries})
        limits = {"cpu": 1, "disk": 2}
        assert await extensions(here.cluster, "n0") == {"acme": {"enable": True, "limits": limits}}
        assert await extensions(here.cluster, "n1") == {"acme": {"enable": False, "limits": limits}}

        await here.configure(acme_config="{")
        assert await extensions(here.cluster, "n0") == {"acme": {"enable": True, "limits": limits}}
        ((reason, message),) = await here.events()
        assert reason == "SLOCfgUnmarshalFailed" and "acme-config: not JSON" in message

        await here.cluster.patch(NodeSLO, "n0", {"spec": {"extensions": {"others": 1}}})
        await here.configure(acme_config=None)
        await asyncio.sleep(1)
        assert await extensions(here.cluster, "n0") == {"others": 1}
        assert await here.cluster.get(ConfigMap, defaults.SLO_CONFIG_NAME, defaults.NAMESPACE)

    run(scenario, nodes=3)


def test_settings_of_eviction_strategies_arrive_on_nodes_without_any_package() -> None:
    async def scenario(here: Installation) -> None:
        entries = [
            {"nodeSelector": {"matchLabels": {"pool": "a"}}, "PSIEvict": {"memoryFullAvg10Percent": 40}}
        ]
        await here.configure(
            eviction_config={"clusterStrategy": {"PSIEvict": {"enable": True}}, "nodeStrategies": entries}
        )
        assert await extensions(here.cluster, "n0") == {
            "eviction": {"PSIEvict": {"enable": True, "memoryFullAvg10Percent": 40}}
        }
        assert await extensions(here.cluster, "n1") == {"eviction": {"PSIEvict": {"enable": True}}}

        await here.configure(eviction_config=None)
        await asyncio.sleep(1)
        assert await extensions(here.cluster, "n0") == {}

    run(scenario, nodes=3)
