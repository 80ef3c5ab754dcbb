"""Area `nodeslo-merge`: NodeSLO specs from the ConfigMap."""

from typing import Any

import msgspec

from koordinator.api.core import Node
from koordinator.api.decode import from_builtins
from koordinator.manager.config import node_slo_spec
from tests.vectors import compare


def nodeslo_merge(case: dict[str, Any]) -> Any:
    config = node_slo_spec.DEFAULT_CONFIG
    if case["previousData"] is not None:
        config = node_slo_spec.sync(config, case["previousData"]).config
    outcome = node_slo_spec.sync(config, case["data"])
    spec = node_slo_spec.wanted_spec(outcome.config, from_builtins(case["node"], Node))
    return {"spec": msgspec.to_builtins(spec), "parseErrors": list(outcome.problems)}


def _same(expected: Any, actual: Any) -> bool:
    """The order of the keys that were not understood says nothing, nor do the limits of a disk that has none."""
    same = compare.quantities(_without_no_limits(expected["spec"]), _without_no_limits(actual["spec"]))
    return same and sorted(expected["parseErrors"]) == sorted(actual["parseErrors"])


def _without_no_limits(value: Any) -> Any:
    if isinstance(value, dict):
        said = {name: _without_no_limits(member) for name, member in value.items()}
        return {name: member for name, member in said.items() if (name, member) != ("ioCfg", {})}
    return [_without_no_limits(member) for member in value] if isinstance(value, list) else value


ADAPTERS = {"nodeslo-merge": nodeslo_merge}
COMPARE = {"nodeslo-merge": _same}
