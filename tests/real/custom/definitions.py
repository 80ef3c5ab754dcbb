"""Random CustomResourceDefinitions and objects of them; most of both are good."""

# ruff: noqa: E501 - the tables have a case in a line

import copy
import random
from typing import Any

Json = dict[str, Any]

GROUP, KIND, PLURAL = "example.com", "Widget", "widgets"
NAMES = ["a", "b", "c", "d-e", "f.g", "namespace", "size"]
WORDS = [
    "a",
    "ab",
    "abc",
    "x1",
    "",
    "10Gi",
    "Ä",
    "2024-01-02",
    "10.0.0.1",
    "aGk=",
    "https://h/p",
    "1h",
    "true",
    "x" * 12,
]
WORDS += [
    "2024-01-02T03:04:05Z",
    "fe80::1",
    "a@b.c",
    "550e8400-e29b-41d4-a716-446655440000",
    "10.0.0.0/8",
    "#fff",
    "a b",
]
NUMBERS = [0, 1, 2, 3, 5, 7, 10, -1, 100, 2**31, 2**53]
REALS = [0.5, 1.5, 2.0, -0.25, 1e10, 3, 0]
PATTERNS = ["^[a-z]+$", "a", "^.{1,3}$", "^[0-9]+Gi$", "^$"]
FORMATS = [
    "date",
    "date-time",
    "ipv4",
    "ipv6",
    "byte",
    "uri",
    "duration",
    "email",
    "uuid",
    "cidr",
    "hostname",
    "mac",
]
FORMATS += [
    "int32",
    "unknown",
    "password",
    "datetime",
    "k8s-short-name",
    "k8s-long-name",
    "hexcolor",
    "uuid4",
    "isbn",
]
RULES: dict[str, list[str]] = {
    "string": [
        "self.size() < 5",
        "self != 'abc'",
        "self.startsWith('a')",
        "self == oldSelf",
        "self.matches('^a')",
        "self > oldSelf",
    ],
    "integer": ["self > 0", "self < 10 || self == 100", "self >= oldSelf", "self % 2 == 0", "10 / self > 1"],
    "number": ["self > 0.0", "self < 10.0", "self != oldSelf"],
    "boolean": ["self", "!self", "self == oldSelf"],
    "array": [
        "self.size() < 3",
        "size(self) > 0",
        "self == oldSelf",
        "self.all(x, x == x)",
        "self.isSorted()",
        "oldSelf.all(x, x in self)",
    ],
    "object": [
        "has(self.a)",
        "!has(self.b) || has(self.a)",
        "self == oldSelf",
        "has(self.c) == has(oldSelf.c)",
        "self.a == self.b",
        "self.size() < 3",
    ],
    "": ["self == self", "type(self) == int"],
}
OLD_RULES = [
    "!oldSelf.hasValue() || oldSelf.value() == self",
    "oldSelf.orValue(self) == self",
    "oldSelf.hasValue()",
]
REASONS = ["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate", "Other"]
MESSAGES = [
    "'it is ' + string(self)",
    "'no'",
    "''",
    "'a\\nb'",
    "self",
    "string(1 / 0)",
    "'%s'.format([self])",
]


class Draw(random.Random):
    """Chances of one case."""

    def __init__(self, kind: str, number: int) -> None:
        super().__init__(f"{kind} {number}")

    def chance(self, share: float) -> bool:
        return self.random() < share


def schema_of(draw: Draw, depth: int, *, breaks: float = 0.0) -> Json:
    """A structural schema; `breaks` is the share of parts that are made wrong."""
    kind = draw.choice(
        ["string", "integer", "number", "boolean", *(("array", "object", "object", "map") if depth else ())]
    )
    if draw.chance(0.06):
        return _int_or_string(draw)
    if draw.chance(0.05):
        return {
            "x-kubernetes-preserve-unknown-fields": True,
            **({"type": "object"} if draw.chance(0.7) else {}),
        }
    made: Json = {"type": "object" if kind == "map" else kind}
    match kind:
        case "string":
            _string(draw, made)
        case "integer" | "number":
            _number(draw, made)
        case "array":
            _array(draw, made, depth, breaks)
        case "object":
            _object(draw, made, depth, breaks)
        case "map":
            made["additionalProperties"] = schema_of(draw, depth - 1, breaks=breaks)
            if draw.chance(0.2):
                made["maxProperties"] = draw.randint(0, 2)
    if draw.chance(0.15):
        made["nullable"] = True
    if draw.chance(0.1):
        _junctor(draw, made)
    if draw.chance(0.15):
        made["default"] = value_of(draw, made, 0.0 if draw.chance(0.9) else 0.5)
    if draw.chance(0.3):
        made["x-kubernetes-validations"] = [
            rule_of(draw, made, breaks) for _ in range(draw.choice([1, 1, 2]))
        ]
    if draw.chance(breaks):
        _broken(draw, made)
    return made


