"""Hadoop RPC: requests, and what the server answers.

Fields that we do not use are skipped, so a poll of thousands of nodes stays cheap.
"""

import enum
import functools
from collections.abc import Iterable, Sequence

import msgspec

from koordinator.host import protobuf
from koordinator.host.errors import ContentError
from koordinator.host.protobuf import BYTES, VARINT, delimited_at, field_at, signed, values
from koordinator.yarn.amounts import YarnResource
from koordinator.yarn.node_sync import NodeId, NodeManagerReport

SOURCE = "Hadoop RPC"
"""Source of errors about bytes that are no message."""
_MASK_64 = (1 << 64) - 1


@functools.lru_cache(1 << 12)  # nearly all are tags, lengths, ports and totals that nodes have in common
def varint(number: int) -> bytes:
    """Return a number of up to 64 bits; a negative one as its two's complement (int32, int64)."""
    return protobuf.varint(number & _MASK_64)


def number_field(field: int, value: int) -> bytes:
    """Return an int32, int64, uint32, uint64 or enum field."""
    return varint(field << 3 | VARINT) + varint(value)


def signed_field(field: int, value: int) -> bytes:
    """Return an sint32 or sint64 field (zigzag)."""
    return number_field(field, value * 2 if value >= 0 else -value * 2 - 1)


def bytes_field(field: int, value: bytes) -> bytes:
    """Return a bytes, string or message field."""
    return varint(field << 3 | BYTES) + delimited(value)


def text_field(field: int, value: str) -> bytes:
    return bytes_field(field, value.encode())


def delimited(message: bytes) -> bytes:
    """Return a message with its length before it."""
    return varint(len(message)) + message


CONTEXT_CALL_ID = -3
NEVER_KILL = -1
"""`overCommitTimeout` that leaves running containers alone when a node's total shrinks. Unset would mean 0 ms."""

_MAGIC = b"hrpc\x09\x00"  # version 9, service class 0
_PROTOCOL_BUFFER = 2
_FINAL_PACKET = 0
_PROTOCOL_VERSION = 1


class Auth(enum.Enum):
    """The layer of authentication after the connection header."""

    SIMPLE = 0x00
    SASL = 0xDF


class Method(enum.Enum):
    """The calls that we make: (method, protocol)."""

    UPDATE_NODE_RESOURCE = (
        "updateNodeResource",
        "org.apache.hadoop.yarn.server.api.ResourceManagerAdministrationProtocolPB",
    )
    GET_CLUSTER_NODES = ("getClusterNodes", "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB")
    GET_SERVICE_STATUS = ("getServiceStatus", "org.apache.hadoop.ha.HAServiceProtocol")

    @property
    def protocol(self) -> str:
        """Also what the connection context names."""
        return self.value[1]


NODE_STATES = (
    "NEW",
    "RUNNING",
    "UNHEALTHY",
    "DECOMMISSIONED",
    "LOST",
    "REBOOTED",
    "DECOMMISSIONING",
    "SHUTDOWN",
)
"""NodeStateProto, numbered from 1."""


class NodeUpdate(msgspec.Struct, frozen=True):
    """The new total of one node; `over_commit_timeout_ms` None leaves the field out (the server then reads 0)."""

    node: NodeId
    total: YarnResource
    over_commit_timeout_ms: int | None = NEVER_KILL


def connection_header(auth: Auth) -> bytes:
    """Return the first seven bytes of a connection."""
    return _MAGIC + bytes([auth.value])


def connection_context(
    client_id: bytes, protocol: str, user: str | None, real_user: str | None = None
) -> bytes:
    """Return the context of a connection: who speaks which protocol. `real_user` acts for `user`, None leaves a name
    out."""
    user_info = b"".join(
        text_field(field, name) for field, name in ((1, user), (2, real_user)) if name is not None
    )
    context = bytes_field(2, user_info) + text_field(3, protocol)
    return frame(request_header(CONTEXT_CALL_ID, client_id, -1), context)


