"""Definitions that no running code names.

A module's own statements run when it is imported, and so do decorators; what they name is reached, and what that
names. Functions and classes of a module count where its own code, an import or the module before them names them, so
that one of the same name elsewhere does not hide them; methods count wherever their name stands, and short strings
name both, since plugins and commands are found by text. So the finder errs on one side: what it lists is not reached,
but not all that is.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
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

    @property
    def called(self) -> tuple[str, str]:
        """The name that reaches it, and the word by which strings do."""
        owner, _, last = self.name.rpartition(".")
        return last if owner else f"{self.module}:{last}", last


class Scope(NamedTuple):
    """A module, and what the names mean there that it imports: modules and members (`module:member`)."""

    module: str
    imported: Mapping[str, str]

    def meanings(self, name: str) -> Iterator[str]:
        """Yield what a bare name may stand for."""
        yield name
        yield self.imported.get(name) or f"{self.module}:{name}"

    def members(self, node: ast.Attribute) -> Iterator[str]:
        """Yield what `x.name` may stand for."""
        yield node.attr
        if isinstance(node.value, ast.Name) and node.value.id in self.imported:
            yield f"{self.imported[node.value.id].replace(':', '.')}:{node.attr}"
        elif node.attr[:1].isupper():  # a class of a module that is loaded when it is needed
            yield f"'{node.attr}"


def unreached(root: Path, package: str = "koordinator") -> list[Definition]:
    """Return the definitions below `root` that no running code names, by module and place."""
    found: list[Definition] = []
    waiting: set[str] = set()
    passed_on: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text())
        scope = Scope(module, dict(_imports(tree, package)))
        passed_on.update((f"{module}:{name}", meaning) for name, meaning in scope.imported.items())
        waiting |= _names(_running(tree), scope)
        found += _definitions(scope, tree)
    by_name: dict[str, list[int]] = defaultdict(list)
    for index, definition in enumerate(found):
        name, word = definition.called
        by_name[name].append(index)
        by_name[f"'{word}"].append(index)
    seen: set[str] = set()
    reached: set[int] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        if name in passed_on and passed_on[name] not in seen:
            waiting.add(passed_on[name])
        for index in by_name.get(name, ()):
            if index not in reached:
                reached.add(index)
                waiting |= found[index].names - seen
    return [definition for index, definition in enumerate(found) if index not in reached]


def _imports(tree: ast.Module, package: str) -> Iterator[tuple[str, str]]:
    """Yield what imports anywhere in a module bind, with what that is; imports of others are left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            module = node.module.removeprefix(f"{package}.") if node.module != package else ""
            for each in node.names:
                yield each.asname or each.name, f"{module}:{each.name}" if module else each.name


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


def _definitions(scope: Scope, tree: ast.Module) -> Iterator[Definition]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, _Function) and not _is_special(each)]
            rest = [each for each in ast.iter_child_nodes(node) if each not in methods]
            yield _definition(scope, node.name, node, rest)
            for method in methods:
                yield _definition(scope, f"{node.name}.{method.name}", method, [method])
        elif isinstance(node, _Function):
            yield _definition(scope, node.name, node, [node])


def _definition(
    scope: Scope, name: str, node: ast.ClassDef | _Function, parts: Iterable[ast.AST]
) -> Definition:
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    return Definition(scope.module, name, lines, frozenset(_names(parts, scope)))


def _is_special(method: _Function) -> bool:
    return method.name.startswith("__") and method.name.endswith("__")


def _names(nodes: Iterable[ast.AST], scope: Scope) -> set[str]:
    found: set[str] = set()
    left: list[Any] = list(nodes)
    while left:  # `ast.walk` takes three times as long
        node = left.pop()
        kind = type(node)
        if kind is ast.Name:
            found.update(scope.meanings(node.id))
        elif kind is ast.Constant:
            if isinstance(node.value, str) and len(node.value) < _TEXT_MAX:
                words = node.value.replace(" ", "").translate(_SEPARATORS).split(".")
                found.update(f"'{word}" for word in words if word.isidentifier())
        else:
            if kind is ast.Attribute:
                found.update(scope.members(node))
            for field in node._fields:
                value = getattr(node, field, None)
                if isinstance(value, list):
                    left += [each for each in value if isinstance(each, ast.AST)]
                elif isinstance(value, ast.AST):
                    left.append(value)
    return found
