"""Rows of what holds for a whole cluster: CustomResourceDefinitions, webhook configurations, API services, roles,
ingress; disruption budgets, priority and runtime classes, leases and autoscalers."""

from collections.abc import Callable
from typing import Any

from koordinator.local.apiserver.printers.column import (
    AGED,
    NAMED,
    NONE,
    UNKNOWN,
    UNSET,
    Json,
    PrintedColumn,
    aged,
    count,
    field,
    figure,
    given,
    integer,
    join,
    number,
    objects,
    selector_text,
    table,
    text,
    wide,
)


def _or_not_set(name: str) -> Callable[[Json], str]:
    def cell(obj: Json) -> str:
        value = field(obj, "spec", name)
        return "N/A" if value is None else str(value)

    return cell


def _metrics(obj: Json) -> str:
    wanted = []
    for metric in objects(obj, "spec", "metrics"):
        name, target = text(metric, "resource", "name"), field(metric, "resource", "target")
        share = field(target, "averageUtilization")
        goal = f"{share}%" if share is not None else text(target, "averageValue") or UNKNOWN
        wanted.append(f"{name}: {UNKNOWN}/{goal}" if name else f"{UNKNOWN}/{UNKNOWN}")
    return ", ".join(wanted) or NONE


def _subjects(kind: str) -> Callable[[Json], str]:
    return lambda obj: ", ".join(
        _subject(subject) for subject in objects(obj, "subjects") if text(subject, "kind") == kind
    )


def _reference(target: Any) -> str:
    return f"{text(target, 'kind')}/{text(target, 'name')}"


def _subject(subject: Json) -> str:
    namespace = text(subject, "namespace")
    return f"{namespace}/{text(subject, 'name')}" if namespace else text(subject, "name")


def _service(obj: Json) -> str:
    service = field(obj, "spec", "service")
    return f"{text(service, 'namespace')}/{text(service, 'name')}" if service else "Local"


def _available(obj: Json) -> str:
    conditions = objects(obj, "status", "conditions")
    found = [text(item, "status") for item in conditions if item.get("type") == "Available"]
    return found[0] if found else "Unknown"


def _ingress_address(obj: Json) -> str:
    given = [text(i, "ip") or text(i, "hostname") for i in objects(obj, "status", "loadBalancer", "ingress")]
    return join(given, "")


def _param_kind(obj: Json) -> str:
    kind = field(obj, "spec", "paramKind")
    return f"{text(kind, 'apiVersion')}/{text(kind, 'kind')}" if kind else UNSET


def _param_ref(obj: Json) -> str:
    ref = field(obj, "spec", "paramRef")
    name = text(ref, "name")
    return (f"{text(ref, 'namespace')}/{name}" if text(ref, "namespace") else name or "*") if ref else UNSET


def _parameters(obj: Json) -> str:
    ref = field(obj, "spec", "parameters")
    group = text(ref, "apiGroup")
    kind = f"{text(ref, 'kind')}.{group}" if group else text(ref, "kind")
    return f"{kind}/{text(ref, 'name')}" if ref else NONE


_CREATED = table(NAMED, (PrintedColumn("Created At", "date"), "metadata.creationTimestamp"))
_BINDING = table(
    NAMED,
    ("Role", lambda obj: _reference(field(obj, "roleRef"))),
    AGED,
    (wide("Users"), _subjects("User")),
    (wide("Groups"), _subjects("Group")),
    (wide("ServiceAccounts"), _subjects("ServiceAccount")),
)
_WEBHOOKS = aged((integer("Webhooks"), count("webhooks")))

PRINTERS = {
    ("policy", "PodDisruptionBudget"): aged(
        ("Min Available", _or_not_set("minAvailable")),
        ("Max Unavailable", _or_not_set("maxUnavailable")),
        (integer("Allowed Disruptions"), figure("status.disruptionsAllowed")),
    ),
    ("scheduling.k8s.io", "PriorityClass"): table(
        NAMED,
        (integer("Value"), figure("value")),
        (PrintedColumn("Global-Default", "boolean"), lambda obj: bool(field(obj, "globalDefault"))),
        AGED,
        ("PreemptionPolicy", "preemptionPolicy"),
    ),
    ("coordination.k8s.io", "Lease"): aged(("Holder", "spec.holderIdentity")),
    ("node.k8s.io", "RuntimeClass"): aged(("Handler", "handler")),
    ("autoscaling", "HorizontalPodAutoscaler"): aged(
        ("Reference", lambda obj: _reference(field(obj, "spec", "scaleTargetRef"))),
        ("Targets", _metrics),
        ("MinPods", lambda obj: str(number(obj, "spec", "minReplicas") or 1)),
        ("MaxPods", figure("spec.maxReplicas")),
        ("Replicas", figure("status.currentReplicas")),
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _CREATED,
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): _WEBHOOKS,
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): _WEBHOOKS,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): aged(
        (integer("Validations"), count("spec.validations")), ("ParamKind", _param_kind)
    ),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): aged(
        ("PolicyName", "spec.policyName"), ("ParamRef", _param_ref)
    ),
    ("rbac.authorization.k8s.io", "Role"): _CREATED,
    ("rbac.authorization.k8s.io", "ClusterRole"): _CREATED,
    ("rbac.authorization.k8s.io", "RoleBinding"): _BINDING,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _BINDING,
    ("apiregistration.k8s.io", "APIService"): aged(("Service", _service), ("Available", _available)),
    ("networking.k8s.io", "Ingress"): aged(
        ("Class", given("spec.ingressClassName", NONE)),
        (
            "Hosts",
            lambda obj: join([text(rule, "host") or "*" for rule in objects(obj, "spec", "rules")], "*"),
        ),
        ("Address", _ingress_address),
        ("Ports", lambda obj: "80, 443" if objects(obj, "spec", "tls") else "80"),
    ),
    ("networking.k8s.io", "IngressClass"): aged(
        ("Controller", "spec.controller"), ("Parameters", _parameters)
    ),
    ("networking.k8s.io", "NetworkPolicy"): aged(
        ("Pod-Selector", lambda obj: selector_text(field(obj, "spec", "podSelector")))
    ),
}
