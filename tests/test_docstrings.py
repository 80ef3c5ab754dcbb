"""Docstrings are read once: a verb or a noun first, shapes of arrays, and the errors that a function raises."""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "koordinator"

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Function = ast.FunctionDef | ast.AsyncFunctionDef

FRAGMENTS = (
    r"Which|Whose|What|Whether|Whom?|Who|Why|Where|When|How",  # a clause without the sentence that it is part of
    r"Those|The ones? (?:that|who|which|of)",  # a pronoun for what only the name of the function tells
    r"Of|As|With what|By what|For whom|To whom",  # the end of a sentence without its beginning
)
FRAGMENT = re.compile(rf"(?:{'|'.join(FRAGMENTS)})\b")
LATER_FRAGMENT = re.compile(
    r"(?<=\w[.;] )(?:Which|Whose|What|Whether|Whom?|Who|Of which|Those of which)\b(?![^.]*\?)"
)
SHAPE = re.compile(r"\((?:[\w·*+… -]+,)(?: ?[\w·*+… -]+,?)*\)|\b[Ss]hapes?\b|\b[Ee]lementwise\b")
ARRAYS = frozenset({"NDArray", "ndarray"})


class Entry(NamedTuple):
    """A module, class or function with the classes around it, outermost first."""

    path: str
    name: str
    node: Documented
    classes: tuple[ast.ClassDef, ...]
    is_nested: bool
    """A function inside another one."""

    @property
    def text(self) -> str:
        return " ".join((ast.get_docstring(self.node) or "").split())

    @property
    def is_public(self) -> bool:
        return not self.is_nested and not any(part.startswith("_") for part in self.name.split("."))

    def __str__(self) -> str:
        return f"{self.path}: {self.name}"


def entries_of(path: str, tree: ast.Module) -> Iterator[Entry]:
    """Yield the module, and all classes and functions in it."""
    yield Entry(path, "", tree, (), False)
    waiting: list[tuple[str, ast.AST, tuple[ast.ClassDef, ...], bool]] = [("", tree, (), False)]
    while waiting:
        name, node, classes, is_inside = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | Function):
                full = f"{name}.{child.name}" if name else child.name
                yield Entry(path, full, child, classes, is_inside)
                is_class = isinstance(child, ast.ClassDef)
                within = (*classes, child) if is_class else classes
                waiting.append((full, child, within, is_inside or not is_class))
            elif not isinstance(child, ast.expr):
                waiting.append((name, child, classes, is_inside))


@cache
def all_entries() -> tuple[Entry, ...]:
    """Return the entries of the whole source."""
    found: list[Entry] = []
    for path in sorted(SOURCE.rglob("*.py")):
        found += entries_of(str(path.relative_to(SOURCE)), ast.parse(path.read_text()))
    return tuple(found)


class Attribute(NamedTuple):
    """The text below an attribute or a constant, and how that is annotated; "" where it is not."""

    place: str
    annotation: str
    text: str


def attributes_of(path: str, tree: ast.Module) -> Iterator[Attribute]:
    """Yield the attributes and constants that a text follows."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for above, below in pairwise(body if isinstance(body, list) else ()):
            if not isinstance(above, ast.Assign | ast.AnnAssign) or not isinstance(below, ast.Expr):
                continue
            if isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
                annotation = ast.unparse(above.annotation) if isinstance(above, ast.AnnAssign) else ""
                yield Attribute(f"{path}:{below.lineno}", annotation, below.value.value.strip())


def is_fragment_of(attribute: Attribute) -> bool:
    """Return whether the text of an attribute begins with a part of a sentence; a bool may say `Whether`."""
    is_flag = attribute.annotation == "bool" and attribute.text.startswith("Whether")
    return bool(FRAGMENT.match(attribute.text)) and not is_flag


def is_fragment(text: str) -> bool:
    """Return whether a docstring begins with, or goes on with, a part of a sentence."""
    return bool(FRAGMENT.match(text) or LATER_FRAGMENT.search(text))


@cache
def bases() -> dict[str, set[str]]:
    """Return the names of the direct bases of each class in the source, by its bare name."""
    found: dict[str, set[str]] = {}
    for entry in all_entries():
        if isinstance(entry.node, ast.ClassDef):
            names = {ast.unparse(base).split("[")[0].rpartition(".")[2] for base in entry.node.bases}
            found.setdefault(entry.node.name, set()).update(names)
    return found


def with_ancestors(name: str) -> set[str]:
    """Return the names of a class and of all that it inherits from."""
    builtin = getattr(builtins, name, None)
    known = {each.__name__ for each in builtin.__mro__} if isinstance(builtin, type) else {name}
    waiting = [name]
    while waiting:
        for base in bases().get(waiting.pop(), ()):
            if base not in known:
                known |= with_ancestors(base) if base in vars(builtins) else {base}
                waiting.append(base)
    return known - {"object", "BaseException", "Exception"}


def raised(node: Function) -> Iterator[str]:
    """Yield the names of the errors that a function's own body raises and does not catch itself."""

    def walk(part: ast.AST, caught: set[str]) -> Iterator[str]:
        if isinstance(part, Function | ast.Lambda | ast.ClassDef):
            return
        if isinstance(part, ast.Raise) and part.exc is not None:
            error = part.exc.func if isinstance(part.exc, ast.Call) else part.exc
            name = ast.unparse(error).rpartition(".")[2]
            if name[:1].isupper() and not with_ancestors(name) & caught:
                yield name
        if isinstance(part, ast.Try):
            names = {ast.unparse(each.type) for each in part.handlers if each.type is not None}
            inside = {word for text in names for word in re.findall(r"\w+", text)}
            for each in part.body:
                yield from walk(each, caught | inside)
            for each in (*part.handlers, *part.orelse, *part.finalbody):
                yield from walk(each, caught)
            return
        for child in ast.iter_child_nodes(part):
            yield from walk(child, caught)

    for statement in node.body:
        yield from walk(statement, set())


