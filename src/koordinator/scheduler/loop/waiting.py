"""Pods that hold a node while Permit plugins decide whether they may be bound.

A decision is noted when it is made, and carried out when nobody's cycle is under way: the scheduling loop takes
noted decisions up before each attempt (`decided`), so that the next pod finds what the last one gave back.
"""

import asyncio
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.scheduler.table.pod_info import PodInfo

PERMIT_WAIT_S_MAX = 900.0
"""As upstream: no plugin may hold a pod longer."""
STALE_MIN = 1_024
"""Deadlines of pods that wait no more are kept up to this number, and beyond it as many as there are others."""


class WaitingPod:
    """One such pod; all of its plugins must allow it, any may reject it."""

    __slots__ = ("_noted", "_open", "began_s", "node_name", "pod", "status")

    def __init__(
        self,
        pod: PodInfo,
        node_name: str,
        waits: Mapping[str, float],
        began_s: float,
        noted: Callable[["WaitingPod"], None],
    ) -> None:
        self.pod = pod
        self.node_name = node_name
        self.began_s = began_s
        self.status: Status | None = None
        """The decision, None before it is made."""
        self._open = dict(waits)
        self._noted = noted

    @property
    def pending_plugins(self) -> tuple[str, ...]:
        return tuple(self._open)

    @property
    def deadline_s(self) -> float:
        """When the first of the plugins that have not answered gives up, on the loop's clock."""
        return self.began_s + min((PERMIT_WAIT_S_MAX, *self._open.values()))

    def allow(self, plugin: str) -> None:
        self._open.pop(plugin, None)
        if not self._open and self.status is None:
            self._decide(SUCCESS)

    def reject(self, plugin: str, message: str) -> None:
        """The first rejection counts. It also turns round a permission that was not carried out yet."""
        if self.status is None or self.status.is_success:
            self._decide(unschedulable(message).by(plugin))

    def time_out(self) -> None:
        """The plugin that gives up first rejects."""
        plugin, wait_s = min(self._open.items(), key=lambda item: item[1])
        timeout_s = min(wait_s, PERMIT_WAIT_S_MAX)
        self.reject(plugin, f"rejected due to timeout after waiting {timeout_s:g}s at plugin {plugin}")

    def _decide(self, status: Status) -> None:
        is_new, self.status = self.status is None, status
        if is_new:
            self._noted(self)


class WaitingPods:
    """All waiting pods by uid, in order of arrival. `waited` hears of each decision and how long it took;
    `noted`: there are decisions that somebody should take up."""

    def __init__(
        self,
        waited: Callable[[Status, float], None] = lambda _status, _seconds: None,
        noted: Callable[[], None] = lambda: None,
    ) -> None:
        self._waited = waited
        self._noted = noted
        self._pods: dict[str, WaitingPod] = {}
        self._decided: deque[WaitingPod] = deque()
        self._deadlines: list[tuple[float, int, WaitingPod]] = []
        self._arrivals = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        """When the timer goes off; infinite when there is none."""

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[WaitingPod]:
        return iter(list(self._pods.values()))

    @property
    def has_decisions(self) -> bool:
        """Return whether decisions were made and not taken up."""
        return bool(self._decided)

    def find(self, uid: str) -> WaitingPod | None:
        return self._pods.get(uid)

    def enter(self, pod: PodInfo, node_name: str, waits: Mapping[str, float]) -> WaitingPod:
        """From now on plugins find the pod, so that the next one in line can already let it go."""
        loop = asyncio.get_running_loop()
        waiting = self._pods[pod.uid] = WaitingPod(pod, node_name, waits, loop.time(), self._note)
        self._watch(waiting)
        if self._deadlines[0][0] < self._timer_s:
            self._set_timer(loop)
        return waiting

    def discard(self, uid: str) -> None:
        """The pod waits no more, whatever was decided."""
        self._pods.pop(uid, None)
        if self._pods:
            return
        self._decided.clear()
        self._deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_s = None, math.inf

    def decided(self) -> Iterator[tuple[PodInfo, Status]]:
        """Take up the decisions made so far, and those that are made meanwhile, in the order in which they were
        made; the pods wait no more."""
        while self._decided:
            waiting = self._decided.popleft()
            uid = waiting.pod.uid
            if self._pods.get(uid) is not waiting:
                continue
            status = waiting.status
            assert status is not None, uid
            self.discard(uid)
            self._waited(status, asyncio.get_running_loop().time() - waiting.began_s)
            yield waiting.pod, status

    def _note(self, waiting: WaitingPod) -> None:
        self._decided.append(waiting)
        self._noted()

    # Time

    def _watch(self, waiting: WaitingPod) -> None:
        heapq.heappush(self._deadlines, (waiting.deadline_s, next(self._arrivals), waiting))
        if len(self._deadlines) > 2 * len(self._pods) + STALE_MIN:
            self._deadlines = [each for each in self._deadlines if self._is_watched(each[2])]
            heapq.heapify(self._deadlines)

    def _is_watched(self, waiting: WaitingPod) -> bool:
        return waiting.status is None and self._pods.get(waiting.pod.uid) is waiting

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for the first deadline; a later one waits until it has passed."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = self._deadlines[0][0]
        self._timer = loop.call_at(self._timer_s, self._time_out, self._timer_s)

    def _time_out(self, now_s: float) -> None:
        self._timer, self._timer_s = None, math.inf
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, _, waiting = heapq.heappop(self._deadlines)
            if not self._is_watched(waiting):
                continue
            if waiting.deadline_s > now_s:  # the plugin that would have given up has answered
                self._watch(waiting)
            else:
                waiting.time_out()
        if self._deadlines:
            self._set_timer(asyncio.get_running_loop())
