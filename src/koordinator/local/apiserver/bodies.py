"""Request bodies: JSON or YAML text to a JSON object, with the API server's complaints.

msgspec decodes; what it does not tell (duplicate keys, depth) is looked for only where a cheap test of the
text cannot rule it out.
"""

import asyncio
import json
import re
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from koordinator.api import yaml_text
from koordinator.cluster import errors

BODY_BYTES_MAX = 3 * 1024 * 1024  # the API server's limit for one request
DEPTH_MAX = yaml_text.DEPTH_MAX
READ_HERE_BYTES_MAX = 32 * 1024
"""Longest text that is read in the loop: YAML and duplicate keys take Python 1 s per MB; longer texts
are read by a thread one by one, while others are answered."""
DUPLICATES_MAX = 100
"""Number of duplicates that are reported, as the API server does."""
VALUES_MAX = 250_000
"""Values in one body: manifests of the size that a request may have hold a third of that. Each costs up to 1 µs in
which nobody else is answered, and up to 100 bytes of memory."""
_READER = ThreadPoolExecutor(1, thread_name_prefix="bodies")
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A string, or what there is of one: matches at every quote, so a search takes linear time."""
_SUMMARY_CHARS = 30

TOO_LARGE = f"Request entity too large: limit is {BODY_BYTES_MAX}"


_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def unpacked(body: bytes, encoding: str) -> bytes:
    """Return a body as it was before its `Content-Encoding`; encodings that nobody knows mean nothing, as in
    Kubernetes.

    Unpacks no more than a request may have. Raises: BadRequest, RequestTooLarge.
    """
    window = _WINDOWS.get(encoding.strip().lower())
    if window is None:
        return body
    if encoding.strip().lower() == "deflate" and body[:1] and body[0] & 0xF != 8:
        window = -zlib.MAX_WBITS  # without the header of RFC 1950, as some clients send it
    unpacker = zlib.decompressobj(window)
    try:
        found = unpacker.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise errors.BadRequest(f"the body cannot be read: it is not {encoding}: {error}") from None
    if len(found) > BODY_BYTES_MAX:
        raise errors.RequestTooLarge(TOO_LARGE)
    if not unpacker.eof or unpacker.unused_data:
        raise errors.BadRequest(f"the body cannot be read: its {encoding} ends too early or goes on too long")
    return found


def decode_json(body: bytes) -> Any:
    """Return the value of a JSON text. Raises: MalformedBody (not JSON, too deep, too many values)."""
    check_values(body)
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise TooMuch("json: exceeded max depth") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedBody(_go_text(body, error)) from None
    check_depth(body, value)
    return value


def decode_yaml(body: bytes) -> Any:
    """Return the value of a YAML text; JSON is YAML, and is what clients mostly send under that name.

    Raises: MalformedBody.
    """
    if body.lstrip()[:1] in (b"{", b"["):  # else commas are mostly those of texts, which YAML does not quote
        try:
            return decode_json(body)
        except TooMuch:
            raise
        except MalformedBody:
            pass
    try:
        return yaml_text.load(body, nodes_max=VALUES_MAX)
    except yaml_text.YamlError as error:
        raise MalformedBody(f"error converting YAML to JSON: yaml: {error}") from None


async def decode_yaml_beside(body: bytes) -> Any:
    """`decode_yaml` that does not keep others waiting. Raises: MalformedBody."""
    if len(body) <= READ_HERE_BYTES_MAX:
        return decode_yaml(body)
    return await asyncio.get_running_loop().run_in_executor(_READER, decode_yaml, body)


class MalformedBody(ValueError):
    """The text is no JSON or YAML; the message is the decoder's."""


class TooMuch(MalformedBody):
    """The text may be JSON, but it is too deep, or has too many values."""


