"""Areas of plain values: quantities, resource lists, pod amounts, QoS and priority, cpusets."""

from typing import Any

from koordinator.api import quantity
from koordinator.api.quantity import Quantity


def api_quantity(case: dict[str, Any]) -> dict[str, Any]:
    match case["op"]:
        case "parse":
            return _parsed(quantity.parse(case["text"]))
        case "add":
            return {"canonical": (quantity.parse(case["a"]) + quantity.parse(case["b"])).text}
        case "sub":
            return {"canonical": (quantity.parse(case["a"]) - quantity.parse(case["b"])).text}
        case "cmp":
            a, b = quantity.parse(case["a"]), quantity.parse(case["b"])
            return {"order": (a > b) - (a < b)}
    raise ValueError(case["op"])


def _parsed(amount: Quantity) -> dict[str, Any]:
    """Integer views only within 64 bits, as the format says."""
    views = {"value": amount.value, "milli": amount.milli}
    return {"canonical": amount.text} | {k: v for k, v in views.items() if -(2**63) <= v < 2**63}


ADAPTERS = {"api-quantity": api_quantity}
