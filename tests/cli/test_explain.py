"""`koordinator explain pod` as a user runs it, on a dump and against a scheduler."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner, Result

from koordinator.cli import explain_sources as command
from koordinator.cli import main as cli
from koordinator.cli.explain_sources import ExplainArgs
from koordinator.local.apiserver import tls
from tests.scheduler import world

Json = dict[str, Any]


def dumped(*objects: Json) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def node(name: str, **parts: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Node", **world.node(name, **parts)}


def pod(name: str, **parts: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", **world.pod(name, **parts)}


EVENT = {
    "apiVersion": "v1",
    "kind": "Event",
    "metadata": {"name": "e", "namespace": "default"},
    "involvedObject": {"kind": "Pod", "namespace": "default", "name": "big"},
    "type": "Warning",
    "reason": "FailedScheduling",
    "message": "0/2 nodes are available",
    "count": 3,
    "lastTimestamp": "2026-01-01T00:00:00Z",
}
CLUSTER = dumped(
    node("n-0", cpu="4"),
    node("n-1", cpu="2", taints=[{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]),
    pod("big", cpu="6", scheduler="default-scheduler"),
    pod("web", cpu="1"),
    EVENT,
)


def explained(*args: str, dump: str = CLUSTER) -> Result:
    return CliRunner().invoke(cli.main, ["explain", "pod", *args, "--dump", "-"], input=dump)


def test_a_pod_that_cannot_be_placed_ends_with_3_and_says_what_would_help() -> None:
    result = explained("big")

    assert result.exit_code == 3, result.output
    assert "Pod default/big is pending: none of 2 nodes takes it" in result.output
    assert "lower the cpu request from 6 to at most 4" in result.output
    assert "FailedScheduling (×3): 0/2 nodes are available" in result.output


def test_what_was_said_before_is_not_repeated() -> None:
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    body = pod("big", cpu="6") | {"status": {"conditions": [refused]}}

    result = explained("big", dump=dumped(node("n-0", cpu="4"), body, EVENT | {"message": "no room"}))

    assert "Condition PodScheduled=False Unschedulable: no room" in result.output
    assert "FailedScheduling (×3): the same" in result.output


def test_a_pod_that_fits_ends_with_0() -> None:
    result = explained("default/web")

    assert result.exit_code == 0, result.output
    assert "fits 1 of 2 nodes; the next cycle would choose n-0" in result.output


def test_one_node_is_reported_in_detail() -> None:
    output = explained("big", "--node", "n-1").output

    assert "n-1 refuses the pod" in output
    assert "dedicated=db:NoSchedule" in output
    assert output.index("TaintToleration") > 0 and "short by" in output


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_machines_get_the_whole_structure(form: str) -> None:
    result = explained("big", "-o", form, "-v")

    body = json.loads(result.stdout) if form == "json" else yaml.safe_load(result.stdout)
    assert body["verdict"] == "Unschedulable"
    assert [each["node"] for each in body["nodes"]] == ["n-0", "n-1"]
    assert body["remedies"][0]["kind"] == "requests"


@pytest.mark.parametrize(
    ("args", "dump", "message"),
    [
        pytest.param(
            ["bigg"], CLUSTER, "no pod is called default/bigg; there are default/big", id="no such pod"
        ),
        pytest.param(
            ["big", "--node", "n-7"], CLUSTER, "no node is called n-7; there are n-1", id="no such node"
        ),
        pytest.param(["big"], dumped(pod("big")), "there are no Nodes in it", id="no nodes"),
        pytest.param(["big"], "{", "standard input: line 1", id="no dump"),
    ],
)
def test_mistakes_are_reported_in_one_line(args: list[str], dump: str, message: str) -> None:
    result = explained(*args, dump=dump)

    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_the_configuration_decides(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles: [{schedulerName: other}]\n"
    )

    result = explained("web", "--config", str(path))

    assert result.exit_code == 3
    assert "asks for scheduler koord-scheduler; the profiles here are: other" in result.output


GROUP = {
    "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
    "kind": "PodGroup",
    "metadata": {"name": "job", "namespace": "default"},
    "spec": {"minMember": 3},
    "status": {"phase": "Scheduling"},
}


def members(count: int) -> list[Json]:
    found = [pod(f"job-{number}", cpu="2") for number in range(count)]
    for each in found:
        each["metadata"]["labels"] = {"pod-group.scheduling.sigs.k8s.io": "job"}
    return found


@pytest.mark.parametrize("words", [["gang", "job"], ["podgroup/job"], ["podgroup", "default/job"]])
def test_a_gang_is_explained_by_any_of_its_names(words: list[str]) -> None:
    dump = dumped(node("n-0", cpu="4"), GROUP, *members(3))

    result = CliRunner().invoke(cli.main, ["explain", *words, "--dump", "-"], input=dump)

    assert result.exit_code == 3, result.output
    assert result.output.startswith(
        "Gang default/job is pending: 2 of 3 members fit; the 3rd (default/job-2) lacks 2 cores."
    )
    assert "lower spec.minMember of default/job from 3 to 2: 2 members would start" in result.output
    assert "Scheduling" in result.output


def test_a_gang_that_fits_ends_with_0_and_an_unknown_one_with_1() -> None:
    dump = dumped(node("n-0", cpu="8"), GROUP, *members(3))

    fits = CliRunner().invoke(cli.main, ["explain", "gang", "job", "-o", "json", "--dump", "-"], input=dump)
    unknown = CliRunner().invoke(cli.main, ["explain", "gang", "jobs", "--dump", "-"], input=dump)

    assert (fits.exit_code, json.loads(fits.stdout)["gangs"][0]["phase"]) == (0, "Scheduling")
    assert unknown.exit_code == 1
    assert "no gang is called default/jobs; there are default/job" in unknown.output


def test_a_member_is_explained_with_its_gang() -> None:
    result = explained("job-1", dump=dumped(node("n-0", cpu="4"), GROUP, *members(3)))

    assert result.exit_code == 3
    assert "Pod default/job-1 goes with its gang. Gang default/job is pending" in result.output
    assert "Scheduling" in result.output, "the phase of its PodGroup"
    assert "koordinator-default-quota" not in result.output, "it refuses nobody"


# Live


async def api_server(pods: dict[str, Json], events: list[Json]) -> TestServer:
    """As much of an API server as the command asks for."""

    async def get_pod(request: web.Request) -> web.Response:
        found = pods.get(request.match_info["name"])
        if found is None:
            return web.json_response({"kind": "Status", "reason": "NotFound", "code": 404}, status=404)
        return web.json_response(found)

    async def list_pods(_: web.Request) -> web.Response:
        return web.json_response({"kind": "PodList", "metadata": {}, "items": list(pods.values())})

    async def list_events(_: web.Request) -> web.Response:
        return web.json_response({"kind": "EventList", "metadata": {}, "items": events})

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/default/pods/{name}", get_pod)
    app.router.add_get("/api/v1/pods", list_pods)
    app.router.add_get("/api/v1/namespaces/default/events", list_events)
    server = TestServer(app)
    await server.start_server()
    return server


async def scheduler_that_answers(status: int, body: Json) -> TestServer:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_get("/apis/v1/explain/default/big", answer)
    server = TestServer(app)
    await server.start_server()
    return server


ASK = ExplainArgs(name="big", namespace="", nodes=(), best=5, seed=0)
ANSWER = {"pod": "default/big", "verdict": "Unschedulable", "sentence": "no room"}


async def test_the_scheduler_of_the_kubeconfig_is_asked_and_events_are_added(tmp_path: Path) -> None:
    api = await api_server({"big": pod("big")}, [EVENT])
    scheduler = await scheduler_that_answers(200, ANSWER)
    path = tmp_path / "kubeconfig"
    tls.write_kubeconfig(
        path, server=str(api.make_url("")), extension={"schedulerURL": str(scheduler.make_url(""))}
    )

    answer = await command.pod_from_cluster(ASK, str(path), "")

    assert (answer.sentence, answer.events[0].count) == ("no room", 3)
    await api.close()
    await scheduler.close()


async def test_a_wrong_name_lists_names_alike(tmp_path: Path) -> None:
    api = await api_server({"big-0": pod("big-0")}, [])
    path = tmp_path / "kubeconfig"
    tls.write_kubeconfig(path, server=str(api.make_url("")))

    with pytest.raises(command.click.ClickException, match="there are default/big-0"):
        await command.pod_from_cluster(ASK, str(path), "")
    await api.close()


async def test_a_scheduler_that_does_not_lead_or_answer_is_reported_with_what_to_do(tmp_path: Path) -> None:
    api = await api_server({"big": pod("big")}, [])
    dead = str(api.make_url("")).replace(str(api.port), "1")
    leader = {"message": "the instance is not leader", "leader": "koord-scheduler-7d9-x_1_0a"}
    standby = await scheduler_that_answers(503, leader)
    follower = await scheduler_that_answers(503, {"message": "the instance is not leader"})
    path = tmp_path / "kubeconfig"
    tls.write_kubeconfig(path, server=str(api.make_url("")))

    with pytest.raises(command.click.ClickException, match=r"standby: koord-scheduler-7d9-x_1_0a leads"):
        await command.pod_from_cluster(ASK, str(path), str(standby.make_url("")))
    with pytest.raises(
        command.click.ClickException, match=r"503: the instance is not leader.*--scheduler-url"
    ):
        await command.pod_from_cluster(ASK, str(path), str(follower.make_url("")))
    with pytest.raises(command.click.ClickException, match=r"no scheduler answers at .*--dump"):
        await command.pod_from_cluster(ASK, str(path), dead)
    await standby.close()
    await follower.close()
    await api.close()
