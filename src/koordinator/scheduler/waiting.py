"""Pods that hold a node while Permit plugins decide whether they may be bound."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.status import SUCCESS, Status, unschedulable

PERMIT_WAIT_S_MAX = 900.0
"""As upstream: no plugin may hold a pod longer."""


class WaitingPod:
    """One such pod; all of its plugins must allow it, any may reject it."""

    def __init__(self, pod: PodInfo, node_name: str, waits: Mapping[str, float]) -> None:
        self.pod = pod
        self.node_name = node_name
        self._open = dict(waits)
        self._decided: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

    @property
    def pending_plugins(self) -> tuple[str, ...]:
        return tuple(self._open)

    def allow(self, plugin: str) -> None:
        self._open.pop(plugin, None)
        if not self._open:
            self._decide(SUCCESS)

    def reject(self, plugin: str, message: str) -> None:
        self._decide(unschedulable(message).by(plugin))

    async def decision(self) -> Status:
        """Success, or the rejection; the shortest time-out rejects."""
        plugin, timeout_s = min(self._open.items(), key=lambda item: item[1], default=("", 0.0))
        try:
            async with asyncio.timeout(min(timeout_s, PERMIT_WAIT_S_MAX)):
                return await self._decided
        except TimeoutError:
            message = f"rejected due to timeout after waiting {timeout_s:g}s at plugin {plugin}"
            return unschedulable(message).by(plugin)

    def _decide(self, status: Status) -> None:
        if not self._decided.done():
            self._decided.set_result(status)


class WaitingPods:
    """All waiting pods by uid, in order of arrival. `waited` hears of each decision and how long it took."""

    def __init__(self, waited: Callable[[Status, float], None] = lambda _status, _seconds: None) -> None:
        self._waited = waited
        self._pods: dict[str, WaitingPod] = {}

    def __iter__(self) -> Iterator[WaitingPod]:
        return iter(list(self._pods.values()))

    def find(self, uid: str) -> WaitingPod | None:
        return self._pods.get(uid)

    def enter(self, pod: PodInfo, node_name: str, waits: Mapping[str, float]) -> WaitingPod:
        """From now on plugins find the pod, so that the next one in line can already let it go."""
        waiting = self._pods[pod.uid] = WaitingPod(pod, node_name, waits)
        return waiting

    def discard(self, uid: str) -> None:
        """The pod waits no more."""
        self._pods.pop(uid, None)

    async def wait(self, pod: PodInfo, node_name: str, waits: Mapping[str, float]) -> Status:
        """Until the pod is allowed or rejected."""
        waiting = self._pods.get(pod.uid) or self.enter(pod, node_name, waits)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            status = await waiting.decision()
            self._waited(status, loop.time() - began_s)
            return status
        finally:
            self.discard(pod.uid)
