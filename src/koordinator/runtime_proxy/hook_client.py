"""Keeps up with the files of hook servers, and calls them. Source: behaviour/koordlet-act 23.2."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Mapping
from typing import NoReturn

import msgspec

from koordinator.host import grpc_sockets
from koordinator.host.errors import CallError
from koordinator.host.grpc_client import Channel
from koordinator.host.hook_messages import HOOK_SERVICE
from koordinator.host.inotify import Inotify
from koordinator.host.syscalls import Syscalls
from koordinator.runtime_proxy import hook_files
from koordinator.runtime_proxy.dispatch import FailurePolicy
from koordinator.runtime_proxy.hook_files import HookFileError, HookServer

log = logging.getLogger(__name__)

RESCAN_S = 60.0
SETTLE_S = 0.05
"""Between an event and the reading: a file that is just made has nothing in it yet."""
CALL_S_MAX = 5.0
"""A hook server that hangs must not hold up the kubelet, which waits two minutes for a container."""


class HookOutcome(msgspec.Struct, frozen=True):
    """The answer of a hook server, or the problem that took its place and what that means."""

    answer: bytes = b""
    problem: str = ""
    policy: FailurePolicy = FailurePolicy.IGNORE


class HookClient:
    """The hook servers of this node. `follow` until cancelled; before that there are none."""

    def __init__(self, directory: str, syscalls: Syscalls) -> None:
        self._directory = directory
        self._syscalls = syscalls
        self._servers: dict[str, HookServer] = {}
        self._read_ns: dict[str, int] = {}
        self._channels: dict[str, Channel] = {}
        self.by_stage: Mapping[str, HookServer] = {}
        """Hook server of each stage."""

    async def follow(self) -> NoReturn:
        """Read files as they come, change and go; once a minute without being told."""
        os.makedirs(self._directory, mode=0o755, exist_ok=True)
        with Inotify(self._syscalls) as events:
            while True:
                with contextlib.suppress(OSError):  # it may have been removed
                    os.makedirs(self._directory, mode=0o755, exist_ok=True)
                events.watch(self._directory)
                await self.refresh()
                try:
                    async with asyncio.timeout(RESCAN_S):
                        await events.next()
                    await asyncio.sleep(SETTLE_S)
                except TimeoutError:
                    pass

    async def refresh(self) -> None:
        """Read what is new, forget what has gone."""
        try:
            modified = hook_files.modified(self._directory)
        except FileNotFoundError:
            modified = {}  # it is made when it is watched
        except OSError as error:
            log.warning("folder of hook servers not read", extra={"problem": str(error)})
            modified = {}
        for path in self._read_ns.keys() - modified.keys():
            del self._read_ns[path]
            self._servers.pop(path, None)
            log.info("hook server forgotten", extra={"file": path})
        for path, modified_ns in modified.items():
            if self._read_ns.get(path) != modified_ns:
                self._read_ns[path] = modified_ns
                self._load(path)
        self.by_stage = hook_files.by_stage(self._servers.values())
        await self._close_unused()

    def _load(self, path: str) -> None:
        """Take a file's server; one that cannot be read keeps what it said before."""
        try:
            server = self._servers[path] = hook_files.read(path)
        except HookFileError as error:
            log.warning("hook server not loaded", extra={"problem": str(error)})
            return
        facts = {"file": path, "socket": server.socket, "stages": sorted(server.stages)}
        log.info("hook server loaded", extra=facts)

    async def _close_unused(self) -> None:
        used = {server.socket for server in self._servers.values()}
        for socket in self._channels.keys() - used:
            # Without time of grace, calls under way are cancelled, and with them those of the kubelet.
            await self._channels.pop(socket).close(CALL_S_MAX)

    def call(self, stage: str, request: bytes) -> Awaitable[HookOutcome]:
        """Ask the server of a stage, which there must be: the request has left when this returns, as a rule."""
        server = self.by_stage[stage]
        channel = self._channels.get(server.socket)
        if channel is None:
            problem_of = grpc_sockets.problem_of_socket
            channel = self._channels[server.socket] = Channel(server.socket, problem_of)
        asked = channel.call(f"/{HOOK_SERVICE}/{stage}Hook", request, CALL_S_MAX)
        return self._outcome(server, stage, asked)

    async def _outcome(self, server: HookServer, stage: str, asked: Awaitable[bytes]) -> HookOutcome:
        try:
            answer = await asked
        except CallError as error:
            return self._failed(server, stage, f"{error.code.name}: {error.reason}")
        return HookOutcome(answer, policy=server.policy)

    def _failed(self, server: HookServer, stage: str, problem: str) -> HookOutcome:
        facts = {"server": server.name, "stage": stage, "policy": server.policy.value, "problem": problem}
        log.warning("hook failed", extra=facts)
        return HookOutcome(problem=f"hook {stage} of {server.name}: {problem}", policy=server.policy)

    async def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
