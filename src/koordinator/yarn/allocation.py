"""YARN's entry among a node's third-party allocations. Pure. Source: behaviour/yarn 2.2."""

from koordinator.api import quantity, resource_list, resources
from koordinator.api.annotations import node as node_annotations
from koordinator.api.annotations.node import ThirdPartyAllocation, ThirdPartyAllocations
from koordinator.api.errors import ProtocolError
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import Family, ResourceList
from koordinator.yarn.amounts import ALLOCATION_NAME, BatchAmount

_CODEC = node_annotations.THIRD_PARTY_ALLOCATIONS


def entry(used: BatchAmount) -> ThirdPartyAllocation:
    """Return what the operator records of a node."""
    amounts: ResourceList = {
        resources.BATCH_CPU: quantity.text_of_value(used.cpu_milli),
        resources.BATCH_MEMORY: quantity.text_of_value(used.memory_bytes, Family.BINARY),
    }
    return ThirdPartyAllocation(name=ALLOCATION_NAME, priority=PriorityClass.BATCH.value, resources=amounts)


def read(text: str | None) -> list[ThirdPartyAllocation]:
    """Return the entries of an annotation's text; none when it is absent or malformed (it is then written anew)."""
    if text is None:
        return []
    try:
        return _CODEC.decode(text).allocations
    except ProtocolError:
        return []


def with_entry(existing: list[ThirdPartyAllocation], used: BatchAmount) -> list[ThirdPartyAllocation]:
    """Return the entries with ours in place of its first; further ones of our name, made by hand, are dropped."""
    ours = entry(used)
    at = next((i for i, each in enumerate(existing) if each.name == ALLOCATION_NAME), len(existing))
    others = [each for each in existing[at + 1 :] if each.name != ALLOCATION_NAME]
    return [*existing[:at], ours, *others]


def new_text(text: str | None, used: BatchAmount) -> str | None:
    """Return what the annotation must become, None when it already says so.

    A node that never had YARN gets no entry of zeros.
    """
    existing = read(text)
    is_unknown = all(each.name != ALLOCATION_NAME for each in existing)
    if is_unknown and used == BatchAmount():
        return None
    wanted = with_entry(existing, used)
    return None if _same(existing, wanted) else _CODEC.encode(ThirdPartyAllocations(allocations=wanted))


def _same(a: list[ThirdPartyAllocation], b: list[ThirdPartyAllocation]) -> bool:
    """Equality by amounts, not by their texts."""
    return [(e.name, e.priority, resource_list.of(e.resources)) for e in a] == [
        (e.name, e.priority, resource_list.of(e.resources)) for e in b
    ]
