"""Definitions that no running code names.

A module's own statements run when it is imported, and so do decorators; what they name is reached, and what that
names. Names count wherever they stand, with or without an object before them, and in short strings, since plugins and
commands are found by text. So the finder errs on one side: what it lists is not reached, but not all that is.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_TEXT_MAX = 100
_SEPARATORS = str.maketrans(dict.fromkeys(":[]|,/", "."))
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Definition(NamedTuple):
    """A function, a class or a method of a module, and the names in it."""

    module: str
    """Path below the root, with `.` for `/`."""
    name: str
    """`Class.method` for methods."""
    lines: int
    names: frozenset[str]

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def unreached(root: Path) -> list[Definition]:
    """Definitions below `root` that no running code names, by module and place."""
    found: list[Definition] = []
    waiting: set[str] = set()
    for path in sorted(root.rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        tree = ast.parse(path.read_text())
        waiting |= _names(_running(tree))
        found += _definitions(module, tree)
    by_name: dict[str, list[int]] = defaultdict(list)
    for index, definition in enumerate(found):
        by_name[definition.name.rpartition(".")[2]].append(index)
    seen: set[str] = set()
    reached: set[int] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for index in by_name.get(name, ()):
            if index not in reached:
                reached.add(index)
                waiting |= found[index].names - seen
    return [definition for index, definition in enumerate(found) if index not in reached]


def _running(tree: ast.Module) -> Iterator[ast.AST]:
    """What runs at import, without imports and lists of what a module offers."""
    for node in tree.body:
        if isinstance(node, _Function | ast.ClassDef):
            yield from node.decorator_list
            if node.decorator_list:
                yield ast.Name(node.name)
        elif isinstance(node, ast.Assign) and any(ast.unparse(each) == "__all__" for each in node.targets):
            continue
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def _definitions(module: str, tree: ast.Module) -> Iterator[Definition]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, _Function) and not _is_special(each)]
            rest = [each for each in ast.iter_child_nodes(node) if each not in methods]
            yield _definition(module, node.name, node, rest)
            for method in methods:
                yield _definition(module, f"{node.name}.{method.name}", method, [method])
        elif isinstance(node, _Function):
            yield _definition(module, node.name, node, [node])


def _definition(
    module: str, name: str, node: ast.ClassDef | _Function, parts: Iterable[ast.AST]
) -> Definition:
    return Definition(
        module, name, (node.end_lineno or node.lineno) - node.lineno + 1, frozenset(_names(parts))
    )


def _is_special(method: _Function) -> bool:
    return method.name.startswith("__") and method.name.endswith("__")


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    found: set[str] = set()
    left: list[Any] = list(nodes)
    while left:  # `ast.walk` takes three times as long
        node = left.pop()
        kind = type(node)
        if kind is ast.Name:
            found.add(node.id)
        elif kind is ast.Constant:
            if isinstance(node.value, str) and len(node.value) < _TEXT_MAX:
                words = node.value.replace(" ", "").translate(_SEPARATORS).split(".")
                found.update(word for word in words if word.isidentifier())
        else:
            if kind is ast.Attribute:
                found.add(node.attr)
            for field in node._fields:
                value = getattr(node, field, None)
                if isinstance(value, list):
                    left += [each for each in value if isinstance(each, ast.AST)]
                elif isinstance(value, ast.AST):
                    left.append(value)
    return found
