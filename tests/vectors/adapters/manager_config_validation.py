"""Area `slo-config-validation`: what the webhooks for the ConfigMap and for nodes refuse."""

from typing import Any

import msgspec

from koordinator.api import slo_config
from koordinator.api.affinity import LabelSelector
from koordinator.api.annotations.codec import Payload
from koordinator.api.decode import from_builtins
from koordinator.api.errors import ProtocolError
from koordinator.manager.config import validation
from koordinator.manager.config import validation as selectors
from koordinator.manager.config.validation import ConfigVerdict
from tests.vectors import compare

_CODECS = {
    codec.key: codec
    for codec in (
        slo_config.COLOCATION,
        slo_config.RESOURCE_THRESHOLD,
        slo_config.RESOURCE_QOS,
        slo_config.SYSTEM,
        slo_config.CPU_BURST,
    )
}


class _Profile(Payload, frozen=True, kw_only=True):
    name: str = ""
    node_selector: LabelSelector | None = None


def slo_config_validation(case: dict[str, Any]) -> Any:
    match case["op"]:
        case "content":
            return {"valid": not _content_problems(case)}
        case "configmap":
            return _config_map(case)
        case "overlap":
            profiles = [from_builtins(profile, _Profile) for profile in case["profiles"]]
            return {"overlap": bool(selectors.overlap(profiles))}
        case "node":
            if case["operation"] != "UPDATE":
                return {"allowed": True}
            rules = validation.NodeRules(case["configMapData"] or {})
            return _shown(rules.check("n", case["oldLabels"] or {}, case["newLabels"] or {}))
    raise AssertionError(case["op"])


def _content_problems(case: dict[str, Any]) -> list[str]:
    try:
        config: Any = _CODECS[case["key"]].decode(msgspec.json.encode(case["config"]).decode())
        system = slo_config.SYSTEM.decode(msgspec.json.encode(case.get("systemConfig") or {}).decode())
    except ProtocolError as error:
        return [str(error)]
    return validation.content_problems(case["key"], config, system)


def _config_map(case: dict[str, Any]) -> Any:
    if case["operation"] == "DELETE":
        return {"allowed": True}
    names_needed = case.get("nodeStrategyNameNeedCheck", False)
    nodes = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in case["nodes"]}
    old, new = case["oldData"] or {}, case["newData"] or {}
    verdict = validation.validate_config_map(old, new, nodes, names_needed=names_needed)
    return _shown(verdict)


def _shown(verdict: ConfigVerdict) -> Any:
    shown: dict[str, Any] = {"allowed": verdict.allowed}
    return shown if verdict.allowed else shown | {"reason": verdict.reason.value}


ADAPTERS = {"slo-config-validation": slo_config_validation}
COMPARE = {"slo-config-validation": compare.subset}
