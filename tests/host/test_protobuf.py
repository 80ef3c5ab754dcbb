"""Messages are taken apart and put together again without a loss, and what is no message is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.host import protobuf
from koordinator.host.errors import ContentError


@given(st.lists(st.tuples(st.integers(1, 2**20), st.binary(max_size=300)), max_size=10))
def test_a_message_of_any_fields_reads_back(parts: list[tuple[int, bytes]]) -> None:
    message = b"".join(protobuf.field(number, content) for number, content in parts)

    assert [(each.number, each.content) for each in protobuf.fields(message)] == parts
    assert b"".join(each.whole for each in protobuf.fields(message)) == message


def test_numbers_and_fixed_fields_pass_as_they_are() -> None:
    message = b"\x08\x96\x01" + b"\x11" + bytes(8) + b"\x1d" + bytes(4) + b"\x22\x01x"

    found = list(protobuf.fields(message))

    assert [(each.number, each.wire_type, len(each.content)) for each in found] == [
        (1, protobuf.VARINT, 2),
        (2, protobuf.FIXED64, 8),
        (3, protobuf.FIXED32, 4),
        (4, protobuf.BYTES, 1),
    ]
    assert b"".join(each.whole for each in found) == message


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_a_message_or_refused(noise: bytes) -> None:
    try:
        found = list(protobuf.fields(noise))
    except ContentError:
        return
    assert b"".join(each.whole for each in found) == noise


@pytest.mark.parametrize("bad", [b"\x0a", b"\x0a\x05ab", b"\x0b", b"\xff" * 11, b"\x09\x00"])
def test_a_message_that_is_cut_off_or_has_groups_is_refused(bad: bytes) -> None:
    with pytest.raises(ContentError):
        list(protobuf.fields(bad))
