"""Deduct what a node keeps for processes outside Kubernetes. Source: behaviour/api 8.1.

A malformed annotation counts as no reservation; callers that want to report it read it themselves first.
"""

from collections.abc import Mapping

import msgspec

from koordinator.api import cpuset, quantity, resource_list, resources
from koordinator.api.annotations.node import NODE_RESERVATION, NodeReservation
from koordinator.api.cpuset import CPUSetError
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import Quantity
from koordinator.api.resource_list import Amounts

_TRIMMING_POLICIES = ("", "Default")
_KUBELET_RESOURCES = (resources.CPU, resources.MEMORY)


class ReservedCPUs(msgspec.Struct, frozen=True):
    """CPUs that no pod may be bound to: those of a CPU list (not checked here), or any `count`."""

    cpus: str = ""
    count: int = 0


def of_annotations(annotations: Mapping[str, str]) -> NodeReservation:
    """Return the node's reservation; nothing when absent or malformed."""
    try:
        return NODE_RESERVATION.read(annotations) or NodeReservation()
    except ProtocolError:
        return NodeReservation()


def amounts(reservation: NodeReservation) -> Amounts:
    """Return what is reserved of each resource; listed CPUs replace the amount of cpu.

    Nothing when the CPU list is malformed.
    """
    reserved = resource_list.of(reservation.resources)
    if reservation.reserved_cpus:
        try:
            cpus = cpuset.parse(reservation.reserved_cpus)
        except CPUSetError:
            return {}
        reserved[resources.CPU] = Quantity.of_value(len(cpus))
    return reserved


def reserved_cpus(reservation: NodeReservation) -> ReservedCPUs:
    """Return CPUs that binding must leave out, whatever the apply policy."""
    if reservation.reserved_cpus:
        return ReservedCPUs(cpus=reservation.reserved_cpus)
    return ReservedCPUs(count=max(quantity.value(reservation.resources.get(resources.CPU, 0)), 0))


def trim_allocatable(allocatable: Amounts, reservation: NodeReservation) -> Amounts:
    """Return what pods may request after the reservation: never below zero, no new resources.

    The same list when nothing is deducted. Batch amounts stay: the manager has deducted already.
    """
    reserved = amounts(reservation)
    if reservation.apply_policy not in _TRIMMING_POLICIES or resource_list.is_zero(reserved):
        return allocatable
    return {
        name: amount
        if name in resources.BATCH_RESOURCES or name not in reserved
        else max(amount - reserved[name], quantity.ZERO)
        for name, amount in allocatable.items()
    }


def kubelet_reserved(capacity: Amounts, allocatable: Amounts) -> Amounts:
    """Return what the kubelet keeps of cpu and memory: capacity − allocatable, never below zero."""
    zero = quantity.ZERO
    return {
        name: max(capacity.get(name, zero) - allocatable.get(name, zero), zero) for name in _KUBELET_RESOURCES
    }
