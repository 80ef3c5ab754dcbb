"""Batch and Mid resources of a pod at admission: rewriting its requests, and the annotation that tells the
node agent about them (behaviour/manager 14.2, 14.3). Pods are JSON, and the input is kept.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from koordinator.api import labels, resources
from koordinator.api.priority import PriorityClass
from koordinator.manager.profiles import pod_level_resources

_CONTAINER_LISTS = ("initContainers", "containers")
_SPREAD = (
    "spec.resources: cpu and memory of the whole pod were handed to its containers, since {} resources exist "
    "per container only"
)


class Translated(msgspec.Struct, frozen=True):
    """A pod with its amounts rewritten, and what its user should know."""

    pod: dict[str, Any]
    warnings: tuple[str, ...] = ()


def translate_pod(pod: dict[str, Any], cls: PriorityClass) -> Translated:
    """The pod with cpu and memory moved to the extended resources of its class; others stay as they are.

    Raises: quantity.QuantityError for an amount that is none.
    """
    if cls not in (PriorityClass.BATCH, PriorityClass.MID):
        return Translated(pod)
    spec = dict(pod.get("spec") or {})
    warnings: tuple[str, ...] = ()
    if pod_level_resources.has_any(spec):
        spec = pod_level_resources.spread(spec)
        warnings = (_SPREAD.format(cls),)
    for key in _CONTAINER_LISTS:
        if spec.get(key):
            spec[key] = [_translate_container(container, cls) for container in spec[key]]
    if spec.get("overhead"):
        spec["overhead"] = resources.translate_list(cls, spec["overhead"])
    return Translated({**pod, "spec": spec}, warnings)


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
    """The pod with annotation `extended-resource-spec` telling the batch amounts of its containers and sidecars.

    Ordinary init containers are not told: the agent adds up what is there for the limits of the whole pod.
    Untouched when the annotation says so already, or when there is nothing to say and no annotation.

    Raises: ValueError when the annotation that is there is no JSON object.
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
    try:
        spec = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"annotation {labels.EXTENDED_RESOURCE_SPEC}: {error}") from error
    containers = spec.get("containers") if isinstance(spec, dict) else spec
    if not isinstance(containers, dict | None):
        raise ValueError(f"annotation {labels.EXTENDED_RESOURCE_SPEC}: expected an object of containers")
    return containers or {}
