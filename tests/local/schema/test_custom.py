"""Custom resources: their definitions, pruning, defaults and validation."""

# ruff: noqa: E501 - the tables quote the API server's texts whole, one case a line

import time
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.cluster.errors import ApiError, BadRequest
from koordinator.local.schema import Catalog
from koordinator.local.schema.builtin.models import MissingModel
from koordinator.local.schema.custom.schema import CustomSchema
from tests.local.schema.builders import CATALOG, resource, texts

Json = dict[str, Any]

SPEC: Json = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 10},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "name": {"type": "string", "pattern": "^[a-z]*$", "maxLength": 5},
        "port": {"x-kubernetes-int-or-string": True},
        "when": {"type": "string", "format": "date-time"},
        "maybe": {"type": "string", "nullable": True},
        "tags": {
            "type": "array",
            "items": {"type": "string"},
            "x-kubernetes-list-type": "set",
            "maxItems": 2,
        },
        "parts": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "count": {"type": "integer", "default": 1}},
            },
        },
        "extra": {"type": "object", "additionalProperties": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "one": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
    },
}


def definition(spec: Json | None = None, **more: Any) -> Json:
    version: Json = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec or SPEC}}},
    }
    names = {"plural": "widgets", "kind": "Widget"}
    body = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version], **more}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{body['group']}"},
        "spec": body,
    }


def ready(crd: Json) -> Json:
    schema = CATALOG.schema_of(resource("CustomResourceDefinition"))
    decoded, _ = schema.decode(crd, "Strict")
    return schema.default(decoded)


def widgets(spec: Json | None = None) -> CustomSchema:
    catalog = Catalog()
    crd = ready(definition(spec))
    assert catalog.check_crd(crd) == []
    (served,) = catalog.add_crd(crd)
    schema = catalog.schema_of(served)
    assert isinstance(schema, CustomSchema)
    return schema


def widget(**spec: Any) -> Json:
    meta = {"name": "w", "namespace": "default"}
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": meta, "spec": {"size": 1, **spec}}


