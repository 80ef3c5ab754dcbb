"""Areas `cpunormalization`, `amplification` and `noderesource-device`."""

from typing import Any

import msgspec

from koordinator.api import labels, node_labels, quantity, slo_config
from koordinator.api import node_labels as amplifying
from koordinator.api.annotations.codec import Annotation
from koordinator.api.annotations.node import CPU_BASIC_INFO, CPUBasicInfo
from koordinator.api.decode import from_builtins
from koordinator.api.device import Device
from koordinator.api.errors import ProtocolError
from koordinator.manager.config import amplification, cpu_normalization
from koordinator.manager.noderesource import account, rows
from koordinator.manager.webhooks import node_status
from tests.vectors import compare


def _decode(codec: Annotation[Any], body: Any) -> Any:
    return codec.decode(msgspec.json.encode(body).decode())


def normalization(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "calculate":
            config = _decode(slo_config.CPU_NORMALIZATION, case["config"])
            ratio = cpu_normalization.node_ratio(
                config, "n", case["nodeLabels"] or {}, lambda: _reported(case)
            )
            return {"ratio": node_labels.cpu_normalization_ratio_text(ratio)}
        case "modelRatio":
            strategy = _decode(slo_config.CPU_NORMALIZATION, case["strategy"])
            found = cpu_normalization.model_ratio(strategy.ratio_model, _info(case))
            return {"error": True} if found is None else {"ratio": found}
        case "strategyRatio":
            strategy = _decode(slo_config.CPU_NORMALIZATION, case["strategy"])
            return {"ratio": cpu_normalization.strategy_ratio(strategy, _info(case))}
        case "needSyncMeta":
            return {"needSync": cpu_normalization.needs_sync(case["old"], case["new"])}
        case "syncConfig":
            old = _decode(slo_config.CPU_NORMALIZATION, case["old"])
            outcome = cpu_normalization.sync(old, case["configMapData"])
            config = msgspec.json.decode(slo_config.CPU_NORMALIZATION.encode(outcome.config))
            return {"config": config, "error": bool(outcome.problem)}
    raise AssertionError(case["op"])


def _info(case: dict[str, Any]) -> CPUBasicInfo:
    found: CPUBasicInfo = _decode(CPU_BASIC_INFO, case["basicInfo"])
    return found


def _reported(case: dict[str, Any]) -> CPUBasicInfo:
    info = CPU_BASIC_INFO.read(case["topologyAnnotations"] or {})
    if info is None:
        raise ProtocolError("NodeResourceTopology n", CPU_BASIC_INFO.key, "not reported")
    return info


def amplify(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "calculate":
            config = _decode(slo_config.RESOURCE_AMPLIFICATION, case["config"])
            ratios = amplification.node_ratios(
                config, "n", case["nodeLabels"] or {}, case["nodeAnnotations"] or {}
            )
            return {"annotation": amplification.annotation_text(ratios)}
        case "nodeStatusAdmission":
            return _node_status(case)
        case "needSyncMeta":
            return {"needSync": amplification.needs_sync(case["old"], case["new"])}
        case "amplifyValue":
            return {"value": amplifying.amplify(case["value"], case["ratio"])}
    raise AssertionError(case["op"])


def _node_status(case: dict[str, Any]) -> Any:
    node, old = _node(case["node"]), case["oldNode"] and _node(case["oldNode"])
    if case["operation"] == "UPDATE":
        try:
            node = node_status.mutate(node, old)
        except (ProtocolError, quantity.QuantityError):
            return {"error": True}
    raw = node["metadata"]["annotations"].get(labels.NODE_RAW_ALLOCATABLE)
    return {
        "allocatableMilli": _millis(node["status"].get("allocatable") or {}),
        "rawAllocatableMilli": None if raw is None else _millis(msgspec.json.decode(raw) or {}),
    }


def _node(body: dict[str, Any]) -> dict[str, Any]:
    status = {"allocatable": body["allocatable"]} if "allocatable" in body else {}
    return {"metadata": {"name": "n", "annotations": body.get("annotations") or {}}, "status": status}


def _millis(amounts: dict[str, Any]) -> dict[str, int]:
    return {name: quantity.milli(amount) for name, amount in amounts.items()}


def devices(case: dict[str, Any]) -> Any:
    found = None if case["device"] is None else from_builtins(case["device"], Device)
    if case["op"] == "rdma":
        target = rows.rdma_target(found)
        known: tuple[str, ...] = rows.RDMA_RESOURCES
    else:
        target = rows.gpu_target(found, publishes_shared=case["sharedGate"])
        known = rows.GPU_RESOURCES
    if target.amounts == dict.fromkeys(known):
        return {"reset": True}
    written = {
        name: str(account.whole(amount)) for name, amount in target.amounts.items() if amount is not None
    }
    return {"resources": written} | ({"labels": target.labels} if case["op"] == "gpu" else {})


def _same_normalization(expected: Any, actual: Any) -> bool:
    """Maps without members are as good as absent; a configuration that was refused need not be shown."""
    if expected == {"error": True}:
        return bool(actual.get("error"))
    return compare.exact(_without_empty(expected), _without_empty(actual))


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        members = {name: _without_empty(member) for name, member in value.items()}
        return {name: member for name, member in members.items() if member not in ({}, [])}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


ADAPTERS = {"cpunormalization": normalization, "amplification": amplify, "noderesource-device": devices}
COMPARE = {"cpunormalization": _same_normalization, "noderesource-device": compare.quantities}
