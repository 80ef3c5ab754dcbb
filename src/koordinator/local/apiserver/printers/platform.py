"""Rows of CustomResourceDefinitions, webhook configurations, API services, roles and ingress."""

from typing import Any

from koordinator.local.apiserver.printers.column import (
    AGE,
    NAME,
    NONE,
    UNSET,
    Json,
    PrintedColumn,
    Printer,
    age,
    field,
    integer,
    join,
    name_of,
    objects,
    selector_text,
    text,
    wide,
)


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