def is_command(node: Function) -> bool:
    """Return whether click prints the docstring as a command's help, where errors of Python say nothing."""
    return any(re.search(r"\b(command|group)\(", ast.unparse(each)) for each in node.decorator_list)


def untold_errors(entry: Entry) -> set[str]:
    """Return the errors that a public function raises and that its docstring does not name."""
    if not isinstance(entry.node, Function) or not entry.is_public or is_command(entry.node):
        return set()
    silent = {"NotImplementedError", "AssertionError", "StopIteration", "StopAsyncIteration", "SystemExit"}
    told = set(re.findall(r"\w+", " ".join(re.split(r"\bRaises?\b", entry.text)[1:])))
    refers = re.match(r"See `", entry.text) is not None
    return {
        name
        for name in raised(entry.node)
        if name not in silent and not refers and not with_ancestors(name) & told
    }


class Names(NamedTuple):
    """What the top level of a module calls an array type, and what it calls something else."""

    arrays: frozenset[str]
    others: frozenset[str]


@cache
def names_by_path() -> dict[str, Names]:
    """Return the names of types that each module defines, told apart by whether they are arrays."""
    defined: dict[str, dict[str, set[str]]] = {}
    for entry in all_entries():
        if isinstance(entry.node, ast.Module):
            names = defined.setdefault(entry.path, {})
            for each in entry.node.body:
                if isinstance(each, ast.ClassDef):
                    names[each.name] = set()
                elif isinstance(each, ast.Assign) and not isinstance(each.value, ast.Call | ast.Constant):
                    words = set(re.findall(r"\w+", ast.unparse(each.value)))
                    names.update(
                        {target.id: words for target in each.targets if isinstance(target, ast.Name)}
                    )
    return {path: _told_apart(names) for path, names in defined.items()}


def _told_apart(names: dict[str, set[str]]) -> Names:
    arrays, before = set(ARRAYS), 0
    while len(arrays) != before:
        before = len(arrays)
        arrays |= {name for name, words in names.items() if words & arrays}
    return Names(frozenset(arrays), frozenset(names) - arrays)


@cache
def array_types(path: str) -> frozenset[str]:
    """Return the names of array types in a module: its own, and those that are nothing else anywhere."""
    every = names_by_path().values()
    common = frozenset().union(*(each.arrays for each in every)) - frozenset().union(
        *(each.others for each in every)
    )
    own = names_by_path()[path] if path in names_by_path() else Names(ARRAYS, frozenset())
    return (common | own.arrays) - own.others


