"""Loops over lists and maps (`all`, `exists`, `map`, `transformMap`, ...), and what they and other work may cost."""

from collections.abc import Callable, Iterable
from typing import Any

from koordinator.cel import lists
from koordinator.cel.syntax import Call, Name
from koordinator.cel.values import EvaluationError, OutOfBudget, equal, no_overload

Scope = dict[str, Any]
Step = Callable[[Scope], Any]

ITERATIONS_MAX = 100_000
"""Rounds of all loops (`all`, `exists`, ...) of one evaluation."""
ROUNDS = " rounds"
"""Key under which a scope counts its rounds: no name has a space."""
LONG = 512
"""Characters or items from which on reading a value counts as further rounds."""
ONE_NAME = {"all": 1, "exists": 1, "exists_one": 1, "existsOne": 1, "map": 2, "filter": 1, "sortBy": 1}
"""Loops with one name, and how many expressions at most come after it."""
_TWO_NAMES = {"all": 1, "exists": 1, "exists_one": 1, "existsOne": 1}
_TWO_NAMES |= {"transformList": 2, "transformMap": 2, "transformMapEntry": 2}


class Budget:
    """The cost that evaluations may have together, in rounds of loops (a long text counts as several)."""

    def __init__(self, rounds: int = ITERATIONS_MAX) -> None:
        self.rounds = [rounds]


def names_of(node: Call) -> tuple[str, ...]:
    """Return the names of a loop's variables, `("index", "item")` of `list.all(index, item, condition)`; nothing when
    the call is no loop."""
    args = node.args
    first = args[0] if args else None
    second = args[1] if len(args) > 1 else None
    if not isinstance(first, Name):
        return ()
    if isinstance(second, Name) and 3 <= len(args) <= 2 + _TWO_NAMES.get(node.name, 0):
        # `map(item, condition, value)` has three arguments as well, and one name.
        return (first.name, second.name)
    return (first.name,) if 2 <= len(args) <= 1 + ONE_NAME.get(node.name, 0) else ()


def items_of(name: str, names: tuple[str, ...], target: Step) -> "Items":
    """Return what goes through a list or map, a round after the other, with the variables of each."""

    def items(scope: Scope) -> Iterable[tuple[Any, Scope]]:
        group = target(scope)
        if not isinstance(group, list | dict):
            raise no_overload(name, group)
        inside = dict(scope)
        if len(names) == 1:
            for item in group:
                spend(scope, 1)
                inside[names[0]] = item
                yield item, inside
            return
        for key, item in enumerate(group) if isinstance(group, list) else group.items():
            spend(scope, 1)
            inside[names[0]], inside[names[1]] = key, item
            yield key, inside

    return items


def spend(scope: Scope, steps: int) -> None:
    """Take steps off what the evaluation may cost. Raises: EvaluationError when nothing is left."""
    left = scope[ROUNDS]
    left[0] -= steps
    if left[0] < 0:
        raise OutOfBudget(f"more than {ITERATIONS_MAX} rounds of loops")


Items = Callable[[Scope], Iterable[tuple[Any, Scope]]]


def truth(value: Any) -> bool:
    """Return a condition's value. Raises: EvaluationError when it is neither true nor false."""
    if not isinstance(value, bool):
        raise EvaluationError("no such overload")
    return value


def _any_of(items: Items, step: Step, wanted: bool) -> Step:
    """Return a step that holds when some round gives `wanted`; errors of other rounds do not matter then."""

    def run(scope: Scope) -> bool:
        failure: EvaluationError | None = None
        for _, inside in items(scope):
            try:
                if truth(step(inside)) is wanted:
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
    return lambda scope: sum(truth(steps[0](inside)) for _, inside in items(scope)) == 1


def _loop_map(items: Items, steps: list[Step]) -> Step:
    if len(steps) == 1:
        return lambda scope: [steps[0](inside) for _, inside in items(scope)]
    return lambda scope: [steps[1](inside) for _, inside in items(scope) if truth(steps[0](inside))]


def _transform_map(items: Items, steps: list[Step]) -> Step:
    def run(scope: Scope) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, inside in items(scope):
            if len(steps) == 1 or truth(steps[0](inside)):
                found[key] = steps[-1](inside)
        return found

    return run


def _transform_entry(items: Items, steps: list[Step]) -> Step:
    def run(scope: Scope) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for _, inside in items(scope):
            if len(steps) == 1 or truth(steps[0](inside)):
                made = steps[-1](inside)
                if not isinstance(made, dict):
                    raise no_overload("transformMapEntry", made)
                for key in made:
                    if any(equal(key, each) for each in found):
                        raise EvaluationError(f"insert failed: key {key} already exists")
                found |= made
        return found

    return run


def _sort_by(items: Items, steps: list[Step]) -> Step:
    def run(scope: Scope) -> list[Any]:
        pairs = [(item, steps[0](inside)) for item, inside in items(scope)]
        return lists.sorted_by([item for item, _ in pairs], [key for _, key in pairs])

    return run


KINDS: dict[str, Callable[[Items, list[Step]], Step]] = {
    "all": _loop_all,
    "exists": lambda items, steps: _any_of(items, steps[0], True),
    "exists_one": _loop_exists_one,
    "existsOne": _loop_exists_one,
    "map": _loop_map,
    "sortBy": _sort_by,
    "transformList": _loop_map,
    "transformMap": _transform_map,
    "transformMapEntry": _transform_entry,
    "filter": lambda items, steps: (
        lambda scope: [item for item, inside in items(scope) if truth(steps[0](inside))]
    ),
}