def update_node_resource(client_id: bytes, call_id: int, updates: Iterable[NodeUpdate]) -> bytes:
    """Return all changed nodes of a cluster in one call."""
    argument = b"".join(bytes_field(1, _node_update(update)) for update in updates)
    return _call(client_id, call_id, Method.UPDATE_NODE_RESOURCE, argument)


def get_cluster_nodes(client_id: bytes, call_id: int, states: Sequence[str]) -> bytes:
    """Return the reports of all nodes in one of these states."""
    argument = b"".join(number_field(1, NODE_STATES.index(state) + 1) for state in states)
    return _call(client_id, call_id, Method.GET_CLUSTER_NODES, argument)


def get_service_status(client_id: bytes, call_id: int) -> bytes:
    """Return the question whether this ResourceManager is the active one."""
    return _call(client_id, call_id, Method.GET_SERVICE_STATUS, b"")


def _call(client_id: bytes, call_id: int, method: Method, argument: bytes) -> bytes:
    name, protocol = method.value
    header = text_field(1, name) + text_field(2, protocol) + number_field(3, _PROTOCOL_VERSION)
    return frame(request_header(call_id, client_id, 0), header, argument)


def request_header(call_id: int, client_id: bytes, retries: int) -> bytes:
    """Return what each request begins with; `retries` -1: not a call."""
    return b"".join(
        (
            number_field(1, _PROTOCOL_BUFFER),
            number_field(2, _FINAL_PACKET),
            signed_field(3, call_id),
            bytes_field(4, client_id),
            signed_field(5, retries),
        )
    )


def frame(*messages: bytes) -> bytes:
    """Return messages, each with its length, behind the length of all."""
    body = b"".join(delimited(message) for message in messages)
    return len(body).to_bytes(4, "big") + body


def _node_update(update: NodeUpdate) -> bytes:
    total = number_field(1, update.total.memory_mb) + number_field(2, update.total.vcores)
    option = bytes_field(1, total)
    if update.over_commit_timeout_ms is not None:
        option += number_field(2, update.over_commit_timeout_ms)
    return _node_field(update.node) + bytes_field(2, option)


@functools.lru_cache(1 << 15)  # the same nodes are told of again and again
def _node_field(node: NodeId) -> bytes:
    return bytes_field(1, text_field(1, node.host) + number_field(2, node.port))


HA_STATES = ("INITIALIZING", "ACTIVE", "STANDBY", "OBSERVER")

_LENGTH_BYTES = 4


class RpcStatus(enum.Enum):
    """The end of a call."""

    SUCCESS = "SUCCESS"
    ERROR = "ERROR"
    FATAL = "FATAL"
    BAD_CLIENT_ID = "BAD_CLIENT_ID"  # the answer is for somebody else


_STATUSES = (RpcStatus.SUCCESS, RpcStatus.ERROR, RpcStatus.FATAL)


class Response(msgspec.Struct, frozen=True):
    """The answer to call `call_id`; `result` holds the message of a success."""

    status: RpcStatus
    call_id: int
    result: bytes = b""
    exception: str = ""
    message: str = ""
    detail: int | None = None


class Amount(msgspec.Struct, frozen=True):
    """A resource as written; None where nothing was."""

    vcores: int | None = None
    memory_mb: int | None = None

    def known(self) -> YarnResource:
        """Return the amount; what is not written counts as zero."""
        return YarnResource(self.vcores or 0, self.memory_mb or 0)


class NodeReport(msgspec.Struct, frozen=True):
    """One node of a poll, as written."""

    host: str | None = None
    port: int | None = None
    state: str | None = None
    used: Amount = Amount()
    total: Amount = Amount()

    def known(self) -> NodeManagerReport | None:
        """Return what it says of a NodeManager; None without host or port."""
        if not self.host or not self.port:
            return None
        node = NodeId(self.host, self.port)
        return NodeManagerReport(node, self.state or "", self.used.known(), self.total.known())


