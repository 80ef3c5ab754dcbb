"""Amounts that a pod asks for as a whole, handed to its containers: pure, JSON in, JSON out.

Batch and Mid resources exist per container only (an API server refuses them in `spec.resources`), so a pod that
becomes a Batch pod must not keep native amounts there: it would count twice. The reference leaves them.
"""

from typing import Any

from koordinator.api import quantity, resources
from koordinator.api.quantity import Quantity

_NAMES = (resources.CPU, resources.MEMORY)

Json = dict[str, Any]


def has_any(spec: Json) -> bool:
    """Return whether a pod spec asks for cpu or memory as a whole."""
    whole = spec.get("resources") or {}
    return any(name in (whole.get(side) or {}) for side in ("requests", "limits") for name in _NAMES)


def spread(spec: Json) -> Json:
    """The pod spec with cpu and memory of the whole pod handed to its containers and sidecars.

    What the pod requests beyond its containers goes to app containers as far as their limits allow, those
    without a limit first, so that the sum is the pod's. A container without a limit of its own may use up to
    the pod's.

    Raises: quantity.QuantityError.
    """
    whole = spec["resources"]
    requests, limits = dict(whole.get("requests") or {}), dict(whole.get("limits") or {})
    containers = [_Container(each) for each in spec.get("containers") or []]
    sidecars = [_Container(each) for each in spec.get("initContainers") or []]
    running = containers + [each for each in sidecars if each.is_sidecar]
    for name in _NAMES:
        limit = limits.pop(name, None)
        request = requests.pop(name, limit)
        if request is not None:
            _hand_out(name, quantity.of(request), containers, running)
        if limit is not None:
            for each in running:
                each.limits.setdefault(name, limit)
    rest = {side: left for side, left in (("requests", requests), ("limits", limits)) if left}
    rest = {key: value for key, value in whole.items() if key not in ("requests", "limits")} | rest
    result = {key: value for key, value in spec.items() if key != "resources"}
    if rest:
        result["resources"] = rest
    for key, members in (("containers", containers), ("initContainers", sidecars)):
        if members:
            result[key] = [each.body() for each in members]
    return result


def _hand_out(
    name: str, wanted: Quantity, containers: list["_Container"], running: list["_Container"]
) -> None:
    for each in running:
        # An explicit zero, since a request that is absent would be taken from the limit.
        each.requests.setdefault(name, each.limits.get(name, "0"))
        wanted -= quantity.of(each.requests[name])
    for each in sorted(containers, key=lambda each: name in each.limits):
        room = wanted
        if name in each.limits:
            room = min(room, quantity.of(each.limits[name]) - quantity.of(each.requests[name]))
        if room > quantity.ZERO:
            each.requests[name] = (quantity.of(each.requests[name]) + room).text
            wanted -= room


class _Container:
    """One container with amounts that may be changed."""

    def __init__(self, body: Json) -> None:
        needs = body.get("resources") or {}
        self._body, self._needs = body, needs
        self.is_sidecar = body.get("restartPolicy") == "Always"
        self.requests: Json = dict(needs.get("requests") or {})
        self.limits: Json = dict(needs.get("limits") or {})

    def body(self) -> Json:
        amounts = {side: of for side, of in (("requests", self.requests), ("limits", self.limits)) if of}
        return {**self._body, "resources": {**self._needs, **amounts}} if amounts else self._body
