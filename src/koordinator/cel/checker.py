"""Find the type of an expression, and what in it can never have a value, when a rule is written.

Source: the type checker of CEL's language definition; the texts are cel-go's.
"""

import itertools
from collections.abc import Mapping, Sequence

from koordinator.cel import literals, loops, overloads, syntax, unify
from koordinator.cel.compiler import dotted
from koordinator.cel.overloads import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    INT,
    NULL,
    SORT_BY,
    STRING,
    UINT,
    CELType,
    list_of,
    map_of,
    optional_of,
    shown,
)
from koordinator.cel.syntax import Call, Index, ListLiteral, Literal, MapLiteral, Name, Select, SyntaxNode
from koordinator.cel.values import TYPE_NAMES, CompileError, UInt


def type_of(source: str, variables: Mapping[str, CELType]) -> CELType:
    """Return the type of an expression's value. Raises: CompileError."""
    try:
        tree = syntax.parse(source)
        checker = _Checker(source)
        found = checker.type_of(tree, dict(variables))
        literals.check(source, tree, lambda node: checker.known_type(node, with_dyn=True))
        return unify.filled(checker.binds, found, with_dyn=True)
    except RecursionError as error:
        raise CompileError(source, 0, "nested too deeply") from error


def marked(error: CompileError) -> str:
    """Return the error with the place in its line, as cel-go prints it."""
    before = error.source[: error.position]
    line = before.count("\n")
    column = len(before) - (before.rfind("\n") + 1)
    text = error.source.split("\n")[line] if error.source else ""
    return f"ERROR: <input>:{line + 1}:{column + 1}: {error.reason}\n | {text}\n | {'.' * column}^"


Scope = dict[str, CELType]