def parse(whole: bytes, client_id: bytes) -> Response:
    """Return the answer in a frame, its four bytes of length included. Raises: ContentError."""
    length = int.from_bytes(whole[:_LENGTH_BYTES], "big")
    body = whole[_LENGTH_BYTES:]
    if len(whole) < _LENGTH_BYTES or length != len(body):
        raise ContentError(SOURCE, f"a frame of {length} bytes is announced, {len(body)} are there")
    header, at = delimited_at(body, 0)
    found = dict(values(header))
    if octets(found, 7) not in (None, b"", client_id):
        return Response(RpcStatus.BAD_CLIENT_ID, number(found, 1) or 0)
    code = number(found, 2) or 0
    if not 0 <= code < len(_STATUSES):
        raise ContentError(SOURCE, f"status {code} is not known")
    if _STATUSES[code] is RpcStatus.SUCCESS:
        result = delimited_at(body, at)[0] if at < len(body) else b""
        return Response(RpcStatus.SUCCESS, number(found, 1) or 0, result)
    return Response(
        _STATUSES[code],
        number(found, 1) or 0,
        exception=text(found, 4) or "",
        message=text(found, 5) or "",
        detail=number(found, 6),
    )


def service_state(result: bytes) -> str | None:
    """Return the state of a GetServiceStatusResponseProto, None for another. Raises: ContentError."""
    return _name(HA_STATES, number(dict(values(result)), 1))


class ReportReader:
    """Reads polls. A report that begins as the one that stood in its place before, up to and with the node's state, is
    the same object again: what follows (when it was last heard of, what its machine uses) is for others."""

    def __init__(self) -> None:
        self._before: list[tuple[bytes, NodeReport]] = []

    def read(self, result: bytes) -> list[NodeReport]:
        """Return the nodes of a GetClusterNodesResponseProto. Raises: ContentError."""
        before = self._before
        now: list[tuple[bytes, NodeReport]] = []
        for field, value in values(result):
            if field != 1 or not isinstance(value, bytes):
                continue
            known = before[len(now)] if len(now) < len(before) else None
            if known is not None and value.startswith(known[0]) and _is_over(value, len(known[0])):
                now.append(known)
            else:
                now.append((value[: _end_of_state(value)], _node_report(value)))
        self._before = now
        return [report for _, report in now]


def _end_of_state(message: bytes) -> int:
    """Return where the first field after `node_state` (7) begins; the end, where fields are not in order."""
    at = last = 0
    while at < len(message):
        field, _, _, end = field_at(message, at)
        if field > _STATE_FIELD:
            return at
        if field < last:
            break
        last, at = field, end
    return len(message)


_STATE_FIELD = 7


def _is_over(message: bytes, at: int) -> bool:
    """Return whether a message has no more of what is read of it: its next field, if any, comes after `node_state`."""
    return (
        at == len(message) or message[at] > _STATE_FIELD << 3 | 7
    )  # tags of fields from 16 on begin above 127


def _node_report(message: bytes) -> NodeReport:
    found = dict(values(message))
    node = dict(values(octets(found, 1) or b""))
    state = number(found, 7)
    return NodeReport(
        text(node, 1),
        number(node, 2),
        _name(NODE_STATES, None if state is None else state - 1),
        _amount(octets(found, 4)),
        _amount(octets(found, 5)),
    )


def _amount(message: bytes | None) -> Amount:
    if message is None:
        return Amount()
    found = dict(values(message))
    return Amount(number(found, 2), number(found, 1))


def _name(names: tuple[str, ...], index: int | None) -> str | None:
    return names[index] if index is not None and 0 <= index < len(names) else None


def number(found: dict[int, int | bytes], field: int) -> int | None:
    """Return a number of a message, None when it is not written. Raises: ContentError."""
    value = found.get(field)
    if isinstance(value, bytes):
        raise ContentError(SOURCE, f"field {field} is not a number")
    return None if value is None else signed(value)


def octets(found: dict[int, int | bytes], field: int) -> bytes | None:
    """Return bytes or a message inside a message, None when not written. Raises: ContentError."""
    value = found.get(field)
    if isinstance(value, int):
        raise ContentError(SOURCE, f"field {field} is a number")
    return value


def text(found: dict[int, int | bytes], field: int) -> str | None:
    """Return a text of a message, None when it is not written. Raises: ContentError."""
    value = octets(found, field)
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError as error:
        raise ContentError(SOURCE, f"field {field} is not text") from error
