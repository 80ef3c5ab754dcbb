"""DIGEST-MD5 with a delegation token (RFC 2831; behaviour/yarn 4.4)."""

import base64
import hashlib

import msgspec

_COUNT = "00000001"
_QUALITY = "auth"


class Challenge(msgspec.Struct, frozen=True):
    """The server's challenge, and the service that it is."""

    realm: str
    nonce: str
    protocol: str
    server_id: str


class DigestResponse(msgspec.Struct, frozen=True):
    """The client's answer."""

    username: str
    response: str


def answer(identifier: bytes, password: bytes, challenge: Challenge, client_nonce: str) -> DigestResponse:
    """Return the proof that the client has the token; Hadoop uses its two halves in base64 as name and password."""
    username = base64.b64encode(identifier).decode()
    secret = base64.b64encode(password).decode()
    uri = f"{challenge.protocol}/{challenge.server_id}"
    login = _md5(f"{username}:{challenge.realm}:{secret}".encode()).digest()
    session = _md5(login + f":{challenge.nonce}:{client_nonce}".encode()).hexdigest()
    request = _md5(f"AUTHENTICATE:{uri}".encode()).hexdigest()
    proof = f"{session}:{challenge.nonce}:{_COUNT}:{client_nonce}:{_QUALITY}:{request}"
    return DigestResponse(username, _md5(proof.encode()).hexdigest())


def _md5(data: bytes) -> "hashlib._Hash":
    # The mechanism's own hash, not our choice; also on machines that forbid MD5 for security.
    return hashlib.md5(data, usedforsecurity=False)
