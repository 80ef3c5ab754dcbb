"""Prove who calls to a Hadoop server: the SASL messages around a mechanism, and DIGEST-MD5 for delegation tokens.

The digest is that of RFC 2831. Source: behaviour/yarn 4.4.
"""

import base64
import enum
import hashlib
import hmac
import re
from typing import Protocol

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.host.errors import ContentError
from koordinator.host.protobuf import values
from koordinator.yarn import rpc

SASL_CALL_ID = -33
ROUNDS_MAX = 8
"""DIGEST-MD5 takes two messages, GSSAPI four."""


class SaslError(KoordinatorError):
    """Client and server do not agree who calls."""


class SaslState(enum.Enum):
    """The kind of a message."""

    SUCCESS = 0
    NEGOTIATE = 1
    INITIATE = 2
    CHALLENGE = 3
    RESPONSE = 4
    WRAP = 5


class SaslAuth(msgspec.Struct, frozen=True):
    """A way that the server offers; `challenge` is its first word, for mechanisms in which the server begins."""

    method: str
    mechanism: str
    protocol: str
    server_id: str
    challenge: bytes = b""


class Mechanism(Protocol):
    """One way to prove who calls, for one connection."""

    method: str
    """Name in the servers' lists: TOKEN."""
    user: str | None
    """The name in the context of the connection; None where the proof names the caller."""
    asks_others: bool
    """Its steps wait for somebody else, and so belong into a thread."""

    def start(self, auth: SaslAuth) -> bytes:
        """Return the first word to the server. Raises: SaslError."""

    def step(self, challenge: bytes) -> bytes:
        """Return the answer to a challenge. Raises: SaslError."""

    def finish(self, proof: bytes) -> None:
        """Take the server's own proof. Raises: SaslError."""


def negotiate() -> bytes:
    """Return the question which ways the server offers."""
    return _message(SaslState.NEGOTIATE)


def frame(message: bytes) -> bytes:
    """Return a SASL message as a call."""
    return rpc.frame(rpc.request_header(SASL_CALL_ID, b"", -1), message)


def answer_to(message: bytes, mechanism: Mechanism) -> bytes | None:
    """Answer a message of the server; None once the proof is complete. Raises: SaslError, ContentError."""
    state, token, auths = _read(message)
    match state:
        case SaslState.NEGOTIATE:
            offered = next((auth for auth in auths if auth.method == mechanism.method), None)
            if offered is None:
                names = ", ".join(auth.method for auth in auths) or "nothing"
                raise SaslError(f"the server takes {names}, not {mechanism.method}")
            return _message(SaslState.INITIATE, mechanism.start(offered), offered)
        case SaslState.CHALLENGE:
            return _message(SaslState.RESPONSE, mechanism.step(token))
        case SaslState.SUCCESS:
            mechanism.finish(token)
            return None
    raise SaslError(f"the server says {state.name}")


def _message(state: SaslState, token: bytes | None = None, auth: SaslAuth | None = None) -> bytes:
    message = rpc.number_field(2, state.value)
    if token is not None:
        message += rpc.bytes_field(3, token)
    if auth is not None:
        texts = (auth.method, auth.mechanism, auth.protocol, auth.server_id)
        message += rpc.bytes_field(
            4, b"".join(rpc.text_field(field, each) for field, each in enumerate(texts, 1))
        )
    return message


def _read(message: bytes) -> tuple[SaslState, bytes, list[SaslAuth]]:
    found = dict(values(message))
    code = rpc.number(found, 2)
    if code not in SaslState._value2member_map_:
        raise ContentError(rpc.SOURCE, f"SASL state {code} is not known")
    auths = [_auth(value) for field, value in values(message) if field == 4 and isinstance(value, bytes)]
    return SaslState(code), rpc.octets(found, 3) or b"", auths


def _auth(message: bytes) -> SaslAuth:
    found = dict(values(message))
    method, mechanism, protocol, server_id = (rpc.text(found, field) or "" for field in (1, 2, 3, 4))
    return SaslAuth(method, mechanism, protocol, server_id, rpc.octets(found, 5) or b"")


# DIGEST-MD5

_COUNT = "00000001"
_QUALITY = "auth"


