"""Delegation tokens: files that hold them, and a whole exchange with a server that checks them."""

import asyncio
import re

import pytest

from koordinator.yarn import rpc, sasl, tokens
from koordinator.yarn.connection import Connection, Login, Unreachable, read_frame
from koordinator.yarn.rpc import Method
from koordinator.yarn.sasl import Challenge, Token, TokenMechanism
from koordinator.yarn.tokens import TokenFileError

TOKEN = Token(b"who", b"secret" * 30, "RM_DELEGATION_TOKEN", "rm1:8032,rm2:8032")


def writable() -> bytes:
    parts = (b"alias", TOKEN.identifier, TOKEN.password, TOKEN.kind.encode(), TOKEN.service.encode())
    lengths = [bytes([len(each)]) if len(each) < 128 else bytes([0x8F, len(each)]) for each in parts]
    return b"HDTS\x00\x01" + b"".join(map(bytes.__add__, lengths, parts))


def protobuf() -> bytes:
    texts = (TOKEN.kind, TOKEN.service)
    token = rpc.bytes_field(1, TOKEN.identifier) + rpc.bytes_field(2, TOKEN.password)
    token += b"".join(rpc.text_field(field, each) for field, each in enumerate(texts, 3))
    entry = rpc.text_field(1, "alias") + rpc.bytes_field(2, token)
    return b"HDTS\x01" + rpc.delimited(rpc.bytes_field(1, entry))


@pytest.mark.parametrize("content", [writable(), protobuf()], ids=["writable", "protobuf"])
def test_a_file_of_tokens_is_read_in_both_formats_and_refused_when_it_is_cut(content: bytes) -> None:
    assert tokens.parse(content) == [TOKEN]
    assert tokens.token_for([TOKEN], "rm2:8032") is TOKEN
    assert tokens.token_for([TOKEN], "rm2:8033") is None
    for length in range(len(content)):
        with pytest.raises(TokenFileError):
            tokens.parse(content[:length])


class DigestServer:
    """A server that takes TOKEN with this password only."""

    def __init__(self, password: bytes) -> None:
        self.password = password

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(7) == rpc.connection_header(rpc.Auth.SASL)
        await read_frame(reader)
        words = b'realm="default",nonce="n0nce",qop="auth",charset=utf-8,algorithm=md5-sess'
        texts = ("TOKEN", "DIGEST-MD5", "", "default")
        auth = b"".join(rpc.text_field(field, each) for field, each in enumerate(texts, 1))
        self._say(writer, rpc.number_field(2, 1) + rpc.bytes_field(4, auth + rpc.bytes_field(5, words)))
        given = await read_frame(reader)
        nonce = re.search(rb'cnonce="([^"]+)"', given)
        assert nonce is not None
        challenge = Challenge("default", "n0nce", "", "default")
        wanted = sasl.answer(TOKEN.identifier, self.password, challenge, nonce[1].decode())
        if wanted.response.encode() not in given:
            head = rpc.number_field(1, 0) + rpc.number_field(2, 2) + rpc.text_field(4, "SaslException")
            writer.write(rpc.frame(head + rpc.text_field(5, "wrong password")))
            writer.close()
            return
        self._say(
            writer, rpc.number_field(2, 0) + rpc.bytes_field(3, b"rspauth=" + wanted.server_proof.encode())
        )
        await read_frame(reader)
        await read_frame(reader)
        head = rpc.number_field(1, 1) + rpc.number_field(2, 0)
        writer.write(rpc.frame(head, rpc.number_field(1, 1)))
        writer.close()

    def _say(self, writer: asyncio.StreamWriter, message: bytes) -> None:
        writer.write(rpc.frame(rpc.number_field(1, 0) + rpc.number_field(2, 0), message))


@pytest.mark.parametrize("password", [TOKEN.password, b"other"])
async def test_a_call_with_a_token_is_served_when_both_know_its_password(password: bytes) -> None:
    server = await asyncio.start_server(DigestServer(password).serve, "127.0.0.1", 0)
    where = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    login = Login("yarn", lambda server, protocol: TokenMechanism(TOKEN, "client-nonce"))
    connection = Connection(where, Method.GET_SERVICE_STATUS.protocol, login, bytes(16))

    if password == TOKEN.password:
        assert rpc.service_state(await connection.call(rpc.get_service_status)) == "ACTIVE"
    else:
        with pytest.raises(Unreachable, match="wrong password"):
            await connection.call(rpc.get_service_status)
    connection.close()
    server.close()


def test_a_server_that_does_not_know_the_password_is_not_believed() -> None:
    mechanism = TokenMechanism(TOKEN, "nonce")
    with pytest.raises(sasl.SaslError, match="does not know"):
        sasl.answer_to(rpc.number_field(2, 0) + rpc.bytes_field(3, b"rspauth=0"), mechanism)


def test_a_server_that_takes_no_tokens_is_told_apart() -> None:
    simple = rpc.number_field(2, 1) + rpc.bytes_field(4, rpc.text_field(1, "SIMPLE"))
    with pytest.raises(sasl.SaslError, match="takes SIMPLE, not TOKEN"):
        sasl.answer_to(simple, TokenMechanism(TOKEN, "nonce"))