WIDGETS = widgets()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"size": "x"}, ['spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"']),
        ({"size": 11}, ["spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10"]),
        ({"size": 0}, ["spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"]),
        ({"size": True}, ['spec.size: Invalid value: "boolean": spec.size in body must be of type integer: "boolean"']),
        ({"size": 1.0}, []),
        ({"size": None}, ['spec.size: Invalid value: "null": spec.size in body must be of type integer: "null"']),
        ({"color": "green"}, ['spec.color: Unsupported value: "green": supported values: "blue", "red"']),
        ({"name": "A"}, ["spec.name: Invalid value: \"A\": spec.name in body should match '^[a-z]*$'"]),
        ({"name": "abcdef"}, ["spec.name: Too long: may not be more than 5 bytes"]),
        ({"port": 1}, []),
        ({"port": "http"}, []),
        ({"port": []}, ['spec.port: Invalid value: "array": spec.port in body must be of type integer,string: "array"']),
        ({"when": "soon"}, ['spec.when: Invalid value: "soon": spec.when in body must be of type date-time: "soon"']),
        ({"when": "2026-01-01T00:00:00Z"}, []),
        ({"maybe": None}, []),
        ({"tags": ["a", "a"]}, ['spec.tags[1]: Duplicate value: "a"']),
        ({"tags": ["a", "b", "c"]}, ["spec.tags: Too many: 3: must have at most 2 items"]),
        ({"parts": [{"name": "a"}, {"name": "a"}]}, ['spec.parts[1]: Duplicate value: {"name":"a"}']),
        ({"parts": [{}]}, ["spec.parts[0].name: Required value"]),
        ({"extra": {"a": 1}}, ['spec.extra.a: Invalid value: "integer": spec.extra.a in body must be of type string: "integer"']),
        ({"one": {"a": "x"}}, []),
        ({"one": {}}, ['<nil>: Invalid value: "": "spec.one" must validate one and only one schema (oneOf). Found none valid', "spec.one.a: Required value"]),
        ({"one": {"a": "x", "b": "y"}}, ['<nil>: Invalid value: "": "spec.one" must validate one and only one schema (oneOf). Found 2 valid alternatives']),
    ],
)  # fmt: skip
def test_values(spec: Json, expected: list[str]) -> None:
    assert texts(WIDGETS.validate(WIDGETS.default(widget(**spec)), None)) == expected


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "(x+x+)+y"])
def test_a_pattern_that_backtracks_elsewhere_takes_linear_time(pattern: str) -> None:
    schema = widgets({"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}})
    body = widget(x="a" * 5_000 + "!" + "x" * 5_000)
    del body["spec"]["size"]
    started_s = time.process_time()

    (text,) = texts(schema.validate(body, None))
    assert text.endswith(f"spec.x in body should match '{pattern}'")
    assert time.process_time() - started_s < 2


def test_a_missing_required_field_is_named() -> None:
    obj = widget()
    del obj["spec"]["size"]

    assert texts(WIDGETS.validate(obj, None)) == ["spec.size: Required value"]


def test_unknown_fields_are_pruned_except_where_they_are_kept() -> None:
    obj = widget(foo=1, parts=[{"name": "a", "bar": 2}], free={"x": {"y": 1}}, extra={"k": "v"})

    pruned, warnings = WIDGETS.decode(obj, "")

    assert pruned["spec"] == {
        "size": 1,
        "parts": [{"name": "a"}],
        "free": {"x": {"y": 1}},
        "extra": {"k": "v"},
    }
    assert warnings == ['unknown field "spec.foo"', 'unknown field "spec.parts[0].bar"']
    with pytest.raises(
        BadRequest, match='Widget in version "v1" cannot be handled as a Widget: strict decoding error'
    ):
        WIDGETS.decode(obj, "Strict")


def test_metadata_has_go_types() -> None:
    obj = {**widget(), "metadata": {"labels": {"a": 1}}}

    with pytest.raises(
        BadRequest, match=r"cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of"
    ):
        WIDGETS.decode(obj, "")


def test_defaults_are_filled_in_also_inside_lists() -> None:
    made = WIDGETS.default(widget(parts=[{"name": "a"}]))

    assert made["spec"] == {"size": 1, "color": "red", "parts": [{"name": "a", "count": 1}]}
    assert WIDGETS.default(made) is made


def test_null_counts_as_missing_where_there_is_a_default() -> None:
    assert WIDGETS.default(widget(color=None))["spec"]["color"] == "red"


def of(spec: Json, scale: Json | None = None) -> CustomSchema:
    properties = {"size": {"type": "integer"}, **spec}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    return CustomSchema(WIDGETS.resource, schema, scale)


def test_null_goes_where_it_is_not_allowed_and_nothing_stands_for_it() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "string"}}}
    schema = of(
        {
            "gone": {"type": "string"},
            "kept": {"type": "string", "nullable": True},
            "given": {"type": "string", "default": "x"},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "list": {"type": "array", "items": inner},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        }
    )
    spec = {"gone": None, "kept": None, "given": None, "map": {"a": None, "b": "c"}, "free": {"a": None}}
    decoded, warnings = schema.decode(widget(**spec, list=[{"a": None}]), "Strict")

    assert warnings == []
    assert schema.default(decoded)["spec"] == {
        "size": 1,
        "kept": None,
        "given": "x",
        "map": {"b": "c"},
        "list": [{}],
        "free": {"a": None},
    }


