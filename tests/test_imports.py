"""No module imports itself over others, not even for the sake of types."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

import grimp
import pytest


def a_circle(imported_by: Mapping[str, AbstractSet[str]]) -> list[str]:
    """The modules of a circle of imports, in order, the first one again at the end; empty when there is none."""
    finished: set[str] = set()
    for start in sorted(imported_by):
        on_the_way: dict[str, Iterator[str]] = {}
        module: str | None = None if start in finished else start
        while module is not None or on_the_way:
            if module is not None:
                on_the_way[module] = iter(sorted(imported_by.get(module, ())))
            current = next(reversed(on_the_way))
            module = next((each for each in on_the_way[current] if each not in finished), None)
            if module is None:
                finished.add(current)
                del on_the_way[current]
            elif module in on_the_way:
                names = list(on_the_way)
                return [*names[names.index(module) :], module]
    return []


@pytest.mark.parametrize(
    ("imports", "circle"),
    [
        ({}, []),
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
        ({"a": {"b"}, "b": {"d", "e"}, "d": set(), "e": {"a"}}, ["a", "b", "e", "a"]),
    ],
)
def test_a_circle_is_reported_by_its_path(imports: dict[str, set[str]], circle: list[str]) -> None:
    assert a_circle(imports) == circle


def test_no_imports_go_round_in_a_circle_not_even_those_for_types() -> None:
    graph = grimp.build_graph("koordinator", exclude_type_checking_imports=False, cache_dir=None)

    found = a_circle({each: graph.find_modules_directly_imported_by(each) for each in graph.modules})

    assert not found, " → ".join(found)
