"""Ask the scheduler whether it would place the successors of pods where a plan wants them, before anything is evicted.

The question goes to `POST /apis/v1/moves` of the scheduler that leads, with the credentials of whoever asks.
"""

import urllib.parse
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.cluster.config import ClusterConfigError, Credentials, tls_context

PATH = "/apis/v1/moves"
TIMEOUT_S = 10.0
QUESTIONS_MAX = 500
"""So many pods are asked about at a time, at most."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class MoveQuestion(msgspec.Struct, frozen=True):
    """A pod by its uid, and the nodes of which one would do."""

    uid: str
    nodes: tuple[str, ...]


class MoveAnswer(msgspec.Struct, frozen=True):
    """The node on which the scheduler would place the pod's successor; empty with the reason why on none."""

    node: str = ""
    why: str = ""


Prove = Callable[[Sequence[MoveQuestion]], Awaitable[list[MoveAnswer]]]
"""By move, in order, as if room was reserved for all of them while their pods still run."""


class ProofError(KoordinatorError):
    """The scheduler gave no answer."""


def over_http(
    url: str, credentials: Credentials, ca_file: str = "", source: str = "plan.schedulerCAFile"
) -> Prove:
    """Return a function that asks the scheduler at an address, whose certificate is checked by the authorities of the
    file (named by the setting `source`), of the system without one. It raises: ProofError.

    Credentials go only where nobody can listen: over TLS, or within this machine.
    """
    parts = urllib.parse.urlsplit(url)
    is_private = parts.scheme == "https" or parts.hostname in LOOPBACK

    async def prove(moves: Sequence[MoveQuestion]) -> list[MoveAnswer]:
        where = url.rstrip("/") + PATH
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            tls = tls_context(url, ca_file=ca_file, source=source)
            header = await credentials.authorization() if is_private else ""
            async with (
                aiohttp.ClientSession(timeout=timeout) as client,
                client.post(
                    where,
                    data=msgspec.json.encode(moves),
                    headers={"Authorization": header} if header else None,
                    ssl=True if tls is None else tls,
                ) as answer,
            ):
                body = await answer.read()
            if answer.status != 200:
                raise ProofError(f"{where}: {answer.status}: {body[:200].decode(errors='replace')}")
            found = msgspec.json.decode(body, type=list[MoveAnswer])
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, ClusterConfigError) as error:
            raise ProofError(f"{where}: {error or type(error).__name__}") from error
        if len(found) != len(moves):
            raise ProofError(f"{where}: {len(found)} answers to {len(moves)} questions")
        return found

    return prove
