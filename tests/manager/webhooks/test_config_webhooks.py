"""`/validate-configmap` and `/validate-node` beside running caches, and the rules that they share."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordinator import clock as clocks
from koordinator.api import defaults
from koordinator.api.core import ConfigMap, Namespace, Node
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.manager.config.validation import validate_config_map
from koordinator.manager.options import ManagerOptions
from koordinator.manager.webhooks import all as webhooks
from koordinator.manager.webhooks import table
from koordinator.manager.webhooks.review import AdmissionRequest, AdmissionVerdict, GroupVersionResource
from koordinator.simulate import virtual_time
from tests.manager.shared_parts import shared_parts

GATES = ",".join(
    [
        *("ConfigMapValidatingWebhook=true", "NodeValidatingWebhook=true", "PodMutatingWebhook=false"),
        *("PodValidatingWebhook=false", "ElasticMutatingWebhook=false", "ElasticValidatingWebhook=false"),
    ]
)
Scenario = Callable[["Webhooks"], Awaitable[None]]


class Webhooks:
    """Both handlers on one cluster, by the gates that switch them on."""

    def __init__(self, cluster: MemoryCluster, options: ManagerOptions) -> None:
        self.cluster = cluster
        self.shared = shared_parts(cluster, gates=GATES, options=options)
        self.handlers = webhooks.admission(self.shared).handlers

    async def config_map(
        self, data: dict[str, Any], old: dict[str, Any] | None = None, operation: str = "", name: str = ""
    ) -> AdmissionVerdict:
        return await self.handlers[table.VALIDATE_CONFIG_MAP](
            AdmissionRequest(
                resource=GroupVersionResource(resource="configmaps"),
                operation=operation or ("CREATE" if old is None else "UPDATE"),
                name=name or defaults.SLO_CONFIG_NAME,
                namespace=defaults.NAMESPACE,
                object=config_map(data) if operation != "DELETE" else None,
                old_object=None if old is None else config_map(old),
            )
        )

    async def node(
        self, labels: dict[str, str], old: dict[str, str] | None = None, operation: str = ""
    ) -> AdmissionVerdict:
        return await self.handlers[table.VALIDATE_NODE](
            AdmissionRequest(
                resource=GroupVersionResource(resource="nodes"),
                operation=operation or ("CREATE" if old is None else "UPDATE"),
                name="n1",
                object={"metadata": {"name": "n1", "labels": labels}},
                old_object=None if old is None else {"metadata": {"name": "n1", "labels": old}},
            )
        )


def config_map(data: dict[str, Any]) -> dict[str, Any]:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in data.items()}
    return {"metadata": {"name": defaults.SLO_CONFIG_NAME, "namespace": defaults.NAMESPACE}, "data": texts}


def run(scenario: Scenario, options: ManagerOptions | None = None) -> None:
    async def main(clock: clocks.LoopClock) -> None:
        cluster = MemoryCluster(registry.in_memory(clock, checks=False))
        known = {ns.metadata.name for ns in (await cluster.list(Namespace)).items}
        if defaults.NAMESPACE not in known:
            await cluster.create(Namespace, defaults.namespace())
        asked = Webhooks(cluster, options or ManagerOptions())
        async with asyncio.TaskGroup() as group:
            asked.shared.factory.start(group)
            await asked.shared.factory.wait_synced()
            await scenario(asked)
            await asked.shared.factory.stop()

    virtual_time.run_virtual(main)


def pools(*names: str, **strategy: Any) -> dict[str, Any]:
    entries = [{"name": name, "nodeSelector": {"matchLabels": {name: "1"}}, **strategy} for name in names]
    return {"nodeStrategies": entries}


def test_configuration_is_checked_against_the_nodes_and_nodes_against_the_configuration() -> None:
    async def scenario(asked: Webhooks) -> None:
        data = {"cpu-burst-config": pools("a", "b", cpuBurstPercent=5)}
        assert (await asked.config_map(data)).allowed
        await asked.cluster.create(Node, {"metadata": {"name": "n1", "labels": {"a": "1", "b": "1"}}})
        await asyncio.sleep(1)
        refused = await asked.config_map(data)
        assert refused.code == 400
        body = json.loads(refused.message.strip("_"))
        assert body["reason"] == "ExistNodeConfict"
        assert body["message"] == {
            "config": "cpu-burst-config",
            "strategies": ["a", "b"],
            "exampleNodes": ["n1"],
        }
        assert (await asked.config_map(data, name="other")).allowed

        await asked.cluster.create(ConfigMap, config_map(data), defaults.NAMESPACE)
        await asyncio.sleep(1)
        refused = await asked.node({"a": "1", "b": "1"}, old={"a": "1"})
        assert "ExistNodeConfict" in refused.message
        assert (await asked.node({"a": "1", "b": "1"}, old={"a": "1", "b": "1"})).allowed
        assert (await asked.node({"a": "1", "b": "1"}, old={"a": "1"}, operation="DELETE")).allowed
        joining = await asked.node({"a": "1", "b": "1"})  # a new node must be able to join
        assert joining.allowed and "only the first entry counts" in joining.warnings[0]

        await asked.cluster.delete(ConfigMap, defaults.SLO_CONFIG_NAME, defaults.NAMESPACE)
        await asyncio.sleep(1)
        assert (await asked.node({"a": "1", "b": "1"}, old={"a": "1"})).allowed

    run(scenario)


def test_a_key_that_did_not_change_is_not_held_against_others() -> None:
    async def scenario(asked: Webhooks) -> None:
        broken = {"cpu-burst-config": "{"}
        assert (await asked.config_map({**broken, "system-config": {}}, old=broken)).allowed
        assert not (await asked.config_map({"cpu-burst-config": "["}, old=broken)).allowed

    run(scenario)


def test_names_are_needed_when_the_flag_says_so() -> None:
    async def scenario(asked: Webhooks) -> None:
        twice = {"nodeStrategies": [{"name": "a", "nodeSelector": {"matchLabels": {"p": v}}} for v in "12"]}
        assert "name 'a' is used twice" in (await asked.config_map({"system-config": twice})).message

    run(scenario, ManagerOptions(node_strategy_name_need_check=True))


def test_deleting_the_configuration_is_allowed_with_a_warning() -> None:
    async def scenario(asked: Webhooks) -> None:
        verdict = await asked.config_map({}, operation="DELETE")
        assert verdict.allowed and "co-location is switched off" in verdict.warnings[0]

    run(scenario)


@pytest.mark.parametrize(
    ("key", "value", "refusal"),
    [
        pytest.param(
            "resource-threshold-config",
            {"clusterStrategy": {"cpuSuppressThresholdPercent": 165}},
            "clusterStrategy.cpuSuppressThresholdPercent must be at least 0 and at most 100, not 165",
            id="a threshold out of range",
        ),
        pytest.param(
            "resource-amplification-config",
            {"resourceAmplificationRatio": {"cpu": 0.9}},
            "resourceAmplificationRatio['cpu'] must be at least 1, not 0.9",
            id="a ratio that would shrink the node",
        ),
        pytest.param(
            "cpu-normalization-config",
            {"nodeConfigs": [{"nodeSelector": {}, "ratioModel": {"Xeon": {"baseRatio": 7}}}]},
            "nodeConfigs[0].ratioModel['Xeon'].baseRatio must be at least 1 and at most 5, not 7",
            id="a normalization ratio out of range",
        ),
        pytest.param(
            "host-application-config",
            {"applications": [{"name": "nginx", "qos": "best"}]},
            "applications[0].qos must be one of LSE, LSR, LS, BE, SYSTEM, not 'best'",
            id="a QoS class that does not exist",
        ),
        pytest.param(
            "host-application-config",
            {"nodeConfigs": [{"name": "a", "applications": []}]},
            "nodeConfigs[0].nodeSelector is missing or empty",
            id="an entry that matches no node",
        ),
        pytest.param("cpu-normalization-config", '{"enable": "yes"}', "cpu-normalization-config", id="types"),
    ],
)
def test_a_refusal_names_key_member_and_rule(key: str, value: Any, refusal: str) -> None:
    text = value if isinstance(value, str) else json.dumps(value)

    verdict = validate_config_map({}, {key: text}, {})

    assert verdict.message.startswith(key)
    assert refusal in verdict.message


def test_entries_of_the_keys_that_the_reference_does_not_check_may_overlap() -> None:
    entries = [{"nodeSelector": {"matchLabels": {"a": "1"}}}, {"nodeSelector": {}}]
    data = {
        key: json.dumps({"nodeConfigs": entries})
        for key in ("host-application-config", "cpu-normalization-config", "resource-amplification-config")
    }

    assert validate_config_map({}, data, {"n1": {"a": "1"}}).allowed
    malformed = dict.fromkeys(data, "{")
    assert not validate_config_map({}, malformed, {}).allowed


WORDS = [
    *("clusterStrategy", "nodeStrategies", "nodeConfigs", "nodeSelector", "matchLabels", "name", "enable"),
    *("applications", "resourceAmplificationRatio", "ratioModel", "beClass", "cpuQOS", "networkQOS"),
    *("matchExpressions", "key", "operator", "values", "ingressRequest"),
]


def test_a_bandwidth_that_shrinks_below_what_is_promised_is_refused() -> None:
    qos = {"clusterStrategy": {"lsClass": {"networkQOS": {"ingressRequest": "5G"}}}}

    def data(total: str) -> dict[str, str]:
        system = {"clusterStrategy": {"totalNetworkBandwidth": total}}
        return {"resource-qos-config": json.dumps(qos), "system-config": json.dumps(system)}

    def message(old: str, new: str) -> str:
        return validate_config_map(data(old), data(new), {}).message

    assert message("10G", "6G") == ""
    assert message("10G", "4G").startswith("system-config: resource-qos-config: clusterStrategy")
    assert message("4G", "3G").endswith("is above the totalNetworkBandwidth 3G of system-config")
    assert message("4G", "6G") == ""


LEAVES = st.sampled_from([None, True, -1, 0, 50, 200, 0.5, 9.0, "", "x", "1", "5m", [], {}])
INNER = LEAVES | st.dictionaries(st.sampled_from(WORDS), LEAVES, max_size=3)
ENTRIES = st.lists(st.dictionaries(st.sampled_from(WORDS), INNER, max_size=3), max_size=2)
VALUES = LEAVES | st.dictionaries(st.sampled_from(WORDS), INNER | ENTRIES, max_size=3)
KEYS = (
    *("colocation-config", "resource-threshold-config", "resource-qos-config", "cpu-burst-config"),
    *(
        "system-config",
        "host-application-config",
        "cpu-normalization-config",
        "resource-amplification-config",
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.dictionaries(
        st.sampled_from(KEYS), VALUES.map(lambda v: msgspec.json.encode(v).decode()) | st.text(max_size=5)
    ),
    names_needed=st.booleans(),
)
def test_whatever_a_config_map_says_the_answer_is_allowed_or_a_named_rule(
    data: dict[str, str], names_needed: bool
) -> None:
    nodes = {"n1": {"x": "1"}, "n2": {}}

    verdict = validate_config_map({}, data, nodes, names_needed=names_needed)

    if not verdict.allowed:
        body = json.loads(verdict.text.removeprefix("___").removesuffix("___"))
        assert body["reason"] and any(key in json.dumps(body["message"]) for key in data)
    # A change that is not one is never refused.
    assert validate_config_map(data, data, nodes, names_needed=names_needed).allowed
