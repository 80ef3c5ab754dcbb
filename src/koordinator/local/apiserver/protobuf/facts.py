"""Load the numbers, names and types of the fields in the messages of Kubernetes' API.

`messages.txt` holds it, made by `tools/protobuf_facts` from the struct tags of Kubernetes' Go types, which the API
promises to keep. A line `= VERSION FOLDER KIND ...` says which messages the kinds of an API version are; `[FOLDER]`
begins the messages of a folder, a line each: its name, then its fields as `NUMBER:NAME:TYPE`.

A name `@` marks a message whose fields stand in the outer object in JSON. Types: `s` text, `i` integer, `b` boolean,
`d` floating-point number, `y` bytes, a message, or a word for a type with rules of its own (`time`, `quantity`, ...);
`[T]` is a list, `{T}` a map from text. At the end `*` marks fields for which absence and zero differ, `!` those whose
zeros JSON shows, too.
"""

from functools import cache
from importlib import resources

import msgspec

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
        """Return the fields of a message.

        Raises: KeyError.
        """
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


__all__ = ["MessageFacts", "MessageField", "facts"]
