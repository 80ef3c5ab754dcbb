"""Areas `noderesource-batch` and `colocation-config`."""

from typing import Any

import msgspec
import numpy as np

from koordinator.api import labels, node_labels, quantity, slo_config
from koordinator.api.annotations import node as node_annotations
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.api.node_metric import NodeMetricSpec, NodeMetricStatus
from koordinator.api.node_topology import Zone
from koordinator.api.slo_config import ColocationConfig, ColocationStrategy
from koordinator.manager.config import colocation_config
from koordinator.manager.config.colocation_config import ColocationState
from koordinator.manager.noderesource import account, batch, decide, target
from koordinator.manager.noderesource.decide import Withdrawal
from koordinator.manager.noderesource.rows import has_cpu_or_memory, zone_capacity, zones_target
from koordinator.manager.per_node import node_objects

_CONFIG = slo_config.COLOCATION
_STRATEGY = slo_config.NODE_COLOCATION_STRATEGY
NOW_S = 1_700_000_000.0


def noderesource_batch(case: dict[str, Any]) -> Any:
    return {
        "calculate": _calculate,
        "prepare": _prepare,
        "needSync": _need_sync,
        "updateZones": _update_zones,
        "divide": _divide,
    }[case["op"]](case)


def _calculate(case: dict[str, Any]) -> Any:
    strategy = _STRATEGY.decode(msgspec.json.encode(case["strategy"]).decode())
    wanted = colocation_config.resource_strategy(ColocationConfig(enable=True), _enabled(strategy))
    node = from_builtins(case["node"], Node)
    age_s = case["nodeMetricAgeSeconds"]
    reported_s = None if age_s is None else NOW_S - age_s
    reason = decide.withdrawal(
        is_enabled=wanted.enabled, degrade_s=wanted.degrade_s, reported_s=reported_s, now_s=NOW_S
    )
    if reason is not Withdrawal.NONE:
        return {"reset": True}
    facts = account.node_facts(node)
    report = account.report_of(from_builtins(case["nodeMetricStatus"], NodeMetricStatus))
    pods = pods_of(case)
    known = decide.NodeInputs(facts, report, account.node_demand(pods, report))
    (amounts,) = decide.batch_amounts([known], [wanted.reclaim]).tolist()
    answer: dict[str, Any] = _amounts(amounts)
    found = [from_builtins(zone, Zone) for zone in case.get("nrtZones") or ()]
    if has_cpu_or_memory(found):
        demands = account.zone_demands(pods, report, len(found))
        capacities = [zone_capacity(zone) for zone in found]
        (rows,) = decide.zone_batch_amounts(
            [decide.ZoneInputs(facts, report, capacities, demands)], [wanted.reclaim]
        )
        answer["zones"] = {zone.name: _amounts(row) for zone, row in zip(found, rows, strict=True)}
    return answer


def pods_of(case: dict[str, Any]) -> dict[str, account.AccountedPod]:
    pods = [from_builtins(pod, Pod) for pod in case["pods"]]
    known = {pod.key: account.pod_facts(pod) for pod in pods}
    return {key: facts for key, facts in known.items() if facts is not None}


def _enabled(strategy: ColocationStrategy) -> ColocationStrategy:
    return msgspec.structs.replace(strategy, enable=True)


def _amounts(row: Any) -> dict[str, int]:
    cpu_milli, memory = row
    return {"batchCPU": cpu_milli, "batchMemory": account.whole(memory)}


def _prepare(case: dict[str, Any]) -> Any:
    body = case["node"]
    node = from_builtins(
        {
            "metadata": {"name": "n", "annotations": body["annotations"]},
            "status": {"capacity": body["capacity"], "allocatable": body["allocatable"]},
        },
        Node,
    )
    calculated: dict[str, int | None] = {
        name: quantity.milli(amount) for name, amount in case["calculated"].items()
    }
    calculated.update(dict.fromkeys(case["resets"]))
    ratio = _ratio(case.get("cpuNormalizationRatio", ""))
    lent = target.lend(calculated, ratio, _taken(node.metadata.annotations))
    patch = target.node_patch(
        node, target.NodeTarget(amounts=lent.left, origin=lent.origin), with_status=True
    )
    written = {}
    for field in ("capacity", "allocatable"):
        have = {name: quantity.value(v) for name, v in body[field].items() if name in target.BATCH}
        for name, text in patch.get("status", {}).get(field, {}).items():
            have.pop(name, None)
            if text is not None:
                have[name] = quantity.value(text)
        written[field] = have
    annotations = {**node.metadata.annotations, **patch.get("metadata", {}).get("annotations", {})}
    origin = node_annotations.ORIGIN_EXTENDED_ALLOCATABLE.read(annotations)
    assert origin is not None
    return {
        **written,
        "originExtendedAllocatable": {name: quantity.value(v) for name, v in origin.resources.items()},
    }


