"""The wanted state of a node, and the one patch that makes it so (behaviour/manager 5).

Plugins of `plugins` fill in targets, each its own keys; what no plugin names is left alone.

Batch resources are told apart (behaviour/manager 6.4, 6.5): other schedulers (YARN) see all that is lent in an
annotation; Kubernetes sees what they have left.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api import labels, quantity, resources
from koordinator.api.annotations import node as node_annotations
from koordinator.api.annotations.node import OriginExtendedAllocatable
from koordinator.api.core import Node
from koordinator.api.errors import ProtocolError
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import RawQuantity, ResourceList
from koordinator.manager.noderesource import batch
from koordinator.manager.noderesource.account import whole
from koordinator.manager.noderesource.batch import TermRows

BATCH = resources.BATCH_RESOURCES
NOT_LENT: dict[str, int | None] = dict.fromkeys(BATCH)


class LentBatch(msgspec.Struct, frozen=True):
    """Batch resources in whole units: `origin` is all that is lent, `left` what Kubernetes may use of it.

    None in `left` means that the node must not have the resource; it is 0 for others then.
    """

    left: dict[str, int | None]
    origin: dict[str, int]


def lend(calculated: Mapping[str, int | None], ratio: float, taken: Mapping[str, int]) -> LentBatch:
    """`calculated` in thousandths, None for none; `taken` by third parties, in whole units."""
    amounts = {
        name: None if amount is None else whole_amount(name, amount, ratio)
        for name, amount in calculated.items()
    }
    origin = {name: amounts.get(name) or 0 for name in BATCH}
    if taken and all(amounts.get(name) is not None for name in BATCH):
        return LentBatch({name: max(origin[name] - taken.get(name, 0), 0) for name in BATCH}, origin)
    return LentBatch({name: amounts.get(name) for name in BATCH}, origin)


def whole_amount(name: str, thousandths: int, ratio: float) -> int:
    """Whole units, rounded up; batch-cpu multiplied by a CPU normalization ratio above 1."""
    if name == resources.BATCH_CPU and ratio > 1:
        thousandths = int(thousandths * ratio)
    return whole(thousandths)


def third_party(annotations: Mapping[str, str], obj: str = "") -> dict[str, int]:
    """Batch amounts in whole units that other schedulers (YARN) have taken of a node; {} for none.

    Raises: ProtocolError or QuantityError for a malformed annotation, which then counts as none.
    """
    found = node_annotations.third_party_by_priority(annotations, PriorityClass.BATCH, obj)
    if found is None:
        return {}
    return {name: found[name].value if name in found else 0 for name in BATCH}


def origin_text(annotations: Mapping[str, str], origin: Mapping[str, int]) -> str:
    """Return the annotation's new text: amounts as given, all other resources as they are."""
    codec = node_annotations.ORIGIN_EXTENDED_ALLOCATABLE
    try:
        found = codec.read(annotations)
    except ProtocolError:  # nobody else may write it: what cannot be read is replaced
        found = None
    kept: ResourceList = dict(found.resources) if found is not None else {}
    kept.update({name: quantity.text_of_value(amount) for name, amount in origin.items()})
    return codec.encode(OriginExtendedAllocatable(resources=kept))


class Note(msgspec.Struct, frozen=True):
    """Something that people should know of a node: an event's reason, and its message.

    `is_patient`: only when it stays so for a while (what is usual for new nodes).
    """

    reason: str
    message: str
    is_patient: bool = False
    is_warning: bool = True


class NodeTarget(msgspec.Struct):
    """The wanted state of one node; what is not named stays as it is, None means that it must not be there."""

    amounts: dict[str, int | None] = {}
    """Extended resources in whole units, for `status.capacity` and `status.allocatable`."""
    native: dict[str, RawQuantity] = {}
    """cpu and memory for `status.allocatable` alone, which are the kubelet's otherwise."""
    origin: dict[str, int] | None = None
    """Batch amounts for the annotation `originExtendedAllocatable`, written together with the amounts."""
    annotations: dict[str, str | None] = {}
    labels: dict[str, str] = {}
    zones: dict[str, dict[str, int | None]] = {}
    """Zone of the node's NodeResourceTopology -> resource -> whole units."""
    batch_terms: TermRows | None = None
    """Terms of the Batch amounts, one pair for each field of `batch.BatchTerms`; None when nothing is lent."""
    mid_terms: TermRows | None = None
    """The same of Mid, by `decide.MidTerms`."""
    normalization: float = 0.0
    """The CPU normalization ratio worked out in this round, 0 when there is none."""
    notes: list[Note] = []


