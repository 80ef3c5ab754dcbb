"""Where we differ from Kubernetes on expressions, definitions and custom resources.

Each rule that sets something aside says why; what we leave out on purpose is in `docs/local-api.md`.
"""

import copy
import datetime
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from koordinator import cel
from koordinator.api.kinds import BUILT_IN
from koordinator.api.quantity import Quantity
from koordinator.cel import checker, conversions
from koordinator.cel.overloads import DYN
from koordinator.cel.values import OptionalValue, TypeName, kind_of
from koordinator.cluster.errors import ApiError, StatusCause
from koordinator.local.schema import Catalog
from koordinator.local.schema.custom import definition as definitions_of_ours
from koordinator.local.schema.custom.schema import CustomSchema
from tests.go_programs import Ask
from tests.real.custom import definitions, expressions
from tests.real.custom.definitions import Draw

Json = dict[str, Any]
CATALOG = Catalog(BUILT_IN)
DEFINITION = next(each for each in BUILT_IN if each.kind == "CustomResourceDefinition")

# Expressions


def expression(ask: Ask, seed: int) -> list[str]:
    """What differs about the expression of a number."""
    text = expressions.expression_of(seed)
    theirs = ask({"kind": "expression", "expression": text, "values": expressions.VALUES})
    ours = our_expression(text, expressions.VALUES)
    if _is_left_out(text, theirs, ours):
        return []
    for part in ("refused", "failed", "value"):
        one, other = theirs.get(part), ours.get(part)
        if part == "value" and one is not None and other is not None:
            one, other = _unordered(one), _unordered(other)
        elif one is not None and other is not None:
            continue  # each has words of its own
        if one != other:
            return [text, f"theirs {json.dumps(theirs)[:300]}", f"ours {json.dumps(ours)[:300]}"]
    return []


def our_expression(text: str, values: Json) -> Json:
    try:
        kind = checker.type_of(text, dict.fromkeys(values, DYN))
        program = cel.compile_expression(text, tuple(values))
    except cel.CompileError as error:
        return {"refused": checker.marked(error)}
    try:
        return {"type": str(kind), "value": _shown(program(values))}
    except cel.EvaluationError as error:
        return {"type": str(kind), "failed": str(error)}


_FAULTS = ("invalid qualifier type", "hash of unhashable type", "reference to undefined type")


def _is_left_out(text: str, theirs: Json, ours: Json) -> bool:
    failed, ours_failed = str(theirs.get("failed", theirs.get("refused"))), str(ours.get("failed"))
    if "crashed" in theirs or any(fault in failed for fault in _FAULTS):
        return True  # Kubernetes fails by mistake
    if "unsupported key type" in ours_failed:
        return True  # maps and lists are no keys
    if re.match(r"no such overload: \w+(\.\w+)?\(", failed) and "value" in ours:
        return True  # items of lists that functions make have no type for Kubernetes until they are looked at
    is_amount = "quantity(" in text and ("no such overload" in failed or "cannot convert value" in failed)
    return (
        is_amount or "no such overload" in ours_failed
    )  # computed amounts equal nothing, or are no whole numbers


def _shown(value: Any) -> Any:
    """A value with its type, so that 1 and 1.0 differ."""
    name = kind_of(value)
    match value:
        case None:
            return [name]
        case bool() | str():
            return [name, value]
        case int():
            return [name, str(int(value))]
        case float():
            if math.isnan(value) or math.isinf(value):
                return [name, conversions.double_text(value)]
            return [name, f"{value:.12e}"]
        case bytes():
            return [name, value.hex()]
        case datetime.datetime() | datetime.timedelta():
            return [name, conversions.to_string(value)]
        case OptionalValue():
            return [name, _shown(value.content)] if value.has_value else [name]
        case list():
            return ["list", [*map(_shown, value)]]
        case dict():
            return ["map", [[_shown(key), _shown(item)] for key, item in value.items()]]
        case TypeName():
            return ["type", value.name]
        case Quantity():
            return [name, value.text]
    return [name, str(value)]


_BY_NAME = ("kubernetes.Semver", "kubernetes.NamedFormat", "kubernetes.URL")


def _unordered(value: Any) -> Any:
    """The value without what cannot be compared: the order of a map, the text of a URL, words about a format."""
    match value:
        case ["map", entries]:
            pairs = [[_unordered(key), _unordered(item)] for key, item in entries]
            return ["map", sorted(pairs, key=json.dumps)]
        case ["list", items]:
            return ["list", [*map(_unordered, items)]]
        case ["optional_type", ["list", [["string", str(text)], *_]]] if "must" in text or "invalid" in text:
            return ["optional_type", ["list"]]
        case ["optional_type", inner]:
            return ["optional_type", _unordered(inner)]
        case [name, *_] if name in _BY_NAME:
            return [name]
        case ["string", str(text)] if text.startswith(("parse ", "must be a valid ")):
            return ["string"]
    return value