def _ratio(text: str) -> float:
    try:
        return node_labels.cpu_normalization_ratio({labels.NODE_CPU_NORMALIZATION_RATIO: text})
    except ProtocolError:
        return node_labels.NO_RATIO


def _taken(annotations: dict[str, str]) -> dict[str, int]:
    try:
        return target.third_party(annotations)
    except (ProtocolError, quantity.QuantityError):
        return {}


def _need_sync(case: dict[str, Any]) -> Any:
    old, new = (None if case[side] is None else quantity.milli(case[side]) for side in ("old", "new"))
    return {"needSync": batch.differs(old, new, case["resourceDiffThreshold"])}


def _update_zones(case: dict[str, Any]) -> Any:
    updated, changed = zones_target(
        [from_builtins(zone, Zone) for zone in case["zones"]],
        {
            zone: {
                name: target.whole_amount(name, quantity.milli(amount), case.get("ratio") or 0.0)
                for name, amount in amounts.items()
            }
            for zone, amounts in case["zoneResources"].items()
        },
        case["resourceDiffThreshold"],
    )
    return {
        "changed": changed,
        "zones": {
            zone.name: [
                [r.name, *(quantity.value(a) for a in (r.capacity, r.allocatable, r.available))]
                for r in zone.resources
            ]
            for zone in updated
        },
    }


def _divide(case: dict[str, Any]) -> Any:
    parts = case.get("zones", case.get("n"))
    amount = np.array([quantity.milli(case.get("quantity", case.get("value")))], np.int64)
    return {"milli": int(batch.divide(amount, parts)[0])}


def colocation(case: dict[str, Any]) -> Any:
    return {
        "sync": _sync,
        "nodeStrategy": _node_strategy,
        "isValid": _is_valid,
        "nodeMetricSpec": _metric_spec,
        "isDisabled": _is_disabled,
    }[case["op"]](case)


def _config(body: dict[str, Any]) -> ColocationConfig:
    return _CONFIG.decode(msgspec.json.encode(body).decode())


def _node(body: dict[str, Any]) -> Node:
    return from_builtins(body, Node)


def _sync(case: dict[str, Any]) -> Any:
    old = ColocationState(_config(case["old"]["config"]), case["old"]["available"], case["old"]["error"])
    outcome = colocation_config.sync(old, case["configMapData"])
    state = outcome.state
    return {
        "changed": outcome.changed,
        "state": {
            "config": msgspec.json.decode(_CONFIG.encode(state.config)),
            "available": state.available,
            "error": state.error,
        },
    }


def _node_strategy(case: dict[str, Any]) -> Any:
    strategy = colocation_config.node_strategy(_config(case["colocationConfig"]), _node(case["node"]))
    return {"strategy": msgspec.json.decode(_STRATEGY.encode(strategy))}


def _is_valid(case: dict[str, Any]) -> Any:
    strategy = _STRATEGY.decode(msgspec.json.encode(case["strategy"]).decode())
    return {"valid": not slo_config.colocation_problems(strategy)}


def _metric_spec(case: dict[str, Any]) -> Any:
    state = ColocationState(_config(case["colocationConfig"]), True, case["configErrorStatus"])
    old = from_builtins(case["oldSpec"], NodeMetricSpec) if case.get("oldSpec") else None
    return {"spec": msgspec.to_builtins(node_objects.wanted_spec(state, _node(case["node"]), old))}


def _is_disabled(case: dict[str, Any]) -> Any:
    config = _config(case["colocationConfig"])
    strategy = colocation_config.node_strategy(config, _node(case["node"]))
    return {"disabled": colocation_config.is_disabled(config, strategy)}


ADAPTERS = {"noderesource-batch": noderesource_batch, "colocation-config": colocation}
