"""`/validate-pod`: all rules for pods in their order; the first kind that is broken refuses (behaviour/manager 14.6).

QoS class and priorities of a pod are fixed, except that a profile for pods that wait already may set them: what it
says, on a pod that it is for, before the pod has a node (`ProfileChanges`, behaviour/manager 15, gate
ColocationProfileController). Without this the two features would refuse each other.

`/validate-pod-binding` says which users may bind pods, while schedulers are being exchanged (behaviour/manager 14.7).
"""

import enum
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from koordinator.api import labels, quantity
from koordinator.api.core import Namespace, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.groups import ClusterColocationProfile
from koordinator.manager.options import BindingAdmissionOptions
from koordinator.manager.parts import ManagerContext
from koordinator.manager.profiles import colocation_profile, profile_matching
from koordinator.manager.profiles.colocation_profile import ProfileError
from koordinator.manager.webhooks import pod_mutating, pod_rules
from koordinator.manager.webhooks.pod_quotas import PodQuotas
from koordinator.manager.webhooks.pod_rules import LabelRulesSource
from koordinator.manager.webhooks.review import (
    ALLOWED,
    VALIDATE,
    AdmissionRequest,
    AdmissionVerdict,
    Steps,
    denied,
)

log = logging.getLogger(__name__)


RESERVED, COLOCATION, QUOTA = "ClusterReservation", "ClusterColocationProfile", "ElasticQuota"
DEVICES, LABEL_RULES, QUOTA_EVALUATION = "DeviceResource", "EnhancedValidation", "EvaluateQuota"
"""Steps, as the metric calls them."""


class PodValidatingHandler:
    """Checks pods at creation and update, out of caches."""

    def __init__(self, shared: ManagerContext, quotas: PodQuotas) -> None:
        gates = shared.gates
        self._quotas = quotas
        self._skip_sub_priority = gates.is_on("ColocationProfileSkipValidatingPriority")
        self._checks_devices = gates.is_on("ValidatePodDeviceResource")
        has_label_rules = gates.is_on("EnablePodEnhancedValidator")
        self._label_rules = LabelRulesSource(shared) if has_label_rules else None
        applies_profiles = gates.is_on("ColocationProfileController")
        self._profile_changes = ProfileChanges(shared) if applies_profiles else None
        self._durations = Steps(shared.metrics, VALIDATE, "pod")

    async def __call__(self, request: AdmissionRequest) -> AdmissionVerdict:
        """Refusals have code 400; anything that is no creation, update or resize of a pod passes."""
        if request.resource.resource != "pods" or request.sub_resource not in ("", "resize"):
            return ALLOWED
        if request.operation not in ("CREATE", "UPDATE"):
            return ALLOWED
        try:
            pod = _pod(request.object, request)
            old = _pod(request.old_object, request) if request.operation == "UPDATE" else None
            if old is not None and old.metadata.deletion_timestamp is not None:
                return ALLOWED  # a refusal would keep its finalizers, and with them the pod, for ever
        except msgspec.ValidationError as error:
            return denied(f"{pod_mutating.called(request)}: {error}")
        try:
            verdict = await self._verdict(pod, old, request)
        except quantity.QuantityError as error:
            return denied(f"{pod_mutating.called(request)}: {pod_rules.malformed_amount(pod) or error}")
        before = old.metadata.annotations if old is not None else {}
        warnings = pod_rules.pod_warnings(pod.metadata.annotations, before)
        if not (verdict.allowed and warnings):
            return verdict
        return msgspec.structs.replace(verdict, warnings=(*verdict.warnings, *warnings))

    async def _verdict(self, pod: Pod, old: Pod | None, request: AdmissionRequest) -> AdmissionVerdict:
        """Check a pod; the first kind of rules that it breaks refuses it."""
        durations, operation = self._durations, request.operation
        began_s = durations.start()
        for step, check in (
            (RESERVED, self._reserved),
            (COLOCATION, self._colocation),
            (QUOTA, self._quota),
            (DEVICES, self._devices),
        ):
            problem = check(pod, old)
            began_s = durations.done(operation, step, began_s, allowed=not problem)
            if problem:
                return denied(problem)
        if self._label_rules is not None:
            rules = await self._label_rules.fresh()
            problem = pod_rules.violation(rules, pod.metadata.namespace, pod.metadata.labels)
            began_s = durations.done(operation, LABEL_RULES, began_s, allowed=not problem)
            if problem:
                return denied(problem)
        # Last, since it reserves: a pod that is refused anyway must not take from its quota.
        verdict = await self._quotas.evaluate(pod, old, bool(request.dry_run))
        durations.done(operation, QUOTA_EVALUATION, began_s, allowed=verdict.allowed)
        return verdict

    def _reserved(self, pod: Pod, _: Pod | None) -> str:
        return _words(pod_rules.reserved_annotations(pod))

    def _colocation(self, pod: Pod, old: Pod | None) -> str:
        found = pod_rules.colocation(pod, old, skip_sub_priority=self._skip_sub_priority)
        if found and old is not None and self._profile_changes is not None:
            changed = [violation for violation in found if violation.rule in pod_rules.IMMUTABLE]
            if changed and self._profile_changes.explain(old, pod):
                found = [violation for violation in found if violation not in changed]
        return _words(found)

    def _quota(self, pod: Pod, old: Pod | None) -> str:
        return self._quotas.check(pod, old, pod.metadata.namespace).message

    def _devices(self, pod: Pod, _: Pod | None) -> str:
        return _words(pod_rules.devices(pod)) if self._checks_devices else ""


