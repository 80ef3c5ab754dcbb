"""Frames of Hadoop RPC: what is written can be read, and bad bytes are told apart from good ones."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.host.errors import ContentError
from koordinator.host.protobuf import signed, values
from koordinator.yarn import rpc
from koordinator.yarn.amounts import YarnResource
from koordinator.yarn.node_sync import NodeId
from koordinator.yarn.rpc import RpcStatus

CLIENT = bytes(range(16))


def frame(*messages: bytes) -> bytes:
    body = b"".join(map(rpc.delimited, messages))
    return len(body).to_bytes(4, "big") + body


def header(status: int, client_id: bytes = CLIENT) -> bytes:
    return rpc.number_field(1, 7) + rpc.number_field(2, status) + rpc.bytes_field(7, client_id)


@given(number=st.integers(-(2**63), 2**63 - 1))
def test_a_number_comes_back(number: int) -> None:
    [(field, value)] = values(rpc.number_field(5, number))
    assert isinstance(value, int)
    assert (field, signed(value)) == (5, number)


@given(
    state=st.sampled_from(rpc.NODE_STATES),
    host=st.text(min_size=1, max_size=9),
    port=st.integers(1, 65535),
    memory=st.integers(0, 2**62),
)
def test_a_node_report_comes_back(state: str, host: str, port: int, memory: int) -> None:
    node = rpc.text_field(1, host) + rpc.number_field(2, port)
    used = rpc.number_field(1, memory) + rpc.number_field(2, 3)
    report = rpc.bytes_field(1, node) + rpc.bytes_field(4, used)
    report += rpc.number_field(7, rpc.NODE_STATES.index(state) + 1)

    answer = rpc.parse(frame(header(0), rpc.bytes_field(1, report)), CLIENT)

    [read] = rpc.ReportReader().read(answer.result)
    found = read.known()
    assert found is not None
    assert (found.node, found.state, found.used) == (NodeId(host, port), state, YarnResource(3, memory))


@given(data=st.binary(max_size=40))
def test_any_bytes_are_a_response_or_a_wire_error(data: bytes) -> None:
    for made in (data, len(data).to_bytes(4, "big") + data):
        with contextlib.suppress(ContentError):
            rpc.ReportReader().read(rpc.parse(made, CLIENT).result)


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_a_frame_that_is_cut_off_is_an_error(cut: int) -> None:
    whole = frame(header(0), b"")
    with pytest.raises(ContentError, match="announced"):
        rpc.parse(whole[:-cut], CLIENT)


def test_an_answer_to_somebody_else_is_not_taken() -> None:
    assert rpc.parse(frame(header(0, b"other"), b""), CLIENT).status is RpcStatus.BAD_CLIENT_ID


def test_a_node_without_address_is_left_out_of_a_poll() -> None:
    assert rpc.NodeReport(host="a").known() is None
    assert rpc.NodeReport(port=1).known() is None


def test_many_nodes_go_in_one_call() -> None:
    updates = [rpc.NodeUpdate(NodeId(f"nm-{i}", 8041), YarnResource(1, 1)) for i in range(3)]

    made = rpc.update_node_resource(CLIENT, 0, updates)

    assert int.from_bytes(made[:4], "big") == len(made) - 4
    assert [made.count(f"nm-{i}".encode()) for i in range(3)] == [1, 1, 1]


def test_a_context_names_only_the_users_that_are_given() -> None:
    one = rpc.connection_context(CLIENT, "p", "yarn")
    assert b"yarn" in one
    assert len(rpc.connection_context(CLIENT, "p", None)) == len(one) - len(rpc.text_field(1, "yarn"))


def test_a_report_that_says_more_than_before_is_read_again() -> None:
    node = rpc.bytes_field(1, rpc.text_field(1, "nm-1") + rpc.number_field(2, 8041))
    reader = rpc.ReportReader()
    seen = [
        reader.read(rpc.bytes_field(1, message))[0]
        for message in (
            b"",
            node,
            node + rpc.number_field(7, 5),
            node + rpc.number_field(7, 5) + rpc.text_field(8, ""),
        )
    ]
    assert [(each.host, each.state) for each in seen] == [
        (None, None),
        ("nm-1", None),
        ("nm-1", "LOST"),
        ("nm-1", "LOST"),
    ]
    assert seen[3] is seen[2]
