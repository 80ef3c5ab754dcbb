"""All sources of the view together: started, awaited, and reported on."""

import asyncio
import logging
from typing import NoReturn, Protocol

from koordinator.koordlet.parts import Kubelet, Shared
from koordinator.koordlet.states import node, pods
from koordinator.koordlet.states.copilots import CopilotsState
from koordinator.koordlet.states.node import NodeMetricState, NodeSLOState, NodeState, VolumesState
from koordinator.koordlet.states.pods import PodsState

log = logging.getLogger(__name__)


class StateKeeper(Protocol):
    """Fills its part of the view until cancelled; survives whatever its source does."""

    name: str
    synced: asyncio.Event
    """The source has delivered its first state."""

    @property
    def is_required(self) -> bool:
        """Return whether nothing is done on the node before it has."""
        ...

    @property
    def trouble(self) -> str:
        """Return why the source tells nothing now, empty when it does."""
        ...

    async def run(self) -> NoReturn:
        """Follow the source."""
        ...


ANSWER_S = 10.0
"""Interval between log lines about sources that are awaited."""


class States:
    """The sources of the view."""

    def __init__(self, shared: Shared, kubelet: Kubelet) -> None:
        self._shared = shared
        self._node = NodeState(shared)
        self._pods = PodsState(shared, kubelet)
        self._others: list[StateKeeper] = [
            NodeSLOState(shared),
            NodeMetricState(shared),
            CopilotsState(shared),
        ]
        if shared.gates.is_on(node.GATE):
            self._others.append(VolumesState(shared))

    @property
    def all(self) -> list[StateKeeper]:
        """Return every state."""
        return [self._node, self._pods, *self._others]

    def troubles(self) -> dict[str, str]:
        """Return why sources tell nothing, by name; without those that do."""
        return {state.name: trouble for state in self.all if (trouble := state.trouble)}

    def start(self, group: asyncio.TaskGroup) -> None:
        """Follow everything in tasks of `group`; pods once the Node says where the kubelet is."""
        for state in (self._node, *self._others):
            group.create_task(state.run(), name=f"state {state.name}")
        group.create_task(self._follow_pods(), name=f"state {self._pods.name}")

    async def wait_synced(self) -> None:
        """Until all that is required is known. It may take as long as the API server and the kubelet are away: without
        knowing pods and policies there is nothing that could be done rightly."""
        while missing := [state for state in self.all if state.is_required and not state.synced.is_set()]:
            try:
                async with asyncio.timeout(ANSWER_S):
                    for state in missing:
                        await state.synced.wait()
            except TimeoutError:
                for state in missing:
                    if not state.synced.is_set():
                        log.warning("waiting for %s", state.name, extra={"trouble": state.trouble})

    async def _follow_pods(self) -> None:
        await self._node.synced.wait()
        self._pods.trouble = "it is not known yet how the kubelet names groups"
        await pods.settle_driver(self._shared)
        await self._pods.run()
