"""Batch and Mid resources of a pod at admission: rewriting its requests, and the annotation that tells the
node agent about them (spec 02 §14.2 "resource rewriting", §14.3). Pods are JSON, and the input is kept.
"""

from typing import Any

import msgspec

from koordinator.api import labels, resources
from koordinator.api.priority import PriorityClass

_CONTAINER_LISTS = ("initContainers", "containers")


def translate_pod(pod: dict[str, Any], cls: PriorityClass) -> dict[str, Any]:
    """The pod with cpu and memory moved to the extended resources of its class; others stay as they are.

    Raises: quantity.QuantityError for an amount that is none.
    """
    if cls not in (PriorityClass.BATCH, PriorityClass.MID):
        return pod
    spec = dict(pod.get("spec") or {})
    for name in _CONTAINER_LISTS:
        if spec.get(name):
            spec[name] = [_translate_container(container, cls) for container in spec[name]]
    if spec.get("overhead"):
        spec["overhead"] = resources.translate_list(cls, spec["overhead"])
    return {**pod, "spec": spec}


def _translate_container(container: dict[str, Any], cls: PriorityClass) -> dict[str, Any]:
    needs = container.get("resources")
    if not needs:
        return container
    requests, limits = resources.translate_requirements(
        cls, needs.get("requests") or {}, needs.get("limits") or {}
    )
    amounts = {name: amount for name, amount in (("requests", requests), ("limits", limits)) if amount}
    rest = {name: value for name, value in needs.items() if name not in ("requests", "limits")}
    return {**container, "resources": rest | amounts}


def annotate_pod(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod with annotation `extended-resource-spec` telling the batch amounts of its app containers.

    Untouched when the annotation says so already, or when there is nothing to say and no annotation.
    Raises: ValueError when the annotation that is there is no JSON object.
    """
    metadata = dict(pod.get("metadata") or {})
    annotations = dict(metadata.get("annotations") or {})
    containers = _batch_amounts(pod)
    current = annotations.get(labels.EXTENDED_RESOURCE_SPEC)
    if (_decode(current) if current is not None else {}) == containers:
        return pod
    wanted = {"containers": containers} if containers else {}
    annotations[labels.EXTENDED_RESOURCE_SPEC] = msgspec.json.encode(wanted, order="sorted").decode()
    return {**pod, "metadata": {**metadata, "annotations": annotations}}


def _batch_amounts(pod: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    amounts = {}
    for container in (pod.get("spec") or {}).get("containers") or []:
        needs = container.get("resources") or {}
        found = {}
        for side in ("limits", "requests"):
            batch = {k: v for k, v in (needs.get(side) or {}).items() if k in resources.BATCH_RESOURCES}
            if batch:
                found[side] = batch
        if found:
            amounts[container.get("name", "")] = found
    return amounts


def _decode(text: str) -> dict[str, Any]:
    try:
        spec = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"annotation {labels.EXTENDED_RESOURCE_SPEC}: {error}") from error
    if not isinstance(spec, dict | None):
        raise ValueError(f"annotation {labels.EXTENDED_RESOURCE_SPEC}: expected an object")
    return dict((spec or {}).get("containers") or {})
