"""`/validate-pod`: all rules for pods in their order; the first kind that is broken refuses (spec 02 §14.6)."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Self

import msgspec

from koordinator.api import quantity
from koordinator.api.core import ConfigMap, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.feature_gates import FeatureGates
from koordinator.cluster.informer import Informer, InformerFactory
from koordinator.manager.quota import pods as quota_pods
from koordinator.manager.quota.pods import PodQuotaRules
from koordinator.manager.webhooks import pod_label_rules, pod_rules
from koordinator.manager.webhooks.pod_label_rules import LabelRules
from koordinator.manager.webhooks.quota_topology import QuotaTopology
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, Verdict, denied

log = logging.getLogger(__name__)

PATH = "/validate-pod"

QuotaEvaluation = Callable[[Pod, Pod | None, bool], Awaitable[Verdict]]
"""Reserves a pod's request in its quota (spec 02 §18), or says why it cannot.

Arguments: the pod, the pod before an update, whether it is a dry run, which must not reserve.
"""


class PodChecks(msgspec.Struct, frozen=True, kw_only=True):
    """Which rules hold, by feature gates."""

    skip_sub_priority: bool = False  # ColocationProfileSkipValidatingPriority
    devices: bool = False  # ValidatePodDeviceResource
    label_rules: bool = False  # EnablePodEnhancedValidator
    quota: PodQuotaRules = PodQuotaRules()

    @classmethod
    def of(cls, gates: FeatureGates) -> Self:
        """The checks of a manager's gates."""
        return cls(
            skip_sub_priority=gates.is_on("ColocationProfileSkipValidatingPriority"),
            devices=gates.is_on("ValidatePodDeviceResource"),
            label_rules=gates.is_on("EnablePodEnhancedValidator"),
            quota=PodQuotaRules.of(gates),
        )


class PodValidatingHandler:
    """Checks pods at creation and update; everything it reads is cached."""

    def __init__(
        self,
        factory: InformerFactory,
        topology: QuotaTopology,
        checks: PodChecks,
        *,
        evaluate_quota: QuotaEvaluation | None = None,
        rules_namespace: str = pod_label_rules.CONFIG_NAMESPACE,
        rules_name: str = pod_label_rules.CONFIG_NAME,
    ) -> None:
        self._topology = topology
        self._checks = checks
        self._evaluate_quota = evaluate_quota
        self._label_rules = LabelRules()
        self._rules_name = rules_name
        if checks.label_rules:
            selector = f"metadata.name={rules_name}"
            maps: Informer[ConfigMap] = factory.informer(ConfigMap, rules_namespace, field_selector=selector)
            maps.add_handler(
                lambda found: self._on_rules(found, found.data),
                lambda _, found: self._on_rules(found, found.data),
                lambda found: self._on_rules(found, None),
            )

    def _on_rules(self, found: ConfigMap, data: dict[str, str] | None) -> None:
        if found.metadata.name != self._rules_name:
            return
        outcome = pod_label_rules.sync(self._label_rules, data)
        self._label_rules = outcome.rules
        if outcome.problem:
            log.warning("label rules not used", extra={"problem": outcome.problem})

    async def __call__(self, request: AdmissionRequest) -> Verdict:
        """Refusals have code 400; anything that is no creation or update of a pod passes."""
        if request.resource.resource != "pods" or request.sub_resource:
            return ALLOWED
        if request.operation not in ("CREATE", "UPDATE"):
            return ALLOWED
        try:
            pod = _pod(request.object, request)
            old = _pod(request.old_object, request) if request.operation == "UPDATE" else None
            problem = self._problem(pod, old)
            # Last, since it reserves: a pod that is refused anyway must not take from its quota.
            if not problem and self._evaluate_quota is not None:
                return await self._evaluate_quota(pod, old, bool(request.dry_run))
        except (msgspec.ValidationError, quantity.QuantityError) as error:
            return denied(f"Pod {request.namespace}/{request.name}: {error}")
        return denied(problem) if problem else ALLOWED

    def _problem(self, pod: Pod, old: Pod | None) -> str:
        """What is wrong with a pod by the first kind of rules that it breaks, empty when nothing is."""
        checks, metadata = self._checks, pod.metadata
        found = pod_rules.reserved_annotations(pod) or pod_rules.colocation(
            pod, old, skip_sub_priority=checks.skip_sub_priority
        )
        if found:
            return _words(found)
        verdict = quota_pods.check(self._topology.tree, pod, old, metadata.namespace, checks.quota)
        if not verdict.allowed:
            return verdict.message
        if checks.devices and (found := pod_rules.devices(pod)):
            return _words(found)
        return pod_label_rules.violation(self._label_rules, metadata.namespace, metadata.labels)


def _words(found: list[pod_rules.Violation]) -> str:
    messages = [violation.message for violation in found]
    return messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"


def _pod(body: dict[str, Any] | None, request: AdmissionRequest) -> Pod:
    pod = from_builtins(body or {}, Pod)
    if pod.metadata.namespace:
        return pod
    metadata = msgspec.structs.replace(pod.metadata, namespace=request.namespace)
    return msgspec.structs.replace(pod, metadata=metadata)
