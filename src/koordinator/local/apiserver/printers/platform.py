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

_NOT_SET = "N/A"


def budget_row(obj: Json, now_s: float) -> list[Any]:
    spec = field(obj, "spec")
    available, unavailable = field(spec, "minAvailable"), field(spec, "maxUnavailable")
    return [
        name_of(obj),
        _NOT_SET if available is None else str(available),
        _NOT_SET if unavailable is None else str(unavailable),
        number(obj, "status", "disruptionsAllowed"),
        age(obj, now_s),
    ]


def priority_class_row(obj: Json, now_s: float) -> list[Any]:
    return [
        name_of(obj),
        number(obj, "value"),
        bool(field(obj, "globalDefault")),
        age(obj, now_s),
        text(obj, "preemptionPolicy"),
    ]


def lease_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), text(obj, "spec", "holderIdentity"), age(obj, now_s)]


def runtime_class_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), text(obj, "handler"), age(obj, now_s)]


def autoscaler_row(obj: Json, now_s: float) -> list[Any]:
    spec, target = field(obj, "spec"), field(obj, "spec", "scaleTargetRef")
    return [
        name_of(obj),
        f"{text(target, 'kind')}/{text(target, 'name')}",
        _metrics(obj),
        str(number(spec, "minReplicas") or 1),
        number(spec, "maxReplicas"),
        number(obj, "status", "currentReplicas"),
        age(obj, now_s),
    ]


def _metrics(obj: Json) -> str:
    wanted = []
    for metric in objects(obj, "spec", "metrics"):
        name, target = text(metric, "resource", "name"), field(metric, "resource", "target")
        share = field(target, "averageUtilization")
        goal = f"{share}%" if share is not None else text(target, "averageValue") or UNKNOWN
        wanted.append(f"{name}: {UNKNOWN}/{goal}" if name else f"{UNKNOWN}/{UNKNOWN}")
    return ", ".join(wanted) or "<none>"


def definition_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), text(obj, "metadata", "creationTimestamp")]


def webhooks_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), len(objects(obj, "webhooks")), age(obj, now_s)]


def role_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), text(obj, "metadata", "creationTimestamp")]


def binding_row(obj: Json, now_s: float) -> list[Any]:
    subjects = objects(obj, "subjects")

    def names(kind: str) -> str:
        return ", ".join(_subject(subject) for subject in subjects if text(subject, "kind") == kind)

    role = f"{text(obj, 'roleRef', 'kind')}/{text(obj, 'roleRef', 'name')}"
    return [name_of(obj), role, age(obj, now_s), names("User"), names("Group"), names("ServiceAccount")]


def _subject(subject: Json) -> str:
    namespace = text(subject, "namespace")
    return f"{namespace}/{text(subject, 'name')}" if namespace else text(subject, "name")


def api_service_row(obj: Json, now_s: float) -> list[Any]:
    service = field(obj, "spec", "service")
    where = f"{text(service, 'namespace')}/{text(service, 'name')}" if service else "Local"
    available = [
        text(item, "status")
        for item in objects(obj, "status", "conditions")
        if item.get("type") == "Available"
    ]
    return [name_of(obj), where, available[0] if available else "Unknown", age(obj, now_s)]


def ingress_row(obj: Json, now_s: float) -> list[Any]:
    spec = field(obj, "spec")
    hosts = [text(rule, "host") or "*" for rule in objects(spec, "rules")]
    given = [text(i, "ip") or text(i, "hostname") for i in objects(obj, "status", "loadBalancer", "ingress")]
    ports = "80, 443" if objects(spec, "tls") else "80"
    return [
        name_of(obj),
        text(spec, "ingressClassName") or NONE,
        join(hosts, "*"),
        join(given, ""),
        ports,
        age(obj, now_s),
    ]


def network_policy_row(obj: Json, now_s: float) -> list[Any]:
    return [name_of(obj), selector_text(field(obj, "spec", "podSelector")), age(obj, now_s)]


def policy_row(obj: Json, now_s: float) -> list[Any]:
    spec = field(obj, "spec")
    kind = field(spec, "paramKind")
    shown = f"{text(kind, 'apiVersion')}/{text(kind, 'kind')}" if kind else UNSET
    return [name_of(obj), len(objects(spec, "validations")), shown, age(obj, now_s)]


def policy_binding_row(obj: Json, now_s: float) -> list[Any]:
    spec = field(obj, "spec")
    ref = field(spec, "paramRef")
    name = text(ref, "name")
    shown = (f"{text(ref, 'namespace')}/{name}" if text(ref, "namespace") else name or "*") if ref else UNSET
    return [name_of(obj), text(spec, "policyName"), shown, age(obj, now_s)]


_CREATED = PrintedColumn("Created At", "date")
_BINDING = (NAME, PrintedColumn("Role"), AGE, wide("Users"), wide("Groups"), wide("ServiceAccounts"))
_WEBHOOKS = Printer((NAME, integer("Webhooks"), AGE), webhooks_row)

PRINTERS = {
    ("policy", "PodDisruptionBudget"): Printer(
        (
            NAME,
            PrintedColumn("Min Available"),
            PrintedColumn("Max Unavailable"),
            integer("Allowed Disruptions"),
            AGE,
        ),
        budget_row,
    ),
    ("scheduling.k8s.io", "PriorityClass"): Printer(
        (
            NAME,
            integer("Value"),
            PrintedColumn("Global-Default", "boolean"),
            AGE,
            PrintedColumn("PreemptionPolicy"),
        ),
        priority_class_row,
    ),
    ("coordination.k8s.io", "Lease"): Printer((NAME, PrintedColumn("Holder"), AGE), lease_row),
    ("node.k8s.io", "RuntimeClass"): Printer((NAME, PrintedColumn("Handler"), AGE), runtime_class_row),
    ("autoscaling", "HorizontalPodAutoscaler"): Printer(
        (
            NAME,
            PrintedColumn("Reference"),
            PrintedColumn("Targets"),
            PrintedColumn("MinPods"),
            integer("MaxPods"),
            integer("Replicas"),
            AGE,
        ),
        autoscaler_row,
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): Printer((NAME, _CREATED), definition_row),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): _WEBHOOKS,
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): _WEBHOOKS,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): Printer(
        (NAME, integer("Validations"), PrintedColumn("ParamKind"), AGE), policy_row
    ),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): Printer(
        (NAME, PrintedColumn("PolicyName"), PrintedColumn("ParamRef"), AGE), policy_binding_row
    ),
    ("rbac.authorization.k8s.io", "Role"): Printer((NAME, _CREATED), role_row),
    ("rbac.authorization.k8s.io", "ClusterRole"): Printer((NAME, _CREATED), role_row),
    ("rbac.authorization.k8s.io", "RoleBinding"): Printer(_BINDING, binding_row),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): Printer(_BINDING, binding_row),
    ("apiregistration.k8s.io", "APIService"): Printer(
        (NAME, PrintedColumn("Service"), PrintedColumn("Available"), AGE), api_service_row
    ),
    ("networking.k8s.io", "Ingress"): Printer(
        (
            NAME,
            PrintedColumn("Class"),
            PrintedColumn("Hosts"),
            PrintedColumn("Address"),
            PrintedColumn("Ports"),
            AGE,
        ),
        ingress_row,
    ),
    ("networking.k8s.io", "NetworkPolicy"): Printer(
        (NAME, PrintedColumn("Pod-Selector"), AGE), network_policy_row
    ),
}
