"""From calculated Batch resources to what the node tells its users (behaviour/manager 6.4, 6.5).

Other schedulers (YARN) see all that is lent in an annotation; Kubernetes sees what they have left.
"""

from collections.abc import Mapping

import msgspec

from koordinator.api import quantity, resources
from koordinator.api.annotations import node as node_annotations
from koordinator.api.annotations.node import OriginExtendedAllocatable
from koordinator.api.errors import ProtocolError
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import ResourceList
from koordinator.manager.noderesource.account import whole

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
    found = node_annotations.THIRD_PARTY_ALLOCATIONS.read(annotations, obj)
    if found is None:
        return {}
    taken = dict.fromkeys(BATCH, 0)
    for allocation in found.allocations:
        if allocation.priority == PriorityClass.BATCH:
            for name in BATCH:
                taken[name] += quantity.value(allocation.resources.get(name, 0))
    return taken


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
