"""A tree to nested Python functions: walking the tree again for each device would cost several times as much."""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from koordinator.cel import functions, loops, syntax
from koordinator.cel.loops import ITERATIONS_MAX, LONG, ROUNDS, Budget, Scope, Step, spend, truth
from koordinator.cel.syntax import Call, Index, ListLiteral, Literal, MapLiteral, Name, Select, SyntaxNode
from koordinator.cel.values import (
    NONE,
    TYPE_NAMES,
    CompileError,
    EvaluationError,
    Function,
    OptionalValue,
    OutOfBudget,
    kind_of,
    no_overload,
)

Program = Callable[..., Any]
"""Gives the expression's value for values of its variables (a dictionary), and on demand within a `Budget` that it
shares with others. Raises: EvaluationError."""


def compile_expression(source: str, variables: Iterable[str]) -> Program:
    """Raises: CompileError when it is no expression, or one with unknown names."""
    try:
        step = _Compiler(source, frozenset(variables)).compile(syntax.parse(source))
    except RecursionError as error:
        raise CompileError(source, 0, "nested too deeply") from error

    def evaluate(values: dict[str, Any], budget: Budget | None = None) -> Any:
        rounds = [ITERATIONS_MAX] if budget is None else budget.rounds
        try:
            return step({**values, ROUNDS: rounds})
        except TypeError as error:  # a function was called with values that it is not made for
            raise EvaluationError(f"no such overload: {error}") from error

    return evaluate


class _Compiler:
    def __init__(self, source: str, variables: frozenset[str]) -> None:
        self._source = source
        self._variables = variables

    def compile(self, node: SyntaxNode) -> Step:
        match node:
            case Literal(value=value):
                return lambda scope: value
            case Name(name=name):
                return self._name(node, name)
            case Select():
                named = TYPE_NAMES.get(dotted(node))
                if named is not None:
                    return lambda scope: named
                return _select(self.compile(node.target), node.field, is_optional=node.is_optional)
            case Index():
                return _index(self.compile(node.target), self.compile(node.key), is_optional=node.is_optional)
            case ListLiteral(items=items, optional=optional):
                steps = [self.compile(item) for item in items]
                if optional:
                    return _list_with_optional(steps, optional)
                return lambda scope: [step(scope) for step in steps]
            case MapLiteral(items=entries, optional=optional):
                pairs = [(self.compile(key), self.compile(value)) for key, value in entries]
                if optional:
                    return _map_with_optional(pairs, optional)
                return lambda scope: {_key(key(scope)): value(scope) for key, value in pairs}
            case Call():
                return self._call(node)
        raise AssertionError(node)

    def _error(self, node: SyntaxNode, reason: str) -> CompileError:
        return CompileError(self._source, node.position, reason)

    def _name(self, node: SyntaxNode, name: str) -> Step:
        if name not in self._variables:
            if name in TYPE_NAMES:
                named = TYPE_NAMES[name]
                return lambda scope: named
            raise self._error(node, f"undeclared reference to {name!r}")
        return lambda scope: scope[name]

    def _call(self, node: Call) -> Step:
        name, args = node.name, node.args
        if node.target is None:
            if name == "has":
                return self._has(node)
            if name in _SHORT_CUTS:
                return _SHORT_CUTS[name](*(self.compile(arg) for arg in args))
            known = functions.OPERATORS.get(name) or functions.FUNCTIONS.get(name)
            if known is None:
                raise self._error(node, f"undeclared reference to function {name!r}")
            if args and all(isinstance(arg, Literal) for arg in args):
                return _constant(known, [arg.value for arg in args if isinstance(arg, Literal)])
            return _apply(known, [self.compile(arg) for arg in args])
        if isinstance(node.target, Name) and node.target.name not in self._variables:
            full = f"{node.target.name}.{name}"
            if full == "cel.bind":
                return self._bind(node)
            if full in functions.FUNCTIONS:
                return _apply(functions.FUNCTIONS[full], [self.compile(arg) for arg in args])
        if names := loops.names_of(node):
            inner = _Compiler(self._source, self._variables | set(names))
            steps = [inner.compile(arg) for arg in args[len(names) :]]
            return loops.KINDS[name](loops.items_of(name, names, self.compile(node.target)), steps)
        if name in ("optMap", "optFlatMap"):
            return self._opt_map(node, self.compile(node.target))
        if name == "or" or name == "orValue":
            return _alternative(name, self.compile(node.target), [self.compile(arg) for arg in args])
        if name not in functions.METHOD_NAMES:
            raise self._error(node, f"undeclared reference to function {name!r}")
        return _method(name, self.compile(node.target), [self.compile(arg) for arg in args])

    # Macros

    def _has(self, node: Call) -> Step:
        if len(node.args) != 1 or not isinstance(node.args[0], Select):
            raise self._error(node, "has() asks about a field: has(a.b)")
        wanted = node.args[0]
        target, field = self.compile(wanted.target), wanted.field

        def has(scope: Scope) -> bool:
            value = target(scope)
            if isinstance(value, OptionalValue):
                value = value.content
            return isinstance(value, dict) and field in value

        return has

    def _with(self, node: SyntaxNode, variable: SyntaxNode) -> tuple[str, "_Compiler"]:
        """Return a compiler that knows one more variable."""
        if not isinstance(variable, Name):
            raise self._error(node, "a variable expected")
        return variable.name, _Compiler(self._source, self._variables | {variable.name})

    def _bind(self, node: Call) -> Step:
        if len(node.args) != 3:
            raise self._error(node, "cel.bind(name, value, expression)")
        name, inner = self._with(node, node.args[0])
        value, result = self.compile(node.args[1]), inner.compile(node.args[2])
        return lambda scope: result({**scope, name: value(scope)})

    def _opt_map(self, node: Call, target: Step) -> Step:
        if len(node.args) != 2:
            raise self._error(node, f"{node.name}(name, expression)")
        name, inner = self._with(node, node.args[0])
        result, is_flat = inner.compile(node.args[1]), node.name == "optFlatMap"

        def opt_map(scope: Scope) -> Any:
            optional = target(scope)
            if not isinstance(optional, OptionalValue):
                raise no_overload(node.name, optional)
            if not optional.has_value:
                return NONE
            found = result({**scope, name: optional.content})
            return found if is_flat else OptionalValue(True, found)

        return opt_map


