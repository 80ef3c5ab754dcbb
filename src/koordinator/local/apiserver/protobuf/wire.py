"""Write numbers, lengths and tags of the wire format, and read the envelope around an object; load the fields of
messages.

`messages.txt` holds the numbers, names and types of the fields in the messages of Kubernetes' API, made by
`tools/protobuf_facts` from the struct tags of Kubernetes' Go types, which the API promises to keep. A line `= VERSION
FOLDER KIND ...` says which messages the kinds of an API version are; `[FOLDER]` begins the messages of a folder, a
line each: its name, then its fields as `NUMBER:NAME:TYPE`.

A name `@` marks a message whose fields stand in the outer object in JSON. Types: `s` text, `i` integer, `b` boolean,
`d` floating-point number, `y` bytes, a message, or a word for a type with rules of its own (`time`, `quantity`, ...);
`[T]` is a list, `{T}` a map from text. At the end `*` marks fields for which absence and zero differ, `!` those whose
zeros JSON shows, too.

Sources: protobuf.dev, "Encoding"; k8s.io/apimachinery/pkg/runtime/serializer/protobuf.
"""

from functools import cache
from importlib import resources

import msgspec

from koordinator.host.protobuf import field, values, varint

ENVELOPED_ANYWHERE = "DeleteOptions"
"""A kind that comes under the name of every API version."""


class MessageField(msgspec.Struct, frozen=True):
    """A field of a message. `type` is without the brackets of `is_list` and the braces of `is_map`."""

    number: int
    name: str
    type: str
    is_list: bool
    is_map: bool
    is_pointer: bool
    keeps_zero: bool


class MessageFacts(msgspec.Struct, frozen=True):
    """Messages by `FOLDER.NAME`, still as text, and the message of each `VERSION/KIND`."""

    messages: dict[str, str]
    kinds: dict[str, str]

    def members(self, message: str) -> list[MessageField]:
        """Return the fields of a message. Raises: KeyError."""
        folder = message.partition(".")[0]
        return [_member(word, folder) for word in self.messages[message].split()]

    def message_of(self, api_version: str, kind: str) -> str | None:
        """Return the message of a kind; None for one that has none."""
        if kind == ENVELOPED_ANYWHERE:
            api_version = "v1"
        return self.kinds.get(f"{api_version}/{kind}")


@cache
def facts() -> MessageFacts:
    """Return the table, read when the first client speaks protobuf."""
    text = resources.files(__package__).joinpath("messages.txt").read_text(encoding="utf-8")
    messages: dict[str, str] = {}
    kinds: dict[str, str] = {}
    folder = ""
    for line in text.splitlines():
        if line.startswith("= "):
            version, of, *names = line[2:].split()
            kinds.update((f"{version}/{name}", f"{of}.{name}") for name in names)
        elif line.startswith("["):
            folder = line.strip("[]")
        elif not line.startswith("#"):
            name, _, members = line.partition(" ")
            messages[f"{folder}.{name}"] = members
    return MessageFacts(messages, kinds)


def _member(word: str, folder: str) -> MessageField:
    number, name, type_ = word.split(":")
    bare = type_.rstrip("*!")
    is_list, is_map = bare.startswith("["), bare.startswith("{")
    element = bare.strip("[]{}")
    if element[:1].isupper():  # a message of the same folder
        element = f"{folder}.{element}"
    return MessageField(int(number), name, element, is_list, is_map, type_.endswith("*"), type_.endswith("!"))


MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
WATCH_TYPE = MEDIA_TYPE + ";stream=watch"
MAGIC = b"k8s\x00"
"""First bytes of the envelope of an object."""

_MASK_64 = (1 << 64) - 1


class Malformed(ValueError):
    """The bytes are no message of the kind that they claim to be."""


class JsonOnly(ValueError):
    """The message is of a kind that this server knows in JSON only."""


def integer(number: int) -> bytes:
    """Return an int32, int64 or boolean, a negative one as its two's complement of 64 bits."""
    return varint(number & _MASK_64)


_SIZES = [varint(size) for size in range(4096)]


def size_of(content: bytes) -> bytes:
    """Return the length that stands before texts and messages."""
    size = len(content)
    return _SIZES[size] if size < 4096 else varint(size)


def tag(number: int, how: int) -> bytes:
    """Return the tag that stands before a field."""
    return varint(number << 3 | how)


def wrapped(api_version: str, kind: str, message: bytes) -> bytes:
    """Return a message in the envelope that says what it is."""
    type_meta = field(1, api_version.encode()) + field(2, kind.encode())
    return b"%b%b%b%b%b" % (MAGIC, field(1, type_meta), field(2, message), field(3, b""), field(4, b""))


def unwrapped(body: bytes) -> tuple[str, str, bytes]:
    """API version, kind and message of an envelope. Raises: Malformed, ContentError."""
    if not body.startswith(MAGIC):
        raise Malformed(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
        )
    api_version = kind = ""
    message = b""
    for number, content in values(body[len(MAGIC) :]):
        if number == 1:
            for part, text in values(bytes_of(content)):
                if part == 1:
                    api_version = text_of(text)
                elif part == 2:
                    kind = text_of(text)
        elif number == 2:
            message = bytes_of(content)
    return api_version, kind, message


def bytes_of(content: int | bytes) -> bytes:
    """Return the content of a field that has a length. Raises: Malformed."""
    if isinstance(content, int):
        raise Malformed("proto: wrong wireType for a message or text")
    return content


def number_of(content: int | bytes) -> int:
    """Return the content of a field that is a number. Raises: Malformed."""
    if not isinstance(content, int):
        raise Malformed("proto: wrong wireType for a number")
    return content


def text_of(content: int | bytes) -> str:
    """Return the content of a text. Raises: Malformed."""
    try:
        return bytes_of(content).decode()
    except UnicodeDecodeError:
        raise Malformed("proto: a text is not UTF-8") from None