def _int_or_string(draw: Draw) -> Json:
    made: Json = {"x-kubernetes-int-or-string": True}
    either = [{"type": "integer"}, {"type": "string"}]
    if draw.chance(0.4):
        made["anyOf"] = either
    elif draw.chance(0.3):
        made["allOf"] = [{"anyOf": either}]
    if draw.chance(0.3):
        made["pattern"] = draw.choice(PATTERNS)
    if draw.chance(0.3):
        made["maximum"] = draw.choice(NUMBERS)
    return made


def _string(draw: Draw, made: Json) -> None:
    for name, options in (
        ("minLength", [0, 1, 2]),
        ("maxLength", [1, 3, 10]),
        ("pattern", PATTERNS),
        ("format", FORMATS),
    ):
        if draw.chance(0.2):
            made[name] = draw.choice(options)
    if draw.chance(0.15):
        made["enum"] = draw.sample(WORDS, 3)


def _number(draw: Draw, made: Json) -> None:
    options = NUMBERS if made["type"] == "integer" else REALS
    for name in ("minimum", "maximum", "multipleOf"):
        if draw.chance(0.2):
            made[name] = abs(draw.choice(options)) or 1
    for name, of in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if of in made and draw.chance(0.3):
            made[name] = True
    if draw.chance(0.15):
        made["enum"] = draw.sample(options, 3)
    if draw.chance(0.2):
        made["format"] = draw.choice(["int32", "int64", "double", "float"])


def _array(draw: Draw, made: Json, depth: int, breaks: float) -> None:
    made["items"] = schema_of(draw, depth - 1, breaks=breaks)
    for name, options in (("minItems", [0, 1]), ("maxItems", [1, 2, 5])):
        if draw.chance(0.2):
            made[name] = draw.choice(options)
    kind = draw.choice(["", "", "set", "map", "atomic"])
    if kind:
        made["x-kubernetes-list-type"] = kind
    if kind == "map":
        key: Json = {"type": "string"} if draw.chance(0.8) else {"type": "integer"}
        more = {name: schema_of(draw, 0) for name in draw.sample(["b", "c"], 1)}
        made["items"] = {"type": "object", "properties": {"a": key, **more}}
        made["x-kubernetes-list-map-keys"] = ["a"]
        if draw.chance(0.7):
            made["items"]["required"] = ["a"]
        else:
            key["default"] = "x" if key["type"] == "string" else 1
    elif kind == "set" and made["items"].get("type") in ("object", "array"):
        made["items"] = {"type": "string"}


def _object(draw: Draw, made: Json, depth: int, breaks: float) -> None:
    names = draw.sample(NAMES, draw.randint(0, 3))
    made["properties"] = {name: schema_of(draw, depth - 1, breaks=breaks) for name in names}
    if names and draw.chance(0.3):
        made["required"] = draw.sample(names, 1)
    if draw.chance(0.1):
        made["x-kubernetes-preserve-unknown-fields"] = True
    if draw.chance(0.08):
        made["x-kubernetes-embedded-resource"] = True
        if not names:
            made["x-kubernetes-preserve-unknown-fields"] = True
    if draw.chance(0.1):
        made["x-kubernetes-map-type"] = draw.choice(["atomic", "granular"])
    if draw.chance(0.1):
        made["minProperties"] = 1


