"""Batch and Mid resources of a pod at admission: rewriting its requests, and the annotation that tells the
node agent about them (behaviour/manager 14.2, 14.3). Pods are JSON, and the input is kept.

Batch and Mid resources exist per container only (an API server refuses them in `spec.resources`), so a pod that
becomes a Batch pod must not keep native amounts there: it would count twice. They are handed to its containers. The
reference leaves them.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from koordinator.api import labels, quantity, resources
from koordinator.api.annotations.koordlet import EXTENDED_RESOURCE_SPEC
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import Quantity

_CONTAINER_LISTS = ("initContainers", "containers")
_SPREAD = (
    "spec.resources: cpu and memory of the whole pod were handed to its containers, since {} resources exist "
    "per container only"
)


def translate_pod(pod: dict[str, Any], cls: PriorityClass) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the pod with cpu and memory moved to the extended resources of its class, and what its user should know.

    Pods of other classes stay as they are.

    Raises: quantity.QuantityError for an amount that is none.
    """
    if cls not in (PriorityClass.BATCH, PriorityClass.MID):
        return pod, ()
    spec = dict(pod.get("spec") or {})
    warnings: tuple[str, ...] = ()
    if has_any(spec):
        spec = spread(spec)
        warnings = (_SPREAD.format(cls),)
    for key in _CONTAINER_LISTS:
        if spec.get(key):
            spec[key] = [_translate_container(container, cls) for container in spec[key]]
    if spec.get("overhead"):
        spec["overhead"] = resources.translate_list(cls, spec["overhead"])
    return {**pod, "spec": spec}, warnings


def _translate_container(container: dict[str, Any], cls: PriorityClass) -> dict[str, Any]:
    needs = container.get("resources")
    if not needs:
        return container
    requests, limits = resources.translate_requirements(
        cls, needs.get("requests") or {}, needs.get("limits") or {}
    )
    amounts = {side: of for side, of in (("requests", requests), ("limits", limits)) if of}
    rest = {key: value for key, value in needs.items() if key not in ("requests", "limits")}
    return {**container, "resources": rest | amounts}


def annotate_pod(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod with annotation `extended-resource-spec` telling the batch amounts of its containers and
    sidecars.

    Ordinary init containers are not told: the agent adds up what is there for the limits of the whole pod.
    Untouched when the annotation says so already, or when there is nothing to say and no annotation.

    Raises: ProtocolError when the annotation that is there cannot be read.
    """
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    containers = _batch_amounts(pod)
    current = annotations.get(labels.EXTENDED_RESOURCE_SPEC)
    if (_decode(current) if current is not None else {}) == containers:
        return pod
    wanted = {"containers": containers} if containers else {}
    text = msgspec.json.encode(wanted, order="sorted").decode()
    annotations = {**annotations, labels.EXTENDED_RESOURCE_SPEC: text}
    return {**pod, "metadata": {**metadata, "annotations": annotations}}


def _batch_amounts(pod: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    amounts = {}
    for container in _running(pod.get("spec") or {}):
        needs = container.get("resources") or {}
        found = {}
        for side in ("limits", "requests"):
            of_side = needs.get(side) or {}
            batch = {name: of_side[name] for name in resources.BATCH_RESOURCES if name in of_side}
            if batch:
                found[side] = batch
        if found:
            amounts[container.get("name", "")] = found
    return amounts


def _running(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from spec.get("containers") or []
    for container in spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always":
            yield container


def _decode(text: str) -> dict[str, Any]:
    """Return the containers as they are written, so that amounts compare by text. Raises: ProtocolError."""
    # Amounts that nobody can read are a mistake of their author, too.
    EXTENDED_RESOURCE_SPEC.read({labels.EXTENDED_RESOURCE_SPEC: text})
    spec = msgspec.json.decode(text) or {}
    return spec.get("containers") or {}


_NAMES = (resources.CPU, resources.MEMORY)

Json = dict[str, Any]


def has_any(spec: Json) -> bool:
    """Return whether a pod spec asks for cpu or memory as a whole."""
    whole = spec.get("resources") or {}
    return any(name in (whole.get(side) or {}) for side in ("requests", "limits") for name in _NAMES)


def spread(spec: Json) -> Json:
    """Return the pod spec with cpu and memory of the whole pod handed to its containers and sidecars.

    Requests of the pod beyond its containers go to app containers as far as their limits allow, those without a
    limit first, so that the sum is the pod's. A container without a limit of its own may use up to the pod's.

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
