"""Carry placements out: hold pods on their nodes while Permit plugins decide whether they may be bound, then bind them,
by workers, a bounded number at a time. Source: behaviour/scheduler B3 (10).

A decision of Permit is noted when it is made, and carried out when nobody's cycle is under way: the scheduling loop
takes noted decisions up before each attempt (`decided`), so that the next pod finds what the last one gave back.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

import msgspec

from koordinator.api import duration
from koordinator.api.core import Pod
from koordinator.cluster.supervise import Guard
from koordinator.scheduler.engine.batch import BatchBinding
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugin.status import (
    SUCCESS,
    Code,
    PodPatch,
    Status,
    by_its_node,
    error,
    unschedulable,
)
from koordinator.scheduler.queue.keyed_heap import KeyedHeap
from koordinator.scheduler.queue.queued_pod import QueuedPod
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

PERMIT_WAIT_S_MAX = 900.0
"""Longest time that a plugin may hold a pod, as upstream."""


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
        """Return when the first of the plugins that have not answered gives up, on the loop's clock."""
        return self.began_s + min((PERMIT_WAIT_S_MAX, *self._open.values()))

    def allow(self, plugin: str) -> None:
        self._open.pop(plugin, None)
        if not self._open and self.status is None:
            self._decide(SUCCESS)

    def reject(self, plugin: str, message: str) -> None:
        """Reject a pod; the first rejection counts. It also turns round a permission that was not carried out yet."""
        if self.status is None or self.status.is_success:
            self._decide(unschedulable(message).by(plugin))

    def time_out(self) -> None:
        """Reject when time is up, by the plugin that gives up first."""
        plugin, wait_s = min(self._open.items(), key=lambda item: item[1])
        timeout_s = min(wait_s, PERMIT_WAIT_S_MAX)
        self.reject(
            plugin, f"rejected due to timeout after waiting {duration.text_of(timeout_s)} at plugin {plugin}"
        )

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
        self._deadlines: KeyedHeap[WaitingPod] = KeyedHeap()
        """Pods about which nothing is decided."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        """Time at which the timer goes off; infinite when there is none."""

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
        if self._deadlines.first_key()[0] < self._timer_s:
            self._set_timer(loop)
        return waiting

    def discard(self, uid: str) -> None:
        """Note that the pod waits no more, whatever was decided."""
        self._pods.pop(uid, None)
        self._deadlines.discard(uid)
        if self._pods:
            return
        self._decided.clear()
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
        if self._pods.get(waiting.pod.uid) is waiting:
            self._deadlines.discard(waiting.pod.uid)
        self._decided.append(waiting)
        self._noted()

    # Time

    def _watch(self, waiting: WaitingPod) -> None:
        self._deadlines.push((waiting.deadline_s,), waiting.pod.uid, waiting)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for the first deadline; a later one waits until it has passed."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = self._deadlines.first_key()[0]
        self._timer = loop.call_at(self._timer_s, self._time_out, self._timer_s)

    def _time_out(self, now_s: float) -> None:
        self._timer, self._timer_s = None, math.inf
        while len(self._deadlines) and self._deadlines.first_key()[0] <= now_s:
            waiting = self._deadlines.pop()
            assert waiting is not None
            if waiting.deadline_s > now_s:  # the plugin that would have given up has answered
                self._watch(waiting)
            else:
                waiting.time_out()
        if len(self._deadlines):
            self._set_timer(asyncio.get_running_loop())


DRAIN_S = 3.0
"""Time that bindings under way get to end when the scheduler stops. Less than the lease outlasts a lost
leadership (5 s by default), so nobody else decides meanwhile."""


TIMER_SLACK_S = 0.001
"""Timers may fire this much early."""
SLOW_S = 1.0
"""Time after which a placement that is not carried out is written on the pod, for cluster autoscalers and whoever
leads next. kube-scheduler writes it at once; most pods of gangs have gone by then."""


class BindingCycle(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A placement to carry out. `batch`: it is one of several that were placed together."""

    profile: Profile
    entry: QueuedPod
    placed: Placed
    batch: BatchBinding | None = None


class BindingRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that the scheduler gives its binder."""

    bindings_max: int
    """Bindings at a time; pods that wait for somebody do not count."""
    live: Callable[[Pod], Pod | None]
    """The pod as it is now; None when it is gone."""
    has_node: Callable[[str], bool]
    finished: Callable[[BindingCycle, Status], None]
    """Takes the outcome of a binding."""
    interrupted: Callable[[BindingCycle], None]
    """Takes a placement that was not carried out because the scheduler stops."""
    slow: Callable[[BindingCycle], None] = lambda _job: None
    """Hears of a placement that has waited for somebody for `SLOW_S`."""
    ran: Callable[[str, str, Status, float], None] = lambda _point, _profile, _status, _seconds: None
    """Hears of each extension point that ran: its name, the profile's, the outcome, seconds."""


