"""Find the type of an expression, and what in it can never have a value, when a rule is written.

Source: the type checker of CEL's language definition; the texts are cel-go's.
"""

from collections.abc import Mapping, Sequence

from koordinator.cel import overloads, patterns, syntax
from koordinator.cel.compiler import LOOPS, two_names
from koordinator.cel.overloads import (
    BOOL,
    DYN,
    INT,
    NULL,
    STRING,
    TYPE,
    CELType,
    list_of,
    map_of,
    optional_of,
)
from koordinator.cel.syntax import Call, Index, ListLiteral, Literal, MapLiteral, Name, Select, SyntaxNode
from koordinator.cel.values import TYPE_NAMES, CompileError, EvaluationError

_PRIMITIVE = frozenset(("bool", "int", "double", "string", "bytes", "type", "null"))
_NEVER_NULL = _PRIMITIVE - {"null"} | {"list", "map"}


def type_of(source: str, variables: Mapping[str, CELType]) -> CELType:
    """Return the type of an expression's value. Raises: CompileError."""
    try:
        return _Checker(source, dict(variables)).type_of(syntax.parse(source))
    except RecursionError as error:
        raise CompileError(source, 0, "nested too deeply") from error


def marked(error: CompileError) -> str:
    """Return the error with the place in its line, as cel-go prints it."""
    before = error.source[: error.position]
    line = before.count("\n")
    column = len(before) - (before.rfind("\n") + 1)
    text = error.source.split("\n")[line] if error.source else ""
    return f"ERROR: <input>:{line + 1}:{column + 1}: {error.reason}\n | {text}\n | {'.' * column}^"


class _Checker:
    def __init__(self, source: str, variables: dict[str, CELType]) -> None:
        self._source = source
        self._variables = variables

    def _error(self, node: SyntaxNode, reason: str) -> CompileError:
        return CompileError(self._source, node.position, reason)

    def type_of(self, node: SyntaxNode) -> CELType:
        match node:
            case Literal(value=value):
                return _of_literal(value)
            case Name(name=name):
                return self._name(node, name)
            case Select():
                return self._select(node)
            case Index():
                return self._index(node)
            case ListLiteral(items=items):
                return list_of(_joined([self.type_of(item) for item in items]))
            case MapLiteral(items=entries):
                keys = _joined([self.type_of(key) for key, _ in entries])
                return map_of(keys, _joined([self.type_of(value) for _, value in entries]))
            case Call():
                return self._call(node)
        raise AssertionError(node)

    def _name(self, node: SyntaxNode, name: str) -> CELType:
        known = self._variables.get(name)
        if known is None:
            if name in TYPE_NAMES:
                return TYPE
            raise self._error(node, f"undeclared reference to '{name}' (in container '')")
        return known

    def _select(self, node: Select) -> CELType:
        target, is_optional = self._target(node)
        found = self._field(node, target)
        return optional_of(found) if is_optional else found

    def _target(self, node: Select | Index) -> tuple[CELType, bool]:
        """Return the type of what holds the field or item, and whether that may be missing."""
        target = self.type_of(node.target)
        if target.name == "optional_type":
            return target.of[0], True
        return target, node.is_optional

    def _field(self, node: Select, target: CELType) -> CELType:
        if target.fields is not None:
            if node.field not in target.fields:
                raise self._error(node, f"undefined field '{node.field}'")
            return target.fields[node.field]
        if target.name == "map":
            return target.of[1]
        if target.name == "dyn":
            return DYN
        raise self._error(node, f"type '{target}' does not support field selection")

    def _index(self, node: Index) -> CELType:
        (inner, is_optional), key = self._target(node), self.type_of(node.key)
        if inner.name == "list" and _fits(INT, key):
            found = inner.of[0]
        elif inner.name == "map" and _fits(inner.of[0], key):
            found = inner.of[1]
        elif inner.name == "dyn":
            found = DYN
        else:
            shown = f"({_shown(self.type_of(node.target))}, {_shown(key)})"
            raise self._error(node, f"found no matching overload for '_[_]' applied to '{shown}'")
        return optional_of(found) if is_optional else found

    # Calls

    def _call(self, node: Call) -> CELType:
        name, args = node.name, node.args
        if node.target is None:
            if name == "has":
                if len(args) != 1 or not isinstance(args[0], Select):
                    raise self._error(node, "invalid argument to has() macro")
                self._select(args[0])
                return BOOL
            if name == "?:":
                return self._choice(node)
            operator = _operator(name, len(args))
            return self._apply(node, operator, overloads.functions().get(operator), None)
        if isinstance(node.target, Name) and node.target.name not in self._variables:
            full = f"{node.target.name}.{name}"
            if full == "cel.bind" and len(args) == 3 and isinstance(args[0], Name):
                return self._with({args[0].name: self.type_of(args[1])}).type_of(args[2])
            if full in overloads.functions():
                return self._apply(node, full, overloads.functions()[full], None)
        target = self.type_of(node.target)
        if name in LOOPS:
            return self._loop(node, target)
        if name in ("optMap", "optFlatMap"):
            return self._opt_map(node, target)
        found = self._apply(node, name, overloads.methods().get(name), target)
        if name in ("matches", "find", "findAll"):
            self._check_pattern(node)
        return found

    def _with(self, more: dict[str, CELType]) -> "_Checker":
        return _Checker(self._source, {**self._variables, **more})

    def _choice(self, node: Call) -> CELType:
        condition, yes, no = (self.type_of(arg) for arg in node.args)
        if not _fits(BOOL, condition) or not (_fits(yes, no) or _fits(no, yes)):
            shown = ", ".join(_shown(each) for each in (condition, yes, no))
            raise self._error(node, f"found no matching overload for '_?_:_' applied to '({shown})'")
        return _joined([yes, no])

    def _apply(
        self, node: Call, name: str, candidates: Sequence[overloads.Overload] | None, receiver: CELType | None
    ) -> CELType:
        taken = [self.type_of(arg) for arg in node.args]
        if candidates is None:
            raise self._error(node, f"undeclared reference to '{name}' (in container '')")
        results = []
        for overload in candidates:
            binds: dict[str, CELType] = {}
            wanted = overload.args if overload.receiver is None else (overload.receiver, *overload.args)
            given = taken if receiver is None else [receiver, *taken]
            if len(wanted) == len(given) and all(
                _assigned(want, have, binds) for want, have in zip(wanted, given, strict=True)
            ):
                results.append(_filled(overload.result, binds))
        if not results:
            shown = ", ".join(map(_shown, taken))
            applied = f"{_shown(receiver)}.({shown})" if receiver is not None else f"({shown})"
            raise self._error(node, f"found no matching overload for '{name}' applied to '{applied}'")
        return results[0] if all(result == results[0] for result in results) else DYN

    def _check_pattern(self, node: Call) -> None:
        pattern = node.args[0]
        if isinstance(pattern, Literal) and isinstance(pattern.value, str):
            try:
                patterns.of(pattern.value)
            except EvaluationError:
                raise self._error(pattern, f"invalid {node.name} argument") from None

    def _loop(self, node: Call, target: CELType) -> CELType:
        pair = two_names(node)
        if target.name not in ("list", "map", "dyn"):
            raise self._error(
                node, f"expression of type '{_shown(target)}' cannot be range of a comprehension"
            )
        item = target.of[0] if target.of else DYN
        if pair is not None:
            key = INT if target.name == "list" else item
            value = target.of[-1] if target.of else DYN
            self._condition(self._with({pair[0]: key, pair[1]: value}), node.args[2])
            return BOOL
        if len(node.args) not in (2, 3) or not isinstance(node.args[0], Name):
            raise self._error(node, f"invalid arguments of {node.name}()")
        inner = self._with({node.args[0].name: item})
        if node.name == "map":
            if len(node.args) == 3:
                self._condition(inner, node.args[1])
            return list_of(inner.type_of(node.args[-1]))
        self._condition(inner, node.args[1])
        return list_of(item) if node.name == "filter" else BOOL

    def _condition(self, inner: "_Checker", node: SyntaxNode) -> None:
        found = inner.type_of(node)
        if not _fits(BOOL, found):
            raise self._error(node, f"expected type 'bool' but found '{_shown(found)}'")

    def _opt_map(self, node: Call, target: CELType) -> CELType:
        if target.name not in ("optional_type", "dyn") or not isinstance(node.args[0], Name):
            raise self._error(
                node, f"found no matching overload for '{node.name}' applied to '{_shown(target)}.()'"
            )
        inner = target.of[0] if target.of else DYN
        found = self._with({node.args[0].name: inner}).type_of(node.args[1])
        return optional_of(found) if node.name == "optMap" else found


