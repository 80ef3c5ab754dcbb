"""A pass written down: its mutants as data that outlives edits of the sources around them.

`equivalent.json` lists mutants that change nothing that anybody could see, each with the argument.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.mutation.mutants import Mutant, mutants

EQUIVALENT = Path(__file__).with_name("equivalent.json")


class Place(msgspec.Struct, frozen=True):
    """A mutant, told by what its function says there instead of by a line: `nth` among equal ones of the function."""

    path: str
    function: str
    about: str
    before: str
    after: str
    nth: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """What became of a mutant when the pass was written down; `by` is empty where nobody noticed."""

    place: Place
    by: str


class Equivalent(msgspec.Struct, frozen=True):
    place: Place
    why: str


def places(path: str, source: str) -> dict[Place, Mutant]:
    """All mutants of a file by their places, in the file's order."""
    found = {}
    functions = list(_functions(ast.parse(source)))
    equal = Counter[Place]()
    for mutant in mutants(path, source):
        around = [name for name, first, last in functions if first <= mutant.line <= last]
        before, after = (" ".join(text.split()) for text in (source[mutant.start : mutant.end], mutant.text))
        like = Place(path, around[-1] if around else "", mutant.about, before, after)
        found[msgspec.structs.replace(like, nth=equal[like])] = mutant
        equal[like] += 1
    return found


def place_of(mutant: Mutant, root: Path) -> Place:
    """Where a mutant of today's sources below the root is."""
    every = places(mutant.path, (root / mutant.path).read_text("utf-8"))
    return next(place for place, each in every.items() if each == mutant)


def found_again(place: Place, root: Path) -> Mutant | str:
    """The mutant of today's sources below the root, or why there is none."""
    path = root / place.path
    if not path.exists():
        return "the module is gone"
    source = path.read_text("utf-8")
    if mutant := places(place.path, source).get(place):
        return mutant
    is_there = any(name == place.function for name, _, _ in _functions(ast.parse(source)))
    return "the function reads otherwise now" if is_there or not place.function else "the function is gone"


def equivalents() -> dict[Place, str]:
    """Mutants that change nothing, with the reason."""
    return {
        each.place: each.why for each in msgspec.json.decode(EQUIVALENT.read_bytes(), type=list[Equivalent])
    }


def _functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, int, int]]:
    """Qualified names of functions and classes with their first and last lines, the outer ones first."""
    for node in ast.iter_child_nodes(tree):
        name = within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{within}.{node.name}".lstrip(".")
            yield name, node.lineno, node.end_lineno or node.lineno
        yield from _functions(node, name)