class Binder:
    """Runs PreBind and Bind. Workers come into being as they are needed and stay: in one process, where a
    binding never has to wait for anything, a single one carries out all that a turn of the loop brought."""

    def __init__(self, rules: BindingRules, waiting: WaitingPods) -> None:
        self._rules = rules
        self._waiting = waiting
        self._guard = Guard("binding")
        self._group: asyncio.TaskGroup | None = None
        self._ready: deque[BindingCycle] = deque()
        self._parked: list[asyncio.Future[None]] = []
        self._workers: set[asyncio.Task[None]] = set()
        self._apart: dict[BindingCycle, asyncio.Task[None]] = {}
        self._held: dict[str, BindingCycle] = {}
        """Placements that Permit plugins hold, by uid."""
        self._begun: deque[tuple[float, BindingCycle]] = deque()
        """Placements that wait, or did, for somebody, and when that is worth writing: the next one is first."""
        self._slow_timer: asyncio.TimerHandle | None = None
        self._active_count = 0
        self._room: asyncio.Future[None] | None = None
        self._is_closing = False

    @property
    def in_progress_count(self) -> int:
        return len(self._ready) + self._active_count + len(self._apart) + len(self._held)

    @property
    def is_busy(self) -> bool:
        """Return whether pods are on their way to a node right now; those that wait for somebody do not count."""
        return bool(self._ready) or self._active_count > 0

    @property
    def is_full(self) -> bool:
        """Return whether `start` should be left until there is `room`."""
        return len(self._ready) + self._active_count >= self._rules.bindings_max

    def open(self, group: asyncio.TaskGroup) -> None:
        """Take jobs, and carry them out in tasks of `group`."""
        assert self._group is None, "opened twice"
        self._group, self._is_closing = group, False

    async def close(self) -> None:
        """End within `DRAIN_S`: what was sent to the API gets its answer, all else is handed back."""
        self._is_closing = True
        apart = list(self._apart.values())
        for task in apart:
            task.cancel()
        while self._held:
            self._hand_back(next(iter(self._held.values())))
        while self._ready:
            self._hand_back(self._ready.popleft())
        for parked in self._parked:
            if not parked.done():
                parked.set_result(None)
        self._parked.clear()
        try:
            if self._workers:
                await asyncio.wait(self._workers, timeout=DRAIN_S)
        finally:
            tasks = [*self._workers, *apart]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for job in list(self._apart):
                self._hand_back(job)  # cancelled before it began
            self._workers.clear()
            self._begun.clear()
            if self._slow_timer is not None:
                self._slow_timer.cancel()
            self._group = self._slow_timer = None

    def start(self, job: BindingCycle) -> None:
        """Take a placement on."""
        placed = job.placed
        if placed.waits:
            self._held[placed.pod.uid] = job
            self._waiting.enter(placed.pod, placed.node_name, placed.waits)
            self._await(job)
        else:
            self.begin(job)

    def settle(self) -> None:
        """Carry out what was decided about pods that wait: bind those that are allowed, report those that are
        rejected. Not to be called within a cycle, whose pod would find other nodes than it has looked at."""
        if not self._waiting.has_decisions:
            return
        for pod, decision in self._waiting.decided():
            job = self._held.pop(pod.uid)
            if decision.is_success:
                self.begin(job)
            else:
                self._finish(job, by_its_node(decision))

    def begin(self, job: BindingCycle) -> None:
        """Carry out a placement that nothing holds any more."""
        if self._is_slow(job):
            self._run_apart(self._carry_out(job), job)
        else:
            self._ready.append(job)
            self._call_worker()

    async def room(self) -> None:
        """Until the binder is not full."""
        while self.is_full:
            self._room = asyncio.get_running_loop().create_future()
            try:
                await self._room
            finally:
                self._room = None

    # Workers

    def _call_worker(self) -> None:
        """Make sure that somebody looks at the ready jobs in the next turn.

        One worker is enough: before it begins a job it calls the next one, if there are more.
        """
        if self._active_count + len(self._parked) < len(self._workers):
            return  # one was called and has not begun yet
        if self._parked:
            self._parked.pop().set_result(None)
        elif len(self._workers) < self._rules.bindings_max:
            assert self._group is not None, "the binder is not open"
            number = len(self._workers)
            task = self._group.create_task(self._work(), name=f"binder {number}")
            self._workers.add(task)
            task.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._ready:
                if self._is_closing:
                    return
                parked = loop.create_future()
                self._parked.append(parked)
                await parked
            job = self._ready.popleft()
            self._active_count += 1
            if self._ready:
                self._call_worker()
            try:
                await self._carry_out(job)
            finally:
                self._active_count -= 1
                room = self._room
                if room is not None and not room.done():
                    room.set_result(None)

    # One job

    async def _carry_out(self, job: BindingCycle) -> None:
        """Bind the pod and report how it went; a plugin that raises costs its pod an attempt."""
        try:
            status = await self._bind(job)
        except asyncio.CancelledError:
            self._hand_back(job)
            raise
        except Exception as failure:
            status = error(f"binding failed: {type(failure).__name__}: {failure}")
            self._finish(job, status)
            self._guard.failed(failure, self._bind)
        else:
            self._finish(job, status)

    def _run_apart(self, work: Coroutine[Any, Any, None], job: BindingCycle) -> None:
        """Run what waits for others beside the workers."""
        assert self._group is not None, "the binder is not open"
        self._await(job)
        task = self._apart[job] = self._group.create_task(work, name=f"bind {job.placed.pod.key}")
        task.add_done_callback(lambda _: work.close())  # cancelled before it began

    def _await(self, job: BindingCycle) -> None:
        loop = asyncio.get_running_loop()
        self._begun.append((loop.time() + SLOW_S, job))
        if self._slow_timer is None:
            self._slow_timer = loop.call_later(SLOW_S, self._tell_slow)

    def _tell_slow(self) -> None:
        """Tell of placements that wait for `SLOW_S` now, and set the timer for the next one."""
        loop = asyncio.get_running_loop()
        self._slow_timer = None
        while self._begun:
            at_s, job = self._begun[0]
            is_waiting = job in self._apart or self._held.get(job.placed.pod.uid) is job
            if is_waiting and at_s > loop.time() + TIMER_SLACK_S:
                self._slow_timer = loop.call_at(at_s, self._tell_slow)
                return
            self._begun.popleft()
            if is_waiting:
                self._guard.call(self._rules.slow, job)

    def _finish(self, job: BindingCycle, status: Status) -> None:
        self._apart.pop(job, None)
        self._guard.call(self._rules.finished, job, status)

    def _hand_back(self, job: BindingCycle) -> None:
        self._apart.pop(job, None)
        uid = job.placed.pod.uid
        if self._held.pop(uid, None) is not None:
            self._waiting.discard(uid)
        self._guard.call(self._rules.interrupted, job)

    async def _bind(self, job: BindingCycle) -> Status:
        profile, placed = job.profile, job.placed
        refusal = self._changed_since(placed, profile.name)
        if refusal is not None:
            return refusal
        ran, time = self._rules.ran, asyncio.get_running_loop().time
        began_s = time()
        status = await self._pre_bind(job)
        bind_s = time()
        ran("PreBind", profile.name, status, bind_s - began_s)
        if not status.is_success:
            return status
        pod, node_name = placed.pod, placed.node_name
        for binder in profile.binds:
            status = await binder.bind(pod, node_name)
            if status.code is not Code.SKIP:
                ran("Bind", profile.name, status, time() - bind_s)
                return status.by(binder.name)
        return error("no Bind plugin took the pod")

    async def _pre_bind(self, job: BindingCycle) -> Status:
        """Have plugins prepare the binding, and store what they write with one request."""
        profile, placed = job.profile, job.placed
        pod, node_name, extensions = placed.pod, placed.node_name, profile.extensions
        patch, states = PodPatch(), placed.evaluation.states
        reservation = extensions.reservation_for(pod.uid)
        if reservation is not None:
            return await extensions.pre_bind_reservation(states, reservation, node_name)
        for plugin in profile.pre_binds:
            status = await plugin.pre_bind(states[plugin.name], pod, node_name, patch)
            if not (status.is_success or status.is_skip):
                return status.by(plugin.name)
        return await extensions.apply_patch(pod, patch)

    def _changed_since(self, placed: Placed, profile_name: str) -> Status | None:
        """Return why a placed pod must not be bound any more."""
        key, uid = placed.pod.key, placed.pod.pod.metadata.uid
        live = self._rules.live(placed.pod.pod)
        if live is None or live.metadata.uid != uid:
            return error(f"pod {key} is gone")
        if live.spec.scheduler_name != profile_name:
            return error(f"pod {key} now asks for scheduler {live.spec.scheduler_name!r}")
        if live.metadata.deletion_timestamp is not None:
            return error(f"pod {key} is being deleted")
        if not self._rules.has_node(placed.node_name):
            return error(f"node {placed.node_name} is gone")
        return None

    def _is_slow(self, job: BindingCycle) -> bool:
        """Return whether a plugin waits for others before the pod can be bound (a volume to be made)."""
        # When a plugin raises nobody knows: the pod must not hold up others.
        return self._guard.answer(_waits_for_others, job, otherwise=lambda _: True)


def _waits_for_others(job: BindingCycle) -> bool:
    placed = job.placed
    return any(
        plugin.is_slow(placed.evaluation.states[plugin.name], placed.pod)
        for plugin in job.profile.slow_pre_binds
    )
