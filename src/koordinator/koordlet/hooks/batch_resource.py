"""Batch resources as cgroup limits, since the kubelet sees neither CPU nor memory on best-effort pods.

Source: behaviour/koordlet-act 16.
"""

from collections.abc import Collection, Mapping

import msgspec

from koordinator.api import qos, quantity, resources
from koordinator.api.annotations.koordlet import ContainerResources
from koordinator.api.node_labels import NO_RATIO
from koordinator.api.qos import QoSClass
from koordinator.api.quantity import ResourceList
from koordinator.api.slo import ResourceThresholdStrategy
from koordinator.host import cgroup_knobs
from koordinator.host.cgroup_knobs import UNLIMITED, V1, Knob
from koordinator.koordlet.hooks import cpu_normalization_run
from koordinator.koordlet.hooks.contexts import (
    UNKNOWN,
    ContainerContext,
    GroupResources,
    HookResponse,
    PodContext,
)
from koordinator.koordlet.hooks.hook import Hook, HookRegistry, HookTools
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import cpu_burst, cpu_suppress
from koordinator.koordlet.view import Topic


class BatchRule(msgspec.Struct, frozen=True):
    """The rule whether best-effort pods have quotas of their own, and the node's CPU normalization ratio."""

    uses_quota: bool = True
    ratio: float = NO_RATIO
    capped_milli: Mapping[str, int] = {}
    """CPU of single pods that the closed loop caps, by UID."""


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
    cap_milli: int | None = None,
) -> GroupResources:
    """Limits of a pod's cgroup, from the batch resources of its containers; None or none known: left alone
    (`UNKNOWN`).

    `container_names` are all containers of the spec: one without batch resources makes the pod unlimited.
    `cap_milli` is what the closed loop leaves the pod, whatever its limit.
    """
    if qos_class is not QoSClass.BE or not extended:
        return UNKNOWN
    known = [extended.get(name, ContainerResources()) for name in {*extended, *container_names}]
    requests = [_amount(each.requests, resources.BATCH_CPU) for each in known]
    cpu_limits = [_amount(each.limits, resources.BATCH_CPU) for each in known]
    memory_limits = [_amount(each.limits, resources.BATCH_MEMORY) for each in known]
    return GroupResources(
        shares=cgroup_knobs.shares_of_milli(sum(max(request, 0) for request in requests)),
        quota_us=_capped_us(_quota_us(_total(cpu_limits), rule), cap_milli),
        memory_bytes=_total(memory_limits),
    )


def container_limits(
    qos_class: QoSClass, extended: ContainerResources | None, rule: BatchRule, cap_milli: int | None = None
) -> GroupResources:
    """Limits of a container's cgroup; left alone when nothing is known of its batch resources. `cap_milli` is that of
    its pod: on v1 no child may have more than its parent."""
    if qos_class is not QoSClass.BE or extended is None:
        return UNKNOWN
    memory = _amount(extended.limits, resources.BATCH_MEMORY)
    return GroupResources(
        shares=cgroup_knobs.shares_of_milli(_amount(extended.requests, resources.BATCH_CPU)),
        quota_us=_capped_us(_quota_us(_amount(extended.limits, resources.BATCH_CPU), rule), cap_milli),
        memory_bytes=memory if memory > 0 else UNLIMITED,
    )


def _quota_us(limit_milli: int, rule: BatchRule) -> int:
    if not rule.uses_quota:
        return UNLIMITED
    return cpu_burst.scaled_us(cgroup_knobs.quota_of_milli(limit_milli), rule.ratio)


def _capped_us(quota_us: int, cap_milli: int | None) -> int:
    """Return the smaller of a quota and a cap; `cap_milli` is time as measured, which no ratio of CPUs changes."""
    if cap_milli is None:
        return quota_us
    cap_us = cgroup_knobs.quota_of_milli(max(cap_milli, 1))
    return cap_us if quota_us == UNLIMITED else min(quota_us, cap_us)


def _amount(amounts: ResourceList, name: str) -> int:
    return quantity.value(amounts.get(name, 0))


def _total(limits: list[int]) -> int:
    return sum(limits) if all(limit > 0 for limit in limits) else UNLIMITED


_FILES = (Knob.CPU_SHARES, Knob.CPU_QUOTA, Knob.MEMORY_LIMIT)


class BatchResourceHook(Hook):
    """Best-effort pods get the shares and limits of their batch resources."""

    name = "BatchResource"

    def __init__(self, shared: Shared, tools: HookTools) -> None:
        super().__init__(shared, tools)
        topics = (Topic.NODE_SLO, Topic.ALLOWANCE)
        self._rule = self.rule(topics, self._parsed, BatchRule())
        self._ratio = cpu_normalization_run.ratio_rule(self)

    def register(self, registry: HookRegistry) -> None:
        registry.at_resource_stages(self.name, self.of_pod, self.of_container)
        registry.reconcile_resources(self.name, _FILES, self.of_pod, self.of_container, (QoSClass.BE,))

    def of_pod(self, pod: PodContext) -> HookResponse:
        """Shares and limits of a pod."""
        rule = self._in_force()
        cap_milli = rule.capped_milli.get(pod.uid)
        return _response(
            pod_limits(qos.of_labels(pod.labels), pod.extended, rule, pod.container_names, cap_milli)
        )

    def of_container(self, container: ContainerContext) -> HookResponse:
        """Shares and limits of a container."""
        pod, rule = container.pod, self._in_force()
        cap_milli = rule.capped_milli.get(pod.uid)
        return _response(container_limits(qos.of_labels(pod.labels), container.extended, rule, cap_milli))

    def _in_force(self) -> BatchRule:
        return msgspec.structs.replace(self._rule.value, ratio=self._ratio.value)

    def _parsed(self) -> BatchRule:
        view = self.shared.view
        strategy = view.slo.resource_used_threshold_with_be if view.slo is not None else None
        used = uses_quota(strategy)
        # On v1 the common quota may not be squeezed below a pod's: then that quota is what holds the pod back.
        may_cap = used or self.shared.host.cgroups.version != V1
        return BatchRule(uses_quota=used, capped_milli=view.allowance.capped_milli if may_cap else {})


def _response(limits: GroupResources) -> HookResponse:
    return HookResponse(shares=limits.shares, quota_us=limits.quota_us, memory_bytes=limits.memory_bytes)
