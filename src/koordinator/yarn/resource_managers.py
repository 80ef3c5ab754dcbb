"""The ResourceManagers of one YARN cluster: who leads, what nodes report, new totals. By RPC, or by REST.

Any failure forgets who leads; the next call asks all of them at once. Source: behaviour/yarn 3.3, 4.3 and 5.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from koordinator.api.errors import KoordinatorError
from koordinator.host.errors import ContentError
from koordinator.yarn import rpc
from koordinator.yarn.connection import CallRefused, Connection, Login, Unreachable
from koordinator.yarn.hadoop_config import ResourceManager, YarnCluster
from koordinator.yarn.node_sync import NodeId, NodeManagerReport
from koordinator.yarn.rest import RestClient
from koordinator.yarn.rpc import Method, NodeUpdate, ReportReader

PROBE_S = 2.0
"""Time that a ResourceManager has to say whether it leads."""
POLLED_STATES = ("RUNNING", "UNHEALTHY", "DECOMMISSIONING", "LOST")
_CLIENT_ID_BYTES = 16


class UpdateMode(msgspec.Struct, frozen=True):
    """The way totals are told (`--update-mode`): by RPC, by REST, or by REST where the admin port does not answer."""

    by_rpc: bool = True
    by_rest: bool = False


MODES = {
    "rpc": UpdateMode(),
    "rest": UpdateMode(by_rpc=False, by_rest=True),
    "auto": UpdateMode(by_rpc=True, by_rest=True),
}

T = TypeVar("T")

Observe = Callable[[str, str, float], None]
"""Told of each call: method, result (`ok` or why not), seconds."""


class Poll(msgspec.Struct, frozen=True):
    """The reports of all nodes of a cluster, by their ids; `leader` is the id of the ResourceManager that said so."""

    leader: str
    reports: dict[NodeId, NodeManagerReport]


def active(cluster: str, ids: Sequence[str], states: Sequence[str]) -> int:
    """Return the place of the first ResourceManager that says it is active. Raises: Unreachable."""
    if "ACTIVE" in states:
        return states.index("ACTIVE")
    asked = ", ".join(f"{manager} ({state})" for manager, state in zip(ids, states, strict=True))
    raise Unreachable(cluster, f"active rm not found in [{asked}]")


class ResourceManagers:
    """One YARN cluster as its clients see it. Every method raises Unreachable or CallRefused."""

    def __init__(
        self, cluster: YarnCluster, login: Login, rest: RestClient, mode: UpdateMode, observe: Observe
    ) -> None:
        self.cluster = cluster
        self.leader: ResourceManager | None = None
        self._login = login
        self._rest = rest
        self._mode = mode
        self._observe = observe
        self._client_id = secrets.token_bytes(_CLIENT_ID_BYTES)
        self._connections: dict[tuple[str, Method], Connection] = {}
        self._reader = ReportReader()
        self._known: dict[int, NodeManagerReport | None] = {}

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def poll(self) -> Poll:
        """Return what all nodes report that are or may be there. Raises: Unreachable, CallRefused."""
        leader = await self._leader()
        if not self._mode.by_rpc:
            found = await self._watched("nodes", self._rest.nodes(leader.web, POLLED_STATES))
            return Poll(leader.id, {each.node: each for each in found})
        frame = partial(rpc.get_cluster_nodes, states=POLLED_STATES)
        result = await self._called(leader.client, Method.GET_CLUSTER_NODES, frame)
        try:
            listed = self._reader.read(result)
        except ContentError as error:
            self.leader = None
            raise Unreachable(leader.client, str(error)) from error
        # The same report as before is the same object, and so is what was made of it.
        known = {id(each): self._known.get(id(each)) or each.known() for each in listed}
        self._known = known
        return Poll(leader.id, {made.node: made for made in known.values() if made is not None})

    async def update(self, updates: Sequence[NodeUpdate]) -> dict[NodeId, KoordinatorError]:
        """Tell new totals, all in one call; return those that were refused because the ResourceManager does not know
        them."""
        leader = await self._leader()
        if not self._mode.by_rpc:
            return await self._update_by_rest(leader, updates)
        try:
            return await self._update_by_rpc(leader, updates)
        except Unreachable:
            if not self._mode.by_rest:
                raise
            return await self._update_by_rest(leader, updates)

    async def _update_by_rpc(
        self, leader: ResourceManager, updates: Sequence[NodeUpdate]
    ) -> dict[NodeId, KoordinatorError]:
        try:
            await self._called(
                leader.admin, Method.UPDATE_NODE_RESOURCE, partial(rpc.update_node_resource, updates=updates)
            )
        except CallRefused as error:
            if not error.is_unknown_node:
                raise
            if len(updates) == 1:
                return {updates[0].node: error}
        else:
            return {}
        # One unknown node has the whole call refused, and none of it done: the halves will tell which.
        middle = len(updates) // 2
        refused = await self._update_by_rpc(leader, updates[:middle])
        return refused | await self._update_by_rpc(leader, updates[middle:])

    async def _update_by_rest(
        self, leader: ResourceManager, updates: Sequence[NodeUpdate]
    ) -> dict[NodeId, KoordinatorError]:
        refused: dict[NodeId, KoordinatorError] = {}
        for update in updates:
            try:
                await self._watched("resource", self._rest.update(leader.web, update))
            except CallRefused as error:
                if error.is_denied:
                    raise
                refused[update.node] = error
        return refused

    async def _leader(self) -> ResourceManager:
        """Return who leads, as last seen."""
        if self.leader is None:
            managers = self.cluster.managers
            if not self.cluster.is_ha:
                self.leader = managers[0]
            else:
                states = await asyncio.gather(*(self._state(manager) for manager in managers))
                self.leader = managers[active(self.cluster.id, [each.id for each in managers], states)]
        return self.leader

    async def _state(self, manager: ResourceManager) -> str:
        """Return a ResourceManager's state, or why it says none."""
        try:
            if self._mode.by_rpc:
                connection = self._connection(manager.admin, Method.GET_SERVICE_STATUS)
                try:
                    result = await connection.call(rpc.get_service_status, PROBE_S)
                except Unreachable:
                    if not self._mode.by_rest:
                        raise
                except CallRefused as error:
                    if not error.is_denied:
                        raise
                    # Who is no administrator may not ask who leads, but must know what YARN uses: the web tells.
                else:
                    return rpc.service_state(result) or "says no state"
            async with asyncio.timeout(PROBE_S):
                return await self._rest.state(manager.web)
        except (Unreachable, CallRefused, ContentError, TimeoutError) as error:
            return str(error) or "no answer"

    async def _called(self, server: str, method: Method, frame: Callable[[bytes, int], bytes]) -> bytes:
        return await self._watched(method.value[0], self._connection(server, method).call(frame))

    async def _watched(self, method: str, call: Awaitable[T]) -> T:
        """Return the result of a call, which is counted. A failure forgets who leads."""
        loop = asyncio.get_running_loop()
        begun_s, result = loop.time(), "ok"
        try:
            return await call
        except (Unreachable, CallRefused) as error:
            result = "unreachable" if isinstance(error, Unreachable) else "refused"
            if not isinstance(error, CallRefused) or not error.is_unknown_node:
                self.leader = None
            raise
        finally:
            self._observe(method, result, loop.time() - begun_s)

    def _connection(self, server: str, method: Method) -> Connection:
        key = server, method
        if key not in self._connections:
            self._connections[key] = Connection(server, method.protocol, self._login, self._client_id)
        return self._connections[key]