def needs_status(have: Mapping[str, int], target: NodeTarget, threshold: float) -> bool:
    """Return whether any amount differs from the node's allocatable, `have`, by more than the threshold."""
    differs = batch.differs
    return any(differs(have.get(name), want, threshold) for name, want in target.amounts.items())


def shares_less(
    node: Node, have: Mapping[str, int], taken: Mapping[str, int], target: NodeTarget, threshold: float
) -> bool:
    """Return whether a pool that is shared with others (`taken` is not empty) must be written at once: pods have less
    of it, or what all share has shrunk, or has grown by more than the threshold.

    Each side goes by what the node says, so what one still believes to have after the other took it is lent twice.
    """
    if not taken or target.origin is None:
        return False
    if any((have.get(name) or 0) > (target.amounts.get(name) or 0) for name in BATCH):
        return True
    try:
        told = node_annotations.ORIGIN_EXTENDED_ALLOCATABLE.read(node.metadata.annotations)
    except ProtocolError:
        return True
    if told is None:
        return True
    before = {name: quantity.value(told.resources.get(name, 0)) for name in BATCH}
    return any(
        now < before[name] or batch.differs(before[name], now, threshold)
        for name, now in target.origin.items()
    )


def lends_other_gpus(node: Node, target: NodeTarget) -> bool:
    """Return whether cards lend other amounts than the node says: their sums are to be written with them."""
    key, wanted = labels.NODE_BATCH_GPUS, target.annotations
    return key in wanted and node.metadata.annotations.get(key) != wanted[key]


def needs_metadata(node: Node, target: NodeTarget) -> bool:
    """Return whether an annotation or label of the node is another one."""
    return bool(_changes(node.metadata.annotations, target.annotations)) or bool(
        _changes(node.metadata.labels, target.labels)
    )


def node_patch(node: Node, target: NodeTarget, *, with_status: bool) -> dict[str, Any]:
    """Merge patch for `nodes/status` with exactly what differs; {} when all is so.

    Annotations and labels pass through that subresource, too, so a node is never written twice. Without
    `with_status` amounts, and the annotation that belongs to them, stay as they are.
    """
    own = node.metadata.annotations
    annotations = _changes(own, target.annotations)
    patch: dict[str, Any] = {}
    status = _status_changes(node, target.amounts) if with_status else {}
    have = node.status.allocatable
    for name, amount in target.native.items():
        if name in have and quantity.of(have[name]) != quantity.of(amount):
            status.setdefault("allocatable", {})[name] = quantity.canonical(amount)
    if status:
        patch["status"] = status
    if with_status and target.origin is not None:
        text = origin_text(own, target.origin)
        if own.get(labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE) != text:
            annotations[labels.NODE_ORIGIN_EXTENDED_ALLOCATABLE] = text
    metadata: dict[str, Any] = {}
    if annotations:
        metadata["annotations"] = annotations
    if changed := _changes(node.metadata.labels, target.labels):
        metadata["labels"] = changed
    if metadata:
        patch["metadata"] = metadata
    return patch


def _changes(have: Mapping[str, str], want: Mapping[str, str | None]) -> dict[str, str | None]:
    return {key: text for key, text in want.items() if have.get(key) != text}


def _status_changes(node: Node, amounts: Mapping[str, int | None]) -> dict[str, dict[str, str | None]]:
    status: dict[str, dict[str, str | None]] = {}
    for field, have in (("capacity", node.status.capacity), ("allocatable", node.status.allocatable)):
        changes: dict[str, str | None] = {}
        for name, want in amounts.items():
            if want is None:
                if name in have:
                    changes[name] = None
            elif name not in have or quantity.value(have[name]) != want:
                changes[name] = quantity.text_of_value(want)
        if changes:
            status[field] = changes
    return status