def _junctor(draw: Draw, made: Json) -> None:
    parts: list[Json] = [
        {"enum": [value_of(draw, {"type": made["type"]}, 0)]},
        {"not": {"enum": [value_of(draw, {"type": made["type"]}, 0)]}},
        {"minimum": 2},
        {"maxLength": 2},
        {"required": ["a"]},
    ]
    if made.get("properties"):
        name = draw.choice([*made["properties"]])
        parts.append({"properties": {name: {"minimum": 1}}, "required": [name]})
    junctor = draw.choice(["allOf", "anyOf", "oneOf", "not"])
    made[junctor] = draw.choice(parts) if junctor == "not" else draw.sample(parts, 2)


def rule_of(draw: Draw, made: Json, breaks: float = 0.0) -> Json:
    rule: Json = {"rule": draw.choice(RULES[made.get("type", "")])}
    if draw.chance(0.15):
        rule |= {"rule": draw.choice(OLD_RULES), "optionalOldSelf": True}
    if draw.chance(breaks):
        rule["rule"] = draw.choice(
            ["", "self.", "self.nothing > 1", "1", "oldSelf.x", "self.map(x, x)", "other"]
        )
    if draw.chance(0.3):
        rule["message"] = draw.choice(
            ["must be so", " ", "a\nb"] if draw.chance(breaks) else ["must be so", "no"]
        )
    if draw.chance(0.25):
        rule["messageExpression"] = draw.choice(MESSAGES if draw.chance(breaks * 3) else MESSAGES[:4])
    if draw.chance(0.25):
        rule["reason"] = draw.choice(REASONS if draw.chance(breaks * 3) else REASONS[:4])
    if draw.chance(0.2) and (made.get("properties") or draw.chance(breaks)):
        rule["fieldPath"] = draw.choice(
            [*(f".{name}" for name in made.get("properties") or ()), ".nothing", "['d-e']", "a"][
                : 9 if draw.chance(breaks) else 1
            ]
        )
    return rule


def _broken(draw: Draw, made: Json) -> None:
    wrong: list[Json] = [
        {"type": "null"}, {"type": "strin"}, {"type": ""}, {"pattern": "("}, {"uniqueItems": True}, {"$ref": "#/x"},
        {"x-kubernetes-list-type": "set"}, {"x-kubernetes-list-type": "other"}, {"x-kubernetes-list-map-keys": ["a"]},
        {"x-kubernetes-map-type": "atomic"}, {"x-kubernetes-map-type": "other"}, {"x-kubernetes-int-or-string": True},
        {"x-kubernetes-preserve-unknown-fields": False}, {"x-kubernetes-embedded-resource": True}, {"additionalProperties": False},
        {"additionalProperties": True}, {"items": {"type": "string"}}, {"properties": {"a": {"type": "string"}}},
        {"properties": {"a": {}}}, {"allOf": [{"type": "string"}]}, {"anyOf": [{"nullable": True}]}, {"not": {"description": "x"}},
        {"allOf": [{"properties": {"z": {"minimum": 1}}}]}, {"allOf": [{"default": 1}]}, {"default": {"z": 1}}, {"default": None},
        {"default": "wrong"}, {"id": "x"}, {"definitions": {"a": {}}}, {"dependencies": {"a": ["b"]}}, {"patternProperties": {"a": {}}},
        {"additionalItems": True}, {"allOf": [{"x-kubernetes-validations": [{"rule": "true"}]}]}, {"x-kubernetes-list-type": "map"},
        {"allOf": [{"additionalProperties": {"minimum": 1}}]}, {"nullable": True, "x-kubernetes-list-type": "map"}, {"items": [{"type": "string"}]},
        {"properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}, {"properties": {"kind": {"type": "integer"}}},
        {"x-kubernetes-embedded-resource": True, "properties": {"metadata": {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"name": {"type": "string"}}}}},
    ]  # fmt: skip
    made |= copy.deepcopy(draw.choice(wrong))


def definition_of(draw: Draw, breaks: float = 0.0) -> Json:
    """A definition with one version, or two."""
    versions = [_version(draw, "v1", breaks)]
    if draw.chance(0.15):
        versions.append({**_version(draw, "v2", breaks), "storage": False})
    made: Json = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": PLURAL, "singular": "widget", "kind": KIND, "listKind": f"{KIND}List"},
            "versions": versions,
        },
    }
    if draw.chance(breaks):
        _break_spec(draw, made)
    return made