def _words(found: list[pod_rules.Violation]) -> str:
    messages = [violation.message for violation in found]
    if len(messages) <= 1:
        return messages[0] if messages else ""
    return f"[{', '.join(messages)}]"


def _pod(body: dict[str, Any] | None, request: AdmissionRequest) -> Pod:
    pod = from_builtins(body or {}, Pod)
    if pod.metadata.namespace:
        return pod
    metadata = msgspec.structs.replace(pod.metadata, namespace=request.namespace)
    return msgspec.structs.replace(pod, metadata=metadata)


FIXED = (labels.QOS_CLASS, labels.PRIORITY, labels.PRIORITY_CLASS)


class ProfileChanges:
    """Knows the profiles that the controller applies."""

    def __init__(self, shared: ManagerContext) -> None:
        self._by_default = shared.options.profile_controller.reconcile_by_default
        self._profiles = shared.factory.informer(ClusterColocationProfile)
        self._namespaces = shared.factory.informer(Namespace)

    def explain(self, old: Pod, new: Pod) -> bool:
        """Return whether one profile makes of `old` what `new` says in its fixed labels."""
        return (
            colocation_profile.waits(old)
            and old.spec.priority == new.spec.priority
            and any(self._makes(profile, old, new) for profile in self._profiles.objects.values())
        )

    def _makes(self, profile: ClusterColocationProfile, old: Pod, new: Pod) -> bool:
        if not colocation_profile.is_managed(profile, by_default=self._by_default):
            return False
        compiled = profile_matching.compile_profile(profile)
        namespace = self._namespaces.get(new.metadata.namespace)
        found = namespace.metadata.labels if namespace is not None else None
        if compiled.broken is not None or not colocation_profile.matches(
            compiled, old.metadata.labels, found
        ):
            return False
        before = {"metadata": {"labels": old.metadata.labels, "annotations": old.metadata.annotations}}
        try:
            wanted = colocation_profile.applied(before, compiled)["metadata"].get("labels") or {}
        except ProfileError:
            return False
        return all(wanted.get(key) == new.metadata.labels.get(key) for key in FIXED)


ALL_NAMESPACES = "*"
DENIAL = "binding denied: username is not in the allowed list"


class BindingVerdict(enum.StrEnum):
    """The decision on a binding; those that are counted have the metric's label as their value."""

    NOT_CHECKED = "not_checked"
    ALLOWED_USERNAME = "allowed_username"
    EXCLUDED_NAMESPACE = "excluded_ns"
    OUT_OF_SCOPE = "out_of_scope"
    POD_UNKNOWN = "pod_unknown"
    BYPASS_LABEL = "bypass_label"
    BYPASS_ANNOTATION = "bypass_annotation"
    DRY_RUN = "dry_run"
    DENIED = "denied"

    @property
    def allowed(self) -> bool:
        """Return whether the binding passes, as by all decisions but one."""
        return self is not BindingVerdict.DENIED


def decide(
    rules: BindingAdmissionOptions, user: str, namespace: str, find_pod: Callable[[], Pod | None]
) -> BindingVerdict:
    """Return whether a user may bind a pod of a namespace; the pod is looked up only when it matters."""
    if not rules.user_names:
        return BindingVerdict.NOT_CHECKED
    if any(name in user for name in rules.user_names):
        return BindingVerdict.ALLOWED_USERNAME
    if namespace in rules.exclude_namespaces:
        return BindingVerdict.EXCLUDED_NAMESPACE
    if ALL_NAMESPACES not in rules.namespaces and namespace not in rules.namespaces:
        return BindingVerdict.OUT_OF_SCOPE
    pod = find_pod()
    if pod is None:
        return BindingVerdict.POD_UNKNOWN
    if not pod.metadata.labels.keys().isdisjoint(rules.bypass_labels):
        return BindingVerdict.BYPASS_LABEL
    if not pod.metadata.annotations.keys().isdisjoint(rules.bypass_annotations):
        return BindingVerdict.BYPASS_ANNOTATION
    return BindingVerdict.DRY_RUN if rules.dry_run else BindingVerdict.DENIED


_NOT_COUNTED = (BindingVerdict.NOT_CHECKED, BindingVerdict.POD_UNKNOWN)
"""The reference's metric has no label for them."""


class PodBindingHandler:
    """Checks bindings while feature gate BindingAdmissionWebhook is on (else it is not served)."""

    def __init__(self, shared: ManagerContext) -> None:
        self._pods = shared.factory.informer(Pod)
        self._rules = shared.options.binding_admission
        self._decisions = shared.metrics.binding_decisions

    async def __call__(self, request: AdmissionRequest) -> AdmissionVerdict:
        """Anything that is no creation of a pod's binding passes."""
        is_binding = request.resource.resource == "pods" and request.sub_resource == "binding"
        if not is_binding or request.operation != "CREATE":
            return ALLOWED
        user = request.user_info.username
        decision = decide(
            self._rules,
            user,
            request.namespace,
            lambda: self._pods.get(request.name, request.namespace),
        )
        if decision not in _NOT_COUNTED:
            self._decisions.inc(decision.value)
        if decision in (BindingVerdict.DRY_RUN, BindingVerdict.DENIED):
            facts = {"user": user, "pod": f"{request.namespace}/{request.name}", "decision": decision.value}
            log.warning("binding by a user without permission", extra=facts)
        return ALLOWED if decision.allowed else denied(DENIAL, 403)
