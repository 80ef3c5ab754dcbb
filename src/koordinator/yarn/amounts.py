"""The two views of one batch pool, the units of both sides, and what Kubernetes objects say about YARN. Pure.

Source: behaviour/yarn 1.1, 2 and 3.4.
"""

import enum

import msgspec

from koordinator.api import quantity, resource_list, resources
from koordinator.api.annotations import node as node_annotations
from koordinator.api.annotations.node import ThirdPartyAllocation, ThirdPartyAllocations
from koordinator.api.errors import ProtocolError
from koordinator.api.priority import PriorityClass
from koordinator.api.quantity import Family, ResourceList

MILLI = 1_000
MEBIBYTE = 1 << 20
MEGABYTE = 10**6
VCORES_MAX = 2**31 - 1
"""YARN's field has 32 bits; its memory has 64."""


class Rounding(enum.Enum):
    """The rounding of batch amounts to vcores and MB."""

    EXACT = "exact"  # never promises what is not there
    REFERENCE = "reference"  # as the Go operator: up, and 4.86 % too much memory


class BatchAmount(msgspec.Struct, frozen=True):
    """An amount of batch resources."""

    cpu_milli: int = 0
    memory_bytes: int = 0


class YarnResource(msgspec.Struct, frozen=True):
    """An amount as YARN counts it; `memory_mb` in mebibytes."""

    vcores: int = 0
    memory_mb: int = 0


def view_total(origin: BatchAmount, taken_by_others: BatchAmount) -> BatchAmount:
    """Return what one scheduler may have in all: the pool without what the other one has given out.

    With `origin` O, K requested by Kubernetes pods and Y used by YARN: max(O − Y, 0) for Kubernetes, max(O − K, 0)
    for YARN.
    """
    return BatchAmount(
        max(origin.cpu_milli - taken_by_others.cpu_milli, 0),
        max(origin.memory_bytes - taken_by_others.memory_bytes, 0),
    )


def overbooked(origin: BatchAmount, requested: BatchAmount, used: BatchAmount) -> BatchAmount:
    """Return by how much both schedulers together have given out more than the pool."""
    return BatchAmount(
        max(requested.cpu_milli + used.cpu_milli - origin.cpu_milli, 0),
        max(requested.memory_bytes + used.memory_bytes - origin.memory_bytes, 0),
    )


def to_yarn(batch: BatchAmount, rounding: Rounding) -> YarnResource:
    """Return the node's total in YARN's units."""
    if rounding is Rounding.EXACT:
        return YarnResource(min(batch.cpu_milli // MILLI, VCORES_MAX), batch.memory_bytes // MEBIBYTE)
    return YarnResource(min(-(-batch.cpu_milli // MILLI), VCORES_MAX), -(-batch.memory_bytes // MEGABYTE))


def from_batch(batch: BatchAmount) -> YarnResource:
    """Return a recorded amount in YARN's units, rounded up: what is held must not shrink on the way."""
    return YarnResource(-(-batch.cpu_milli // MILLI), -(-batch.memory_bytes // MEBIBYTE))


def to_batch(used: YarnResource) -> BatchAmount:
    """Return what YARN uses in the units of Kubernetes; always exact."""
    return BatchAmount(used.vcores * MILLI, used.memory_mb * MEBIBYTE)


def larger(one: BatchAmount, other: BatchAmount) -> BatchAmount:
    """Return the larger amount of each resource."""
    return BatchAmount(max(one.cpu_milli, other.cpu_milli), max(one.memory_bytes, other.memory_bytes))


def larger_yarn(one: YarnResource, other: YarnResource) -> YarnResource:
    """Return the larger amount of each resource."""
    return YarnResource(max(one.vcores, other.vcores), max(one.memory_mb, other.memory_mb))


COMPONENT_LABEL = "app.kubernetes.io/component"
NODE_MANAGER = "node-manager"
NODE_ID_ANNOTATION = "yarn.hadoop.apache.org/node-id"
CLUSTER_ID_ANNOTATION = "yarn.hadoop.apache.org/cluster-id"
DEFAULT_CLUSTER = "__default_yarn_cluster__"
ALLOCATION_NAME = "hadoop-yarn"
"""The operator's entry among the third-party allocations of a node."""


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


def with_allocation(
    existing: list[ThirdPartyAllocation], ours: ThirdPartyAllocation
) -> list[ThirdPartyAllocation]:
    """Return the entries with ours in place of the first of its name; further ones, made by hand, are dropped."""
    at = next((i for i, each in enumerate(existing) if each.name == ours.name), len(existing))
    others = [each for each in existing[at + 1 :] if each.name != ours.name]
    return [*existing[:at], ours, *others]


def recorded(text: str | None) -> BatchAmount | None:
    """Return what our entry of an annotation's text takes off the batch pool, None when there is none (or none that can
    be read). Made twice by hand it counts twice, and not at all for another class: so koord-manager reads it."""
    ours = [each for each in read(text) if each.name == ALLOCATION_NAME]
    if not ours:
        return None
    counted = [each.resources for each in ours if each.priority == PriorityClass.BATCH.value]
    try:
        return BatchAmount(
            *(
                sum(quantity.value(listed.get(name, 0)) for listed in counted)
                for name in resources.BATCH_RESOURCES
            )
        )
    except quantity.QuantityError:
        return None


def new_text(text: str | None, used: BatchAmount) -> str | None:
    """Return what the annotation must become, None when it already says so."""
    existing = read(text)
    wanted = with_allocation(existing, entry(used))
    return None if _same(existing, wanted) else _CODEC.encode(ThirdPartyAllocations(allocations=wanted))


def _same(a: list[ThirdPartyAllocation], b: list[ThirdPartyAllocation]) -> bool:
    """Equality by amounts, not by their texts."""
    return [(e.name, e.priority, resource_list.of(e.resources)) for e in a] == [
        (e.name, e.priority, resource_list.of(e.resources)) for e in b
    ]
