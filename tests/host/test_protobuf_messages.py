"""Messages of protocol buffers go out as they came in, except for what was changed."""

from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.host import protobuf_messages
from koordinator.host.cri_messages import (
    CreateContainerRequest,
    LinuxContainerResources,
    PodSandboxRequest,
    StopContainerRequest,
)
from koordinator.host.errors import ContentError
from koordinator.host.protobuf_messages import Message

int64s = st.integers(-(2**63), 2**63 - 1)


class Leaf(Message, frozen=True):
    text: Annotated[str, 1] = ""
    number: Annotated[int, 200] = 0


class Tree(Message, frozen=True):
    leaf: Annotated[Leaf | None, 1] = None
    leaves: Annotated[tuple[Leaf, ...], 2] = ()
    labels: Annotated[dict[str, str], 3] = {}
    numbers: Annotated[tuple[int, ...], 4] = ()
    words: Annotated[tuple[str, ...], 5] = ()
    raw: Annotated[bytes, 6] = b""
    is_set: Annotated[bool, 7] = False


class Part(Message, frozen=True):
    """A program of yesterday: it knows one field of `Tree`."""

    numbers: Annotated[tuple[int, ...], 4] = ()


leaves = st.builds(Leaf, st.text(max_size=200), int64s)
trees = st.builds(
    Tree,
    st.none() | leaves,
    st.lists(leaves, max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
    st.lists(int64s, max_size=3).map(tuple),
    st.lists(st.text(max_size=3), max_size=3).map(tuple),
    st.binary(max_size=3),
    st.booleans(),
)


@given(tree=trees)
def test_a_message_comes_back_as_it_was(tree: Tree) -> None:
    assert protobuf_messages.decode(Tree, protobuf_messages.encode(tree)) == tree


@given(tree=trees, numbers=st.lists(int64s, max_size=3).map(tuple))
def test_what_is_not_known_survives_a_change(tree: Tree, numbers: tuple[int, ...]) -> None:
    part = protobuf_messages.decode(Part, protobuf_messages.encode(tree))
    changed = protobuf_messages.encode(msgspec.structs.replace(part, numbers=numbers))

    assert protobuf_messages.decode(Tree, changed) == msgspec.structs.replace(tree, numbers=numbers)


@given(data=st.binary(max_size=60))
def test_damaged_bytes_are_refused_or_read(data: bytes) -> None:
    try:
        message = protobuf_messages.decode(CreateContainerRequest, data)
    except ContentError:
        return
    assert protobuf_messages.decode(CreateContainerRequest, protobuf_messages.encode(message)) == message


def test_bytes_are_those_of_the_public_api() -> None:
    assert protobuf_messages.encode(StopContainerRequest("abc")) == b"\x0a\x03abc"
    assert protobuf_messages.encode(StopContainerRequest("abc", 300)) == b"\x0a\x03abc\x10\xac\x02"
    assert protobuf_messages.encode(LinuxContainerResources(cpu_quota=-1)) == b"\x10" + b"\xff" * 9 + b"\x01"
    assert (
        protobuf_messages.encode(LinuxContainerResources(unified={"a": "b"})) == b"\x4a\x06\x0a\x01a\x12\x01b"
    )


def test_a_field_of_another_type_is_refused() -> None:
    with pytest.raises(ContentError):
        protobuf_messages.decode(PodSandboxRequest, b"\x08\x05")


def test_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(ContentError):
        protobuf_messages.decode(PodSandboxRequest, b"\x0a\x01\xff")


class Spliced(Message, frozen=True):
    """`Tree` for who only hands the labels on."""

    labels: Annotated[protobuf_messages.Entries, 3] = ()


@given(labels=st.dictionaries(st.text(max_size=200), st.text(max_size=200), max_size=3))
def test_entries_pass_as_they_came_and_say_what_the_map_says(labels: dict[str, str]) -> None:
    raw = protobuf_messages.encode(Tree(labels=labels))
    found = protobuf_messages.decode(Spliced, raw)

    assert protobuf_messages.encode(found) == raw
    assert found.labels == protobuf_messages.entries(labels)
    assert protobuf_messages.texts(found.labels) == labels


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (b"", {"": ""}),
        (b"\x0a\x01a", {"a": ""}),
        (b"\x12\x01b", {"": "b"}),
        (b"\x12\x01b\x0a\x01a", {"a": "b"}),
        (b"\x0a\x01a\x12\x01b\x18\x05", {"a": "b"}),
        (b"\x0a\x01a\x12\x01b\x12\x01c", {"a": "c"}),
    ],
    ids=["empty", "no value", "no key", "value first", "a field of later", "twice"],
)
def test_entries_of_other_programs_are_understood(entry: bytes, said: dict[str, str]) -> None:
    assert protobuf_messages.texts((entry,)) == said
    raw = b"\x1a" + bytes((len(entry),)) + entry
    assert protobuf_messages.decode(Tree, raw).labels == said


@given(entry=st.binary(max_size=12))
def test_noise_is_an_entry_or_refused(entry: bytes) -> None:
    try:
        assert len(protobuf_messages.texts((entry,))) == 1
    except ContentError:
        with pytest.raises(ContentError):
            protobuf_messages.decode(Tree, b"\x1a" + bytes((len(entry),)) + entry)
