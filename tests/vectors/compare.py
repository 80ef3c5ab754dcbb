"""Ready-made comparisons of expected and actual results."""

import math
from collections.abc import Callable
from typing import Any

from koordinator.api import quantity

Compare = Callable[[Any, Any], bool]


def exact(expected: Any, actual: Any) -> bool:
    """Equality as JSON: numbers by value, but a boolean is never a number."""
    return _same(expected, actual, lambda a, b: bool(a == b))


def quantities(expected: Any, actual: Any) -> bool:
    """As `exact`, but two texts are the same if both are quantities of equal value."""
    return _same(expected, actual, _same_quantity)


def tolerant(relative: float) -> Compare:
    """As `exact`, but numbers may differ by the relative tolerance."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, int | float) and isinstance(b, int | float):
            return math.isclose(a, b, rel_tol=relative, abs_tol=relative)
        return bool(a == b)

    return lambda expected, actual: _same(expected, actual, same)


def subset(expected: Any, actual: Any) -> bool:
    """As `exact`, but objects may have members that `expected` does not mention."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return all(name in actual and subset(value, actual[name]) for name, value in expected.items())
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(subset, expected, actual))
    return exact(expected, actual)


def _same(expected: Any, actual: Any, same_leaf: Compare) -> bool:
    if isinstance(expected, dict) and isinstance(actual, dict):
        if expected.keys() != actual.keys():
            return False
        return all(_same(value, actual[name], same_leaf) for name, value in expected.items())
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        if len(expected) != len(actual):
            return False
        return all(_same(a, b, same_leaf) for a, b in zip(expected, actual, strict=True))
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    return same_leaf(expected, actual)


def _same_quantity(a: Any, b: Any) -> bool:
    if a == b:
        return True
    try:
        return quantity.of(a) == quantity.of(b)
    except quantity.QuantityError:
        return False