# Operators that do not look at all of their arguments


def _short_cut(left: Step, right: Step, decisive: bool) -> Step:
    """`||` and `&&`: one decisive side is enough, even when the other has no value."""

    def run(scope: Scope) -> bool:
        try:
            first = truth(left(scope))
        except OutOfBudget:
            raise
        except EvaluationError:
            if truth(right(scope)) is decisive:
                return decisive
            raise
        return first if first is decisive else truth(right(scope))

    return run


def _choose(condition: Step, yes: Step, no: Step) -> Step:
    return lambda scope: yes(scope) if truth(condition(scope)) else no(scope)


_SHORT_CUTS: dict[str, Callable[..., Step]] = {
    "||": lambda left, right: _short_cut(left, right, True),
    "&&": lambda left, right: _short_cut(left, right, False),
    "?:": _choose,
}


# Fields


def dotted(node: SyntaxNode) -> str:
    """Return `a.b.c` of a row of names; empty for anything else."""
    parts = []
    while isinstance(node, Select) and not node.is_optional:
        parts.append(node.field)
        node = node.target
    return ".".join((node.name, *reversed(parts))) if isinstance(node, Name) else ""


def _list_with_optional(steps: list[Step], optional: frozenset[int]) -> Step:
    def items(scope: Scope) -> list[Any]:
        found = []
        for index, step in enumerate(steps):
            value = step(scope)
            if index not in optional:
                found.append(value)
            elif _optional(value).has_value:
                found.append(value.content)
        return found

    return items


def _map_with_optional(pairs: list[tuple[Step, Step]], optional: frozenset[int]) -> Step:
    def entries(scope: Scope) -> dict[Any, Any]:
        found = {}
        for index, (key, step) in enumerate(pairs):
            name, value = _key(key(scope)), step(scope)
            if index not in optional:
                found[name] = value
            elif _optional(value).has_value:
                found[name] = value.content
        return found

    return entries


def _optional(value: Any) -> OptionalValue:
    if not isinstance(value, OptionalValue):
        raise EvaluationError(f"cannot initialize optional entry from non-optional value {value}")
    return value


