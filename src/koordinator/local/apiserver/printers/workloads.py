"""Rows of Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, CronJobs and autoscalers."""

from typing import Any

from koordinator import clock
from koordinator.local.apiserver.printers.column import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    Json,
    PrintedColumn,
    Printer,
    age,
    containers_text,
    duration,
    field,
    integer,
    labels_text,
    name_of,
    number,
    objects,
    selector_text,
    since,
    text,
    wide,
)

_WIDE = (wide("Containers"), wide("Images"), wide("Selector"))


def _wide_cells(obj: Json) -> list[Any]:
    return [
        *containers_text(field(obj, "spec", "template", "spec")),
        selector_text(field(obj, "spec", "selector")),
    ]


def _replicas(obj: Json) -> int:
    wanted = field(obj, "spec", "replicas")
    return wanted if isinstance(wanted, int) else 1


def deployment_row(obj: Json, now_s: float) -> list[Any]:
    status = field(obj, "status")
    ready = f"{number(status, 'readyReplicas')}/{_replicas(obj)}"
    counts = [number(status, "updatedReplicas"), number(status, "availableReplicas")]
    return [name_of(obj), ready, *counts, age(obj, now_s), *_wide_cells(obj)]


def replica_set_row(obj: Json, now_s: float) -> list[Any]:
    status = field(obj, "status")
    counts = [_replicas(obj), number(status, "replicas"), number(status, "readyReplicas")]
    return [name_of(obj), *counts, age(obj, now_s), *_wide_cells(obj)]


def replication_controller_row(obj: Json, now_s: float) -> list[Any]:
    row = replica_set_row(obj, now_s)
    return [*row[:-1], labels_text(field(obj, "spec", "selector"))]


def stateful_set_row(obj: Json, now_s: float) -> list[Any]:
    ready = f"{number(obj, 'status', 'readyReplicas')}/{_replicas(obj)}"
    return [name_of(obj), ready, age(obj, now_s), *_wide_cells(obj)[:2]]


def daemon_set_row(obj: Json, now_s: float) -> list[Any]:
    status = field(obj, "status")
    counts = [
        number(status, key)
        for key in (
            "desiredNumberScheduled",
            "currentNumberScheduled",
            "numberReady",
            "updatedNumberScheduled",
            "numberAvailable",
        )
    ]
    selector = labels_text(field(obj, "spec", "template", "spec", "nodeSelector"))
    return [name_of(obj), *counts, selector, age(obj, now_s), *_wide_cells(obj)]


def job_row(obj: Json, now_s: float) -> list[Any]:
    completions = field(obj, "spec", "completions")
    parallelism = number(obj, "spec", "parallelism")
    done = number(obj, "status", "succeeded")
    if completions is not None:
        finished = f"{done}/{completions}"
    else:
        finished = f"{done}/1 of {parallelism}" if parallelism > 1 else f"{done}/1"
    return [
        name_of(obj),
        _job_status(obj),
        finished,
        _job_duration(obj, now_s),
        age(obj, now_s),
        *_wide_cells(obj),
    ]


def _job_status(obj: Json) -> str:
    holding = {
        text(item, "type") for item in objects(obj, "status", "conditions") if item.get("status") == "True"
    }
    if "Complete" in holding:
        return "Complete"
    if "Failed" in holding:
        return "Failed"
    if field(obj, "metadata", "deletionTimestamp"):
        return "Terminating"
    for kind in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if kind in holding:
            return kind
    return "Running"


def _job_duration(obj: Json, now_s: float) -> str:
    start, end = text(obj, "status", "startTime"), text(obj, "status", "completionTime")
    if not start:
        return ""
    try:
        end_s = clock.parse_rfc3339(end) if end else now_s
        return duration(end_s - clock.parse_rfc3339(start))
    except ValueError:
        return UNKNOWN


def cron_job_row(obj: Json, now_s: float) -> list[Any]:
    spec, last = field(obj, "spec"), field(obj, "status", "lastScheduleTime")
    return [
        name_of(obj),
        text(spec, "schedule"),
        text(spec, "timeZone") or NONE,
        "True" if field(spec, "suspend") else "False",
        len(objects(obj, "status", "active")),
        since(last, now_s) if last else NONE,
        age(obj, now_s),
        *containers_text(field(spec, "jobTemplate", "spec", "template", "spec")),
        selector_text(field(spec, "jobTemplate", "spec", "selector")),
    ]


PRINTERS = {
    ("apps", "Deployment"): Printer(
        (NAME, PrintedColumn("Ready"), integer("Up-to-date"), integer("Available"), AGE, *_WIDE),
        deployment_row,
    ),
    ("apps", "ReplicaSet"): Printer(
        (NAME, integer("Desired"), integer("Current"), integer("Ready"), AGE, *_WIDE), replica_set_row
    ),
    ("", "ReplicationController"): Printer(
        (NAME, integer("Desired"), integer("Current"), integer("Ready"), AGE, *_WIDE),
        replication_controller_row,
    ),
    ("apps", "StatefulSet"): Printer((NAME, PrintedColumn("Ready"), AGE, *_WIDE[:2]), stateful_set_row),
    ("apps", "DaemonSet"): Printer(
        (
            NAME,
            *(integer(name) for name in ("Desired", "Current", "Ready", "Up-to-date", "Available")),
            PrintedColumn("Node Selector"),
            AGE,
            *_WIDE,
        ),
        daemon_set_row,
    ),
    ("batch", "Job"): Printer(
        (NAME, PrintedColumn("Status"), PrintedColumn("Completions"), PrintedColumn("Duration"), AGE, *_WIDE),
        job_row,
    ),
    ("batch", "CronJob"): Printer(
        (
            NAME,
            PrintedColumn("Schedule"),
            PrintedColumn("Timezone"),
            PrintedColumn("Suspend", "boolean"),
            integer("Active"),
            PrintedColumn("Last Schedule"),
            AGE,
            *_WIDE,
        ),
        cron_job_row,
    ),
}
