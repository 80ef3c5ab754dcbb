"""Write what the client sends: the connection's opening, and one frame per call."""

import enum
from collections.abc import Iterable, Sequence

import msgspec

from koordinator.yarn.amounts import YarnResource
from koordinator.yarn.node_sync import NodeId
from koordinator.yarn.rpc.wire import bytes_field, delimited, number_field, signed_field, text_field

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
    """Return the context of a connection: who speaks which protocol. `real_user` acts for `user`, None leaves a
    name out.
    """
    user_info = b"".join(
        text_field(field, name) for field, name in ((1, user), (2, real_user)) if name is not None
    )
    context = bytes_field(2, user_info) + text_field(3, protocol)
    return _frame(_request_header(CONTEXT_CALL_ID, client_id, -1), context)


def update_node_resource(client_id: bytes, call_id: int, updates: Iterable[NodeUpdate]) -> bytes:
    """All changed nodes of a cluster in one call."""
    argument = b"".join(bytes_field(1, _node_update(update)) for update in updates)
    return _call(client_id, call_id, Method.UPDATE_NODE_RESOURCE, argument)


def get_cluster_nodes(client_id: bytes, call_id: int, states: Sequence[str]) -> bytes:
    """The reports of all nodes in one of these states."""
    argument = b"".join(number_field(1, NODE_STATES.index(state) + 1) for state in states)
    return _call(client_id, call_id, Method.GET_CLUSTER_NODES, argument)


def get_service_status(client_id: bytes, call_id: int) -> bytes:
    """Return the question whether this ResourceManager is the active one."""
    return _call(client_id, call_id, Method.GET_SERVICE_STATUS, b"")


def _call(client_id: bytes, call_id: int, method: Method, argument: bytes) -> bytes:
    name, protocol = method.value
    header = text_field(1, name) + text_field(2, protocol) + number_field(3, _PROTOCOL_VERSION)
    return _frame(_request_header(call_id, client_id, 0), header, argument)


def _request_header(call_id: int, client_id: bytes, retries: int) -> bytes:
    return b"".join(
        (
            number_field(1, _PROTOCOL_BUFFER),
            number_field(2, _FINAL_PACKET),
            signed_field(3, call_id),
            bytes_field(4, client_id),
            signed_field(5, retries),
        )
    )


def _frame(*messages: bytes) -> bytes:
    body = b"".join(delimited(message) for message in messages)
    return len(body).to_bytes(4, "big") + body


def _node_update(update: NodeUpdate) -> bytes:
    node = text_field(1, update.node.host) + number_field(2, update.node.port)
    total = number_field(1, update.total.memory_mb) + number_field(2, update.total.vcores)
    option = bytes_field(1, total)
    if update.over_commit_timeout_ms is not None:
        option += number_field(2, update.over_commit_timeout_ms)
    return bytes_field(1, node) + bytes_field(2, option)