class _Checker:
    """One expression. Types of nodes may stand for others that are found later: `known_type` tells them at the end."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._numbers = itertools.count()
        self.binds: unify.Bindings = {}
        self._types: dict[int, CELType] = {}

    def known_type(self, node: SyntaxNode, *, with_dyn: bool = False) -> CELType:
        """Return the type of a node that was seen."""
        return unify.filled(self.binds, self._types[id(node)], with_dyn=with_dyn)

    def _error(self, node: SyntaxNode, reason: str) -> CompileError:
        return CompileError(self._source, node.position, reason)

    def _free(self) -> CELType:
        return CELType(f"{unify.FREE}{next(self._numbers)}")

    def type_of(self, node: SyntaxNode, scope: Scope) -> CELType:
        found = self._types[id(node)] = self._type_of(node, scope)
        return found

    def _type_of(self, node: SyntaxNode, scope: Scope) -> CELType:
        match node:
            case Literal(value=value):
                return _of_literal(value)
            case Name(name=name):
                return self._name(node, name, scope)
            case Select():
                return self._select(node, scope)
            case Index():
                given = [self.type_of(node.target, scope), self.type_of(node.key, scope)]
                operator = "_[?_]" if node.is_optional else "_[_]"
                return self._apply(node, operator, overloads.functions()[operator], given)
            case ListLiteral(items=items, optional=optional):
                each: CELType | None = None
                for index, item in enumerate(items):
                    each = self._joined(each, self._entry(item, scope, is_optional=index in optional))
                return list_of(each or self._free())
            case MapLiteral():
                return self._map(node, scope)
            case Call():
                return self._call(node, scope)
        raise AssertionError(node)

    def _name(self, node: SyntaxNode, name: str, scope: Scope) -> CELType:
        if name in scope:
            return scope[name]
        if name in TYPE_NAMES:
            return _as_value(name)
        raise self._error(node, f"undeclared reference to '{name}' (in container '')")

    def _select(self, node: Select, scope: Scope) -> CELType:
        name = dotted(node)
        if name in TYPE_NAMES and name.partition(".")[0] not in scope:
            return _as_value(name)
        target = unify.filled(self.binds, self.type_of(node.target, scope))
        inner, is_optional = _unwrapped(target)
        found = self._field(node, inner)
        return optional_of(found) if is_optional or node.is_optional else found

    def _field(self, node: Select, target: CELType) -> CELType:
        if target.fields is not None:
            if node.field not in target.fields:
                raise self._error(node, f"undefined field '{node.field}'")
            return target.fields[node.field]
        if target.name == "map":
            return target.of[1]
        if unify.is_free(target):
            unify.is_assignable(self.binds, DYN, target)
            return DYN
        if target.name == "dyn":
            return DYN
        raise self._error(node, f"type '{shown(target)}' does not support field selection")

    def _entry(self, node: SyntaxNode, scope: Scope, *, is_optional: bool) -> CELType:
        found = self.type_of(node, scope)
        if not is_optional:
            return found
        inner, was_optional = _unwrapped(unify.filled(self.binds, found))
        if not was_optional and inner != DYN:
            raise self._mismatch(node, optional_of(inner), inner)
        return inner

    def _map(self, node: MapLiteral, scope: Scope) -> CELType:
        keys: CELType | None = None
        values: CELType | None = None
        for index, (key, value) in enumerate(node.items):
            keys = self._joined(keys, self.type_of(key, scope))
            values = self._joined(values, self._entry(value, scope, is_optional=index in node.optional))
        return map_of(keys or self._free(), values or self._free())

    def _joined(self, before: CELType | None, found: CELType) -> CELType:
        """Return the common type of values in a row; `literals` refuses most rows that mix types."""
        if before is None:
            return found
        fits = unify.is_assignable(self.binds, before, found)
        return unify.most_general(before, found) if fits else DYN

    def _mismatch(self, node: SyntaxNode, wanted: CELType, found: CELType) -> CompileError:
        given = shown(unify.filled(self.binds, found))
        return self._error(
            node, f"expected type '{shown(unify.filled(self.binds, wanted))}' but found '{given}'"
        )

    # Calls

    def _call(self, node: Call, scope: Scope) -> CELType:
        name, args = node.name, node.args
        if node.target is None:
            if name == "has":
                if len(args) != 1 or not isinstance(args[0], Select):
                    raise self._error(args[0] if args else node, "invalid argument to has() macro")
                self.type_of(args[0], scope)
                return BOOL
            operator = _operator(name, len(args))
            known = self._declared(node, operator, overloads.functions().get(operator))
            return self._apply(node, operator, known, [self.type_of(arg, scope) for arg in args])
        if names := loops.names_of(node):
            return self._loop(node, names, scope)
        if name in ("optMap", "optFlatMap") and len(args) == 2:
            return self._opt_map(node, scope)
        if 2 <= len(args) <= 1 + loops.ONE_NAME.get(name, 0) and not isinstance(args[0], Name):
            raise self._error(args[0], "argument is not an identifier")
        full = f"{dotted(node.target)}.{name}"
        if full in overloads.functions():
            given = [self.type_of(arg, scope) for arg in args]
            return self._apply(node, full, overloads.functions()[full], given)
        target = self.type_of(node.target, scope)
        found = overloads.methods().get(name, () if name in overloads.functions() else None)
        known = self._declared(node, name, found)
        given = [target, *(self.type_of(arg, scope) for arg in args)]
        return self._apply(node, name, known, given, is_method=True)

    def _declared(
        self, node: Call, name: str, found: Sequence[overloads.Overload] | None
    ) -> Sequence[overloads.Overload]:
        if found is None:
            raise self._error(node, f"undeclared reference to '{name}' (in container '')")
        return found

    def _apply(
        self,
        node: SyntaxNode,
        name: str,
        candidates: Sequence[overloads.Overload],
        given: list[CELType],
        *,
        is_method: bool = False,
    ) -> CELType:
        result: CELType | None = None
        for overload in candidates:
            receiver = () if overload.receiver is None else (overload.receiver,)
            made, *wanted = unify.fresh((overload.result, *receiver, *overload.args), self._numbers)
            if unify.are_assignable(self.binds, given, wanted):
                found = unify.filled(self.binds, made)
                result = found if result in (None, found) else DYN
        if result is None:
            taken = [shown(unify.filled(self.binds, each, with_dyn=True)) for each in given]
            applied = f"{taken[0]}.({', '.join(taken[1:])})" if is_method else f"({', '.join(taken)})"
            raise self._error(node, f"found no matching overload for '{name}' applied to '{applied}'")
        return result

    def _loop(self, node: Call, names: tuple[str, ...], scope: Scope) -> CELType:
        assert node.target is not None
        target = unify.filled(self.binds, self.type_of(node.target, scope))
        if unify.is_free(target):
            unify.is_assignable(self.binds, DYN, target)
            target = DYN
        if target.name not in ("list", "map", "dyn"):
            raise self._error(
                node.target,
                f"expression of type '{shown(target)}' cannot be range of a comprehension "
                "(must be list, map, or dynamic)",
            )
        key = INT if target.name == "list" else target.of[0] if target.of else DYN
        item = target.of[-1] if target.of else DYN
        each = [key, item] if len(names) == 2 else [item if target.name == "list" else key]
        inner = {**scope, **dict(zip(names, each, strict=True))}
        *conditions, last = node.args[len(names) :]
        for condition in conditions:
            self._condition(condition, inner)
        found = self.type_of(last, inner)
        return self._looped(node, names, each, last, found)

    def _looped(
        self, node: Call, names: tuple[str, ...], each: list[CELType], last: SyntaxNode, found: CELType
    ) -> CELType:
        """Return the type of a loop whose last part has the type `found`."""
        match node.name:
            case "map" | "transformList":
                return list_of(found)
            case "transformMap":
                return map_of(each[0], found)
            case "transformMapEntry":
                wanted = map_of(self._free(), self._free())
                if not unify.is_assignable(self.binds, wanted, found):
                    raise self._mismatch(last, wanted, found)
                return unify.filled(self.binds, wanted)
            case "sortBy":
                assert node.target is not None
                given = [self.known_type(node.target), list_of(found)]
                return self._apply(node, SORT_BY, overloads.methods()[SORT_BY], given, is_method=True)
        self._condition(last, {}, found)
        return list_of(each[-1]) if node.name == "filter" else BOOL

    def _condition(self, node: SyntaxNode, scope: Scope, found: CELType | None = None) -> None:
        found = self.type_of(node, scope) if found is None else found
        if not unify.is_assignable(self.binds, BOOL, found):
            raise self._mismatch(node, BOOL, found)

    def _opt_map(self, node: Call, scope: Scope) -> CELType:
        assert node.target is not None
        name = node.args[0]
        if not isinstance(name, Name):
            raise self._error(name, f"{node.name}() variable name must be a simple identifier")
        target = self.type_of(node.target, scope)
        inner = self._apply(node, "value", overloads.methods()["value"], [target], is_method=True)
        found = self.type_of(node.args[1], {**scope, name.name: inner})
        if node.name == "optMap":
            return optional_of(found)
        wanted = optional_of(self._free())
        if not unify.is_assignable(self.binds, wanted, found):
            raise self._mismatch(node, wanted, found)
        return found


def _unwrapped(one: CELType) -> tuple[CELType, bool]:
    """Return what an optional type holds, and whether it is one."""
    return (one.of[0], True) if one.name == "optional_type" else (one, False)


def _operator(name: str, count: int) -> str:
    """Return the name under which an operator's signatures are kept."""
    if name == "?:":
        return "_?_:_"
    if name.endswith("_") or (name[0].isalpha() and name != "in"):
        return name if name[0].isalpha() else f"{name[:-1]}_"
    if name == "in":
        return "@in"
    return f"_{name}_" if count == 2 else name


def _of_literal(value: object) -> CELType:
    match value:
        case None:
            return NULL
        case bool():
            return BOOL
        case UInt():
            return UINT
        case int():
            return INT
        case float():
            return DOUBLE
        case bytes():
            return BYTES
    return STRING


def _as_value(name: str) -> CELType:
    """Return the type of a type's name."""
    inner = {
        "list": list_of(DYN),
        "map": map_of(DYN, DYN),
        "null_type": NULL,
        "optional_type": optional_of(DYN),
    }
    return CELType("type", (inner.get(name, CELType(name)),))
