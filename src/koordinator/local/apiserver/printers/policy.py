"""Rows of disruption budgets, priority and runtime classes, leases and autoscalers."""

from typing import Any

from koordinator.local.apiserver.printers.column import (
    AGE,
    NAME,
    UNKNOWN,
    Json,
    PrintedColumn,
    Printer,
    age,
    field,
    integer,
    name_of,
    number,
    objects,
    text,
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
}