def duplicate_fields(body: bytes, value: Any) -> list[str]:
    """Paths of keys that occur twice in one JSON object of the text that `value` was decoded from, the first
    `DUPLICATES_MAX` of them.

    A text without duplicates has the length of its own encoding, blanks aside: that settles nearly all.
    """
    if not isinstance(value, dict):
        return []
    encoded = len(msgspec.json.encode(value))
    if encoded == len(body):
        return []
    try:
        if encoded == len(msgspec.json.format(body, indent=-1)):
            return []
        marked = json.loads(body, object_pairs_hook=_marked)
    except ValueError:  # no JSON: the YAML reader refuses duplicates itself, protobuf has none
        return []
    found: list[str] = []
    _collect_duplicates(marked, "", found)
    return found[:DUPLICATES_MAX]


async def duplicate_fields_beside(body: bytes, value: Any) -> list[str]:
    """`duplicate_fields` that does not keep others waiting: looking for their places takes up to a second."""
    if len(body) <= READ_HERE_BYTES_MAX:
        return duplicate_fields(body, value)
    return await asyncio.get_running_loop().run_in_executor(_READER, duplicate_fields, body, value)


def check_values(body: bytes) -> None:
    """Raise TooMuch when the text has more than `VALUES_MAX` values. Counted before they are made, and exactly only
    where a count of all commas and brackets, those in strings included, cannot rule it out."""
    if _separators(body) >= VALUES_MAX and _separators(_TEXT.sub(b"", body)) >= VALUES_MAX:
        raise TooMuch(f"json: more than {VALUES_MAX} values")


def _separators(body: bytes) -> int:
    """Characters with which a value begins, or the next one of the same list or object."""
    return body.count(b",") + body.count(b"{") + body.count(b"[")


def check_depth(body: bytes, value: Any) -> None:
    """Raise TooMuch when objects and lists are nested deeper than `DEPTH_MAX`."""
    if body.count(b"{") + body.count(b"[") < DEPTH_MAX:
        return
    level = [value]
    for _ in range(DEPTH_MAX):
        level = (
            [
                child
                for parent in level
                for child in (parent.values() if isinstance(parent, dict) else parent)
                if isinstance(child, dict | list)
            ]
            if isinstance(level[0] if level else None, dict | list)
            else []
        )
        if not level:
            return
    raise TooMuch("json: exceeded max depth")


def summary(body: bytes) -> str:
    """Return the first characters of a body, as error texts quote it."""
    if not body:
        return "<empty>"
    text = body[: _SUMMARY_CHARS * 4].decode(errors="replace")
    return text if len(text) <= _SUMMARY_CHARS else text[:_SUMMARY_CHARS] + " ..."


def unrecognised(kind: str, body: bytes, error: ValueError) -> errors.BadRequest:
    """400 for a body whose kind could not even be read."""
    return errors.BadRequest(
        f"the object provided is unrecognized (must be of type {kind}): "
        f"couldn't get version/kind; json parse error: {error} ({summary(body)})"
    )


class _MarkedDict(dict[str, Any]):
    """A JSON object of which keys came twice."""

    twice: list[str]


def _marked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    marked = _MarkedDict(found)
    seen: set[str] = set()
    marked.twice = [key for key, _ in pairs if key in seen or seen.add(key)]  # type: ignore[func-returns-value]
    return marked


def _collect_duplicates(value: Any, path: str, found: list[str]) -> None:
    children: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        prefix = f"{path}." if path else ""
        if isinstance(value, _MarkedDict):
            found += [prefix + key for key in dict.fromkeys(value.twice)]
        children = ((prefix + key, child) for key, child in value.items() if isinstance(child, dict | list))
    elif isinstance(value, list):
        children = (
            (f"{path}[{index}]", child) for index, child in enumerate(value) if isinstance(child, dict | list)
        )
    for where, child in children:
        if len(found) >= DUPLICATES_MAX:
            return
        if child:
            _collect_duplicates(child, where, found)


def _go_text(body: bytes, error: Exception) -> str:
    """Return the decoder's trouble in the words that users of kubectl know."""
    text = str(error)
    if "truncated" in text or not body.strip():
        return "unexpected end of JSON input"
    try:
        json.loads(body)
    except json.JSONDecodeError as precise:
        char = precise.doc[precise.pos : precise.pos + 1]
        return f"invalid character {char!r} at offset {precise.pos}: {precise.msg}"
    except (ValueError, RecursionError):
        return "invalid character encoding or number"
    return text
