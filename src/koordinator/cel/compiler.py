"""A tree to nested Python functions: walking the tree again for each device would cost several times as much."""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from koordinator.cel import functions, syntax
from koordinator.cel.syntax import Call, Index, ListLiteral, Literal, MapLiteral, Name, Select, SyntaxNode
from koordinator.cel.values import (
    NONE,
    TYPE_NAMES,
    CompileError,
    EvaluationError,
    OptionalValue,
    OutOfBudget,
    kind_of,
    no_overload,
)

Scope = dict[str, Any]
Step = Callable[[Scope], Any]

ITERATIONS_MAX = 100_000
"""Rounds of all loops (`all`, `exists`, ...) of one evaluation."""
_ROUNDS = " rounds"
"""Key under which a scope counts its rounds: no name has a space."""
LOOPS = frozenset(("all", "exists", "exists_one", "existsOne", "map", "filter"))

Program = Callable[..., Any]
"""Gives the expression's value for values of its variables (a dictionary), and on demand within a `Budget` that it
shares with others. Raises: EvaluationError."""

LONG = 512
"""Characters or items from which on reading a value counts as further rounds."""


class Budget:
    """The cost that evaluations may have together, in rounds of loops (a long text counts as several)."""

    def __init__(self, rounds: int = ITERATIONS_MAX) -> None:
        self.rounds = [rounds]


def compile_expression(source: str, variables: Iterable[str]) -> Program:
    """Raises: CompileError when it is no expression, or one with unknown names."""
    try:
        step = _Compiler(source, frozenset(variables)).compile(syntax.parse(source))
    except RecursionError as error:
        raise CompileError(source, 0, "nested too deeply") from error

    def evaluate(values: dict[str, Any], budget: Budget | None = None) -> Any:
        rounds = [ITERATIONS_MAX] if budget is None else budget.rounds
        try:
            return step({**values, _ROUNDS: rounds})
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
                return _select(self.compile(node.target), node.field, is_optional=node.is_optional)
            case Index():
                return _index(self.compile(node.target), self.compile(node.key), is_optional=node.is_optional)
            case ListLiteral(items=items):
                steps = [self.compile(item) for item in items]
                return lambda scope: [step(scope) for step in steps]
            case MapLiteral(items=entries):
                pairs = [(self.compile(key), self.compile(value)) for key, value in entries]
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
        if name in LOOPS:
            return self._loop(node, self.compile(node.target))
        if name in ("optMap", "optFlatMap"):
            return self._opt_map(node, self.compile(node.target))
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
            return field in _map(target(scope), field)

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

        def opt_map(scope: Scope) -> OptionalValue:
            optional = target(scope)
            if not isinstance(optional, OptionalValue):
                raise no_overload(node.name, optional)
            if not optional.has_value:
                return NONE
            found = result({**scope, name: optional.content})
            if is_flat and not isinstance(found, OptionalValue):
                raise no_overload(node.name, found)
            return found if is_flat else OptionalValue(True, found)

        return opt_map

    def _loop(self, node: Call, target: Step) -> Step:
        pair = two_names(node)
        if pair is not None:
            return self._pair_loop(node, pair, target)
        if len(node.args) != 2 and not (node.name == "map" and len(node.args) == 3):
            raise self._error(node, f"{node.name}(name, expression)")
        name, inner = self._with(node, node.args[0])
        steps = [inner.compile(arg) for arg in node.args[1:]]

        def items(scope: Scope) -> Iterable[tuple[Any, Scope]]:
            group = target(scope)
            if not isinstance(group, list | dict):
                raise no_overload(node.name, group)
            inside = dict(scope)
            for item in group:
                spend(scope, 1)
                inside[name] = item
                yield item, inside

        return _LOOP_KINDS[node.name](items, steps)

    def _pair_loop(self, node: Call, pair: tuple[str, str], target: Step) -> Step:
        """Yield a loop over indexes and items of a list, or keys and values of a map."""
        first, second = pair
        inner = _Compiler(self._source, self._variables | {first, second})
        steps = [inner.compile(arg) for arg in node.args[2:]]

        def items(scope: Scope) -> Iterable[tuple[Any, Scope]]:
            group = target(scope)
            if not isinstance(group, list | dict):
                raise no_overload(node.name, group)
            inside = dict(scope)
            for key, item in enumerate(group) if isinstance(group, list) else group.items():
                spend(scope, 1)
                inside[first], inside[second] = key, item
                yield key, inside

        return _LOOP_KINDS[node.name](items, steps)


def two_names(node: Call) -> tuple[str, str] | None:
    """Return the names of a loop with two variables (`list.all(index, item, condition)`), if it is one."""
    if len(node.args) != 3 or node.name not in ("all", "exists", "existsOne", "exists_one"):
        return None
    first, second = node.args[0], node.args[1]
    return (first.name, second.name) if isinstance(first, Name) and isinstance(second, Name) else None