def test_parts_that_stay_are_not_measured_by_a_stricter_schema() -> None:
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}
    item = {
        "type": "object",
        "required": ["k"],
        "properties": {"k": {"type": "string"}, "n": {"type": "integer", "maximum": 1}},
    }
    schema = of(
        {
            "a": {"type": "string", "maxLength": 1},
            "map": {"type": "object", "additionalProperties": {"type": "integer", "maximum": 1}},
            "keyed": {"type": "array", "items": item, **keyed},
            "plain": {"type": "array", "items": item},
            "all": {
                "type": "object",
                "properties": {"x": {"type": "integer"}},
                "allOf": [{"properties": {"x": {"maximum": 1}}}],
            },
        }
    )
    old = widget(a="long", map={"x": 5}, keyed=[{"k": "a", "n": 5}], plain=[{"k": "a", "n": 5}], all={"x": 5})
    new = widget(
        a="long",
        map={"x": 5, "y": 6},
        keyed=[{"k": "b", "n": 6}, {"k": "a", "n": 5}],
        plain=[{"k": "a", "n": 5}, {"k": "b"}],
        all={"x": 5, "z": 1},
    )
    big = "should be less than or equal to 1"

    assert texts(schema.validate(new, old)) == [
        f"spec.map.y: Invalid value: 6: spec.map.y in body {big}",
        f"spec.keyed[0].n: Invalid value: 6: spec.keyed[0].n in body {big}",
        f"spec.plain[0].n: Invalid value: 5: spec.plain[0].n in body {big}",
        f"spec.all.x: Invalid value: 5: spec.all.x in body {big}",
        '<nil>: Invalid value: "": "spec.all" must validate all the schemas (allOf). None validated',
    ]
    assert texts(schema.validate(old, deepcopy(old))) == []


def test_items_that_were_there_twice_before_may_stay_so() -> None:
    schema = of({"set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}})

    assert texts(schema.validate(widget(set=["a", "a"]), widget(set=["b"]))) == [
        'spec.set[1]: Duplicate value: "a"'
    ]
    assert texts(schema.validate(widget(set=["a", "a"]), widget(set=["b", "b"]))) == []


def test_objects_in_objects_have_a_kind_and_metadata() -> None:
    schema = of(
        {
            "one": {
                "type": "object",
                "x-kubernetes-embedded-resource": True,
                "x-kubernetes-preserve-unknown-fields": True,
            },
            "many": {"type": "array", "items": {"type": "object", "x-kubernetes-embedded-resource": True}},
        }
    )
    meta = {"name": "x", "labels": {"a b": "c"}, "strange": 1}
    body = widget(
        one={"kind": "Pod!", "metadata": meta}, many=[{"apiVersion": "", "kind": "Pod", "spec": {}}]
    )
    decoded, warnings = schema.decode(body, "Warn")

    assert warnings == ['unknown field "spec.many[0].spec"', 'unknown field "spec.one.metadata.strange"']
    told = texts(schema.validate(decoded, None))
    assert [text.partition(": ")[0] for text in told] == [
        "spec.one.apiVersion",
        "spec.one.kind",
        "spec.one.metadata.labels",
        "spec.many[0].apiVersion",
    ]
    with pytest.raises(BadRequest, match=r"spec.one.kind: Invalid value: 1: must be a string"):
        schema.decode(widget(one={"kind": 1}), "Warn")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, []),
        ({"replicas": 3}, []),
        ({"replicas": 3.0}, []),
        ({"replicas": -1}, [".spec.replicas: Invalid value: -1: should be a non-negative integer"]),
        (
            {"replicas": 2**31},
            [".spec.replicas: Invalid value: 2147483648: should be less than or equal to 2147483647"],
        ),
        (
            {"replicas": "a"},
            [
                ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: a is of the type string, expected int64"
            ],
        ),
    ],
)
def test_replicas_of_a_scale_subresource_are_numbers(spec: Json, told: list[str]) -> None:
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    schema = of({"replicas": {"x-kubernetes-preserve-unknown-fields": True}}, scale)

    assert texts(schema.validate(widget(**spec), None)) == told