def _version(draw: Draw, name: str, breaks: float) -> Json:
    properties = {
        part: schema_of(draw, 3, breaks=breaks) for part in draw.sample([*NAMES, "spec"], draw.randint(1, 3))
    }
    properties["spec"] = {
        "type": "object",
        "properties": {"replicas": {"type": "integer"}, "on": {"type": "boolean"}},
    }
    if draw.chance(0.1):
        properties["metadata"] = {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 3}},
        }
    root: Json = {"type": "object", "properties": properties}
    if draw.chance(0.2):
        root["required"] = ["spec"]
    if draw.chance(0.2):
        root["x-kubernetes-validations"] = [rule_of(draw, root, breaks)]
        if (
            "== self" in (rule := root["x-kubernetes-validations"][0])["rule"]
            or rule["rule"] == "self == oldSelf"
        ):
            del root["x-kubernetes-validations"]  # no two states of an object with a namespace are equal
    if draw.chance(breaks):
        _broken(draw, root)
    made: Json = {"name": name, "served": True, "storage": True, "schema": {"openAPIV3Schema": root}}
    if draw.chance(0.3):
        made["subresources"] = {
            "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
        }
        if draw.chance(0.5):
            made["subresources"]["status"] = {}
    if draw.chance(0.3):
        made["additionalPrinterColumns"] = [{"name": "On", "type": "boolean", "jsonPath": ".spec.on"}]
    if draw.chance(0.2):
        made["selectableFields"] = [{"jsonPath": ".spec.on"}]
    if draw.chance(breaks):
        _break_version(draw, made)
    return made


def _break_version(draw: Draw, made: Json) -> None:
    wrong: list[Json] = [
        {"name": "V1"}, {"schema": None}, {"storage": False}, {"deprecationWarning": "x"}, {"deprecated": True, "deprecationWarning": ""},
        {"subresources": {"scale": {"specReplicasPath": "spec.replicas", "statusReplicasPath": ".status.replicas"}}},
        {"subresources": {"scale": {"specReplicasPath": ".status.replicas", "statusReplicasPath": ".spec.replicas"}}},
        {"subresources": {"scale": {"specReplicasPath": "", "statusReplicasPath": "", "labelSelectorPath": "x"}}},
        {"subresources": {"scale": {"specReplicasPath": ".spec.r", "statusReplicasPath": ".status.r", "labelSelectorPath": ".meta.x"}}},
        {"additionalPrinterColumns": [{"name": "", "type": "", "jsonPath": ""}]},
        {"additionalPrinterColumns": [{"name": "x", "type": "other", "jsonPath": "spec", "format": "strange"}]},
        {"selectableFields": [{"jsonPath": ".spec"}]}, {"selectableFields": [{"jsonPath": ".spec.none"}]},
        {"selectableFields": [{"jsonPath": ".metadata.name"}]}, {"selectableFields": [{"jsonPath": ""}]},
        {"selectableFields": [{"jsonPath": ".spec.on"}, {"jsonPath": ".spec.on"}]}, {"selectableFields": [{"jsonPath": "spec.on"}]},
        {"selectableFields": [{"jsonPath": f".spec.on{number}"} for number in range(9)]},
    ]  # fmt: skip
    made |= draw.choice(wrong)


def _break_spec(draw: Draw, made: Json) -> None:
    spec = made["spec"]
    wrong: list[tuple[Json, Json]] = [
        (spec, {"group": "x"}), (spec, {"group": "Example.com"}), (spec, {"scope": "Other"}), (spec, {"group": "a.k8s.io"}),
        (spec, {"scope": ""}), (spec, {"versions": []}), (spec, {"preserveUnknownFields": True}),
        (spec["names"], {"plural": "Widgets"}), (spec["names"], {"kind": "wid get"}), (spec["names"], {"listKind": KIND}),
        (spec["names"], {"singular": "Widget"}), (spec["names"], {"shortNames": ["W"]}), (spec["names"], {"categories": ["A b"]}),
        (spec["names"], {"kind": ""}), (made["metadata"], {"name": "other"}), (spec, {"conversion": {"strategy": "Other"}}),
        (spec, {"conversion": {"strategy": "None", "webhook": {"conversionReviewVersions": ["v1"]}}}),
    ]  # fmt: skip
    part, change = draw.choice(wrong)
    part |= change