def spend(scope: Scope, steps: int) -> None:
    """Take steps off what the evaluation may cost. Raises: EvaluationError when nothing is left."""
    left = scope[_ROUNDS]
    left[0] -= steps
    if left[0] < 0:
        raise OutOfBudget(f"more than {ITERATIONS_MAX} rounds of loops")


Items = Callable[[Scope], Iterable[tuple[Any, Scope]]]


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise no_overload("condition", value)
    return value


def _any_of(items: Items, step: Step, wanted: bool) -> Step:
    """Return a step that holds when some round gives `wanted`; errors of other rounds do not matter then."""

    def run(scope: Scope) -> bool:
        failure: EvaluationError | None = None
        for _, inside in items(scope):
            try:
                if _truth(step(inside)) is wanted:
                    return True
            except OutOfBudget:
                raise
            except EvaluationError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return False

    return run


def _loop_all(items: Items, steps: list[Step]) -> Step:
    found = _any_of(items, steps[0], False)
    return lambda scope: not found(scope)


def _loop_exists_one(items: Items, steps: list[Step]) -> Step:
    return lambda scope: sum(_truth(steps[0](inside)) for _, inside in items(scope)) == 1


def _loop_map(items: Items, steps: list[Step]) -> Step:
    if len(steps) == 1:
        return lambda scope: [steps[0](inside) for _, inside in items(scope)]
    return lambda scope: [steps[1](inside) for _, inside in items(scope) if _truth(steps[0](inside))]


_LOOP_KINDS: dict[str, Callable[[Items, list[Step]], Step]] = {
    "all": _loop_all,
    "exists": lambda items, steps: _any_of(items, steps[0], True),
    "exists_one": _loop_exists_one,
    "existsOne": _loop_exists_one,
    "map": _loop_map,
    "filter": lambda items, steps: (
        lambda scope: [item for item, inside in items(scope) if _truth(steps[0](inside))]
    ),
}


# Operators that do not look at all of their arguments


def _short_cut(left: Step, right: Step, decisive: bool) -> Step:
    """`||` and `&&`: one decisive side is enough, even when the other has no value."""

    def run(scope: Scope) -> bool:
        try:
            first = _truth(left(scope))
        except OutOfBudget:
            raise
        except EvaluationError:
            if _truth(right(scope)) is decisive:
                return decisive
            raise
        return first if first is decisive else _truth(right(scope))

    return run


def _choose(condition: Step, yes: Step, no: Step) -> Step:
    return lambda scope: yes(scope) if _truth(condition(scope)) else no(scope)


_SHORT_CUTS: dict[str, Callable[..., Step]] = {
    "||": lambda left, right: _short_cut(left, right, True),
    "&&": lambda left, right: _short_cut(left, right, False),
    "?:": _choose,
}


# Fields


def _map(value: Any, field: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise EvaluationError(f"{kind_of(value)} has no field {field!r}")
    return value


def _no_such_key(field: Any) -> NoReturn:
    raise EvaluationError(f"no such key: {field}")


def _key(value: Any) -> Any:
    if not isinstance(value, bool | int | str):
        raise no_overload("map key", value)
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
        is_there = type(key) is int and 0 <= key < len(content)
        return OptionalValue(True, content[key]) if is_there else NONE
    entries = _map(content, key)
    return OptionalValue(True, entries[key]) if key in entries else NONE


def _index(target: Step, key: Step, *, is_optional: bool) -> Step:
    def index(scope: Scope) -> Any:
        value, wanted = target(scope), key(scope)
        if is_optional or isinstance(value, OptionalValue):
            optional = value if isinstance(value, OptionalValue) else OptionalValue(True, value)
            return _select_optional(optional, _key(wanted))
        if isinstance(value, list):
            if type(wanted) is not int or not 0 <= wanted < len(value):
                raise EvaluationError(f"index out of bounds: {wanted}")
            return value[wanted]
        try:
            return _map(value, wanted)[_key(wanted)]
        except KeyError:
            _no_such_key(wanted)

    return index


# Calls


def _apply(function: functions.Function, args: list[Step]) -> Step:
    if len(args) == 2:
        first, second = args

        def apply(scope: Scope) -> Any:
            left, right = first(scope), second(scope)
            if isinstance(right, str | list) and len(right) > LONG:
                spend(scope, len(right) // LONG)
            return function(left, right)

        return apply
    return lambda scope: function(*(arg(scope) for arg in args))


def _constant(function: functions.Function, args: list[Any]) -> Step:
    """A call whose arguments stand in the expression is made once, unless it fails."""
    try:
        value = function(*args)
    except (EvaluationError, TypeError):
        return lambda scope: function(*args)
    return lambda scope: value


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