def test_whole_numbers_are_compared_with_whole_bounds() -> None:
    schema = of(
        {"n": {"type": "number", "minimum": 0.5, "maximum": 2.5}, "m": {"type": "number", "multipleOf": 0.5}}
    )

    assert texts(schema.validate(widget(n=0), None)) == []
    assert texts(schema.validate(widget(n=0.25, m=1.5), None)) == [
        "spec.n: Invalid value: 0.25: spec.n in body should be greater than or equal to 0.5"
    ]
    assert texts(schema.validate(widget(m=1), None)) == [
        "spec.m: Invalid value: 1: factor MultipleOf declared for spec.m must be positive: 0"
    ]


def test_a_stricter_schema_does_not_block_updates_of_metadata() -> None:
    stored = widget(size=99)
    labelled = {**stored, "metadata": {**stored["metadata"], "labels": {"a": "b"}}}

    assert WIDGETS.validate(labelled, stored) == []
    assert WIDGETS.validate({**stored, "spec": {"size": 98}}, stored) != []


def version(name: str = "v1", *, spec: Json | None = None, **more: Any) -> Json:
    inner = spec or {"type": "object", "properties": {"on": {"type": "boolean"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": inner}}}
    return {"name": name, "served": True, "storage": True, "schema": schema, **more}


def broken(**schema: Any) -> Json:
    return definition({"type": "object", "properties": {"x": schema}})


PATH = "spec.validation.openAPIV3Schema.properties[spec].properties[x]"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, f"{PATH}.type: Required value: must not be empty for specified object fields"),
        ({"type": "array"}, f"{PATH}.items: Required value: must be specified"),
        ({"type": "array", "items": {}}, f"{PATH}.items.type: Required value: must not be empty for specified array items"),
        ({"type": "text"}, f'{PATH}.type: Unsupported value: "text": supported values: "array", "boolean", "integer", "number", "object", "string"'),
        ({"type": "string", "pattern": "("}, f"{PATH}.pattern: Invalid value: \"(\": must be a valid regular expression, but isn't"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}, f"{PATH}.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"),
        ({"type": "null"}, f"{PATH}.type: Forbidden: type cannot be set to null, use nullable as an alternative"),
        ({"type": "string", "x-kubernetes-map-type": "atomic"}, f'{PATH}.type: Invalid value: "string": must be object if x-kubernetes-map-type is specified'),
        ({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "set"}, f"{PATH}.items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set"),
        ({"type": "array", "items": {"type": "string", "nullable": True}, "x-kubernetes-list-type": "set"}, f"{PATH}.items.nullable: Forbidden: cannot be nullable when x-kubernetes-list-type is set"),
        ({"type": "object", "x-kubernetes-embedded-resource": True}, f"{PATH}.properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"),
        ({"x-kubernetes-int-or-string": True, "x-kubernetes-preserve-unknown-fields": True}, f"{PATH}.x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true"),
        ({"type": "object", "not": {"nullable": True}}, f"{PATH}.not.nullable: Forbidden: must be false to be structural"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "default": {"z": 1}}, f'{PATH}.default: Invalid value: {{"z":1}}: must not have unknown fields'),
        ({"type": "integer", "default": 9, "x-kubernetes-validations": [{"rule": "self < 5"}]}, f"{PATH}.default: Invalid value: 9: failed rule: self < 5"),
        ({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 1 &&\n self < 3"}]}, f"{PATH}.x-kubernetes-validations[0].message: Required value: message must be specified if rule contains line breaks"),
        ({"x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-validations": [{"rule": "true"}]}, f"{PATH}.x-kubernetes-validations: Internal error: internal error: failed to retrieve type information"),
        ({"x-kubernetes-int-or-string": True, "x-kubernetes-validations": [{"rule": "self"}]}, f"{PATH}.x-kubernetes-validations[0].rule: Invalid value: "),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, f"{PATH}.uniqueItems: Forbidden: uniqueItems cannot be set to true"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}, f"{PATH}.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"),
        ({"type": "integer", "default": "x"}, f'{PATH}.default: Invalid value: "string":  in body must be of type integer: "string"'),
        ({"type": "object", "anyOf": [{"type": "object"}]}, f"{PATH}.anyOf[0].type: Forbidden: must be empty to be structural"),
        ({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"}, f"{PATH}.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"),
        ({"type": "string", "$ref": "#/x"}, f"{PATH}.$ref: Forbidden: $ref is not supported"),
    ],
)  # fmt: skip
def test_schemas_that_are_not_structural(schema: Json, expected: str) -> None:
    found = texts(CATALOG.check_crd(ready(broken(**schema))))

    assert any(text.startswith(expected) for text in found), found


