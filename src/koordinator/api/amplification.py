"""Selling more than a node physically has, by a ratio per resource. Source: behaviour/api 8.2.

The product is computed in 64-bit binary floating point and rounded up, as users' figures are (100 × 1.1 is
111), so that all components write the same amounts.
"""

import math
from collections.abc import Collection, Mapping

from koordinator.api import resources
from koordinator.api.quantity import Family, Quantity
from koordinator.api.resource_list import Amounts

_BINARY_RESOURCES = (resources.MEMORY, resources.EPHEMERAL_STORAGE)


def amplify(amount: int, ratio: float) -> int:
    """`amount` × `ratio`, rounded up; unchanged for a ratio not above 1."""
    return math.ceil(amount * ratio) if ratio > 1 else amount


def amplify_quantity(resource: str, amount: Quantity, ratio: float) -> Quantity:
    """An amount of a resource amplified in its unit: milli-cores, bytes or whole units."""
    if ratio <= 1 or not amount:
        return amount
    if resource == resources.CPU:
        return Quantity.of_milli(amplify(amount.milli, ratio))
    family = Family.BINARY if resource in _BINARY_RESOURCES else Family.DECIMAL
    return Quantity.of_value(amplify(amount.value, ratio), family)


def amplify_list(amounts: Amounts, ratios: Mapping[str, float], names: Collection[str] = ()) -> Amounts:
    """The list with the resources of `names` (all when empty) amplified by their ratios."""
    return {
        name: amplify_quantity(name, amount, ratios.get(name, 1.0)) if not names or name in names else amount
        for name, amount in amounts.items()
    }
