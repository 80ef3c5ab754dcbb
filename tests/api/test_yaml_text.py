"""YAML texts: what they mean, and what they may not do to whoever reads them."""

import time
import tracemalloc
from collections.abc import Callable

import pytest

from koordinator.api import yaml_text
from koordinator.api.yaml_text import YamlError

LEVELS = "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 10)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)
BOMBS = {
    "many aliases": "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + LEVELS,
    "a long scalar": "a: &a " + "x" * 100_000 + "\nb: [" + ",".join(["*a"] * 1_000) + "]\n",
    "merged": "a: &a {x: " + "y" * 4_000 + "}\nb:\n" + "- {<<: *a}\n" * 2_000,
    "keys": "a: &a {" + ", ".join(f"k{i}: 1" for i in range(1_000)) + "}\nb: [" + "*a, " * 2_000 + "]",
}
DEEP = {
    "brackets": "[" * 300 + "]" * 300,
    "dashes": "- " * 300 + "x",
    "through aliases": "".join(
        f"a{i}: &a{i} " + "[" * 60 + (f"*a{i - 1}" if i else "1") + "]" * 60 + "\n" for i in range(9)
    ),
    "far too deep": "[" * 200_000,
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_aliases_do_not_make_a_small_text_large(text: str) -> None:
    tracemalloc.start()
    started_s = time.process_time()
    with pytest.raises(YamlError, match="excessive aliasing"):
        yaml_text.load(text)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak_bytes < 20 << 20
    assert time.process_time() - started_s < 2


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_no_text_is_deeper_than_what_reads_it_later_can_walk(text: str) -> None:
    # From some thousand brackets on, libyaml of PyYAML 6.0.4 says so itself.
    with pytest.raises(YamlError, match=r"line \d+: exceeded max(imum nesting)? depth"):
        yaml_text.load(text)


@pytest.mark.parametrize(
    "inner",
    [
        pytest.param(lambda depth: "[" * depth + "1" + "]" * depth, id="lists"),
        pytest.param(
            lambda depth: "[" * (depth - 2) + "[[], 1], 2" + "]" * (depth - 2), id="the deepest part"
        ),
    ],
)
def test_an_alias_is_as_deep_as_what_it_stands_for(inner: Callable[[int], str]) -> None:
    def text(outer: int) -> str:
        return f"- &a {inner(40)}\n- " + "[" * outer + "*a" + "]" * outer

    deepest = yaml_text.DEPTH_MAX - 40 - 1
    assert yaml_text.load(text(deepest))
    with pytest.raises(YamlError, match="line 2: exceeded max depth"):
        yaml_text.load(text(deepest + 1))


def test_the_number_of_values_can_be_bounded() -> None:
    assert yaml_text.load("- a\n" * 8, nodes_max=20) == ["a"] * 8
    with pytest.raises(YamlError, match="line 19: document has too many values"):
        yaml_text.load("- a\n" * 100, nodes_max=20)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("---\n", None),
        ("a: &a [1, 2]\nb: *a\n", {"a": [1, 2], "b": [1, 2]}),
        ("a: &a {x: 1}\nb: {<<: *a, z: 2}\n", {"a": {"x": 1}, "b": {"x": 1, "z": 2}}),
        ("[yes, 0777, 1:30, 2024-01-01, ~, 1_000, .5]", [True, 511, "1:30", "2024-01-01", None, 1000, 0.5]),
        ('"text"', "text"),
    ],
)
def test_values_are_those_of_gos_parser(text: str, value: object) -> None:
    assert yaml_text.load(text) == value


def test_documents_come_one_after_the_other_and_share_no_anchors() -> None:
    assert list(yaml_text.load_all("a: 1\n---\nb: 2\n---\n")) == [{"a": 1}, {"b": 2}, None]
    with pytest.raises(YamlError, match="expected a single document"):
        yaml_text.load("a: 1\n---\nb: 2\n")
    with pytest.raises(YamlError, match="line 3: unknown anchor 'x'"):
        list(yaml_text.load_all("a: &x 1\n---\nb: *x\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: \xff", "can't decode byte 0xff"),
        ("a: \x01", "control characters are not allowed"),
        ('a: "\\ud800"', "line 1: found invalid Unicode"),
        ("a: b: c", "line 1: mapping values are not allowed"),
        ("a: 1\na: 2", 'line 2: key "a" already set in map'),
        ("a: &a [*a]", "unknown anchor 'a'"),
        ("a: !!python/object:os.system x", "cannot decode"),
        ("? [a]\n: b", "invalid map key"),
    ],
)
def test_what_is_no_json_value_is_refused_with_its_place(text: str | bytes, message: str) -> None:
    with pytest.raises(YamlError, match=message):
        yaml_text.load(text)
