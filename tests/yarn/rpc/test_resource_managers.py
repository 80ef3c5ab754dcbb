"""The client of a YARN cluster over TCP: who leads, many totals in one call, connections that break."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from koordinator.host.errors import ContentError
from koordinator.yarn import rpc, sasl
from koordinator.yarn.amounts import YarnResource
from koordinator.yarn.connection import FRAME_BYTES_MAX, CallRefused, Connection, Login, Unreachable
from koordinator.yarn.hadoop_config import ResourceManager, YarnCluster
from koordinator.yarn.node_sync import NodeId
from koordinator.yarn.resource_managers import MODES, ResourceManagers, active
from koordinator.yarn.rest import RestClient
from koordinator.yarn.rpc import Method, NodeUpdate
from tests import searches
from tests.yarn.rpc.fake_rm import FakeRM

TOTAL = YarnResource(4, 4096)


@contextlib.asynccontextmanager
async def client(*servers: FakeRM) -> AsyncIterator[ResourceManagers]:
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        where = [await stack.enter_async_context(each.serving()) for each in servers]
        managers = tuple(ResourceManager(f"rm{i + 1}", at, at, at) for i, at in enumerate(where))
        cluster = YarnCluster("test", len(servers) > 1, managers, "simple")
        rest = RestClient(session, "yarn")
        made = ResourceManagers(
            cluster, Login("yarn"), rest, MODES["rpc"], lambda method, result, seconds: None
        )
        yield made
        made.close()


def updates(*nodes: NodeId) -> list[NodeUpdate]:
    return [NodeUpdate(node, TOTAL) for node in nodes]


async def test_all_calls_of_a_protocol_share_one_connection_and_name_the_user() -> None:
    rm = FakeRM()
    node = rm.add("nm-1")
    async with client(rm) as managers:
        for _ in range(3):
            poll = await managers.poll()
        await managers.update(updates(node))
        after = await managers.poll()

    assert (poll.reports[node].total, after.reports[node].total) == (YarnResource(1, 1024), TOTAL)
    assert (rm.connection_count, set(rm.users)) == (2, {"yarn"})


async def test_a_report_that_says_nothing_new_is_the_same_object() -> None:
    rm = FakeRM()
    one, other = rm.add("nm-1"), rm.add("nm-2")
    async with client(rm) as managers:
        before = (await managers.poll()).reports
        await managers.update(updates(other))
        after = (await managers.poll()).reports

    assert after[one] is before[one]  # though it was heard of since
    assert after[other].total == TOTAL


async def test_the_active_one_of_two_is_asked_and_the_other_after_fail_over() -> None:
    first, second = FakeRM(), FakeRM()
    second.state = "STANDBY"
    node = first.add("nm-1")
    second.add("nm-1")
    async with client(first, second) as managers:
        assert (await managers.poll()).leader == "rm1"

        first.state, second.state = "STANDBY", "ACTIVE"
        with pytest.raises(CallRefused, match="StandbyException"):
            await managers.update(updates(node))

        await managers.update(updates(node))
        assert (await managers.poll()).leader == "rm2"
        assert second.nodes[node].total == TOTAL


async def test_nobody_leads() -> None:
    rms = FakeRM(), FakeRM()
    for rm in rms:
        rm.state = "STANDBY"
    async with client(*rms) as managers:
        with pytest.raises(Unreachable, match="active rm not found"):
            await managers.poll()


async def test_where_no_admin_port_answers_the_web_tells_who_leads_and_takes_totals() -> None:
    told: list[tuple[str, str]] = []

    async def web_of(stack: contextlib.AsyncExitStack, name: str, state: str) -> str:
        async def info(_: web.Request) -> web.Response:
            return web.json_response({"clusterInfo": {"haState": state}})

        async def resource(request: web.Request) -> web.Response:
            told.append((name, request.match_info["node"]))
            return web.json_response({})

        app = web.Application()
        app.router.add_get("/ws/v1/cluster/info", info)
        app.router.add_post("/ws/v1/cluster/nodes/{node}/resource", resource)
        server = await stack.enter_async_context(TestServer(app))
        return f"{server.host}:{server.port}"

    standby, active = FakeRM(), FakeRM()
    standby.state = "STANDBY"
    node = active.add("nm-1")
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        managers = []
        for name, rm in (("rm1", standby), ("rm2", active)):
            client_port = await stack.enter_async_context(rm.serving())
            web_port = await web_of(stack, name, rm.state)
            managers.append(ResourceManager(name, "127.0.0.1:1", client_port, web_port))
        cluster = YarnCluster("test", True, tuple(managers), "simple")
        made = ResourceManagers(
            cluster, Login("yarn"), RestClient(session, "yarn"), MODES["auto"], lambda *_: None
        )
        stack.callback(made.close)

        assert (await made.poll()).leader == "rm2"
        assert await made.update(updates(node)) == {}

    assert told == [("rm2", "nm-1:8041")]


@pytest.mark.parametrize("unknown", [0, 2, 6])
async def test_an_unknown_node_does_not_keep_the_others_from_their_totals(unknown: int) -> None:
    rm = FakeRM()
    nodes = [rm.add(f"nm-{i}") for i in range(7)]
    del rm.nodes[nodes[unknown]]
    async with client(rm) as managers:
        refused = await managers.update(updates(*nodes))

    assert set(refused) == {nodes[unknown]}
    assert all(each.total == TOTAL for each in rm.nodes.values())


async def test_a_connection_that_the_server_has_closed_is_opened_again() -> None:
    rm = FakeRM()
    async with rm.serving() as where:
        connection = Connection(where, Method.GET_SERVICE_STATUS.protocol, Login("yarn"), bytes(16))
        assert rpc.service_state(await connection.call(rpc.get_service_status)) == "ACTIVE"
        for writer in rm.writers:
            writer.close()
        rm.state = "STANDBY"

        assert rpc.service_state(await connection.call(rpc.get_service_status)) == "STANDBY"
    connection.close()


async def test_a_server_that_says_nothing_costs_no_more_than_the_time_limit() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = Connection(f"127.0.0.1:{port}", "p", Login("yarn"), bytes(16))
    with pytest.raises(Unreachable, match=r"no answer within 0.1 s"):
        await connection.call(rpc.get_service_status, 0.1)
    server.close()


async def test_damaged_answers_cost_a_connection_and_nothing_else() -> None:
    """Answers cut, lengthened, with bytes changed: each call ends with a result or one of two errors, at once."""
    rng, rm = random.Random(7), FakeRM()
    rm.add("nm-1")
    whole = rm._answer(rpc.get_cluster_nodes(bytes(16), 1, ["RUNNING"]))

    async def damaged(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(damage(whole, rng))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(damaged, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for _ in range(200):
        connection = Connection(f"127.0.0.1:{port}", "p", Login("yarn"), bytes(16))
        with contextlib.suppress(Unreachable, CallRefused, ContentError):
            rpc.ReportReader().read(await connection.call(rpc.get_service_status, 5.0))
        connection.close()
    server.close()


def damage(frame: bytes, rng: random.Random) -> bytes:
    found = bytearray(frame)
    match rng.randrange(8):
        case 0:
            del found[rng.randrange(len(found)) :]
        case 1:
            found[:4] = rng.choice((FRAME_BYTES_MAX + 1, 2**32 - 1, 0, len(found))).to_bytes(4, "big")
        case 2:
            found += rng.randbytes(rng.randrange(1, 9))
    for _ in range(rng.randrange(1, 4)):
        if found:
            found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found)


def test_no_damage_to_a_frame_is_more_than_a_wire_error() -> None:
    """What damaged frames hold is read to the end, too."""
    rng, rm = random.Random(11), FakeRM()
    for i in range(3):
        rm.add(f"nm-{i}")
    frame = rm._answer(rpc.get_cluster_nodes(bytes(16), 1, ["RUNNING"]))
    ends = {"read": 0, "refused": 0}
    reader = rpc.ReportReader()
    for _ in range(searches.examples(20_000)):
        try:
            answer = rpc.parse(damage(frame, rng), bytes(16))
            [each.known() for each in reader.read(answer.result)]
            ends["read"] += 1
        except ContentError:
            ends["refused"] += 1

    assert min(ends.values()) > 1_000, ends


def test_damaged_sasl_messages_are_refused() -> None:
    rng = random.Random(3)
    auth = b"".join(
        rpc.text_field(i, each) for i, each in enumerate(("TOKEN", "DIGEST-MD5", "", "default"), 1)
    )
    challenge = b'realm="default",nonce="abc",qop="auth",charset=utf-8,algorithm=md5-sess'
    whole = rpc.number_field(2, 1) + rpc.bytes_field(4, auth + rpc.bytes_field(5, challenge))
    assert sasl.answer_to(whole, sasl.TokenMechanism(sasl.Token(b"id", b"pw"), "nonce"))
    for _ in range(10_000):
        with contextlib.suppress(ContentError, sasl.SaslError):
            mechanism = sasl.TokenMechanism(sasl.Token(b"id", b"pw"), "nonce")
            sasl.answer_to(damage(whole, rng), mechanism)


def test_no_active_manager_is_an_error_with_every_state() -> None:
    with pytest.raises(Unreachable, match=r"rm1 \(STANDBY\), rm2 \(UNREACHABLE\)"):
        active("test", ("rm1", "rm2"), ("STANDBY", "UNREACHABLE"))
