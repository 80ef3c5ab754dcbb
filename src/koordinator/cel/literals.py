"""Check what an expression says outright, when it is written: times, patterns, templates, lists of mixed types.

Source: the validators of cel-go that Kubernetes uses, and what its programs make once.
"""

from collections.abc import Callable, Iterator
from typing import Any

from koordinator.cel import formatting, patterns, syntax
from koordinator.cel.conversions import CONVERSIONS
from koordinator.cel.overloads import CELType, shown
from koordinator.cel.syntax import Call, ListLiteral, Literal, MapLiteral, SyntaxNode
from koordinator.cel.values import CompileError, EvaluationError

_OPEN = object()
TypeOf = Callable[[SyntaxNode], CELType]
_ANY_TYPES = frozenset(("format",))
"""Methods whose lists may have items of any types."""


def check(source: str, root: SyntaxNode, type_of: TypeOf) -> None:
    """Raises: CompileError. `type_of` tells the types that were found."""
    for node, is_exempt in _nodes(root, is_exempt=False):
        for place, reason in _troubles(node, type_of, is_exempt=is_exempt):
            raise CompileError(source, place.position, reason)


def _nodes(node: SyntaxNode, *, is_exempt: bool) -> Iterator[tuple[SyntaxNode, bool]]:
    yield node, is_exempt
    below = is_exempt or (isinstance(node, Call) and node.name in _ANY_TYPES)
    for part in syntax.parts_of(node):
        yield from _nodes(part, is_exempt=below)


def _troubles(node: SyntaxNode, type_of: TypeOf, *, is_exempt: bool) -> Iterator[tuple[SyntaxNode, str]]:
    match node:
        case Call(name="timestamp" | "duration", target=None, args=(Literal(value=value) as literal,)):
            try:
                CONVERSIONS[node.name](value)
            except EvaluationError:
                yield literal, f"invalid {node.name} argument"
        case Call(name="matches" | "find" | "findAll", args=args):
            pattern = args[1] if node.target is None and len(args) == 2 else args[0]
            if isinstance(pattern, Literal) and isinstance(pattern.value, str):
                try:
                    patterns.of(pattern.value)
                except EvaluationError:
                    yield pattern, f"invalid {node.name} argument"
        case Call(name=name, target=None) if name in CONVERSIONS:
            try:
                _constant(node)
            except EvaluationError as error:
                yield node, error.reason
        case Call(name="format", target=Literal(value=str(template)), args=(ListLiteral(items=items),)):
            yield from _formatted(node, template, items, type_of)
        case ListLiteral(items=items, optional=optional) if not is_exempt:
            yield from _mixed([(item, index in optional) for index, item in enumerate(items)], type_of)
        case MapLiteral(items=entries, optional=optional) if not is_exempt:
            yield from _mixed([(key, False) for key, _ in entries], type_of)
            values = [(value, index in optional) for index, (_, value) in enumerate(entries)]
            yield from _mixed(values, type_of)


def _constant(node: SyntaxNode) -> Any:
    """Return the value of a literal, or of conversions of one; `_OPEN` for anything else. Raises: EvaluationError."""
    match node:
        case Literal(value=value):
            return value
        case Call(name=name, target=None, args=(inner,)) if name in CONVERSIONS:
            value = _constant(inner)
            return value if value is _OPEN else CONVERSIONS[name](value)
    return _OPEN


def _mixed(items: list[tuple[SyntaxNode, bool]], type_of: TypeOf) -> Iterator[tuple[SyntaxNode, str]]:
    first: CELType | None = None
    for item, is_optional in items:
        found = type_of(item)
        found = found.of[0] if is_optional and found.of else found
        first = found if first is None else first
        if found != first:
            yield item, f"expected type '{shown(first)}' but found '{shown(found)}'"
            return


def _formatted(
    node: Call, template: str, items: tuple[SyntaxNode, ...], type_of: TypeOf
) -> Iterator[tuple[SyntaxNode, str]]:
    used = 0
    try:
        for clause in formatting.clauses(template, len(items)):
            if not clause.verb:
                continue
            item = items[used]
            used += 1
            wrong = _refused(clause.verb, item, type_of)
            if wrong:
                yield item, formatting.refusal(clause.verb, wrong)
                return
    except EvaluationError as error:
        yield node, error.reason
        return
    if len(items) > used:
        yield node, f"too many arguments supplied to string.format (expected {used}, got {len(items)})"


def _refused(verb: str, item: SyntaxNode, type_of: TypeOf) -> str:
    """Return the type that a clause does not take; empty where it does."""
    found = type_of(item)
    if found.name == "dyn":
        return ""
    if found.name not in formatting.VERBS[verb].takes:
        return "null_type" if found.name == "null" else found.name
    parts: Iterator[SyntaxNode] = (
        syntax.parts_of(item) if verb == "s" and isinstance(item, ListLiteral | MapLiteral) else iter(())
    )
    return next((wrong for part in parts if (wrong := _refused(verb, part, type_of))), "")