class Challenge(msgspec.Struct, frozen=True):
    """The server's challenge, and the service that it is."""

    realm: str
    nonce: str
    protocol: str
    server_id: str


class DigestResponse(msgspec.Struct, frozen=True):
    """The client's answer, and what a server that knows the password says to it."""

    username: str
    response: str
    server_proof: str


def answer(identifier: bytes, password: bytes, challenge: Challenge, client_nonce: str) -> DigestResponse:
    """Return the proof that the client has the token; Hadoop uses its two halves in base64 as name and password."""
    username = base64.b64encode(identifier).decode()
    secret = base64.b64encode(password).decode()
    uri = f"{challenge.protocol}/{challenge.server_id}"
    login = _md5(f"{username}:{challenge.realm}:{secret}".encode()).digest()
    session = _md5(login + f":{challenge.nonce}:{client_nonce}".encode()).hexdigest()

    def proof(whose: str) -> str:
        request = _md5(f"{whose}:{uri}".encode()).hexdigest()
        words = f"{session}:{challenge.nonce}:{_COUNT}:{client_nonce}:{_QUALITY}:{request}"
        return _md5(words.encode()).hexdigest()

    return DigestResponse(username, proof("AUTHENTICATE"), proof(""))


def _md5(data: bytes) -> "hashlib._Hash":
    # The mechanism's own hash, not our choice; also on machines that forbid MD5 for security.
    return hashlib.md5(data, usedforsecurity=False)


_DIRECTIVE = re.compile(
    r'\s*([a-z0-9-]+)=(?:"((?:[^"\\]|\\.)*)"|([^",\s]+))\s*(?:,|$)', re.IGNORECASE | re.ASCII
)
_MAX_BUFFER = 65_536


class Token(msgspec.Struct, frozen=True):
    """A delegation token; `service` is the host:port that takes it."""

    identifier: bytes
    password: bytes
    kind: str = ""
    service: str = ""


class TokenMechanism:
    """DIGEST-MD5 with a delegation token. `client_nonce`: text that nobody can guess, new for each connection."""

    method = "TOKEN"
    user: str | None = None
    asks_others = False

    def __init__(self, token: Token, client_nonce: str) -> None:
        self._token = token
        self._client_nonce = client_nonce
        self._expected = ""

    def start(self, auth: SaslAuth) -> bytes:
        """See `Mechanism`."""
        given = _directives(auth.challenge)
        for name, wanted in (("qop", "auth"), ("charset", "utf-8"), ("algorithm", "md5-sess")):
            if wanted not in given.get(name, "").split(","):
                raise SaslError(f"DIGEST-MD5: {name} is {given.get(name)!r}, not {wanted}")
        if not given.get("realm") or not given.get("nonce"):
            raise SaslError("DIGEST-MD5: the challenge has no realm or no nonce")
        challenge = Challenge(given["realm"], given["nonce"], auth.protocol, auth.server_id)
        made = answer(self._token.identifier, self._token.password, challenge, self._client_nonce)
        self._expected = made.server_proof
        words = (
            "charset=utf-8",
            f'username="{made.username}"',
            f'realm="{challenge.realm}"',
            f'nonce="{challenge.nonce}"',
            f"nc={_COUNT}",
            f'cnonce="{self._client_nonce}"',
            f'digest-uri="{auth.protocol}/{auth.server_id}"',
            f"maxbuf={_MAX_BUFFER}",
            f"response={made.response}",
            f"qop={_QUALITY}",
        )
        return ",".join(words).encode()

    def step(self, challenge: bytes) -> bytes:
        """See `Mechanism`."""
        raise SaslError("DIGEST-MD5: the server asks twice")

    def finish(self, proof: bytes) -> None:
        """See `Mechanism`."""
        said = _directives(proof).get("rspauth", "")
        if not self._expected or not hmac.compare_digest(said, self._expected):
            raise SaslError("DIGEST-MD5: the server does not know the token's password")


def _directives(text: bytes) -> dict[str, str]:
    try:
        found = _DIRECTIVE.finditer(text.decode())
    except UnicodeDecodeError as error:
        raise SaslError("DIGEST-MD5: not text") from error
    return {each[1].lower(): each[2] if each[2] is not None else each[3] for each in found}