def value_of(draw: Draw, schema: Json, strange: float = 0.1) -> Any:
    """A value, most likely of a schema; `strange` is the share of parts that are not."""
    if draw.chance(strange):
        # An object in the place of a text or number loses its fields before it is refused: they would be warned of.
        members = [{"a": 1}, {"z": {"y": 1}}] if schema.get("type") in ("object", "array") else []
        return draw.choice([None, "a", 1, 1.5, True, [], {}, ["a"], -1, "", *members])
    if "enum" in schema and draw.chance(0.8):
        return draw.choice(schema["enum"])
    if "default" in schema and draw.chance(0.2):
        return schema["default"]
    if schema.get("x-kubernetes-int-or-string"):
        return draw.choice([1, "a", "10Gi", 100])
    match schema.get("type"):
        case "string":
            return draw.choice(WORDS)
        case "integer":
            return draw.choice(NUMBERS)
        case "number":
            return draw.choice(REALS)
        case "boolean":
            return draw.chance(0.5)
        case "array":
            return [value_of(draw, schema.get("items") or {}, strange) for _ in range(draw.randint(0, 3))]
        case "object":
            return _object_value(draw, schema, strange)
    return draw.choice(["a", 1, {"a": {"b": 1}}, [1]])


def _object_value(draw: Draw, schema: Json, strange: float) -> Json:
    more, found = schema.get("additionalProperties"), {}
    for name, inner in (schema.get("properties") or {}).items():
        if name != "metadata" and draw.chance(0.95 if name in schema.get("required", ()) else 0.7):
            found[name] = value_of(draw, inner, strange)
    if isinstance(more, dict):
        found |= {
            name: value_of(draw, more, strange) for name in draw.sample(["x", "y", "a.b"], draw.randint(0, 2))
        }
    if draw.chance(strange):
        found["unknown"] = 1
    if schema.get("x-kubernetes-embedded-resource") and draw.chance(0.9):
        found |= {"apiVersion": "v1", "kind": "Thing"}
        if draw.chance(0.5):
            found["metadata"] = {
                "name": "x",
                **draw.choice([{}, {"labels": {"a": "b"}}, {"other": 1}, {"name": 1}, {"name": "A b"}]),
            }
    return found


def object_of(draw: Draw, definition: Json) -> Json:
    version = definition["spec"]["versions"][0]
    body = value_of(draw, version["schema"]["openAPIV3Schema"], 0.0)
    strange = draw.choice([0.0, 0.0, 0.05, 0.15])
    body = (
        _object_value(draw, version["schema"]["openAPIV3Schema"], strange) if isinstance(body, dict) else {}
    )
    body.pop("unknown", None) if draw.chance(0.5) else None
    body |= {"apiVersion": f"{GROUP}/{version['name']}", "kind": KIND}
    body["metadata"] = {"name": draw.choice(["a", "abcd"]), "namespace": "default"}
    return body


def changed(draw: Draw, definition: Json, obj: Json) -> Json:
    """The object with some other parts, as an update sends it."""
    other, made = object_of(draw, definition), copy.deepcopy(obj)
    for name in [*other]:
        if name not in ("apiVersion", "kind", "metadata") and draw.chance(0.4):
            made[name] = other[name]
    for name in [*made]:
        if name not in ("apiVersion", "kind", "metadata") and draw.chance(0.1):
            del made[name]
    if draw.chance(0.3):
        made["metadata"]["labels"] = {"a": "b"}
    return made


def tightened(draw: Draw, definition: Json) -> Json:
    """The definition with some parts of its schema new."""
    made = copy.deepcopy(definition)
    properties = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    for name in [*properties]:
        if draw.chance(0.5) and name not in ("metadata", "spec"):
            _tighten(draw, properties[name])
    return made


def _tighten(draw: Draw, schema: Json) -> None:
    for inner in [*(schema.get("properties") or {}).values()]:
        _tighten(draw, inner)
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            _tighten(draw, schema[part])
    tighter = {
        "string": {"maxLength": 1},
        "integer": {"maximum": 1},
        "number": {"maximum": 1},
        "array": {"maxItems": 1},
    }
    if draw.chance(0.6):
        schema |= tighter.get(schema.get("type", ""), {})
        schema.pop("default", None)