def test_fields_in_a_junctor_of_the_root_are_fields_outside_of_it() -> None:
    crd = ready(definition())
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    root["allOf"] = [{"properties": {"z": {"minimum": 1}}}]
    where = "spec.validation.openAPIV3Schema"

    assert texts(CATALOG.check_crd(crd))[-1:] == [
        f"{where}.properties[z]: Required value: because it is defined in {where}.allOf[0].properties[z]"
    ]


def test_the_int_or_string_pattern_with_types_inside_is_structural() -> None:
    schema = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}

    assert CATALOG.check_crd(ready(broken(**schema))) == []


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"group": "example"}, 'spec.group: Invalid value: "example": should be a domain with at least one dot'),
        ({"group": "x.k8s.io"}, "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have"),
        ({"names": {"plural": "Widgets", "kind": "Widget"}}, 'spec.names.plural: Invalid value: "Widgets": a DNS-1035 label must'),
        ({"names": {"plural": "gadgets", "kind": "Widget"}}, 'metadata.name: Invalid value: "widgets.example.com": must be spec.names.plural+"."+spec.group'),
        ({"versions": []}, "spec.versions: Invalid value: []: must have at least one version"),
        ({"versions": [{"name": "v1", "served": True, "storage": True}]}, "spec.versions[0].schema.openAPIV3Schema: Required value"),
        ({"versions": [{"name": "v1", "served": True, "storage": False}]}, 'spec.versions: Invalid value: ["v1"]: must have exactly one version marked as storage version'),
        ({"versions": [version(deprecationWarning="x")]}, 'spec.versions[0].deprecationWarning: Invalid value: "x": can only be set for deprecated versions'),
        ({"versions": [version(subresources={"scale": {"specReplicasPath": ".x", "statusReplicasPath": "y"}})]}, 'spec.subresources.scale.specReplicasPath: Invalid value: ".x": should be a json path under .spec'),
        ({"versions": [version(subresources={"scale": {"specReplicasPath": ".spec.r"}})]}, "spec.subresources.scale.statusReplicasPath: Required value"),
        ({"versions": [version(additionalPrinterColumns=[{"name": "x", "type": "text", "jsonPath": "y"}])]}, 'spec.additionalPrinterColumns[0].JSONPath: Invalid value: "y": must be a simple json path starting with .'),
        ({"versions": [version(selectableFields=[{"jsonPath": ".spec"}])]}, 'spec.selectableFields[0].jsonPath: Invalid value: ".spec": must point to a field of type string, boolean or integer.'),
        ({"versions": [version(selectableFields=[{"jsonPath": ".spec.none"}])]}, 'spec.selectableFields[0].jsonPath: Invalid value: ".spec.none": is an invalid path: does not refer to a valid field'),
        ({"versions": [version(), version("v2", storage=False)]}, ""),
        ({"versions": [version(spec={"type": "text"}), version("v2", storage=False)]}, "spec.versions[0].schema.openAPIV3Schema.properties[spec].type: Unsupported value"),
        ({"conversion": {"strategy": "None", "webhook": {"conversionReviewVersions": ["v1"]}}}, "spec.conversion.conversionReviewVersions: Forbidden: should not be set when strategy is not set to Webhook"),
        ({"conversion": {"strategy": "Webhook"}}, "spec.conversion.strategy: Forbidden: conversion webhooks are not supported"),
    ],
)  # fmt: skip
def test_definitions_that_cannot_be_served(more: Json, expected: str) -> None:
    found = texts(CATALOG.check_crd(ready(definition(**more))))

    assert any(text.startswith(expected) for text in found) if expected else found == []


