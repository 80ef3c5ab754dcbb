"""What questions about what nodes lend and about the manager's configuration must keep to, and more of them."""

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

from tests.reference.amounts import configs, drawing
from tests.reference.compare import KEPT
from tests.reference.mutate import Mutator

Json = dict[str, Any]
Draw = Callable[[random.Random], Json]

_TEXT = "as text"
"""Stands around a value of which the question has the JSON text."""


def _inputs(area: str) -> list[Json]:
    cases = json.loads((KEPT / f"{area}.json").read_text())["cases"]
    return [case["input"] for case in cases]


def _parsed(value: Any) -> Any:
    """The value with the JSON texts in it as what they say, so that these change, too."""
    if isinstance(value, dict):
        return {name: _parsed(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_parsed(member) for member in value]
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return {_TEXT: _parsed(json.loads(value))}
        except ValueError:
            return value
    return value


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_TEXT}:
            return json.dumps(_written(value[_TEXT]))
        return {name: _written(member) for name, member in value.items()}
    return [_written(member) for member in value] if isinstance(value, list) else value


def _drawn(area: str, *draws: Draw, texts: bool = True) -> Draw:
    """Draws in one of several ways until a question can be asked; one is to change contents of texts, too."""
    mutator, mend = Mutator([_parsed(given) for given in _inputs(area)]), MEND.get(area)
    ways = [*draws, lambda chance: _written(mutator.draw(chance.getrandbits(32)))] if texts else draws

    def draw(chance: random.Random) -> Json:
        found = None
        while found is None:
            given = chance.choice(ways)(chance)
            found = given if mend is None else mend(given)
        return found

    return draw


def _once(objects: Iterable[Json]) -> list[Json]:
    """The first object of each name."""
    found: dict[tuple[str, str], Json] = {}
    for each in objects:
        metadata = each["metadata"]
        found.setdefault((metadata.get("namespace", ""), metadata.get("name", "")), each)
    return list(found.values())


def _node_amounts(asked: Json) -> Json | None:
    """Each pod, each zone and each resource of a zone once; nothing is below zero that was calculated."""
    if "pods" in asked:
        asked = {**asked, "pods": _once(asked["pods"])}
    for field in ("nrtZones", "zones"):
        if isinstance(asked.get(field), list):
            asked = {**asked, field: [_zone(each) for each in _by_name(asked[field])]}
    calculated = (asked.get("calculated") or {}, *(asked.get("zoneResources") or {}).values())
    return asked if all("-" not in (text or "") for each in calculated for text in each.values()) else None


def _by_name(members: Iterable[Json]) -> list[Json]:
    return list({each["name"]: each for each in members}.values())


def _zone(zone: Json) -> Json:
    return {**zone, "resources": _by_name(zone.get("resources") or ())}


def _amplified(asked: Json) -> Json | None:
    return {**asked, "names": sorted(set(asked["names"]))} if asked.get("names") else asked


def _of_nodes(asked: Json) -> Json | None:
    """Nodes say no empty list of amounts."""
    for field in ("oldNode", "node"):
        if asked.get(field) and not asked[field].get("allocatable"):
            kept = {name: value for name, value in asked[field].items() if name != "allocatable"}
            asked = {**asked, field: kept}
    return asked


def _checked(asked: Json) -> Json | None:
    return {**asked, "nodes": _once(asked["nodes"])} if "nodes" in asked else asked


def _subtracted(asked: Json) -> Json | None:
    return None if asked["op"] == "views" else _node_amounts(asked)


MEND = {
    "noderesource-batch": _node_amounts,
    "noderesource-mid": _node_amounts,
    "amplification": _of_nodes,
    "api-amplification": _amplified,
    "slo-config-validation": _checked,
    "yarn-batch-subtract": _subtracted,
}
DRAW = {
    "noderesource-batch": _drawn("noderesource-batch", drawing.batch),
    "noderesource-mid": _drawn("noderesource-mid", drawing.mid),
    "noderesource-device": _drawn("noderesource-device", drawing.devices, texts=False),
    "amplification": _drawn("amplification", drawing.amplification),
    "api-amplification": _drawn("api-amplification", drawing.api_amplification, texts=False),
    "cpunormalization": _drawn("cpunormalization", drawing.normalization, configs.normalization),
    "colocation-config": _drawn("colocation-config", configs.colocation),
    "slo-config-validation": _drawn("slo-config-validation", configs.validation),
    "nodeslo-merge": _drawn("nodeslo-merge", configs.node_slo),
    "yarn-batch-subtract": _drawn("yarn-batch-subtract", drawing.subtraction),
}
_VIEWS = ("views-overbooked-cpu", "views-origin-shrank-below-both", "views-origin-zero")
OUTDATED = {
    "yarn-batch-subtract": dict.fromkeys(_VIEWS, "what YARN and pods see of a node is not in this module")
}
