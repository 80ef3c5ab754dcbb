"""Tables: what the columns of `kubectl get` say."""

from typing import Any

import aiohttp
import pytest

from koordinator.clock import rfc3339
from koordinator.local.apiserver import printers, tables
from koordinator.local.apiserver.printers import column, pods
from koordinator.local.apiserver.tables import custom_printer
from tests.local.apiserver.requests import PODS_PATH, pod, send

NOW_S = 1_700_000_000.0
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}


def row(kind: str, obj: dict[str, Any], group: str = "") -> dict[str, Any]:
    """Cells of an object by the names of their columns."""
    printer = printers.BUILT_IN[group, kind]
    cells = printer.row(obj, NOW_S)
    assert len(cells) == len(printer.columns)
    return {heading.name: cell for heading, cell in zip(printer.columns, cells, strict=True)}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"), (-1, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (150, "2m30s"), (599, "9m59s"),
        (600, "10m"), (10_799, "179m"), (10_800, "3h"), (11_100, "3h5m"), (28_800, "8h"), (172_799, "47h"),
        (172_800, "2d"), (176_400, "2d1h"), (691_200, "8d"), (63_071_999, "729d"), (63_072_000, "2y"),
        (63_158_400, "2y1d"), (252_288_000, "8y"),
    ],
)  # fmt: skip
def test_durations_have_two_units_at_most(seconds: int, text: str) -> None:
    assert column.duration(seconds) == text


def running(**more: Any) -> dict[str, Any]:
    return {"ready": True, "state": {"running": {}}, **more}


def waiting(reason: str) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason}}}


def ended(code: int, reason: str = "", **more: Any) -> dict[str, Any]:
    return {"state": {"terminated": {"exitCode": code, "reason": reason}}, **more}


STATUSES = [
    pytest.param({"phase": "Pending"}, {}, "Pending", id="pending"),
    pytest.param({"phase": "Failed", "reason": "Evicted"}, {}, "Evicted", id="evicted"),
    pytest.param({"phase": "Running", "containerStatuses": [running()]}, {}, "Running", id="running"),
    pytest.param({"phase": "Running", "containerStatuses": [waiting("Crashing")]}, {}, "Crashing", id="waiting"),
    pytest.param({"phase": "Succeeded", "containerStatuses": [ended(0, "Completed")]}, {}, "Completed", id="completed"),
    pytest.param({"phase": "Failed", "containerStatuses": [ended(3)]}, {}, "ExitCode:3", id="an exit code"),
    pytest.param({"phase": "Failed", "containerStatuses": [ended(137, "OOMKilled")]}, {}, "OOMKilled", id="oom"),
    pytest.param(
        {"phase": "Running", "containerStatuses": [running(), ended(0, "Completed")]}, {}, "NotReady", id="half done"
    ),
    pytest.param(
        {"phase": "Pending", "initContainerStatuses": [ended(0), {"state": {"running": {}}}, {}]},
        {"initContainers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}, "Init:1/3", id="initialising",
    ),
    pytest.param(
        {"phase": "Pending", "initContainerStatuses": [ended(1, "Error")]}, {"initContainers": [{"name": "a"}]},
        "Init:Error", id="init failed",
    ),
    pytest.param(
        {"phase": "Pending", "initContainerStatuses": [waiting("CrashLoopBackOff")]},
        {"initContainers": [{"name": "a"}]}, "Init:CrashLoopBackOff", id="init crashes",
    ),
    pytest.param(
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}, {},
        "SchedulingGated", id="gated",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("status", "spec", "expected"), STATUSES)
def test_the_status_of_a_pod_is_the_word_of_what_is_wrong(
    status: dict[str, Any], spec: dict[str, Any], expected: str
) -> None:
    assert pods.pod_status({"metadata": {}, "spec": spec, "status": status}, NOW_S)[0] == expected


@pytest.mark.parametrize(("phase", "expected"), [("Running", "Terminating"), ("Succeeded", "Succeeded")])
def test_a_deleted_pod_is_terminating_until_it_is_over(phase: str, expected: str) -> None:
    deleted = {"metadata": {"deletionTimestamp": rfc3339(NOW_S)}, "status": {"phase": phase}}

    assert pods.pod_status(deleted, NOW_S)[0] == expected


def test_a_pod_row_counts_ready_containers_restarts_and_gates() -> None:
    last = {"terminated": {"finishedAt": rfc3339(NOW_S - 300)}}
    cells = row(
        "Pod",
        {
            "metadata": {"name": "web", "creationTimestamp": rfc3339(NOW_S - 3600 * 5)},
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "a"}, {"name": "b"}],
                "initContainers": [{"name": "mesh", "restartPolicy": "Always"}],
                "readinessGates": [{"conditionType": "gate"}],
            },
            "status": {
                "phase": "Running",
                "podIPs": [{"ip": "10.0.0.1"}],
                "containerStatuses": [running(restartCount=2, lastState=last), {"restartCount": 1}],
                "initContainerStatuses": [running(name="mesh", started=True)],
                "conditions": [{"type": "gate", "status": "True"}],
            },
        },
    )

    assert cells == {
        "Name": "web", "Ready": "2/3", "Status": "Running", "Restarts": "3 (5m ago)", "Age": "5h", "IP": "10.0.0.1",
        "Node": "n1", "Nominated Node": "<none>", "Readiness Gates": "1/1",
    }  # fmt: skip


