"""Request bodies: JSON or YAML text to a JSON object, with the API server's complaints.

msgspec decodes; what it does not tell (duplicate keys, depth) is looked for only where a cheap test of the
text cannot rule it out.
"""

import asyncio
import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from koordinator.api import yaml_text
from koordinator.cluster import errors

BODY_BYTES_MAX = 3 * 1024 * 1024  # the API server's limit for one request
DEPTH_MAX = yaml_text.DEPTH_MAX
YAML_HERE_BYTES_MAX = 32 * 1024
"""A YAML text is read at about 1 MB/s; longer ones are read by a thread one by one, while others are answered."""
YAML_NODES_MAX = 250_000
"""Values in a YAML text: manifests of the size that a request may have hold a third of that."""
_YAML_READER = ThreadPoolExecutor(1, thread_name_prefix="yaml")
_SUMMARY_CHARS = 30

TOO_LARGE = f"Request entity too large: limit is {BODY_BYTES_MAX}"


_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def unpacked(body: bytes, encoding: str) -> bytes:
    """A body as it was before its `Content-Encoding`; encodings that nobody knows mean nothing, as in Kubernetes.

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
    """The value of a JSON text.

    Raises: MalformedBody (not JSON, too deep).
    """
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise MalformedBody("json: exceeded max depth") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedBody(_go_text(body, error)) from None
    check_depth(body, value)
    return value


def decode_yaml(body: bytes) -> Any:
    """The value of a YAML text; JSON is YAML, and is what clients mostly send under that name.

    Raises: MalformedBody.
    """
    try:
        return decode_json(body)
    except MalformedBody as error:
        if "max depth" in str(error):
            raise
    try:
        return yaml_text.load(body, nodes_max=YAML_NODES_MAX)
    except yaml_text.YamlError as error:
        raise MalformedBody(f"error converting YAML to JSON: yaml: {error}") from None


async def decode_yaml_beside(body: bytes) -> Any:
    """`decode_yaml` that does not keep others waiting.

    Raises: MalformedBody.
    """
    if len(body) <= YAML_HERE_BYTES_MAX:
        return decode_yaml(body)
    return await asyncio.get_running_loop().run_in_executor(_YAML_READER, decode_yaml, body)


class MalformedBody(ValueError):
    """The text is no JSON or YAML; the message is the decoder's."""


def duplicate_fields(body: bytes, value: Any) -> list[str]:
    """Paths of keys that occur twice in one JSON object of the text that `value` was decoded from.

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
        marked = json.loads(body, object_pairs_hook=_MarkedDict)
    except ValueError:  # no JSON: the YAML reader refuses duplicates itself, protobuf has none
        return []
    found: list[str] = []
    _collect_duplicates(marked, "", found)
    return found


def check_depth(body: bytes, value: Any) -> None:
    """Raises MalformedBody when objects and lists are nested deeper than `DEPTH_MAX`."""
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
    raise MalformedBody("json: exceeded max depth")


def summary(body: bytes) -> str:
    """The first characters of a body, as error texts quote it."""
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
    """A JSON object that remembers which of its keys came twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        seen: set[str] = set()
        self.twice = [key for key, _ in pairs if key in seen or seen.add(key)]  # type: ignore[func-returns-value]


def _collect_duplicates(value: Any, path: str, found: list[str]) -> None:
    if isinstance(value, _MarkedDict):
        prefix = f"{path}." if path else ""
        found += [prefix + key for key in dict.fromkeys(value.twice)]
        for key, child in value.items():
            _collect_duplicates(child, prefix + key, found)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            _collect_duplicates(child, f"{path}[{index}]", found)


def _go_text(body: bytes, error: Exception) -> str:
    """The decoder's trouble in the words that users of kubectl know."""
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
