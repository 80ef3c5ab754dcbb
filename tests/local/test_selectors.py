"""Label and field selectors: the grammar, what matches, and the words for what is refused."""

import pytest

from koordinator.local import selectors
from koordinator.local.selectors import FieldRequirement, SelectorError


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        pytest.param("app=web", {"app": "web"}, True, id="= compares"),
        pytest.param("app==web", {"app": "api"}, False, id="== compares"),
        pytest.param("app=", {"app": ""}, True, id="nothing after = is the empty value"),
        pytest.param("app=,tier=x", {"app": "", "tier": "x"}, True, id="an empty value before a comma"),
        pytest.param("app!=web", {}, True, id="!= accepts an absent label"),
        pytest.param("app!=web", {"app": "web"}, False, id="!= refuses the value"),
        pytest.param("app", {"app": ""}, True, id="a bare key must exist"),
        pytest.param("app", {}, False, id="a bare key does not match without the label"),
        pytest.param("!app", {}, True, id="! wants the label absent"),
        pytest.param("! app", {"app": "x"}, False, id="blanks may follow !"),
        pytest.param("app in (web, api)", {"app": "api"}, True, id="in knows several values"),
        pytest.param("app in (web)", {}, False, id="in needs the label"),
        pytest.param("app in (,web)", {"app": ""}, True, id="nothing before a comma is the empty value"),
        pytest.param("app in (web,)", {"app": ""}, True, id="nothing behind a comma is the empty value"),
        pytest.param("app in ()", {"app": ""}, True, id="nothing between parentheses is the empty value"),
        pytest.param("app notin (web)", {}, True, id="notin accepts an absent label"),
        pytest.param("app notin (web)", {"app": "web"}, False, id="notin refuses its values"),
        pytest.param("cores>4", {"cores": "5"}, True, id="> compares numbers"),
        pytest.param("cores>4", {"cores": "many"}, False, id="> needs a number in the label"),
        pytest.param("cores>4", {"cores": "9223372036854775808"}, False, id="> needs one of 64 bits"),
        pytest.param("cores<4", {"cores": "3"}, True, id="< compares numbers"),
        pytest.param("cores<4", {}, False, id="< needs the label"),
        pytest.param("a=1,!b,c in (x)", {"a": "1", "c": "x"}, True, id="all requirements must hold"),
        pytest.param("a=1,!b", {"a": "1", "b": ""}, False, id="one that fails is enough"),
        pytest.param("in in (in)", {"in": "in"}, True, id="keywords may be keys and values"),
        pytest.param("example.com/app=web", {"example.com/app": "web"}, True, id="keys may have a prefix"),
    ],
)
def test_label_selector(text: str, labels: dict[str, str], expected: bool) -> None:
    test = selectors.labels(text)

    assert test is not None
    assert test(labels) is expected


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_label_selector_selects_everything(text: str) -> None:
    assert selectors.labels(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("app in", "unable to parse requirement: found '' expected: '('"),
        ("app in web", "unable to parse requirement: found 'web' expected: '('"),
        ("app in (web", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("app in (=", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
        ("app=(", "unable to parse requirement: found '(', expected: identifier"),
        ("app web", "unable to parse requirement: found 'web', expected: in, notin, =, ==, !=, gt, lt"),
        ("=web", "found '=', expected: !, identifier, or 'end of string'"),
        (",", "found ',', expected: !, identifier, or 'end of string'"),
        ("app=web,", "found '', expected: identifier after ','"),
        ("app=web api", "found 'api', expected: ',' or 'end of string'"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        (
            "cores>many",
            "unable to parse requirement: values[0]: Invalid value: \"many\": for 'Gt', 'Lt' operators, the "
            "value must be an integer",
        ),
        (
            "cores>9223372036854775808",
            "unable to parse requirement: values[0]: Invalid value: \"9223372036854775808\": for 'Gt', 'Lt' "
            "operators, the value must be an integer",
        ),
        (
            "a/b/c=x",
            'unable to parse requirement: <nil>: Invalid value: "a/b/c": a qualified name must',
        ),
        ("-app=x", 'unable to parse requirement: <nil>: Invalid value: "-app": name part must'),
        (
            "app=we:b",
            'unable to parse requirement: values[0][app]: Invalid value: "we:b": a valid label',
        ),
    ],
)
def test_a_broken_label_selector_is_refused_in_the_words_of_the_api_server(text: str, message: str) -> None:
    with pytest.raises(SelectorError) as refused:
        selectors.labels(text)

    assert str(refused.value).startswith(message)


def test_long_keys_and_values_are_refused() -> None:
    with pytest.raises(SelectorError, match="name part must be no more than 63 bytes"):
        selectors.labels("a" * 64)
    with pytest.raises(SelectorError, match="must be no more than 63 bytes"):
        selectors.labels(f"app={'a' * 64}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("metadata.name=web", (FieldRequirement("metadata.name", "web"),)),
        ("metadata.name==web", (FieldRequirement("metadata.name", "web"),)),
        ("spec.nodeName!=", (FieldRequirement("spec.nodeName", "", True),)),
        (
            "status.phase=Running,spec.nodeName=n1",
            (FieldRequirement("status.phase", "Running"), FieldRequirement("spec.nodeName", "n1")),
        ),
        (r"reason=a\,b\=c\\d", (FieldRequirement("reason", r"a,b=c\d"),)),
    ],
)
def test_field_selector(text: str, expected: tuple[FieldRequirement, ...]) -> None:
    assert selectors.fields(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name", "invalid selector: 'name'; can't understand 'name'"),
        (r"a=\x", r"invalid field selector: invalid escape sequence in value: \x"),
        ("a=b=c", "invalid field selector: unescaped character in value: b=c"),
    ],
)
def test_a_broken_field_selector_is_refused(text: str, message: str) -> None:
    with pytest.raises(SelectorError) as refused:
        selectors.fields(text)

    assert str(refused.value) == message
