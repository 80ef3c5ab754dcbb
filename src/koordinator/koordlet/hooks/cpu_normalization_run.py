"""Carries CPU normalization out, and takes it back when the node loses its ratio. Source: behaviour/koordlet-act 17.

CPU burst writes the same files. Both start from the normalized limit, and a quota that burst has raised within its
own bounds is left to it.
"""

from collections.abc import Callable

import msgspec

from koordinator.api import node_labels
from koordinator.api.node_labels import NO_RATIO
from koordinator.api.qos import QoSClass
from koordinator.api.slo import CPUBurstStrategy
from koordinator.host.cgroup_knobs import Knob
from koordinator.koordlet.hooks.contexts import ContainerContext, HookResponse, PodContext
from koordinator.koordlet.hooks.hook import Hook, HookRegistry, HookRule, HookTools
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos import cpu_burst
from koordinator.koordlet.view import Topic

_SHARING = (QoSClass.LS, QoSClass.NONE)
_RAISING_POLICIES = ("auto", "cfsQuotaBurstOnly")
_GIVEN_MAX = 8
"""Answers that are remembered for a quota: one for each ratio that the node had."""
_PLAIN = 1.0
"""The ratio under which every pod gets the quota of its limit."""


def ratio_rule(hook: Hook, changed: Callable[[], None] = lambda: None) -> HookRule[float]:
    """Return the rule of a hook that follows the node's ratio: one that is malformed holds nothing else back."""

    def parsed() -> float | None:
        """Return the ratio, the old one where the difference is not worth it. Raises: ProtocolError."""
        node = hook.shared.view.node
        if node is None:
            return None
        new = node_labels.cpu_normalization_ratio(node.metadata.annotations, f"Node {node.metadata.name}")
        return cpu_burst.next_ratio(rule.value, new)

    rule = hook.rule((Topic.NODE,), parsed, NO_RATIO, changed)
    return rule


class CPUNormalizationHook(Hook):
    """Quotas of pods that share CPUs follow the speed of the CPUs."""

    name = "CPUNormalization"

    def __init__(self, shared: Shared, tools: HookTools) -> None:
        super().__init__(shared, tools)
        self._ratio = ratio_rule(self, self._changed)
        self._burst = self.rule((Topic.NODE_SLO,), self._parsed, None)
        """The settings by which CPU burst raises quotas; None where it does not."""
        self._has_burst = shared.gates.is_on("CPUBurst")
        self._is_growing_back = bool(shared.executor.changed_by(self.name))
        """Quotas that were made smaller, perhaps before a restart, are plain again after the next refresh."""
        self._given_us: dict[tuple[str, str], tuple[int, tuple[int, ...]]] = {}
        """UID of the pod and name of the container → quota of its spec, and what was answered for that, last last."""

    def register(self, registry: HookRegistry) -> None:
        registry.at_resource_stages(self.name, self.of_pod, self.of_told)
        registry.reconcile_resources(self.name, (Knob.CPU_QUOTA,), self.of_pod, self.of_container, _SHARING)

    def of_pod(self, pod: PodContext) -> HookResponse:
        """Quota of a pod."""
        return self._answer(pod, pod.current.quota_us)

    def of_container(self, container: ContainerContext) -> HookResponse:
        """Quota of a container."""
        plain_us = container.current.quota_us
        found = self._answer(container.pod, plain_us)
        if plain_us is not None and found.quota_us is not None:
            key = container.pod.uid, container.name
            before_us, given_us = self._given_us.get(key, (plain_us, ()))
            kept_us = [each for each in given_us if before_us == plain_us and each != found.quota_us]
            self._given_us[key] = plain_us, (*kept_us[1 - _GIVEN_MAX :], found.quota_us)
        return found

    def of_told(self, container: ContainerContext) -> HookResponse:
        """Quota of a container as a runtime tells of it. The runtime proxy remembers what it was answered, and
        repeats that with whatever else a kubelet changes: it is not to be made smaller again. A resize to just that
        number is put right by the reconciler."""
        plain_us, given_us = self._given_us.get((container.pod.uid, container.name), (None, ()))
        if container.current.quota_us in given_us:
            current = msgspec.structs.replace(container.current, quota_us=plain_us)
            container = msgspec.structs.replace(container, current=current)
        return self.of_container(container)

    def on_pods(self) -> None:
        pods = self.shared.view.pods
        self._given_us = {key: each for key, each in self._given_us.items() if key[0] in pods}
        if self._is_growing_back and self._ratio.value == NO_RATIO and self.shared.view.node is not None:
            self._is_growing_back = False
            self.shared.executor.restore(self.name)
            self.invalidate()

    def _answer(self, pod: PodContext, spec_us: int | None) -> HookResponse:
        ratio = self._ratio.value
        if ratio == NO_RATIO and self._is_growing_back:
            ratio = _PLAIN
        quota_us = cpu_burst.quota_us(pod.labels, pod.annotations, ratio, spec_us)
        if quota_us is None:
            return HookResponse()
        return HookResponse(quota_us=quota_us, quota_us_max=self._raised_us(pod, quota_us))

    def _raised_us(self, pod: PodContext, quota_us: int) -> int | None:
        """Return how far burst may have raised a quota."""
        node = self._burst.value
        if node is None:
            return None
        settings = cpu_burst.settings_of(node, pod.annotations)
        if settings.policy not in _RAISING_POLICIES:
            return None
        return quota_us * max(settings.cfs_quota_burst_percent or 0, 100) // 100

    def _parsed(self) -> CPUBurstStrategy | None:
        slo = self.shared.view.slo
        return slo.cpu_burst_strategy if slo is not None and self._has_burst else None

    def _changed(self) -> None:
        self._is_growing_back = bool(self.shared.executor.changed_by(self.name))
