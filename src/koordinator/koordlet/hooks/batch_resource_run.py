"""Carries the limits of best-effort pods out. Source: behaviour/koordlet-act 16."""

from collections.abc import Sequence
from typing import Any

from koordinator.api import qos
from koordinator.api.qos import QoSClass
from koordinator.host.cgroup_knobs import Knob
from koordinator.koordlet.hooks import batch_resource, cpu_normalization_run
from koordinator.koordlet.hooks.batch_resource import BatchLimits, BatchRule
from koordinator.koordlet.hooks.contexts import ContainerContext, PodContext, Response
from koordinator.koordlet.hooks.hook import Hook, Rule
from koordinator.koordlet.hooks.registry import Level, Registry, by_pod_qos
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.view import Topic

_FILES = (Knob.CPU_SHARES, Knob.CPU_QUOTA, Knob.MEMORY_LIMIT)


class BatchResource(Hook):
    """Best-effort pods get the shares and limits of their batch resources."""

    name = "BatchResource"

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        topics = (Topic.NODE_SLO, Topic.NODE)
        self._rule = Rule(self.name, topics, self._parsed, BatchRule())

    def rules(self) -> Sequence[Rule[Any]]:
        return (self._rule,)

    def register(self, registry: Registry) -> None:
        registry.at_resource_stages(self.name, self.of_pod, self.of_container)
        for level, function in ((Level.POD, self.of_pod), (Level.CONTAINER, self.of_container)):
            registry.reconcile(
                level, _FILES, self.name, function, select=by_pod_qos, conditions=(QoSClass.BE,)
            )

    def of_pod(self, pod: PodContext) -> Response:
        """Shares and limits of a pod."""
        return _response(
            batch_resource.pod_limits(
                qos.of_labels(pod.labels), pod.extended, self._rule.value, pod.container_names
            )
        )

    def of_container(self, container: ContainerContext) -> Response:
        """Shares and limits of a container."""
        return _response(
            batch_resource.container_limits(
                qos.of_labels(container.pod.labels), container.extended, self._rule.value
            )
        )

    def _parsed(self) -> BatchRule | None:
        view = self.shared.view
        strategy = view.slo.resource_used_threshold_with_be if view.slo is not None else None
        old = self._rule.value.ratio
        return BatchRule(batch_resource.uses_quota(strategy), cpu_normalization_run.ratio_of(view, old))


def _response(limits: BatchLimits) -> Response:
    return Response(shares=limits.shares, quota_us=limits.quota_us, memory_bytes=limits.memory_bytes)
