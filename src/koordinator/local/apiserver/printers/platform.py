"""Rows of what holds for a whole cluster: CustomResourceDefinitions, webhook configurations, API services, roles,
ingress; disruption budgets, priority and runtime classes, leases and autoscalers."""

from typing import Any

from koordinator.local.apiserver.printers.column import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    UNSET,
    Json,
    PrintedColumn,
    Printer,
    age,
    aged,
    columns,
    count,
    field,
    integer,
    join,
    name_of,
    number,
    objects,
    selector_text,
    text,
    wide,
)


def _or_not_set(obj: Json, name: str) -> str:
    value = field(obj, "spec", name)
    return "N/A" if value is None else str(value)


def priority_class_row(obj: Json, now_s: float) -> list[Any]:
    return [
        name_of(obj),
        number(obj, "value"),
        bool(field(obj, "globalDefault")),
        age(obj, now_s),
        text(obj, "preemptionPolicy"),
    ]


def _metrics(obj: Json) -> str:
    wanted = []
    for metric in objects(obj, "spec", "metrics"):
        name, target = text(metric, "resource", "name"), field(metric, "resource", "target")
        share = field(target, "averageUtilization")
        goal = f"{share}%" if share is not None else text(target, "averageValue") or UNKNOWN
        wanted.append(f"{name}: {UNKNOWN}/{goal}" if name else f"{UNKNOWN}/{UNKNOWN}")
    return ", ".join(wanted) or NONE


def created_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), text(obj, "metadata", "creationTimestamp")]


def binding_row(obj: Json, now_s: float) -> list[Any]:
    subjects = objects(obj, "subjects")

    def names(kind: str) -> str:
        return ", ".join(_subject(subject) for subject in subjects if text(subject, "kind") == kind)

    role = _reference(field(obj, "roleRef"))
    return [name_of(obj), role, age(obj, now_s), names("User"), names("Group"), names("ServiceAccount")]


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


_CREATED = Printer((NAME, PrintedColumn("Created At", "date")), created_row)
_BINDING = Printer(
    columns(NAME, "Role", AGE, wide("Users"), wide("Groups"), wide("ServiceAccounts")), binding_row
)
_WEBHOOKS = aged((integer("Webhooks"), count("webhooks")))

PRINTERS = {
    ("policy", "PodDisruptionBudget"): aged(
        ("Min Available", lambda obj: _or_not_set(obj, "minAvailable")),
        ("Max Unavailable", lambda obj: _or_not_set(obj, "maxUnavailable")),
        (integer("Allowed Disruptions"), lambda obj: number(obj, "status", "disruptionsAllowed")),
    ),
    ("scheduling.k8s.io", "PriorityClass"): Printer(
        columns(NAME, integer("Value"), PrintedColumn("Global-Default", "boolean"), AGE, "PreemptionPolicy"),
        priority_class_row,
    ),
    ("coordination.k8s.io", "Lease"): aged(("Holder", "spec.holderIdentity")),
    ("node.k8s.io", "RuntimeClass"): aged(("Handler", "handler")),
    ("autoscaling", "HorizontalPodAutoscaler"): aged(
        ("Reference", lambda obj: _reference(field(obj, "spec", "scaleTargetRef"))),
        ("Targets", _metrics),
        ("MinPods", lambda obj: str(number(obj, "spec", "minReplicas") or 1)),
        (integer("MaxPods"), lambda obj: number(obj, "spec", "maxReplicas")),
        (integer("Replicas"), lambda obj: number(obj, "status", "currentReplicas")),
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _CREATED,
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): _WEBHOOKS,
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): _WEBHOOKS,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): aged(
        (integer("Validations"), count("spec", "validations")), ("ParamKind", _param_kind)
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
        ("Class", lambda obj: text(obj, "spec", "ingressClassName") or NONE),
        (
            "Hosts",
            lambda obj: join([text(rule, "host") or "*" for rule in objects(obj, "spec", "rules")], "*"),
        ),
        ("Address", _ingress_address),
        ("Ports", lambda obj: "80, 443" if objects(obj, "spec", "tls") else "80"),
    ),
    ("networking.k8s.io", "NetworkPolicy"): aged(
        ("Pod-Selector", lambda obj: selector_text(field(obj, "spec", "podSelector")))
    ),
}
