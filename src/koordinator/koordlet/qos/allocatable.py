"""What a node lends, for evicting pods that requested more than that."""

from collections.abc import Sequence

from koordinator.api import quantity, resources
from koordinator.api.core import Node
from koordinator.api.quantity import QuantityError
from koordinator.koordlet.qos.eviction import Amounts

WITHDRAWN_S = 300.0
"""So long must a resource be gone from the node before all who requested it are evicted.

It also goes when the manager lacks reports for a while, or the node registers anew: no reason to stop any pod.
"""
_PLENTY = 2**62


class Lent:
    """Follows what a node lends of some resources. Times are those of a clock that never goes back."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._gone_since_s: dict[str, float] = {}
        self._is_waiting = False
        self._fitting: tuple[object, ...] = ()

    def is_known_to_fit(self, *facts: object) -> bool:
        """Whether requests were found to fit these very objects, so that nobody needs to add them up again."""
        return len(facts) == len(self._fitting) and all(
            a is b for a, b in zip(facts, self._fitting, strict=True)
        )

    def found_to_fit(self, *facts: object) -> None:
        """Requests fit what is lent. Not remembered while something is gone and only counts as plenty."""
        self._fitting = () if self._is_waiting else facts

    def amounts(self, node: Node, now_s: float) -> Amounts:
        """Allocatable by resource (milli-cores, bytes); what has just gone counts as plenty, since nobody knows yet."""
        found = {}
        self._is_waiting = False
        for name in self._names:
            amount = _amount(node, name)
            if amount > 0:
                self._gone_since_s.pop(name, None)
            elif now_s - self._gone_since_s.setdefault(name, now_s) < WITHDRAWN_S:
                amount, self._is_waiting = _PLENTY, True
            found[name] = amount
        return found


def capacity(node: Node | None, name: str) -> int:
    """What the node has of `cpu` (milli-cores) or `memory` (bytes); 0 when it is not known."""
    if node is None:
        return 0
    raw = node.status.capacity.get(name, 0)
    try:
        return quantity.milli(raw) if name == resources.CPU else quantity.value(raw)
    except QuantityError:
        return 0


def _amount(node: Node, name: str) -> int:
    try:
        return quantity.value(node.status.allocatable.get(name, 0))
    except QuantityError:
        return 0
