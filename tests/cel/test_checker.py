"""Rules are checked when they are written: the type of what they say, or what can never have a value."""

import pytest

from koordinator.cel import checker
from koordinator.cel.overloads import DYN, INT, STRING, CELType, list_of, map_of, optional_of
from koordinator.cel.values import CompileError

POD = CELType("object", fields={"name": STRING, "ports": list_of(INT), "labels": map_of(STRING, STRING)})
VARIABLES = {
    "s": STRING,
    "n": INT,
    "l": list_of(INT),
    "m": map_of(STRING, INT),
    "any": DYN,
    "pod": POD,
    "maybe": optional_of(POD),
}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("null", "null"),
        ("true", "bool"),
        ("1", "int"),
        ("1.5", "double"),
        ("'a'", "string"),
        ("int", "type(int)"),
        ("[]", "list(dyn)"),
        ("[1, 2]", "list(int)"),
        ("{}", "map(dyn, dyn)"),
        ("l[0]", "int"),
        ("l[any]", "int"),
        ("l[?0]", "optional_type(int)"),
        ("m['x']", "int"),
        ("m[?'x']", "optional_type(int)"),
        ("optional.of(l)[0]", "optional_type(int)"),
        ("any[0]", "dyn"),
        ("any.field", "dyn"),
        ("m.x", "int"),
        ("m.?x", "optional_type(int)"),
        ("pod.name", "string"),
        ("pod.?name", "optional_type(string)"),
        ("maybe.name", "optional_type(string)"),
        ("maybe.?labels[?'a']", "optional_type(string)"),
        ("has(pod.name) && has(m.x)", "bool"),
        ("true ? 1 : 2", "int"),
        ("true ? any : 2", "dyn"),
        ("-n", "int"),
        ("-1.5", "double"),
        ("!any", "bool"),
        ("s + s", "string"),
        ("any + 1", "int"),
        ("any + any", "dyn"),
        ("l + any", "list(int)"),
        ("n < 1.5 && s <= s && l == [1] && n in l && s in m", "bool"),
        ("null == any && pod == null && null != maybe", "bool"),
        ("l.map(x, string(x))", "list(string)"),
        ("l.map(x, x > 1, x * 2)", "list(int)"),
        ("m.map(k, k)", "list(string)"),
        ("m.filter(k, k == 'a')", "list(string)"),
        ("any.map(x, x)", "list(dyn)"),
        ("l.all(x, x > 1)", "bool"),
        ("l.all(i, x, x > i)", "bool"),
        ("m.exists(k, v, v > 1 && k == 'a')", "bool"),
        ("any.all(a, b, a == b)", "bool"),
        ("optional.of(n).optMap(x, string(x))", "optional_type(string)"),
        ("optional.of(n).optFlatMap(x, optional.of('a'))", "optional_type(string)"),
        ("any.optMap(x, 1)", "optional_type(int)"),
        ("optional.none().orValue(1)", "int"),
        ("ip('::1').family()", "int"),
        ("isSemver(s, true)", "bool"),
        ("semver(s, true).major()", "int"),
        ("size(m) + m.size()", "int"),
        ("1u + 2u", "uint"),
        ("b'a'", "bytes"),
        ("'%s %d'.format([s, 1])", "string"),
        ("[?maybe.?name, s]", "list(string)"),
        ("{?s: maybe}", "map(string, object)"),
        ("l.transformMap(i, x, string(x))", "map(int, string)"),
        ("m.transformList(k, v, k)", "list(string)"),
        ("l.transformMapEntry(i, x, {string(x): i})", "map(string, int)"),
        ("l.sortBy(x, -x).first()", "optional_type(int)"),
        ("[[1], []].flatten()", "list(int)"),
        ("[].map(x, x) + ['a']", "list(string)"),
        ("type(1) == int", "bool"),
        ("google.protobuf.Timestamp", "type(google.protobuf.Timestamp)"),
        ("s.findAll('[a-z]', 2)", "list(string)"),
        ("'abc'.size()", "int"),
        ("s.matches(s) && s.matches('^a')", "bool"),
        ("url('http://x').getQuery()", "map(string, list(string))"),
        ("timestamp('2024-01-01T00:00:00Z') - duration('1s')", "google.protobuf.Timestamp"),
    ],
)
def test_an_expression_has_the_type(source: str, found: str) -> None:
    assert str(checker.type_of(source, VARIABLES)) == found


RANGE = " (must be list, map, or dynamic)"


