"""A ResourceManager that speaks Hadoop RPC over TCP, for all three protocols at one port."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from koordinator.host.protobuf import delimited_at, values
from koordinator.yarn import rpc
from koordinator.yarn.amounts import YarnResource
from koordinator.yarn.connection import read_frame
from koordinator.yarn.node_sync import NodeId, NodeManagerReport

RUNNING = rpc.NODE_STATES.index("RUNNING") + 1
_YARN = "org.apache.hadoop.yarn.exceptions.YarnException"


class FakeRM:
    """`calls` are the methods in order; `users` what contexts named; `fail` gives (class, message) for a method."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, NodeManagerReport] = {}
        self.state = "ACTIVE"
        self.calls: list[str] = []
        self.users: list[str] = []
        self.connection_count = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.fail: Callable[[str], tuple[str, str] | None] = lambda method: None
        self.port = 0
        self.heard_s = 0

    def add(self, name: str, total: YarnResource = YarnResource(1, 1024)) -> NodeId:  # noqa: B008
        node = NodeId(name, 8041)
        self.nodes[node] = NodeManagerReport(node, "RUNNING", YarnResource(), total)
        return node

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """host:port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield f"127.0.0.1:{self.port}"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        self.writers.append(writer)
        with contextlib.suppress(EOFError, ConnectionError, asyncio.IncompleteReadError):
            assert await reader.readexactly(7) == rpc.connection_header(rpc.Auth.SIMPLE)
            context = await read_frame(reader)
            self.users.append(_user_of(context))
            while True:
                writer.write(self._answer(await read_frame(reader)))
                await writer.drain()
        writer.close()

    def _answer(self, frame: bytes) -> bytes:
        header, at = delimited_at(frame, 4)
        request, at = delimited_at(frame, at)
        argument, _ = delimited_at(frame, at)
        found = dict(values(header))
        call_id = rpc.number(found, 3)
        assert call_id is not None
        method = rpc.text(dict(values(request)), 1) or ""
        self.calls.append(method)
        client_id = rpc.octets(found, 4) or b""
        head = rpc.number_field(1, call_id // 2) + rpc.bytes_field(7, client_id)
        updates = dict(_updates(argument)) if method == "updateNodeResource" else {}
        refused = self.fail(method) or self._refusal(method, updates)
        if refused is not None:
            texts = rpc.text_field(4, refused[0]) + rpc.text_field(5, refused[1])
            return rpc.frame(head + rpc.number_field(2, 1) + texts)
        return rpc.frame(head + rpc.number_field(2, 0), self._result(method, updates))

    def _refusal(self, method: str, updates: Iterable[NodeId]) -> tuple[str, str] | None:
        if method != "getServiceStatus" and self.state != "ACTIVE":
            return "org.apache.hadoop.ipc.StandbyException", "not active"
        if unknown := [node for node in updates if node not in self.nodes]:
            return _YARN, f"Unable to update: unrecognized node(s): {unknown}"
        return None

    def _result(self, method: str, updates: Mapping[NodeId, YarnResource]) -> bytes:
        if method == "getServiceStatus":
            return rpc.number_field(1, rpc.HA_STATES.index(self.state))
        if method == "getClusterNodes":
            self.heard_s += 1
            return b"".join(rpc.bytes_field(1, report(each, self.heard_s)) for each in self.nodes.values())
        for node, total in updates.items():
            self.nodes[node] = NodeManagerReport(node, "RUNNING", self.nodes[node].used, total)
        return b""


def report(each: NodeManagerReport, heard_s: int = 0) -> bytes:
    """A NodeReportProto with what a real one has, too."""
    return b"".join(
        (
            rpc.bytes_field(1, rpc.text_field(1, each.node.host) + rpc.number_field(2, each.node.port)),
            rpc.text_field(2, f"{each.node.host}:8042"),
            rpc.text_field(3, "/default-rack"),
            rpc.bytes_field(4, amount(each.used or YarnResource())),
            rpc.bytes_field(5, amount(each.total or YarnResource())),
            rpc.number_field(6, 3),
            rpc.number_field(7, rpc.NODE_STATES.index(each.state) + 1),
            rpc.text_field(8, ""),
            rpc.number_field(9, 1_700_000_000_000 + heard_s * 1_000),
        )
    )


def amount(resource: YarnResource) -> bytes:
    more = rpc.bytes_field(3, rpc.text_field(1, "memory-mb") + rpc.number_field(2, resource.memory_mb))
    return rpc.number_field(1, resource.memory_mb) + rpc.number_field(2, resource.vcores) + more


def _updates(argument: bytes) -> Iterable[tuple[NodeId, YarnResource]]:
    for _, each in values(argument):
        assert isinstance(each, bytes)
        found = dict(values(each))
        node = dict(values(rpc.octets(found, 1) or b""))
        option = dict(values(rpc.octets(found, 2) or b""))
        total = dict(values(rpc.octets(option, 1) or b""))
        where = NodeId(rpc.text(node, 1) or "", rpc.number(node, 2) or 0)
        yield where, YarnResource(rpc.number(total, 2) or 0, rpc.number(total, 1) or 0)


def _user_of(context: bytes) -> str:
    _, at = delimited_at(context, 4)
    body, _ = delimited_at(context, at)
    return rpc.text(dict(values(rpc.octets(dict(values(body)), 2) or b"")), 1) or ""
