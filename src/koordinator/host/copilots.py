"""Agents of other runtimes on this node (YARN's), at their sockets: which containers they have, and ending one.

Source: behaviour/yarn 8.5.
"""

import asyncio
import os
import stat

import aiohttp
import msgspec

from koordinator.api import copilot, decode
from koordinator.api.copilot import ContainerInfo, CopilotProblem, KillRequest
from koordinator.api.errors import SubjectError
from koordinator.host import grpc_sockets
from koordinator.host.errors import HostError
from koordinator.host.files import Files

CALL_S_MAX = 1.0
KILL_S_MAX = 5.0
"""The agent looks the container up, then kills until nothing is left."""
ANSWER_BYTES_MAX = 4 * 1024 * 1024
CONTAINERS_MAX = 10_000
_SUFFIX = ".sock"


class CopilotError(SubjectError, HostError):
    """An agent did not answer as it should. `is_away`: nobody answers at the socket."""

    def __init__(self, socket: str, reason: str, *, is_away: bool = False) -> None:
        super().__init__(socket, reason)
        self.is_away = is_away


def sockets(files: Files, directory: str) -> list[str]:
    """Return the sockets in a directory that nobody but root and we can have made or use; sorted."""
    names = (files.names(directory) if files.exists(directory) else None) or ()
    paths = [f"{directory}/{name}" for name in names if name.endswith(_SUFFIX)]
    return [path for path in paths if _is_trusted(path)]


def _is_trusted(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and not grpc_sockets.distrust(path, found)


async def containers(socket: str) -> list[ContainerInfo]:
    """Return the containers that run, as the agent tells. Raises: CopilotError."""
    data = await _call(socket, "GET", copilot.CONTAINERS, None, CALL_S_MAX)
    try:
        found = decode.from_json(data, list[ContainerInfo])
    except msgspec.MsgspecError as error:
        raise CopilotError(socket, f"no list of containers: {error}") from error
    if len(found) > CONTAINERS_MAX:
        raise CopilotError(socket, f"{len(found)} containers are more than a node can have")
    return found


async def kill(socket: str, container_id: str, reason: str) -> None:
    """End a container. Raises: CopilotError."""
    request = msgspec.json.encode(KillRequest(container_id=container_id, reason=reason))
    await _call(socket, "POST", copilot.KILL, request, KILL_S_MAX)


async def _call(socket: str, method: str, path: str, body: bytes | None, within_s: float) -> bytes:
    headers = {"Content-Type": "application/json"}
    try:
        async with (
            asyncio.timeout(within_s),
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=socket)) as session,
            session.request(method, f"http://copilot{path}", data=body, headers=headers) as answer,
        ):
            data = await answer.content.read(ANSWER_BYTES_MAX)
            while not answer.content.at_eof():
                if len(data) >= ANSWER_BYTES_MAX:
                    raise CopilotError(socket, f"the answer has more than {ANSWER_BYTES_MAX} bytes")
                data += await answer.content.read(ANSWER_BYTES_MAX - len(data))
            status = answer.status
    except TimeoutError as error:
        raise CopilotError(socket, f"no answer within {within_s:g} s", is_away=True) from error
    except (aiohttp.ClientError, OSError) as error:
        raise CopilotError(socket, f"no answer: {type(error).__name__}: {error}", is_away=True) from error
    if status // 100 != 2:
        raise CopilotError(socket, f"status {status}: {_words(data)}")
    return data


def _words(data: bytes) -> str:
    try:
        return decode.from_json(data, CopilotProblem).error
    except msgspec.MsgspecError:
        return data[:200].decode(errors="replace").strip()
