"""The web services of a ResourceManager, as the operator reads them."""

from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from koordinator.yarn.amounts import YarnResource
from koordinator.yarn.connection import Unreachable
from koordinator.yarn.node_sync import NodeId, NodeManagerReport
from koordinator.yarn.rest import RestClient


def node(name: str | None = "nm-1:8041", used: int = 2, free: int = 3) -> dict[str, Any]:
    told = {"state": "RUNNING", "usedVirtualCores": used, "availableVirtualCores": free}
    return {"id": name, **told, "usedMemoryMB": used * 64, "availMemoryMB": free * 64}


async def nodes_of(answer: Any) -> list[NodeManagerReport]:
    async def nodes(_: web.Request) -> web.Response:
        return web.json_response(answer)

    app = web.Application()
    app.router.add_get("/ws/v1/cluster/nodes", nodes)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        return await RestClient(session, "yarn").nodes(f"{server.host}:{server.port}", ("RUNNING",))


@pytest.mark.parametrize(
    "listed",
    [
        pytest.param([node()], id="a list"),
        pytest.param(node(), id="one without a list"),
        pytest.param(
            [node(None), node(""), node("nm-2"), node(":8041"), node()], id="some without host or port"
        ),
    ],
)
async def test_nodes_are_read_in_all_forms_and_those_without_a_name_left_out(listed: Any) -> None:
    total = YarnResource(5, 320)
    expected = NodeManagerReport(NodeId("nm-1", 8041), "RUNNING", YarnResource(2, 128), total)
    assert await nodes_of({"nodes": {"node": listed}}) == [expected]


@pytest.mark.parametrize("nodes", [None, "", {}, {"node": None}, {"node": []}])
async def test_no_nodes_are_told_in_many_ways(nodes: Any) -> None:
    assert await nodes_of({"nodes": nodes}) == []


async def test_a_node_with_more_work_than_room_has_its_room_as_total() -> None:
    (found,) = await nodes_of({"nodes": {"node": [node(used=5, free=-3)]}})
    assert found.total == YarnResource(2, 128)


@pytest.mark.parametrize(
    "listed",
    [[3], ["nm-1:8041"], [{**node(), "usedMemoryMB": 1e400}], [{**node(), "state": 1, "usedMemoryMB": "x"}]],
)
async def test_a_list_that_makes_no_sense_is_no_list(listed: Any) -> None:
    with pytest.raises(Unreachable, match="cannot be read"):
        await nodes_of({"nodes": {"node": listed}})
