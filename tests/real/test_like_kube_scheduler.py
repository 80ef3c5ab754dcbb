"""Events and conditions, field by field what kube-scheduler of the same release writes about the same pods."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from koordinator.install.values import Values
from tests.e2e.cluster import until
from tests.free_ports import free_port
from tests.real import binaries
from tests.real.cluster import RealCluster, Shape
from tests.real.components import HOST
from tests.real.processes import Program

Json = dict[str, Any]

PLAIN = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
}
AT_ONCE = ("--grace-period=0", "--force=true")
OURS, THEIRS = "ours", "theirs"
OWN_FIELDS = ("name", "uid", "resourceVersion", "creationTimestamp", "managedFields")
OLDER_FIELDS = {"count", "firstTimestamp", "lastTimestamp", "source"}
TIMES = ("firstTimestamp", "lastTimestamp", "eventTime", "lastTransitionTime", "lastProbeTime")


@pytest.fixture(scope="module")
def both(_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Both schedulers on two nodes of two cores, each for pods that name it, with the stock plugins."""
    stock = binaries.find("kube-scheduler")
    if stock is None:
        pytest.skip(binaries.why_missing(("kube-scheduler",)))
    config = yaml.safe_dump({**PLAIN, "profiles": [{"schedulerName": OURS}]})
    values = msgspec.convert({"scheduler": {"config": config}}, Values)
    shape = Shape(nodes=2, node_cpu=2, values=values, manager=False)
    with RealCluster.open(tmp_path_factory.mktemp("both"), shape) as running:
        client = {"clientConnection": {"kubeconfig": str(running.kubeconfig)}}
        path = running.folder / "stock.yaml"
        path.write_text(yaml.safe_dump({**PLAIN, **client, "profiles": [{"schedulerName": THEIRS}]}))
        flags = (f"--config={path}", f"--bind-address={HOST}", f"--secure-port={free_port()}")
        scheduler = Program("kube-scheduler", [str(stock), *flags], running.folder / "stock.log")
        try:
            yield running
        finally:
            scheduler.kill()


def pod(name: str, cpu: str, **spec: Any) -> Json:
    requests = {"requests": {"cpu": cpu, "memory": "16Mi"}}
    container = {"name": "main", "image": "web", "resources": requests}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def of_both(body: Json) -> Iterator[tuple[str, Json]]:
    """The same pod for each scheduler: (name, body)."""
    for who in (OURS, THEIRS):
        name = f"{body['metadata']['name']}-{who}"
        yield name, {**body, "metadata": {"name": name}, "spec": {**body["spec"], "schedulerName": who}}


def told_alike(cluster: RealCluster, body: Json, reason: str) -> tuple[list[Json], list[Json]]:
    """Create the pod for one scheduler, then for the other (alone on the cluster); what each says of it."""
    found = []
    for name, each in of_both(body):
        cluster.kubectl("create", "-f", "-", text=json.dumps(each))
        until(lambda name=name: events(cluster, name, reason), 60, cluster.process)
        condition = [
            c for c in cluster.get("pod", name)["status"]["conditions"] if c["type"] == "PodScheduled"
        ]
        found.append([normal(each, name) for each in (*events(cluster, name, reason), *condition)])
        cluster.run("delete", "pod", name, *AT_ONCE)
    return found[0], found[1]


def events(cluster: RealCluster, name: str, reason: str) -> list[Json]:
    chosen = f"--field-selector=involvedObject.name={name},reason={reason}"
    found: list[Json] = cluster.get("events", chosen)["items"]
    return found


def normal(body: Any, name: str) -> Any:
    """Without what differs in any case: names, times, versions and who reports."""
    if isinstance(body, dict):
        return {
            key: "a time" if key in TIMES and value else normal(value, name)
            for key, value in body.items()
            if key not in OWN_FIELDS
        }
    if isinstance(body, list):
        return [normal(each, name) for each in body]
    if isinstance(body, str):
        text = body.replace(name, "POD")
        for node in ("node-0", "node-1"):
            text = text.replace(node, "NODE")
        return "WHO" if text in (OURS, THEIRS) or text.startswith((f"{OURS}-", f"{THEIRS}-")) else text
    return body


def assert_alike(ours: Json, theirs: Json) -> None:
    """The same in all that kube-scheduler fills; on top only what older clients read of events."""
    filled = {key: value for key, value in theirs.items() if value not in (None, {}, "")}
    assert {key: ours.get(key) for key in filled} == filled
    assert {key for key in ours if ours[key] is not None} - filled.keys() <= OLDER_FIELDS


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(pod("fits", "100m"), "Scheduled", id="a pod that is bound"),
        pytest.param(pod("large", "64"), "FailedScheduling", id="a pod that no node has room for"),
        pytest.param(
            pod("elsewhere", "100m", nodeSelector={"zone": "none"}),
            "FailedScheduling",
            id="a pod that no node matches",
        ),
    ],
)
def test_events_and_conditions_have_the_fields_of_kube_scheduler(
    both: RealCluster, body: Json, reason: str
) -> None:
    ours, theirs = told_alike(both, body, reason)

    assert len(ours) == len(theirs) == 2, "an event and a condition"
    for own, other in zip(ours, theirs, strict=True):
        assert_alike(own, other)


PRIORITY = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
}


def test_a_preempted_pod_is_reported_as_kube_scheduler_tells_it(both: RealCluster) -> None:
    both.kubectl("create", "-f", "-", text=json.dumps(PRIORITY))
    found = []
    for who in (OURS, THEIRS):
        for number in range(2):
            name = f"victim-{number}-{who}"
            body = pod(name, "1200m", schedulerName=who, terminationGracePeriodSeconds=1)
            both.kubectl("create", "-f", "-", text=json.dumps(body))
            both.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
        urgent = pod(f"urgent-{who}", "1200m", schedulerName=who, priorityClassName="urgent")
        both.kubectl("create", "-f", "-", text=json.dumps(urgent))
        both.kubectl("wait", "--for=condition=Ready", f"pod/urgent-{who}", "--timeout=60s")
        items = both.get("events", "--field-selector=reason=Preempted")["items"]
        (told,) = [each for each in items if each["involvedObject"]["name"].endswith(who)]
        urgent_uid = both.get("pod", f"urgent-{who}")["metadata"]["uid"]
        told = json.loads(json.dumps(told).replace(urgent_uid, "URGENT"))
        found.append(normal(told, told["involvedObject"]["name"]))
        both.run("delete", "pods", "--all", *AT_ONCE)

    assert_alike(*found)
