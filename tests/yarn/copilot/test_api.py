"""What the agent of YARN answers at its socket, and what it refuses."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from koordinator.clock import SystemClock
from koordinator.host.host import Host, tree_host
from koordinator.yarn.copilot import http
from koordinator.yarn.copilot.agent import YarnCopilot
from koordinator.yarn.copilot.groups import ContainerGroups
from koordinator.yarn.copilot.node_manager import NodeManager
from tests.host import host_tree
from tests.yarn.copilot.node_manager_double import NodeManagerDouble, container, container_id

PATH = "kubepods/besteffort/hadoop-yarn"
MEBIBYTE = 1 << 20


class Node:
    """A tree of groups, a NodeManager, and the agent between them at its socket."""

    def __init__(
        self, root: Path, host: Host, manager: NodeManagerDouble, session: aiohttp.ClientSession
    ) -> None:
        self.root, self.host, self.manager, self._session = root, host, manager, session

    def run(self, number: int, memory_mb: int = 100) -> None:
        """Give a container a group that uses so much."""
        group = f"{PATH}/{container_id(number)}"
        host_tree.group(self.root, 1, group)
        Path(f"{self.host.cgroups.directory(group)}/cgroup.procs").write_text("0\n")  # hidden from us
        stat_path = self.host.cgroups.absolute(f"memory/{group}/memory.stat")
        zeros = "".join(
            f"{name} 0\n"
            for name in ("inactive_file", "active_file", "unevictable", "active_anon", "cache", "rss")
        )
        totals = "".join(f"total_{line}" for line in zeros.splitlines(keepends=True))
        Path(stat_path).write_text(
            f"{zeros}inactive_anon 0\n{totals}total_inactive_anon {memory_mb * MEBIBYTE}\n"
        )

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._session.get(f"http://node{path}") as answer:
            return answer.status, await answer.json()

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        async with self._session.post(f"http://node{path}", json=body) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    host_tree.group(tmp_path, 1, PATH)
    host = tree_host(str(tmp_path))
    socket = tmp_path / "run" / "yarn.sock"
    async with NodeManagerDouble().served() as manager:
        nm = NodeManager(manager.endpoint, None)
        agent = YarnCopilot(nm, ContainerGroups(host, PATH), SystemClock())
        async with (
            http.served_on_socket(http.application(agent), socket),
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(socket))) as session,
        ):
            assert stat.S_IMODE(os.stat(socket).st_mode) == 0o600
            yield Node(tmp_path, host, manager, session)
        await nm.close()
    assert not socket.exists()


async def test_it_says_who_it_is(node: Node) -> None:
    assert await node.get("/health") == (200, "ok")
    assert await node.get("/information") == (200, {"name": "yarn", "version": "v1"})


async def test_containers_are_told_as_pods_are_without_those_that_end(node: Node) -> None:
    node.manager.containers = [container(1, vcores=2), container(2, state="KILLING"), container(3)]

    status, found = await node.get("/v1/containers")

    assert status == 200
    assert [each["name"] for each in found] == [container_id(1), container_id(3)]
    assert found[0]["namespace"] == "yarn"
    assert found[0]["cgroupDir"] == f"{PATH}/{container_id(1)}"
    assert found[0]["resources"]["requests"] == {"cpu": "2", "memory": str(1024 * MEBIBYTE)}
    # Lower goes first, so masters are last of one priority.
    master, task = (int(each["labels"]["koordinator.sh/priority"]) for each in found)
    assert master > task


async def test_one_container_is_told_in_any_state(node: Node) -> None:
    node.manager.containers = [container(2, state="KILLING")]
    status, found = await node.get(f"/v1/container?containerID={container_id(2)}")
    assert (status, found["uid"]) == (200, container_id(2))


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        pytest.param("container_1/../../etc", 400, id="no id"),
        pytest.param("", 400, id="nothing"),
        pytest.param(container_id(9), 404, id="not here"),
    ],
)
async def test_what_is_not_here_is_not_killed(node: Node, asked: str, status: int) -> None:
    answered, body = await node.post("/v1/killContainer", {"containerID": asked})
    assert (answered, bool(body["error"])) == (status, True)


async def test_a_container_without_processes_is_not_said_to_be_killed(node: Node) -> None:
    node.manager.containers = [container(2)]
    status, body = await node.post("/v1/killContainer", {"containerID": container_id(2)})
    assert status == 503
    assert "no process runs" in body["error"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"resources": {"gpu": "1"}}, id="another resource"),
        pytest.param({"resources": {"cpu": "many"}}, id="no quantity"),
        pytest.param({"resources": {"cpu": "1"}, "mode": "rage"}, id="unknown mode"),
        pytest.param({}, id="nothing"),
        pytest.param([], id="no object"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_with_words(node: Node, body: Any) -> None:
    status, answer = await node.post("/v1/killContainersByResource", body)
    assert (status, bool(answer["error"])) == (400, True)


async def test_an_amount_that_nobody_can_give_back_is_told_as_missing(node: Node) -> None:
    answer = await node.post("/v1/killContainersByResource", {"resources": {"memory": "1Gi", "cpu": "1500m"}})
    assert answer == (200, {"items": [], "shortfall": {"memory": "1Gi", "cpu": "1500m"}})
    in_numbers = await node.post("/v1/killContainersByResource", {"resources": {"memory": 1 << 30, "cpu": 2}})
    assert in_numbers == (200, {"items": [], "shortfall": {"memory": "1Gi", "cpu": "2"}})


async def test_while_the_node_manager_is_away_containers_are_told_by_their_groups(node: Node) -> None:
    node.manager.containers = [container(1, memory_mb=512), container(2)]
    node.run(1)
    await node.get("/v1/containers")

    node.manager.is_away = True
    node.run(3)  # it came meanwhile
    status, found = await node.get("/v1/containers")

    assert status == 200
    amounts = {each["name"]: each["resources"]["requests"]["memory"] for each in found}
    assert amounts == {container_id(1): str(512 * MEBIBYTE), container_id(3): "0"}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(web.Response(status=503, text="starting"), id="status"),
        pytest.param(web.Response(text="<html>"), id="no JSON"),
        pytest.param(web.Response(text="[]"), id="no object"),
        pytest.param(web.Response(text='{"containers": {"container": [{"id": 5}]}}'), id="wrong type"),
    ],
)
async def test_a_damaged_answer_of_the_node_manager_hides_no_group(node: Node, answer: web.Response) -> None:
    node.manager.answer = answer
    node.run(2)
    status, found = await node.get("/v1/containers")
    assert (status, [each["name"] for each in found]) == (200, [container_id(2)])


async def test_a_socket_of_a_killed_run_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "yarn.sock"
    server = await asyncio.start_unix_server(lambda *_: None, path)
    async with http.served_on_socket(web.Application(), path):
        assert path.is_socket()
    server.close()

    path.write_text("mine")
    with pytest.raises(http.SocketError, match="something else"):
        async with http.served_on_socket(web.Application(), path):
            pass
    assert path.read_text() == "mine"