# Definitions


def definition(ask: Ask, seed: int) -> list[str]:
    """What differs about the refusal of a definition, half of which are broken."""
    draw = Draw("definition", seed)
    made = definitions.definition_of(draw, draw.choice([0.0, 0.12]))
    theirs, ours = ask({"kind": "definition", "definition": made}), _judged(made)
    if "crashed" in theirs or "unreadable" in theirs or ours is None:
        return []  # lists in the place of a schema
    one, other = (_told(causes) for causes in (theirs["causes"], ours))
    return _lines(one, other)


def _judged(made: Json) -> list[StatusCause] | None:
    schema = CATALOG.schema_of(DEFINITION)
    try:
        decoded = schema.default(schema.decode(copy.deepcopy(made), "Ignore")[0])
    except ApiError:
        return None
    return [*schema.validate(decoded, None), *CATALOG.check_crd(decoded)]


def _told(causes: list[Any]) -> Counter[str]:
    """Reasons and fields, without the costs of rules, which are not estimated here."""
    listed = [each if isinstance(each, list) else [each.reason, each.field, each.message] for each in causes]
    return Counter(
        f"{reason} {field}"
        for reason, field, message in listed
        if "exceeds budget" not in message
        and "contributed to estimated" not in message
        and field != "status.storedVersions"
    )


def _lines(theirs: Counter[str], ours: Counter[str]) -> list[str]:
    """Of a part that is wrong anyway, what its default and rules say does not count: each gives up at another place."""
    if theirs and ours:
        theirs, ours = (
            Counter({key: told[key] for key in told if not _follows(key)}) for told in (theirs, ours)
        )
    return [f"theirs {each}" for each in theirs - ours] + [f"ours {each}" for each in ours - theirs]


def _follows(told: str) -> bool:
    return ".default" in told or "x-kubernetes-validations" in told


# Objects


def custom(ask: Ask, seed: int) -> list[str]:
    """What differs about an object that is new, or that follows another while its definition became stricter."""
    draw = Draw("object", seed)
    made = definitions.definition_of(draw)
    if ask({"kind": "definition", "definition": made}).get("causes"):
        return []
    obj, old = definitions.object_of(draw, made), None
    if draw.chance(0.6):
        obj, old = definitions.changed(draw, made, obj), obj
        made = definitions.tightened(draw, made) if draw.chance(0.5) else made
    return custom_differences(ask, made, obj, old)


def custom_differences(ask: Ask, made: Json, obj: Json, old: Json | None) -> list[str]:
    question = {"kind": "object", "definition": made, "object": obj}
    theirs = ask(question if old is None else {**question, "old": old})
    ours = our_object(made, obj, old)
    if "crashed" in theirs or "unreadable" in theirs or "unreadable" in ours:
        return [] if "unreadable" in theirs and "unreadable" in ours else [f"theirs {theirs}, ours {ours}"]
    lines = [
        f"{part}: theirs {theirs[part]}, ours {ours[part]}"
        for part in ("object", "unknown")
        if _whole(theirs[part]) != _whole(ours[part])
    ]
    return lines + _lines(_told(theirs["causes"]), _told(ours["causes"]))


def our_object(made: Json, obj: Json, old: Json | None) -> Json:
    schema = CATALOG.schema_of(DEFINITION)
    whole = schema.default(schema.decode(copy.deepcopy(made), "Ignore")[0])
    resource, own = definitions_of_ours.resources_of(whole)[0]
    custom_schema = CustomSchema(resource, own, definitions_of_ours.scale_of(whole, resource.version))
    try:
        read, warnings = custom_schema.decode(copy.deepcopy(obj), "Warn")
        before = None if old is None else custom_schema.decode(copy.deepcopy(old), "Warn")[0]
    except ApiError as error:
        return {"unreadable": str(error)}
    read = custom_schema.default(read)
    causes = custom_schema.validate(read, None if before is None else custom_schema.default(before))
    unknown = [re.sub('unknown field "(.*)"', r"\1", each) for each in warnings]
    return {
        "unknown": unknown,
        "causes": causes,
        "object": {key: value for key, value in read.items() if key != "metadata"},
    }


def _whole(value: Any) -> Any:
    """JSON has one kind of number; unknown fields have no order."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return sorted(set(value))
    return [*map(_whole, value)] if isinstance(value, list) else value


KINDS: dict[str, Callable[[Ask, int], list[str]]] = {
    "expression": expression,
    "definition": definition,
    "custom": custom,
}
"""By name: what differs about the case of a number."""
