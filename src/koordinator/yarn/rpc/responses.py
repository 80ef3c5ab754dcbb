"""Read what the server answers. Fields that we do not use are skipped, so a poll of thousands of nodes stays cheap."""

import enum

import msgspec

from koordinator.yarn.amounts import YarnResource
from koordinator.yarn.node_sync import NodeId, NodeManagerReport
from koordinator.yarn.rpc.requests import NODE_STATES
from koordinator.yarn.rpc.wire import WireError, fields, read_delimited, signed

STANDBY_EXCEPTION = "org.apache.hadoop.ipc.StandbyException"
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

    @property
    def is_standby(self) -> bool:
        """Return whether another ResourceManager must be looked for."""
        return self.exception == STANDBY_EXCEPTION


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


def parse(frame: bytes, client_id: bytes) -> Response:
    """Return the answer in a frame, its four bytes of length included.

    Raises: WireError.
    """
    length = int.from_bytes(frame[:_LENGTH_BYTES], "big")
    body = frame[_LENGTH_BYTES:]
    if len(frame) < _LENGTH_BYTES or length != len(body):
        raise WireError(f"a frame of {length} bytes is announced, {len(body)} are there")
    header, at = read_delimited(body, 0)
    found = dict(fields(header))
    if _bytes(found, 7) not in (None, b"", client_id):
        return Response(RpcStatus.BAD_CLIENT_ID, _number(found, 1) or 0)
    code = _number(found, 2) or 0
    if not 0 <= code < len(_STATUSES):
        raise WireError(f"status {code} is not known")
    if _STATUSES[code] is RpcStatus.SUCCESS:
        result = read_delimited(body, at)[0] if at < len(body) else b""
        return Response(RpcStatus.SUCCESS, _number(found, 1) or 0, result)
    return Response(
        _STATUSES[code],
        _number(found, 1) or 0,
        exception=_text(found, 4) or "",
        message=_text(found, 5) or "",
        detail=_number(found, 6),
    )


def service_state(result: bytes) -> str | None:
    """Return the state of a GetServiceStatusResponseProto; None when it says none that we know.

    Raises: WireError.
    """
    return _name(HA_STATES, _number(dict(fields(result)), 1))


def cluster_nodes(result: bytes) -> list[NodeReport]:
    """Return the nodes of a GetClusterNodesResponseProto.

    Raises: WireError.
    """
    return [_node_report(value) for field, value in fields(result) if field == 1 and isinstance(value, bytes)]


def reports(nodes: list[NodeReport]) -> dict[NodeId, NodeManagerReport]:
    """Return the nodes of a poll by their id; those without host or port are left out."""
    found = {}
    for each in nodes:
        if each.host and each.port:
            node = NodeId(each.host, each.port)
            found[node] = NodeManagerReport(node, each.state or "", each.used.known(), each.total.known())
    return found


def _node_report(message: bytes) -> NodeReport:
    found = dict(fields(message))
    node = dict(fields(_bytes(found, 1) or b""))
    state = _number(found, 7)
    return NodeReport(
        _text(node, 1),
        _number(node, 2),
        _name(NODE_STATES, None if state is None else state - 1),
        _amount(_bytes(found, 4)),
        _amount(_bytes(found, 5)),
    )


def _amount(message: bytes | None) -> Amount:
    if message is None:
        return Amount()
    found = dict(fields(message))
    return Amount(_number(found, 2), _number(found, 1))


def _name(names: tuple[str, ...], index: int | None) -> str | None:
    return names[index] if index is not None and 0 <= index < len(names) else None


def _number(found: dict[int, int | bytes], field: int) -> int | None:
    value = found.get(field)
    if isinstance(value, bytes):
        raise WireError(f"field {field} is not a number")
    return None if value is None else signed(value)


def _bytes(found: dict[int, int | bytes], field: int) -> bytes | None:
    value = found.get(field)
    if isinstance(value, int):
        raise WireError(f"field {field} is a number")
    return value


def _text(found: dict[int, int | bytes], field: int) -> str | None:
    value = _bytes(found, field)
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"field {field} is not text") from error
