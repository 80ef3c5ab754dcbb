"""`/validate-pod-binding`: which users may bind pods, while schedulers are being exchanged (behaviour/manager 14.7)."""

import enum
import logging
from collections.abc import Callable
from typing import Self

import msgspec

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.manager.options import BindingAdmissionOptions
from koordinator.manager.parts import ManagerContext
from koordinator.manager.webhooks import table
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, AdmissionVerdict, denied

log = logging.getLogger(__name__)

PATH = table.VALIDATE_POD_BINDING
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
        """All but one decision let the binding pass."""
        return self is not BindingVerdict.DENIED


class BindingAdmissionRules(msgspec.Struct, frozen=True, kw_only=True):
    """The flags `--binding-admission-*`. Without user names, or without namespaces, nothing is checked."""

    user_names: tuple[str, ...] = ()
    """A user may bind when one of these is part of the name."""
    namespaces: tuple[str, ...] = ()
    exclude_namespaces: tuple[str, ...] = ("kube-system",)
    bypass_labels: tuple[str, ...] = (labels.BINDING_ADMISSION_BYPASS,)
    bypass_annotations: tuple[str, ...] = ()
    dry_run: bool = False

    @classmethod
    def of(cls, options: BindingAdmissionOptions) -> Self:
        """Return the rules of a manager's flags."""
        return cls(**{name: getattr(options, name) for name in cls.__struct_fields__})


def split(flag: str) -> tuple[str, ...]:
    """Return the entries of a comma-separated flag, trimmed, empty ones left out."""
    return tuple(entry for part in flag.split(",") if (entry := part.strip()))


def decide(
    rules: BindingAdmissionRules, user: str, namespace: str, find_pod: Callable[[], Pod | None]
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
        self._rules = BindingAdmissionRules.of(shared.options.binding_admission)
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
            log.warning("binding by a user who is not allowed to", extra=facts)
        return ALLOWED if decision.allowed else denied(DENIAL, 403)
