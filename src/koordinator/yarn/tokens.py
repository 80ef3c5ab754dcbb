"""Delegation tokens from a file as Hadoop's tools write it, in both of its formats, and which server each is for.

`HADOOP_TOKEN_FILE_LOCATION` names the file. Source: behaviour/yarn 4.4.
"""

from collections.abc import Sequence

from koordinator.api.errors import KoordinatorError
from koordinator.host.errors import ContentError
from koordinator.host.protobuf import delimited_at, values
from koordinator.yarn import rpc
from koordinator.yarn.sasl import Token

_MAGIC = b"HDTS"


class TokenFileError(KoordinatorError, ValueError):
    """A file of tokens cannot be read."""


def parse(content: bytes) -> list[Token]:
    """Return the tokens of a file. Raises: TokenFileError."""
    if content[:4] != _MAGIC or len(content) < 5:
        raise TokenFileError("it does not begin as a file of Hadoop tokens")
    try:
        match content[4]:
            case 0:
                return _writable(content)
            case 1:
                message, _ = delimited_at(content, 5)
                return [_token(value) for field, value in values(message) if field == 1]
            case version:
                raise TokenFileError(f"its format {version} is not known")
    except (ContentError, IndexError, UnicodeDecodeError) as error:
        raise TokenFileError(f"it is damaged: {error}") from error


def token_for(tokens: Sequence[Token], server: str) -> Token | None:
    """Return the token that a server (host:port) takes; one of a pair of ResourceManagers names both."""
    return next((token for token in tokens if server in token.service.split(",")), None)


def _token(entry: int | bytes) -> Token:
    if not isinstance(entry, bytes):
        raise ContentError("token file", "a token is a number")
    found = dict(values(rpc.octets(dict(values(entry)), 2) or b""))
    return Token(
        rpc.octets(found, 1) or b"",
        rpc.octets(found, 2) or b"",
        rpc.text(found, 3) or "",
        rpc.text(found, 4) or "",
    )


def _writable(content: bytes) -> list[Token]:
    count, at = _vint(content, 5)
    tokens = []
    for _ in range(count):
        parts = []
        for _ in range(5):  # alias, identifier, password, kind, service
            length, at = _vint(content, at)
            if length < 0 or at + length > len(content):
                raise ContentError(
                    "token file", f"{length} bytes are announced, {len(content) - at} are there"
                )
            parts.append(content[at : at + length])
            at += length
        tokens.append(Token(parts[1], parts[2], parts[3].decode(), parts[4].decode()))
    return tokens


def _vint(content: bytes, at: int) -> tuple[int, int]:
    """Return a number as Hadoop's `WritableUtils.writeVInt` has it, and where the next thing starts."""
    first = content[at] - 256 if content[at] > 127 else content[at]
    if first >= -112:
        return first, at + 1
    is_negative = first < -120
    size = -(first + (120 if is_negative else 112))
    if at + 1 + size > len(content):
        raise ContentError("token file", "a number is cut off")
    number = int.from_bytes(content[at + 1 : at + 1 + size], "big")
    return (~number if is_negative else number), at + 1 + size
