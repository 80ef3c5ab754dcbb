"""Reading plain texts out of labels and annotations, with errors that name object and key."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from koordinator.api import scalars
from koordinator.api.errors import ProtocolError
from koordinator.api.scalars import ScalarError

T = TypeVar("T")


def read(values: Mapping[str, str], key: str, parse: Callable[[str], T], default: T, obj: str = "") -> T:
    """Return the parsed text under `key`, `default` when there is none.

    Raises: ProtocolError when the text is malformed, also when it is empty.
    """
    text = values.get(key)
    return default if text is None else parsed(text, key, parse, obj)


def parsed(text: str, key: str, parse: Callable[[str], T], obj: str = "") -> T:
    """`text` of `key`, parsed.

    Raises: ProtocolError when it is malformed.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise ProtocolError(obj, key, str(error)) from error


def parse_int32(text: str) -> int:
    """Return a 32-bit integer.

    Raises: ScalarError.
    """
    return scalars.parse_int(text, 32)


def parse_plain_int32(text: str) -> int:
    """Return a 32-bit integer without plus sign or leading zeros (a minus sign hides zeros from that rule).

    Raises: ScalarError.
    """
    if text[:1] == "+" or (text[:1] == "0" and text != "0"):
        raise ScalarError(text, "an integer without plus sign and leading zeros")
    return parse_int32(text)