def test_other_rows_say_what_users_look_for() -> None:
    labels = {"node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "worker"}
    node = {
        "metadata": {"name": "n", "labels": labels},
        "spec": {"unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]},
    }
    ports = [{"port": 80, "nodePort": 30080, "protocol": "TCP"}]
    service = {
        "spec": {"type": "NodePort", "clusterIPs": ["10.0.0.2"], "ports": ports, "selector": {"a": "b"}}
    }
    job = {"spec": {"completions": 3}, "status": {"succeeded": 1, "startTime": rfc3339(NOW_S - 60)}}
    budget = {"spec": {"minAvailable": "50%"}, "status": {"disruptionsAllowed": 2}}

    assert row("Node", node)["Status"] == "NotReady,SchedulingDisabled"
    assert row("Node", node)["Roles"] == "control-plane,worker"
    assert row("Service", service)["Port(s)"] == "80:30080/TCP"
    assert (row("Job", job, "batch")["Completions"], row("Job", job, "batch")["Duration"]) == ("1/3", "60s")
    assert row("PodDisruptionBudget", budget, "policy")["Min Available"] == "50%"
    assert row("PodDisruptionBudget", budget, "policy")["Max Unavailable"] == "N/A"


@pytest.mark.parametrize(("group", "kind"), sorted(printers.BUILT_IN), ids=lambda word: word or "core")
def test_an_object_with_nothing_in_it_still_has_a_cell_for_every_column(group: str, kind: str) -> None:
    assert row(kind, {"metadata": {"name": "x"}}, group)


OBJECT = {
    "spec": {"a.b": 1, "list": [{"n": 1, "on": True}, {"n": 2, "on": False}], "text": "x"},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]},
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".spec.text", ["x"]), ("{.spec.text}", ["x"]), ("$.spec.text", ["x"]), (r".spec.a\.b", [1]),
        (".spec['a.b']", [1]), (".spec.list[0].n", [1]), (".spec.list[-1].n", [2]), (".spec.list[*].n", [1, 2]),
        (".spec.list[1:].n", [2]), ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".spec.list[?(@.n>1)].n", [2]), (".spec.list[?(@.on==true)].n", [1]),
        ("..status", [OBJECT["status"], "True", "False"]), (".spec.nothing", []), (".spec.text.deeper", []),
        (".spec.list[9]", []),
    ],
)  # fmt: skip
def test_paths_find_what_they_name(path: str, found: list[Any]) -> None:
    assert tables.find(tables.compile(path), OBJECT) == found


@pytest.mark.parametrize("path", [".spec.[", ".a[?(@.b==c)]", ".a[?(", "[x]"])
def test_paths_that_cannot_be_read_say_so(path: str) -> None:
    with pytest.raises(tables.JsonPathError):
        tables.compile(path)


def test_columns_of_a_custom_resource_are_typed() -> None:
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Since", "type": "date", "jsonPath": ".status.at"},
        {"name": "On", "type": "boolean", "jsonPath": ".spec.on"},
        {"name": "All", "type": "string", "jsonPath": ".spec.list[*]", "priority": 1},
        {"name": "Broken", "type": "string", "jsonPath": ".spec.["},
    ]
    printer = custom_printer(
        {"spec": {"versions": [{"name": "v1", "additionalPrinterColumns": columns}]}}, "v1"
    )

    good = {"metadata": {"name": "w"}, "spec": {"size": 3, "on": True, "list": ["a", 2]}}
    good["status"] = {"at": rfc3339(NOW_S - 60)}
    assert printer.row(good, NOW_S) == ["w", 3, "60s", True, "a,2", None]
    assert printer.row({"metadata": {"name": "w"}, "spec": {"size": "x"}}, NOW_S) == ["w", *[None] * 5]
    assert [heading.priority for heading in printer.columns] == [0, 0, 0, 0, 1, 0]


async def test_a_table_carries_as_much_of_the_object_as_asked(http: aiohttp.ClientSession) -> None:
    await send(http, "POST", PODS_PATH, pod(spec={"nodeName": "a"}))

    tables = {
        include: (await send(http, "GET", f"{PODS_PATH}?includeObject={include}", None, TABLE))[1]
        for include in ("", "None", "Object")
    }
    code, refused = await send(http, "GET", f"{PODS_PATH}?includeObject=Half", None, TABLE)

    assert (tables[""]["kind"], tables[""]["metadata"]) == ("Table", {"resourceVersion": "11"})
    assert tables[""]["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert tables["None"]["rows"][0]["object"] is None
    assert tables["Object"]["rows"][0]["object"]["spec"] == {"nodeName": "a"}
    assert (code, "includeObject: Unsupported value" in refused["message"]) == (422, True)