def unmatched(name: str, given: str) -> str:
    return f"found no matching overload for '{name}' applied to '{given}'"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x", "undeclared reference to 'x' (in container '')"),
        ("f(1)", "undeclared reference to 'f' (in container '')"),
        ("s.f()", "undeclared reference to 'f' (in container '')"),
        ("pod.other", "undefined field 'other'"),
        ("has(pod.other)", "undefined field 'other'"),
        ("s.length", "type 'string' does not support field selection"),
        ("has(pod)", "invalid argument to has() macro"),
        ("has(pod.name, pod.name)", "invalid argument to has() macro"),
        ("l[s]", unmatched("_[_]", "(list(int), string)")),
        ("m[n]", unmatched("_[_]", "(map(string, int), int)")),
        ("pod[s]", unmatched("_[_]", "(object, string)")),
        ("1 ? 1 : 2", unmatched("_?_:_", "(int, int, int)")),
        ("true ? 1 : 'a'", unmatched("_?_:_", "(bool, int, string)")),
        ("true ? null : 1", unmatched("_?_:_", "(bool, null, int)")),
        ("any ? m : null", unmatched("_?_:_", "(dyn, map(string, int), null)")),
        ("!s", unmatched("!_", "(string)")),
        ("-s", unmatched("-_", "(string)")),
        ("s + 1", unmatched("_+_", "(string, int)")),
        ("s in l", unmatched("@in", "(string, list(int))")),
        ("1 == 1.0", unmatched("_==_", "(int, double)")),
        ("null == 1", unmatched("_==_", "(null, int)")),
        ("null == m", unmatched("_==_", "(null, map(string, int))")),
        ("pod == 1", unmatched("_==_", "(object, int)")),
        ("l == ['a']", unmatched("_==_", "(list(int), list(string))")),
        ("l + ['a']", unmatched("_+_", "(list(int), list(string))")),
        ("l.join()", unmatched("join", "list(int).()")),
        ("s.size(1)", unmatched("size", "string.(int)")),
        ("optional.of(1).orValue('a')", unmatched("orValue", "optional_type(int).(string)")),
        ("n.optMap(x, x)", unmatched("value", "int.()")),
        ("any.optMap(1, 1)", "optMap() variable name must be a simple identifier"),
        ("n.all(x, true)", "expression of type 'int' cannot be range of a comprehension" + RANGE),
        ("pod.all(x, true)", "expression of type 'object' cannot be range of a comprehension" + RANGE),
        ("l.all(x, x)", "expected type 'bool' but found 'int'"),
        ("l.map(x, x, x)", "expected type 'bool' but found 'int'"),
        ("m.all(k, v, v)", "expected type 'bool' but found 'int'"),
        ("l.map(1, 2)", "argument is not an identifier"),
        ("l.filter(x)", "undeclared reference to 'filter' (in container '')"),
        ("l.map(x, true, x, x)", "undeclared reference to 'map' (in container '')"),
        ("s.matches('[')", "invalid matches argument"),
        ("s.find('(')", "invalid find argument"),
        ("[1, 'a']", "expected type 'int' but found 'string'"),
        ("[1, any]", "expected type 'int' but found 'dyn'"),
        ("{'a': 1, 'b': 'c'}", "expected type 'int' but found 'string'"),
        ("pod == m", unmatched("_==_", "(object, map(string, int))")),
        ("cel.bind(x, 'a', x + s)", "undeclared reference to 'cel' (in container '')"),
        ("quantity('1').sign()", unmatched("sign", "kubernetes.Quantity.()")),
        ("duration('x')", "invalid duration argument"),
        ("duration(1)", "invalid duration argument"),
        ("timestamp('2024-01-02')", "invalid timestamp argument"),
        ("int(string('x'))", "type conversion error from 'string' to 'int'"),
        ("'%s'.format([1, 2])", "too many arguments supplied to string.format (expected 1, got 2)"),
        (
            "'%d'.format([s])",
            "error during formatting: decimal clause can only be used on integers, was given string",
        ),
        ("[s].sum()", unmatched("sum", "list(string).()")),
        ("s == any ? 1u : 1", unmatched("_?_:_", "(bool, uint, int)")),
        ("l.sortBy(x, [x])", unmatched("@sortByAssociatedKeys", "list(int).(list(list(int)))")),
    ],
)
def test_what_can_have_no_value_is_refused_with_the_reason(source: str, reason: str) -> None:
    with pytest.raises(CompileError) as refused:
        checker.type_of(source, VARIABLES)
    assert refused.value.reason == reason


def test_an_error_points_at_its_place() -> None:
    with pytest.raises(CompileError) as refused:
        checker.type_of("n > 1 &&\n  other > 2", VARIABLES)
    assert checker.marked(refused.value) == (
        "ERROR: <input>:2:3: undeclared reference to 'other' (in container '')\n |   other > 2\n | ..^"
    )
