"""Area `noderesource-mid`: Mid resources, alone and together with Batch."""

from typing import Any

import msgspec

from koordinator.api import slo_config
from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetricStatus
from koordinator.api.slo_config import ColocationConfig, ColocationStrategy
from koordinator.manager.config import colocation_config
from koordinator.manager.config.colocation_config import NodeStrategy, mid_policy
from koordinator.manager.noderesource import account, decide
from koordinator.manager.noderesource.decide import Withdrawal
from tests.vectors.adapters.manager_batch import pods_of

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
    if _withdrawal(case, _wanted(config, strategy)) is not Withdrawal.NONE:
        return {"reset": True}
    (row,) = decide.mid_terms([_inputs(case, node)], [mid_policy(strategy)]).lent
    cpu_milli, memory = row.tolist()
    return {"midCPU": cpu_milli, "midMemory": account.whole(memory)}


def _batch(case: dict[str, Any], node: Node, strategy: ColocationStrategy, config: ColocationConfig) -> Any:
    wanted = _wanted(config, strategy)
    if _withdrawal(case, wanted) is not Withdrawal.NONE:
        return {"reset": True}
    (row,) = decide.batch_amounts([_inputs(case, node)], [wanted.reclaim])
    cpu_milli, memory = row.tolist()
    return {"batchCPU": cpu_milli, "batchMemory": account.whole(memory)}


def _inputs(case: dict[str, Any], node: Node) -> decide.NodeInputs:
    report = account.report_of(from_builtins(case["nodeMetricStatus"], NodeMetricStatus))
    demanded = account.node_demand(pods_of(case), report)
    return decide.NodeInputs(account.node_facts(node), report, demanded)


def _withdrawal(case: dict[str, Any], wanted: NodeStrategy) -> Withdrawal:
    return decide.withdrawal(
        is_enabled=wanted.enabled, degrade_s=wanted.degrade_s, reported_s=_reported_s(case), now_s=NOW_S
    )


def _wanted(config: ColocationConfig, strategy: ColocationStrategy) -> NodeStrategy:
    return colocation_config.resource_strategy(config, strategy)


def _reported_s(case: dict[str, Any]) -> float | None:
    age_s = case["nodeMetricAgeSeconds"]
    return None if age_s is None else NOW_S - age_s


ADAPTERS = {"noderesource-mid": noderesource_mid}
