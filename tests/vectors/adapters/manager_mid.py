"""Area `noderesource-mid`: Mid resources, alone and together with Batch."""

from typing import Any

import msgspec

from koordinator.api import resources, slo_config
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetricStatus
from koordinator.api.slo_config import ColocationConfig, ColocationStrategy
from koordinator.manager import colocation_config
from koordinator.manager.noderesource import account, decide, mid, mid_nodes

NOW_S = 1_700_000_000.0


def noderesource_mid(case: dict[str, Any]) -> Any:
    node = from_builtins(case["node"], Node)
    if case["op"] == "calculate":
        given = slo_config.NODE_COLOCATION_STRATEGY.decode(msgspec.json.encode(case["strategy"]).decode())
        return _mid(case, node, msgspec.structs.replace(given, enable=True), ColocationConfig(enable=True))
    config = slo_config.COLOCATION.decode(msgspec.json.encode(case["colocationConfig"]).decode())
    strategy = colocation_config.node_strategy(config, node)
    return _batch(case, node, strategy, config) | _mid(case, node, strategy, config)


def _mid(case: dict[str, Any], node: Node, strategy: ColocationStrategy, config: ColocationConfig) -> Any:
    facts = mid_nodes.node_facts(node)
    if mid_nodes.withdrawal(_wanted(config, strategy), _reported_s(case), NOW_S):
        return {"reset": True}
    requests = [mid_nodes.service_request(pod) for pod in _pods(case)]
    known = mid_nodes.MidNode(
        facts,
        mid_nodes.metrics(_status(case)),
        (sum(request[0] for request in requests), sum(request[1] for request in requests)),
    )
    (amounts,) = mid_nodes.calculate([known], mid.mid_policy(strategy))
    return {
        "midCPU": account.whole(amounts[resources.MID_CPU]),
        "midMemory": account.whole(amounts[resources.MID_MEMORY]),
    }


def _batch(case: dict[str, Any], node: Node, strategy: ColocationStrategy, config: ColocationConfig) -> Any:
    wanted = _wanted(config, strategy)
    if decide.withdrawal(wanted, _reported_s(case), NOW_S):
        return {"reset": True}
    pods = [account.pod_facts(pod) for pod in _pods(case)]
    known = decide.NodeInputs(
        account.node_facts(node),
        account.metric_facts(_status(case)),
        [pod for pod in pods if pod is not None],
    )
    (result,) = decide.calculate([known], wanted.reclaim)
    return {
        "batchCPU": account.whole(result.amounts[resources.BATCH_CPU]),
        "batchMemory": account.whole(result.amounts[resources.BATCH_MEMORY]),
    }


def _wanted(config: ColocationConfig, strategy: ColocationStrategy) -> colocation_config.NodeStrategy:
    return colocation_config.resource_strategy(config, strategy)


def _reported_s(case: dict[str, Any]) -> float | None:
    age_s = case["nodeMetricAgeSeconds"]
    return None if age_s is None else NOW_S - age_s


def _status(case: dict[str, Any]) -> NodeMetricStatus:
    return from_builtins(case["nodeMetricStatus"], NodeMetricStatus)


def _pods(case: dict[str, Any]) -> list[Pod]:
    return [from_builtins(pod, Pod) for pod in case["pods"]]


ADAPTERS = {"noderesource-mid": noderesource_mid}
