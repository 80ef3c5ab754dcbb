"""`/mutate-node-status`: amplified allocatable of nodes, as kubelets report it (behaviour/manager 9.2).

The kubelet reports what the node has; other writers echo what is there. So native resources that change in
an update are raw figures, and those that do not are amplified already. Where figures do not tell, `capacity`
does, which is never amplified: whoever changes it is the kubelet, and what exceeds it is not raw.
"""

import logging
from collections.abc import Mapping
from typing import Any

from koordinator.api import labels, quantity, resource_list, resources
from koordinator.api.annotations import node as node_annotations
from koordinator.api.errors import ProtocolError
from koordinator.api.resource_list import Amounts
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, AdmissionVerdict

log = logging.getLogger(__name__)

AMPLIFIED = (resources.CPU, resources.MEMORY)


def mutate(node: dict[str, Any], old: dict[str, Any] | None, *, restores: bool = False) -> dict[str, Any]:
    """Return the updated node with amplified cpu and memory, and the annotation that keeps the raw figures.

    `old` is the node before the update, None when it is unknown. The input is kept; what is not cpu or
    memory is never touched, nor is `status.capacity`. What is amplified no more is left as reported, or, when
    it `restores`, set to the raw figures if the update merely echoes amplified ones.

    Raises: ProtocolError when an annotation is malformed; quantity.QuantityError when an amount is none.
    """
    obj = f"Node {_metadata(node).get('name', '')}"
    annotations = dict(_metadata(node).get("annotations") or {})
    allocatable = _amounts(node, "allocatable")
    is_report = labels.NODE_RAW_ALLOCATABLE not in annotations or _has_changed(old, node)
    if not annotations.get(labels.NODE_RESOURCE_AMPLIFICATION_RATIO):
        return _without_amplification(node, annotations, obj, restores and not is_report)
    if not allocatable:
        return node
    if is_report:
        raw = _native(allocatable)
        if _exceeds(raw, _native(_amounts(node, "capacity"))):
            return node  # amplified twice, it would grow with every update; the kubelet reports soon
        if raw:
            annotations[labels.NODE_RAW_ALLOCATABLE] = node_annotations.RAW_ALLOCATABLE.encode(
                resource_list.to_wire(raw)
            )
    else:
        raw = _noted(annotations, obj)
        if restores:
            allocatable = {**allocatable, **_texts(raw)}
    ratios = node_annotations.amplification_ratios(annotations, obj) or {}
    return _with(node, annotations, {**allocatable, **_amplified(raw, ratios)})


def _without_amplification(
    node: dict[str, Any], annotations: dict[str, str], obj: str, restores: bool
) -> dict[str, Any]:
    """Return the node without the annotation, and with what that says if nobody else will say it."""
    if labels.NODE_RAW_ALLOCATABLE not in annotations:
        return node
    allocatable = _amounts(node, "allocatable")
    if restores and allocatable:
        allocatable = {**allocatable, **_texts(_noted(annotations, obj))}
    del annotations[labels.NODE_RAW_ALLOCATABLE]
    return _with(node, annotations, allocatable or None)


def _noted(annotations: Mapping[str, str], obj: str) -> Amounts:
    return resource_list.of(node_annotations.RAW_ALLOCATABLE.read(annotations, obj) or {})


def _texts(raw: Amounts) -> dict[str, str]:
    return {name: raw[name].text for name in AMPLIFIED if name in raw}


def _amplified(raw: Amounts, ratios: Mapping[str, float]) -> dict[str, str]:
    """Wire texts of what a ratio above 1 raises, cut off to thousandths as the reference does."""
    return {
        name: resource_list.multiply_milli(raw[name], ratios[name]).text
        for name in AMPLIFIED
        if name in raw and ratios.get(name, 1.0) > 1.0
    }


def _has_changed(old: dict[str, Any] | None, new: dict[str, Any]) -> bool:
    """Return whether the native figures are the kubelet's own: they, or the node's size, are not what they were."""
    return old is not None and any(
        _native(_amounts(old, field)) != _native(_amounts(new, field))
        for field in ("allocatable", "capacity")
    )


def _exceeds(amounts: Amounts, capacity: Amounts) -> bool:
    return any(name in capacity and amount > capacity[name] for name, amount in amounts.items())


def _native(amounts: Mapping[str, Any]) -> Amounts:
    return resource_list.of({name: amounts[name] for name in AMPLIFIED if name in amounts})


def _metadata(node: dict[str, Any]) -> dict[str, Any]:
    return node.get("metadata") or {}


def _amounts(node: dict[str, Any], field: str) -> dict[str, Any]:
    return (node.get("status") or {}).get(field) or {}


def _with(
    node: dict[str, Any], annotations: dict[str, str], allocatable: dict[str, Any] | None
) -> dict[str, Any]:
    changed = {**node, "metadata": {**_metadata(node), "annotations": annotations}}
    if allocatable is not None:
        changed["status"] = {**node["status"], "allocatable": allocatable}
    return changed


class NodeStatusHandler:
    """Amplifies status updates of nodes; everything else passes untouched."""

    async def __call__(self, request: AdmissionRequest) -> AdmissionVerdict:
        """Return the node with amplified allocatable.

        A malformed node passes as it is, with a warning: a kubelet that cannot report loses its node, which is
        worse than an amplification that waits for its annotation to be mended.
        """
        if request.resource.resource != "nodes" or request.sub_resource != "status":
            return ALLOWED
        if request.operation != "UPDATE" or request.object is None:
            return ALLOWED
        try:
            # Not by the whole view: kubelets of amplified nodes send nodes with all their images each 10 s.
            for body in filter(None, (request.object, request.old_object)):
                _check_shape(body)
            return AdmissionVerdict(obj=mutate(request.object, request.old_object, restores=True))
        except (ProtocolError, quantity.QuantityError) as error:
            log.warning("node not amplified", extra={"node": request.name, "error": str(error)})
            return AdmissionVerdict(warnings=(f"Node {request.name} is not amplified: {error}",))


def _check_shape(node: dict[str, Any]) -> None:
    """Raises: ProtocolError when what is read here is not where it should be."""
    for path in (("metadata", "annotations"), ("status", "allocatable"), ("status", "capacity")):
        value: Any = node
        for depth, name in enumerate(path, 1):
            value = value.get(name)
            if value is None:
                break
            if not isinstance(value, dict):
                raise ProtocolError("", ".".join(path[:depth]), "expected an object")
    for key, text in (_metadata(node).get("annotations") or {}).items():
        if not isinstance(text, str):
            raise ProtocolError("", f"metadata.annotations[{key}]", "expected text")
