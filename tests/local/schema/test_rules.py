"""Rules of custom resources (`x-kubernetes-validations`); causes and texts are those of kube-apiserver 1.35."""

import time
from typing import Any

import pytest

from koordinator.api.meta import Resource
from koordinator.local.schema.custom import definition
from koordinator.local.schema.custom.schema import CustomSchema

Json = dict[str, Any]

INT: Json = {"type": "integer"}
TEXT: Json = {"type": "string", "maxLength": 200}
PATH = "spec.validation.openAPIV3Schema.properties[spec]"


def obj(properties: Json, **more: Any) -> Json:
    return {"type": "object", "properties": properties, **more}


def rule(text: str, **more: Any) -> Json:
    return {"x-kubernetes-validations": [{"rule": text, **more}]}


def items(schema: Json, **more: Any) -> Json:
    return {"type": "array", "maxItems": 5, "items": schema, **more}


KEYED = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}


def root(spec: Json, **more: Any) -> Json:
    return {"type": "object", "properties": {"spec": spec}, **more}


def definition_of(schema: Json) -> Json:
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {"group": "pol.example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "widgets.pol.example.com"}, "spec": spec}


def compiled(schema: Json) -> CustomSchema:
    assert definition.check(definition_of(schema)) == []
    return CustomSchema(Resource(group="pol.example.com", version="v1", kind="W", plural="widgets"), schema)


def said(schema: CustomSchema, spec: Json, old: Json | None = None) -> list[str]:
    """What is wrong with a spec that follows `old`."""

    def whole(part: Json) -> Json:
        meta = {"name": "o", "namespace": "default", "resourceVersion": "1", "uid": "u"}
        return {"apiVersion": "pol.example.com/v1", "kind": "W", "metadata": meta, "spec": part}

    causes = schema.validate(whole(spec), None if old is None else whole(old))
    return [f"{cause.field}: {cause.message}" for cause in causes]


RULE_OF_PORTS = "type(self.p) == int ? self.p > 0 : self.p.endsWith('%')"


@pytest.mark.parametrize(
    ("spec", "value", "expected"),
    [
        (obj({"a": INT}, **rule("self.a > 1")), {"a": 1}, ["spec: Invalid value: failed rule: self.a > 1"]),
        (obj({"a": INT}, **rule("self.a > 1")), {"a": 2}, []),
        (
            obj({"a": INT}, **rule("self.a > 1")),
            {},
            ['spec: Invalid value: "object": no such key: a evaluating rule: self.a > 1'],
        ),
        (
            obj(
                {"a": INT},
                **rule("self.a > 1", message="a must be big", reason="FieldValueForbidden", fieldPath=".a"),
            ),
            {"a": 1},
            ["spec.a: Forbidden: a must be big"],
        ),
        (
            obj(
                {"a": INT},
                **rule(
                    "self.a > 1",
                    messageExpression="'a is %d'.format([self.a])",
                    reason="FieldValueRequired",
                ),
            ),
            {"a": 1},
            ["spec: Required value: a is 1"],
        ),
        (
            obj(
                {
                    "a": {**INT, **rule("self > 1")},
                    "b": {**TEXT, **rule("self != 'x'", reason="FieldValueDuplicate")},
                }
            ),
            {"a": 1, "b": "x"},
            ["spec.a: Invalid value: 1: failed rule: self > 1", 'spec.b: Duplicate value: "x"'],
        ),
        (
            obj(
                {
                    "m": {
                        "type": "object",
                        "maxProperties": 5,
                        "additionalProperties": {**INT, **rule("self > 0 && self < 10")},
                    }
                }
            ),
            {"m": {"x": 0, "y": 5}},
            ["spec.m[x]: Invalid value: 0: failed rule: self > 0 && self < 10"],
        ),
        (
            obj({"l": items({**TEXT, **rule("self.startsWith('a')")})}),
            {"l": ["a", "b"]},
            ["spec.l[1]: Invalid value: \"b\": failed rule: self.startsWith('a')"],
        ),
        (
            obj({"s": items(TEXT, **{"x-kubernetes-list-type": "set"}, **rule("self == ['a','b']"))}),
            {"s": ["b", "a"]},
            [],
        ),
        (
            obj({"s": items(TEXT, **{"x-kubernetes-list-type": "set"}, **rule("self == ['a','b']"))}),
            {"s": ["b"]},
            ["spec.s: Invalid value: failed rule: self == ['a','b']"],
        ),
        (
            obj({"a": INT, "b": INT}, **rule("self.a / self.b > 1")),
            {"a": 1, "b": 0},
            ['spec: Invalid value: "object": division by zero evaluating rule: self.a / self.b > 1'],
        ),
        (
            obj({"a": INT}, **rule("self.a > 1", messageExpression="self.a > 0 ? 'x\\ny' : ''")),
            {"a": 1},
            ["spec: Invalid value: failed rule: self.a > 1"],
        ),
        (
            obj({"a": INT}, **rule("self.a > 1", message="m", messageExpression="string(1/self.a)")),
            {"a": 0},
            ["spec: Invalid value: m"],
        ),
        (
            obj({"a": {"type": "integer", "nullable": True}}, **rule("!has(self.a) || self.a > 1")),
            {"a": None},
            [],
        ),
        (obj({"n": {"type": "number"}}, **rule("self.n == 2.0")), {"n": 2}, []),
        (
            obj(
                {"d": {"type": "string", "format": "date-time"}},
                **rule("self.d < timestamp('2030-01-01T00:00:00Z')"),
            ),
            {"d": "2031-01-01T00:00:00Z"},
            ["spec: Invalid value: failed rule: self.d < timestamp('2030-01-01T00:00:00Z')"],
        ),
        (
            obj({"d": {"type": "string", "format": "duration"}}, **rule("self.d < duration('1h')")),
            {"d": "61m"},
            ["spec: Invalid value: failed rule: self.d < duration('1h')"],
        ),
        (obj({"p": {"x-kubernetes-int-or-string": True}}, **rule(RULE_OF_PORTS)), {"p": "5%"}, []),
        (
            obj({"p": {"x-kubernetes-int-or-string": True}}, **rule(RULE_OF_PORTS)),
            {"p": 0},
            [f"spec: Invalid value: failed rule: {RULE_OF_PORTS}"],
        ),
        (
            obj({"q": TEXT}, **rule("quantity(self.q).isGreaterThan(quantity('1Mi'))")),
            {"q": "1Ki"},
            ["spec: Invalid value: failed rule: quantity(self.q).isGreaterThan(quantity('1Mi'))"],
        ),
        (
            obj(
                {"for": INT, "a-b": INT, "x.y": INT, "__": INT},
                **rule("self.__for__ + self.a__dash__b + self.x__dot__y + self.__underscores__ == 10"),
            ),
            {"for": 1, "a-b": 2, "x.y": 3, "__": 4},
            [],
        ),
        (
            obj({"a": INT, "b": {"type": "string", "enum": ["x"]}}, required=["b"], **rule("self.a > 5")),
            {"a": 1},
            [
                "spec.b: Required value",
                "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; "
                "correct the existing errors to complete validation",
            ],
        ),
        (obj({"l": items(INT)}, **rule("self.l.all(i, v, v > i)")), {"l": [1, 2, 3]}, []),
        (
            obj({"q": TEXT}, **rule("isIP(self.q) && cidr('10.0.0.0/8').containsIP(self.q)")),
            {"q": "10.1.2.3"},
            [],
        ),
        (
            obj({"q": TEXT}, **rule("url(self.q).getHost() == 'x:80' && url(self.q).getPort() == '80'")),
            {"q": "https://x:80/y"},
            [],
        ),
        (
            obj({"q": TEXT}, **rule("!format.dns1123Label().validate(self.q).hasValue()")),
            {"q": "Bad_Name"},
            ["spec: Invalid value: failed rule: !format.dns1123Label().validate(self.q).hasValue()"],
        ),
        (obj({"q": {"type": "string", "format": "byte"}}, **rule("size(self.q) == 2")), {"q": "aGk="}, []),
    ],
)
def test_rules_judge_values_as_kubernetes_does(spec: Json, value: Json, expected: list[str]) -> None:
    assert said(compiled(root(spec)), value) == expected


def test_rules_of_the_whole_object_see_its_name() -> None:
    schema = compiled(root(obj({"a": INT}), **rule("self.metadata.name == 'x'", message="name must be x")))

    assert said(schema, {"a": 1}) == ["<nil>: Invalid value: name must be x"]


ONLY_UP = obj({"a": {**INT, **rule("self >= oldSelf", message="only up")}})
LATER = obj({"a": {**INT, **rule("!oldSelf.hasValue() || self > oldSelf.value()", optionalOldSelf=True)}})
BY_KEY = obj({"l": items(obj({"k": TEXT, "v": {**INT, **rule("self >= oldSelf")}}, required=["k"]), **KEYED)})
PAIR = [{"k": "a", "v": 2}, {"k": "b", "v": 3}]


@pytest.mark.parametrize(
    ("spec", "old", "new", "expected"),
    [
        (ONLY_UP, None, {"a": 5}, []),
        (ONLY_UP, {"a": 5}, {"a": 4}, ["spec.a: Invalid value: 4: only up"]),
        (ONLY_UP, {"a": 5}, {"a": 6}, []),
        (ONLY_UP, {"a": 5}, {}, []),
        (ONLY_UP, {}, {"a": 1}, []),
        (LATER, None, {"a": 5}, []),
        (
            LATER,
            {"a": 5},
            {"a": 4},
            ["spec.a: Invalid value: 4: failed rule: !oldSelf.hasValue() || self > oldSelf.value()"],
        ),
        (
            BY_KEY,
            {"l": PAIR},
            {"l": [{"k": "b", "v": 1}, {"k": "a", "v": 2}]},
            ["spec.l[0].v: Invalid value: 1: failed rule: self >= oldSelf"],
        ),
        (BY_KEY, {"l": PAIR}, {"l": [{"k": "c", "v": 1}]}, []),
    ],
)
def test_rules_about_changes_are_asked_where_there_was_something_before(
    spec: Json, old: Json | None, new: Json, expected: list[str]
) -> None:
    assert said(compiled(root(spec)), new, old) == expected


def test_what_a_write_leaves_alone_is_not_asked_again() -> None:
    schema = compiled(root(obj({"a": {**INT, **rule("self > 1")}, "b": INT}, **rule("self.a > 1"))))
    old = {"a": 1, "b": 1}

    assert said(schema, {"a": 1, "b": 1}, old) == []
    assert said(schema, {"a": 1, "b": 2}, old) == ["spec: Invalid value: failed rule: self.a > 1"]
    assert said(schema, {"a": 0, "b": 2}, old) == [
        "spec: Invalid value: failed rule: self.a > 1",
        "spec.a: Invalid value: 0: failed rule: self > 1",
    ]


@pytest.mark.parametrize(
    ("spec", "field", "why"),
    [
        (
            obj({"a": INT}, **rule("self.b > 1")),
            "rule",
            "compilation failed: ERROR: <input>:1:5: undefined field 'b'\n | self.b > 1\n | ....^",
        ),
        (
            obj({"a": INT, "s": TEXT}, **rule("self.a < self.s")),
            "rule",
            "compilation failed: ERROR: <input>:1:8: found no matching overload for '_<_' applied to '(int, string)'"
            "\n | self.a < self.s\n | .......^",
        ),
        (obj({"a": INT}, **rule("self.a")), "rule", "cel expression must evaluate to a bool"),
        (obj({"a": INT}, **rule("self.a >")), "rule", "compilation failed: ERROR: <input>:1:9: "),
        (
            obj({"a": INT}, **rule("foo(self.a)")),
            "rule",
            "undeclared reference to 'foo' (in container '')",
        ),
        (
            obj({"a": INT}, **rule("other.a == 1")),
            "rule",
            "compilation failed: ERROR: <input>:1:1: undeclared reference to 'other' (in container '')",
        ),
        (obj({"a": INT}, **rule("")), "rule", "Required value: rule is not specified"),
        (
            obj({"a": INT}, **rule("self.a>1", messageExpression="self.a")),
            "messageExpression",
            "messageExpression must evaluate to a string",
        ),
        (
            obj({"a": INT}, **rule("self.a>1", messageExpression="self.b")),
            "messageExpression",
            "messageExpression compilation failed: ERROR: <input>:1:5: undefined field 'b'",
        ),
        (
            obj({"a": INT}, **rule("self.a>1", message="a\nb")),
            "message",
            'Invalid value: "a\\nb": must not contain line breaks',
        ),
        (
            obj({"a": INT}, **rule("self.a>1", reason="Nope")),
            "reason",
            'Unsupported value: "Nope": supported values: "FieldValueDuplicate", "FieldValueForbidden", '
            '"FieldValueInvalid", "FieldValueRequired"',
        ),
        (
            obj({"a": INT}, **rule("self.a>1", fieldPath=".b")),
            "fieldPath",
            'Invalid value: ".b": must be a valid path',
        ),
        (
            obj({"a": INT}, **rule("self.a>1", fieldPath="a")),
            "fieldPath",
            'Invalid value: "a": must be a valid path',
        ),
        (
            obj({"a": INT}, **rule("self.a>1", optionalOldSelf=True)),
            "optionalOldSelf",
            "Invalid value: true: may not be set if oldSelf is not used in rule",
        ),
        (
            obj({"s": TEXT}, **rule("self.s.matches('(')")),
            "rule",
            "compilation failed: ERROR: <input>:1:16: invalid matches argument",
        ),
        (
            obj({"q": {**INT, "nullable": True}}, **rule("self.q == null || self.q > 1")),
            "rule",
            "found no matching overload for '_==_' applied to '(int, null)'",
        ),
        (
            obj({"a": INT}, **rule("self.a.b > 1")),
            "rule",
            "type 'int' does not support field selection",
        ),
    ],
)
def test_rules_that_can_never_hold_are_refused_with_the_definition(spec: Json, field: str, why: str) -> None:
    causes = definition.check(definition_of(root(spec)))

    assert [cause.field for cause in causes] == [f"{PATH}.x-kubernetes-validations[0].{field}"]
    assert why in causes[0].message


def test_changes_of_items_that_cannot_be_found_again_cannot_be_judged() -> None:
    schema = root(obj({"l": items(obj({"a": INT}, **rule("self.a >= oldSelf.a")))}))

    (cause,) = definition.check(definition_of(schema))

    assert cause.field == f"{PATH}.properties[l].items.x-kubernetes-validations[0].rule"
    assert cause.message == (
        'Invalid value: "self.a >= oldSelf.a": oldSelf cannot be used on the uncorrelatable portion of the schema '
        f"within {PATH}.properties[l]"
    )


def test_a_rule_that_costs_too_much_ends_with_a_refusal() -> None:
    many = {"type": "array", "items": INT}
    schema = compiled(root(obj({"l": many}, **rule("self.l.all(x, self.l.all(y, x + y > 0))"))))
    started_s = time.process_time()

    found = said(schema, {"l": list(range(1, 5_000))})

    assert time.process_time() - started_s < 5
    assert found == [
        'spec: Invalid value: "object": validation failed due to running out of cost budget, no further validation '
        "rules will be run"
    ]


def test_a_rule_counts_where_something_changed_and_its_errors_everywhere() -> None:
    low = {**INT, **rule("self < 5", message="too high")}
    schema = compiled(
        root(
            obj(
                {
                    "a": low,
                    "b": low,
                    "keyed": items(obj({"k": TEXT, "v": low}, required=["k"]), **KEYED),
                    "plain": items(low),
                    "d": {**INT, **rule("10 / self > 1")},
                }
            )
        )
    )
    old = {"a": 9, "b": 9, "keyed": [{"k": "x", "v": 9}], "plain": [9], "d": 0}
    new = {"a": 9, "b": 8, "keyed": [{"k": "y", "v": 9}, {"k": "x", "v": 9}], "plain": [9, 1], "d": 0}

    assert said(schema, new, old) == [
        "spec.b: Invalid value: 8: too high",
        "spec.keyed[0].v: Invalid value: 9: too high",
        "spec.plain[0]: Invalid value: 9: too high",
        'spec.d: Invalid value: "integer": division by zero evaluating rule: 10 / self > 1',
    ]
    assert said(schema, old, {**old, "a": 9})[0].startswith("spec.d: ")


def test_rules_are_asked_beside_errors_that_leave_the_types_alone() -> None:
    schema = compiled(
        root(obj({"a": {**INT, "minimum": 5, **rule("self != 3")}, "b": {**TEXT, "enum": ["x"]}}))
    )

    assert said(schema, {"a": 3}) == [
        "spec.a: Invalid value: 3: spec.a in body should be greater than or equal to 5",
        "spec.a: Invalid value: 3: failed rule: self != 3",
    ]
    assert said(schema, {"a": 3, "b": "y"})[-1].startswith(
        "<nil>: Invalid value: null: some validation rules"
    )


def test_a_part_that_is_twice_is_shown_when_it_is_a_value() -> None:
    twice = rule("false", reason="FieldValueDuplicate")
    schema = compiled(root(obj({"a": {**INT, **twice}, "o": obj({"x": INT}, **twice)})))

    assert said(schema, {"a": 1, "o": {}}) == ["spec.a: Duplicate value: 1", "spec.o: Duplicate value"]


def test_what_has_no_overload_for_its_types_is_told_so() -> None:
    schema = compiled(
        root(obj({"p": {"x-kubernetes-int-or-string": True, **rule("self > 1", message="above")}}))
    )

    assert said(schema, {"p": "a"}) == [
        "spec.p: Invalid value: \"\": 'no such overload': call arguments did not match a supported operator, "
        "function or macro signature for rule: above"
    ]
