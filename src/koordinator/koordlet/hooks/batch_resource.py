"""Batch resources as cgroup limits, since the kubelet sees neither CPU nor memory on best-effort pods.

Source: behaviour/koordlet-act 16.
"""

from collections.abc import Collection, Mapping

import msgspec

from koordinator.api import quantity, resources
from koordinator.api.annotations.extended_resource import ContainerResources
from koordinator.api.node_labels import NO_RATIO
from koordinator.api.qos import QoSClass
from koordinator.api.quantity import ResourceList
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.host import cgroup_units
from koordinator.host.cgroup_units import UNLIMITED
from koordinator.koordlet.qos import cpu_normalization, cpu_suppress


class BatchLimits(msgspec.Struct, frozen=True):
    """What a cgroup gets; None leaves the file alone, `UNLIMITED` takes a limit away."""

    shares: int | None = None
    quota_us: int | None = None
    memory_bytes: int | None = None


LEFT_ALONE = BatchLimits()


class BatchRule(msgspec.Struct, frozen=True):
    """Whether best-effort pods have quotas of their own, and the node's CPU normalization ratio."""

    uses_quota: bool = True
    ratio: float = NO_RATIO


def uses_quota(strategy: ResourceThresholdStrategy | None) -> bool:
    """Not while their common quota is squeezed: no child may have more than its parent."""
    if strategy is None or not strategy.enable:
        return True
    return strategy.cpu_suppress_policy != cpu_suppress.CFS_QUOTA_POLICY


def pod_limits(
    qos_class: QoSClass,
    extended: Mapping[str, ContainerResources] | None,
    rule: BatchRule,
    container_names: Collection[str] = (),
) -> BatchLimits:
    """Limits of a pod's cgroup, from the batch resources of its containers; None or none known: left alone.

    `container_names` are all containers of the spec: one without batch resources makes the pod unlimited.
    """
    if qos_class is not QoSClass.BE or not extended:
        return LEFT_ALONE
    known = [extended.get(name, ContainerResources()) for name in {*extended, *container_names}]
    requests = [_amount(each.requests, resources.BATCH_CPU) for each in known]
    cpu_limits = [_amount(each.limits, resources.BATCH_CPU) for each in known]
    memory_limits = [_amount(each.limits, resources.BATCH_MEMORY) for each in known]
    return BatchLimits(
        shares=cgroup_units.shares_of_milli(sum(max(request, 0) for request in requests)),
        quota_us=_quota_us(_total(cpu_limits), rule),
        memory_bytes=_total(memory_limits),
    )


def container_limits(
    qos_class: QoSClass, extended: ContainerResources | None, rule: BatchRule
) -> BatchLimits:
    """Limits of a container's cgroup; left alone when nothing is known of its batch resources."""
    if qos_class is not QoSClass.BE or extended is None:
        return LEFT_ALONE
    memory = _amount(extended.limits, resources.BATCH_MEMORY)
    return BatchLimits(
        shares=cgroup_units.shares_of_milli(_amount(extended.requests, resources.BATCH_CPU)),
        quota_us=_quota_us(_amount(extended.limits, resources.BATCH_CPU), rule),
        memory_bytes=memory if memory > 0 else UNLIMITED,
    )


def _quota_us(limit_milli: int, rule: BatchRule) -> int:
    if not rule.uses_quota:
        return UNLIMITED
    return cpu_normalization.scaled_us(cgroup_units.quota_of_milli(limit_milli), rule.ratio)


def _amount(amounts: ResourceList, name: str) -> int:
    return quantity.value(amounts.get(name, 0))


def _total(limits: list[int]) -> int:
    return sum(limits) if all(limit > 0 for limit in limits) else UNLIMITED
