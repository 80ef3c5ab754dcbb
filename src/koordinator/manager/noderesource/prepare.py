"""From calculated Batch resources to what is written on the node (spec 02 §5, §6.4, §6.5)."""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api import labels, quantity, resources, scalars
from koordinator.api.annotations import node as node_annotations
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import ResourceList
from koordinator.manager.noderesource import batch

log = logging.getLogger(__name__)

BATCH = resources.BATCH_RESOURCES

Amounts = Mapping[str, int | None]
"""Resource name -> thousandths; None or absent means that the node must not have it."""


class NodeTarget(msgspec.Struct, frozen=True):
    """What the node should say: `amounts` in whole units (absent = removed), and the annotation's text."""

    amounts: dict[str, int]
    origin_annotation: str


def node_target(node: Node, calculated: Amounts, ratio: float = 0.0) -> NodeTarget:
    """Batch resources of a node after CPU normalization (`ratio` above 1) and third-party allocations."""
    origin = {
        name: whole_amount(name, amount, ratio) for name, amount in calculated.items() if amount is not None
    }
    amounts = dict(origin)
    if all(name in origin for name in BATCH):
        for name, taken in _third_party(node).items():
            amounts[name] = max(origin[name] - taken, 0)
    return NodeTarget(amounts, _origin_annotation(node, origin))


def whole_amount(name: str, thousandths: int, ratio: float) -> int:
    """Whole units, rounded up; batch-cpu multiplied by a CPU normalization ratio above 1."""
    if name == resources.BATCH_CPU and ratio > 1:
        thousandths = int(thousandths * ratio)
    return -(-thousandths // batch.MILLI)


def parse_ratio(text: str) -> float:
    """The CPU normalization ratio of an annotation's text, 0 (not applied) when it is none."""
    try:
        return scalars.parse_float(text)
    except scalars.ScalarError:
        return 0.0


def _third_party(node: Node) -> dict[str, int]:
    """Batch amounts that other schedulers (YARN) have taken of this node; none if malformed."""
    taken = dict.fromkeys(BATCH, 0)
    try:
        found = node_annotations.THIRD_PARTY_ALLOCATIONS.read(node.metadata.annotations, node.key)
        for allocation in found.allocations if found is not None else ():
            if allocation.priority == PriorityClass.BATCH:
                for name in BATCH:
                    taken[name] += quantity.value(allocation.resources.get(name, 0))
    except (ProtocolError, quantity.QuantityError) as error:
        log.warning("third-party allocations ignored", extra={"node": node.key, "error": str(error)})
        return {}
    return taken


def _origin_annotation(node: Node, origin: Mapping[str, int]) -> str:
    codec = node_annotations.ORIGIN_EXTENDED_ALLOCATABLE
    kept: ResourceList = {}
    try:
        found = codec.read(node.metadata.annotations, node.key)
        kept.update(found.resources if found is not None else {})
    except ProtocolError as error:
        log.warning("annotation replaced", extra={"node": node.key, "error": str(error)})
    kept.update({name: quantity.text_of_value(origin.get(name, 0)) for name in BATCH})
    return codec.encode(node_annotations.OriginExtendedAllocatable(resources=kept))


def needs_sync(node: Node, target: NodeTarget, threshold: float) -> bool:
    """Whether the Batch allocatable of the node differs enough from the target."""
    have = node.status.allocatable
    return any(
        batch.differs(
            quantity.value(have[name]) if name in have else None, target.amounts.get(name), threshold
        )
        for name in BATCH
    )


def status_patch(node: Node, target: NodeTarget) -> dict[str, Any]:
    """Merge patch for `nodes/status`: exactly the Batch resources and our annotation; {} when all is so."""
    status: dict[str, Any] = {}
    for field, have in (("capacity", node.status.capacity), ("allocatable", node.status.allocatable)):
        changes: dict[str, str | None] = {}
        for name in BATCH:
            want = target.amounts.get(name)
            if want is None:
                if name in have:
                    changes[name] = None
            elif name not in have or quantity.value(have[name]) != want:
                changes[name] = quantity.text_of_value(want)
        if changes:
            status[field] = changes
    patch: dict[str, Any] = {"status": status} if status else {}
    if node.metadata.annotations.get(labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE) != target.origin_annotation:
        patch["metadata"] = {
            "annotations": {labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE: target.origin_annotation}
        }
    return patch