def test_a_catalog_forgets_what_a_definition_no_longer_serves() -> None:
    catalog = Catalog()
    calls: list[int] = []
    catalog.on_change(lambda: calls.append(1))
    crd = ready(definition())
    (served,) = catalog.add_crd(crd)
    assert served.subresources == ("status",)
    assert catalog.is_custom(served)

    crd["spec"]["versions"][0]["served"] = False
    assert catalog.add_crd(crd) == []

    with pytest.raises(MissingModel):
        catalog.schema_of(served)
    catalog.remove_crd(crd)
    assert len(calls) == 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 20) | st.floats(allow_nan=False) | st.text("ab", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*SPEC["properties"], "a", "count"]), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(spec=JSON)
def test_no_value_makes_a_custom_schema_fail_and_pruning_is_idempotent(spec: Any) -> None:
    obj = {**widget(), "spec": spec}
    before = deepcopy(obj)

    try:
        pruned, _ = WIDGETS.decode(obj, "")
    except ApiError:
        return
    filled = WIDGETS.default(pruned)
    WIDGETS.validate(filled, None)

    assert WIDGETS.decode(pruned, "Strict") == (pruned, [])
    assert WIDGETS.default(filled) == filled
    assert obj == before


SCHEMAS = st.recursive(
    st.sampled_from(
        [{"type": "string"}, {"type": "integer", "default": "x"}, {"type": 1}, {}, None, [], "x", True]
    ),
    lambda inner: (
        st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "items",
                    "additionalProperties",
                    "anyOf",
                    "not",
                    "default",
                    "enum",
                    "pattern",
                    "required",
                ]
            )
            | st.sampled_from(
                ["x-kubernetes-list-type", "x-kubernetes-list-map-keys", "minimum", "nullable"]
            ),
            inner | st.lists(inner, max_size=2) | st.sampled_from(["object", "array", "map", "("]),
            max_size=4,
        )
        | st.dictionaries(st.just("properties"), st.dictionaries(st.sampled_from("ab"), inner, max_size=2))
    ),
    max_leaves=8,
)


@given(schema=SCHEMAS)
def test_any_schema_is_served_or_refused(schema: Any) -> None:
    crd = definition()
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = {
        "type": "object",
        "properties": {"spec": schema},
    }
    try:
        made = ready(crd)
    except ApiError as error:
        assert error.code == 400
        return

    catalog = Catalog()
    if not catalog.check_crd(made):
        (served,) = catalog.add_crd(made)
        catalog.schema_of(served).validate(widget(), None)


@pytest.mark.parametrize("depth", [200, 300, 400, 600, 900, 3_000])
def test_a_schema_is_served_whole_or_refused_for_its_depth(depth: int) -> None:
    deep: Json = {"type": "string"}
    for _ in range(depth):
        deep = {"type": "object", "properties": {"a": deep}}
    crd = definition()
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = deep

    crd["spec"]["names"] |= {"singular": "widget", "listKind": "WidgetList"}

    found = texts(CATALOG.check_crd(crd))

    if not found:
        (served,) = Catalog().add_crd(crd)
        assert served.kind == "Widget"
        return
    assert found == ["spec.versions: Forbidden: schemas are nested more deeply than this API server can walk"]


def test_a_definition_that_is_nested_too_deeply_is_refused_when_decoded() -> None:
    deep: Json = {"type": "string"}
    for _ in range(3_000):
        deep = {"type": "object", "properties": {"a": deep}}
    crd = definition()
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = deep

    with pytest.raises(BadRequest, match="exceeded max depth"):
        ready(crd)