def has_arrays(path: str, node: Function) -> bool:
    """Return whether a parameter or the result of a function is an array, or several."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    annotations = [each.annotation for each in arguments] + [node.returns]
    words = {
        word for each in annotations if each is not None for word in re.findall(r"\w+", ast.unparse(each))
    }
    return bool(words & array_types(path))


@cache
def shaped_methods() -> frozenset[tuple[str, str]]:
    """Return (class, method) pairs whose docstring states shapes."""
    return frozenset(
        (entry.classes[-1].name, entry.node.name)
        for entry in all_entries()
        if isinstance(entry.node, Function) and entry.classes and SHAPE.search(entry.text)
    )


def lacks_shapes(entry: Entry) -> bool:
    """Return whether a public function of arrays states no shapes, nor does its class or the method it overrides."""
    if not isinstance(entry.node, Function) or not entry.is_public or not has_arrays(entry.path, entry.node):
        return False
    if SHAPE.search(entry.text):
        return False
    if not entry.classes:
        return True
    owner = entry.classes[-1]
    if SHAPE.search(ast.get_docstring(owner) or ""):
        return False
    return not any((name, entry.node.name) in shaped_methods() for name in with_ancestors(owner.name))


def test_no_docstring_begins_with_a_part_of_a_sentence() -> None:
    assert [str(each) for each in all_entries() if is_fragment(each.text)] == []


def test_no_text_of_an_attribute_begins_with_a_part_of_a_sentence() -> None:
    found: list[Attribute] = []
    for path in sorted(SOURCE.rglob("*.py")):
        found += attributes_of(str(path.relative_to(SOURCE)), ast.parse(path.read_text()))

    assert [f"{each.place}: {each.text}" for each in found if is_fragment_of(each)] == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('A = 1\n"""How often it is asked."""', True),
        ('A = 1\n"""Of the lease."""', True),
        ('A = 1\n"""Interval at which it is asked."""', False),
        ('class A:\n    is_on: bool = False\n    """Whether it is on."""', False),
        ('class A:\n    rule: str = ""\n    """Whether it is on."""', True),
        ('def f(self):\n    self.a = 1\n    """When it began."""', True),
    ],
)
def test_parts_of_sentences_below_attributes_are_found(code: str, expected: bool) -> None:
    assert [is_fragment_of(each) for each in attributes_of("room/file.py", ast.parse(code))] == [expected]


def test_public_functions_name_the_errors_that_they_raise() -> None:
    silent = {str(each): names for each in all_entries() if (names := untold_errors(each))}

    assert silent == {}


def test_functions_of_arrays_state_shapes() -> None:
    assert [str(each) for each in all_entries() if lacks_shapes(each)] == []


def entry_of(code: str, name: str) -> Entry:
    """Return one entry of a piece of code."""
    return next(each for each in entries_of("room/file.py", ast.parse(code)) if each.name == name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Whether the node is ready.", True),
        ("Those that wait.", True),
        ("Return the pods. Which of them go is another question's part.", True),
        ("Return whether the node is ready.", False),
        ("The nodes that wait.", False),
        ("Ask the user. Which node is meant?", False),
    ],
)
def test_fragments_are_told_from_sentences(text: str, expected: bool) -> None:
    assert is_fragment(text) is expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('    """Do it."""\n    raise ValueError', {"ValueError"}),
        ('    """Do it. Raises: ValueError."""\n    raise ValueError', set()),
        ('    """Do it. Raises: OSError."""\n    raise FileNotFoundError(1)', set()),
        ('    """Do it."""\n    try:\n        raise KeyError\n    except KeyError:\n        pass', set()),
        (
            '    """Do it."""\n    try:\n        pass\n    except KeyError:\n        raise ValueError from None',
            {"ValueError"},
        ),
        ('    """Do it."""\n    def inner():\n        raise ValueError\n    inner()', set()),
    ],
)
def test_errors_that_a_docstring_omits_are_found(body: str, expected: set[str]) -> None:
    assert untold_errors(entry_of(f"def f():\n{body}", "f")) == expected


@pytest.mark.parametrize(
    ("code", "name", "expected"),
    [
        ('def f(a: "npt.NDArray[int]"):\n    """Add."""', "f", True),
        ('def f(a: "npt.NDArray[int]"):\n    """Add: (rows,)."""', "f", False),
        ('def f(a: "npt.NDArray[int]"):\n    """Add: (nodes, resources)."""', "f", False),
        ('def f(a: int):\n    """Add."""', "f", False),
        ('class A:\n    """Arrays are (rows,)."""\n    def f(self) -> "NDArray[int]": ...', "A.f", False),
        ('class A:\n    """Rows."""\n    def f(self) -> "NDArray[int]": ...', "A.f", True),
    ],
)
def test_arrays_without_shapes_are_found(code: str, name: str, expected: bool) -> None:
    assert lacks_shapes(entry_of(code, name)) is expected
