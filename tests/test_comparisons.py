"""Classes that define `==` define all of it: `!=`, and orders where there is one."""

import importlib
import operator
import pkgutil
from typing import Any

import msgspec
import pytest

import koordinator
from koordinator.api.quantity import Quantity
from koordinator.cel.values import Semver

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
ORDERS = {"__lt__", "__le__", "__gt__", "__ge__"}


def _structs() -> list[type[msgspec.Struct]]:
    for module in pkgutil.walk_packages(koordinator.__path__, "koordinator."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[msgspec.Struct]] = []
    waiting = [msgspec.Struct]
    while waiting:
        for child in waiting.pop().__subclasses__():
            found.append(child)
            waiting.append(child)
    return [each for each in found if each.__module__.startswith("koordinator.")]


def test_a_struct_with_its_own_equality_has_its_own_inequality() -> None:
    half = [each.__qualname__ for each in _structs() if ("__eq__" in vars(each)) != ("__ne__" in vars(each))]

    assert half == []


def test_a_struct_with_one_order_of_its_own_has_all_four() -> None:
    partly = {each.__qualname__ for each in _structs() if 0 < len(ORDERS & vars(each).keys()) < len(ORDERS)}

    assert partly == set()


@pytest.mark.parametrize(
    ("low", "same", "high"),
    [
        pytest.param(Quantity.of_value(1), Quantity.of_milli(1000), Quantity.of_value(2), id="quantities"),
        pytest.param(Semver.of("1.2.3-rc.1"), Semver.of("1.2.3-rc.1+b"), Semver.of("1.2.3"), id="versions"),
    ],
)
def test_equality_inequality_and_orders_agree(low: Any, same: Any, high: Any) -> None:
    holds = {name for name in COMPARISONS if getattr(operator, name)(low, same)}
    assert holds == {"eq", "le", "ge"} and hash(low) == hash(same)

    holds = {name for name in COMPARISONS if getattr(operator, name)(low, high)}
    assert holds == {"ne", "lt", "le"}

    holds = {name for name in COMPARISONS if getattr(operator, name)(high, low)}
    assert holds == {"ne", "gt", "ge"}