def _operator(name: str, count: int) -> str:
    """Return the name under which an operator's signatures are kept."""
    if name.endswith("_") or (name[0].isalpha() and name != "in"):
        return name if name[0].isalpha() else f"{name[:-1]}_"
    return f"_{name}_" if count == 2 else name


def _of_literal(value: object) -> CELType:
    match value:
        case None:
            return NULL
        case bool():
            return BOOL
        case int():
            return INT
        case float():
            return CELType("double")
        case bytes():
            return CELType("bytes")
    return STRING


def _joined(types: Sequence[CELType]) -> CELType:
    """Return the common type of several values; dyn where they differ, or where there are none."""
    return types[0] if types and all(each == types[0] for each in types) else DYN


def _fits(want: CELType, have: CELType) -> bool:
    return _assigned(want, have, {})


def _is_free(wanted: CELType) -> bool:
    return len(wanted.name) == 1 and wanted.name.isupper()


def _assigned(want: CELType, have: CELType, binds: dict[str, CELType]) -> bool:
    """Return whether a value of type `have` can stand where `want` is asked for; free types are bound."""
    if _is_free(want):
        bound = binds.get(want.name)
        if bound is None or bound == DYN or (bound == NULL and have.name not in _NEVER_NULL):
            binds[want.name] = have
            return True
        return have == DYN or _assigned(bound, have, {})
    if DYN in (want, have):
        return True
    if have == NULL:
        return want.name not in _NEVER_NULL
    if want.fields is not None or have.fields is not None:
        return want.name == have.name or "map" in (want.name, have.name)
    return (
        want.name == have.name
        and len(want.of) == len(have.of)
        and all(_assigned(a, b, binds) for a, b in zip(want.of, have.of, strict=True))
    )


def _filled(result: CELType, binds: Mapping[str, CELType]) -> CELType:
    if _is_free(result):
        return binds.get(result.name, DYN)
    return CELType(result.name, tuple(_filled(part, binds) for part in result.of)) if result.of else result


def _shown(given: CELType) -> str:
    return "object" if given.fields is not None else str(given)