def _map(value: Any, field: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        _no_such_key(field)
    return value


def _no_such_key(field: Any) -> NoReturn:
    raise EvaluationError(f"no such key: {field}")


def _key(value: Any) -> Any:
    if isinstance(value, list | dict):
        raise EvaluationError(f"unsupported key type: {kind_of(value)}")
    return value


def _select(target: Step, field: str, *, is_optional: bool) -> Step:
    def select(scope: Scope) -> Any:
        value = target(scope)
        if isinstance(value, OptionalValue):
            return _select_optional(value, field)
        try:
            return _map(value, field)[field]
        except KeyError:
            _no_such_key(field)

    def select_optional(scope: Scope) -> OptionalValue:
        value = target(scope)
        if not isinstance(value, OptionalValue):
            value = OptionalValue(True, value)
        return _select_optional(value, field)

    return select_optional if is_optional else select


def _select_optional(value: OptionalValue, key: Any) -> OptionalValue:
    """Return the same for what may be missing already: then all below it is, too."""
    if not value.has_value:
        return NONE
    content = value.content
    if isinstance(content, list):
        at = _list_index(key)
        return OptionalValue(True, content[at]) if 0 <= at < len(content) else NONE
    is_there = isinstance(content, dict) and functions.has_key(content, key)
    return OptionalValue(True, content[key]) if is_there else NONE


def _list_index(key: Any) -> int:
    """Return the place that a number means, -1 for none. Raises: EvaluationError."""
    if isinstance(key, int) and not isinstance(key, bool):
        return int(key)
    if isinstance(key, float):
        if key.is_integer():
            return int(key)
        raise EvaluationError(f"unsupported index value {key} in list")
    raise EvaluationError(f"unsupported index type '{kind_of(key)}' in list")


def _index(target: Step, key: Step, *, is_optional: bool) -> Step:
    def index(scope: Scope) -> Any:
        value, wanted = target(scope), key(scope)
        if is_optional or isinstance(value, OptionalValue):
            optional = value if isinstance(value, OptionalValue) else OptionalValue(True, value)
            return _select_optional(optional, wanted)
        if isinstance(value, list):
            at = wanted if type(wanted) is int else _list_index(wanted)
            if not 0 <= at < len(value):
                raise EvaluationError(f"index out of bounds: {at}")
            return value[at]
        entries = _map(value, wanted)
        if isinstance(wanted, str):
            try:
                return entries[wanted]
            except KeyError:
                _no_such_key(wanted)
        if not functions.has_key(entries, wanted):
            _no_such_key(wanted)
        return entries[wanted]

    return index


# Calls


def _apply(function: Function, args: list[Step]) -> Step:
    if len(args) == 2:
        first, second = args

        def apply(scope: Scope) -> Any:
            left, right = first(scope), second(scope)
            if isinstance(right, str | list) and len(right) > LONG:
                spend(scope, len(right) // LONG)
            return function(left, right)

        return apply
    return lambda scope: function(*(arg(scope) for arg in args))


def _constant(function: Function, args: list[Any]) -> Step:
    """A call whose arguments stand in the expression is made once, unless it fails."""
    try:
        value = function(*args)
    except (EvaluationError, TypeError):
        return lambda scope: function(*args)
    return lambda scope: value


def _alternative(name: str, target: Step, args: list[Step]) -> Step:
    """`or` and `orValue`: the other value is worked out where it is needed."""
    is_flat = name == "or"

    def choose(scope: Scope) -> Any:
        optional = target(scope)
        if not isinstance(optional, OptionalValue) or len(args) != 1:
            raise no_overload(name, optional)
        if optional.has_value:
            return optional if is_flat else optional.content
        other = args[0](scope)
        if is_flat and not isinstance(other, OptionalValue):
            raise no_overload(name, optional, other)
        return other

    return choose


def _method(name: str, target: Step, args: list[Step]) -> Step:
    def call(scope: Scope) -> Any:
        receiver = target(scope)
        function = functions.METHODS.get(kind_of(receiver), {}).get(name)
        if function is None:
            raise no_overload(name, receiver)
        if isinstance(receiver, str | list) and len(receiver) > LONG:
            spend(scope, len(receiver) // LONG)
        return function(receiver, *(arg(scope) for arg in args))

    return call
