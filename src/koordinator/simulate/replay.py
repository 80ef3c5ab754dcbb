"""Placing a list of pods on a list of nodes with the real engine, in this process, at full speed.

Bound pods are counted on their nodes at once; members of a gang give their places back unless all have one. Nothing
is evicted: PostFilter plugins (preemption) are left out, as a list of pods does not say what becomes of victims.
"""

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from koordinator.api.core import Node, Pod
from koordinator.api.device import Device
from koordinator.api.errors import KoordinatorError
from koordinator.api.meta import Object
from koordinator.api.reservation import Reservation
from koordinator.clock import FixedClock
from koordinator.scheduler.config.config import SchedulerConfig
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.status import SUCCESS, Status
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.queue.queued_pod import QueuedPod
from koordinator.scheduler.queue.scheduling_queue import QueuePolicy, SchedulingQueue
from koordinator.scheduler.table.pod_info import PodInfo
from koordinator.simulate import dump as dumps
from koordinator.simulate.gpu_course import GpuReport
from koordinator.simulate.replay_arrivals import GpuArrivals, drawn
from koordinator.simulate.replay_config import without_preemption
from koordinator.simulate.replay_csv import TimedPod
from koordinator.simulate.replay_input import InputError, ReplayInput, network_of
from koordinator.simulate.replay_options import Order
from koordinator.simulate.replay_outcomes import Occupancy, PodOutcome, ReplaySample, reasons_of
from koordinator.simulate.replay_permits import ReplayActions, given_back_reason
from koordinator.simulate.replay_reservations import ReplayReservations, ReservationOutcome

PROGRESS_PODS = 256
"""Pods between two reports of progress."""
SAMPLES_MAX = 2_000
"""Points of the time line that are kept; more are thinned to every second one."""


class ReplayResult(msgspec.Struct, frozen=True):
    """`outcomes` in the order in which pods were met first. `cycle_s` is what each attempt took of the timer."""

    engine: Engine
    outcomes: list[PodOutcome]
    cycle_s: list[float]
    resources: tuple[str, ...]
    samples: list[ReplaySample]
    fullest: Occupancy
    reservations: ReservationOutcome
    gpu: GpuReport | None = None


Progress = Callable[[int, int], None]
"""Told how many pods of how many have been tried."""


def run(
    given: ReplayInput,
    config: SchedulerConfig,
    *,
    timer: Callable[[], float],
    seed: int = 0,
    order: Order = Order.GIVEN,
    timeline: bool = False,
    arrivals: float | None = None,
    progress: Progress = lambda done, total: None,
) -> ReplayResult:
    """Place the pods. With `timeline` they come and go at their times, and those that found no node are tried
    again when a departure may help them; otherwise each is tried once. With `arrivals` they come in random order, and
    again, until so many times the GPUs of the nodes are requested.

    `timer` tells seconds for the figures about speed; decisions do not depend on it.

    Raises: ConfigError, InputError, DumpError.
    """
    replay = _Replay(given, config, seed, timer, progress)
    gpu: GpuReport | None = None
    if timeline:
        _Timeline(replay, given.pods).run()
    elif arrivals is not None:
        gpu = replay.place_arriving(seed, arrivals)
    else:
        replay.place_each(_ordered(given.pods, order, replay))
    return ReplayResult(
        replay.engine,
        list(replay.outcomes.values()),
        replay.cycle_s,
        replay.resources,
        replay.samples,
        replay.fullest or replay.occupancy(),
        replay.reservations.outcome,
        gpu,
    )


class _Replay:
    """The engine with the nodes on it, and what is recorded."""

    def __init__(
        self,
        given: ReplayInput,
        config: SchedulerConfig,
        seed: int,
        timer: Callable[[], float],
        progress: Progress,
    ) -> None:
        self.clock = FixedClock(dumps.newest_s(given.others, given.nodes, ()))
        self.actions = ReplayActions()
        network = network_of(given)
        self.engine = Engine(
            without_preemption(config),
            self.clock,
            seed=seed,
            happened=self._happened,
            actions=self.actions,
            network=lambda: network,
            plugins=installed_plugins(),
        )
        self.choosers = self.engine.next_pod_plugins()
        self.config = config
        self.queue: SchedulingQueue | None = None
        self.timer = timer
        self.progress = progress
        self.outcomes: dict[str, PodOutcome] = {}
        self.cycle_s: list[float] = []
        self.samples: list[ReplaySample] = []
        self.fullest: Occupancy | None = None
        self._fullest_share = -1.0
        self._default = next(iter(self.engine.profiles.values()))
        try:
            for node in given.nodes:
                self.engine.table.set_node(node)
        except KoordinatorError as error:
            raise InputError(str(error)) from error
        self._pod_watches = [
            watch for handle in self.engine.handles for watch in handle.watches if watch.view is Pod
        ]
        for handle in self.engine.handles:
            for watch in handle.watches:
                for obj in self._seen_at_first(given, watch.view):
                    watch.on_add(obj)
        self.reservations = self.actions.reservations = ReplayReservations(
            self.engine, self.clock, self._happened
        )
        self.reservations.begin(given.others.views(Reservation))
        self.infos = [self._info(each) for each in given.pods]
        self.resources = _requested(self.infos, self.engine)

    def _happened(self, event: QueueingEvent) -> None:
        if self.queue is not None:
            self.queue.happened(event, self.clock.now())

    def _info(self, timed: TimedPod) -> PodInfo:
        """Return the pod; one that asks for a scheduler that the configuration does not have gets the first profile."""
        pod = timed.pod
        if pod.spec.scheduler_name not in self.engine.profiles:
            pod = replace(pod, spec=replace(pod.spec, scheduler_name=self._default.name))
        try:
            return PodInfo.of(pod, self.engine.table.registry)
        except KoordinatorError as error:
            raise InputError(str(error)) from error

    @staticmethod
    def _seen_at_first(given: ReplayInput, view: type[Any]) -> Sequence[Object]:
        """Objects that are there before the first pod comes; the pods are those that are replayed, as they come."""
        if view in (Pod, Reservation):
            return ()
        if view is Device:
            return [*given.devices, *given.others.views(Device)]
        return given.nodes if view is Node else given.others.views(view)

    def came(self, info: PodInfo) -> None:
        """Plugins hear of the pod."""
        for watch in self._pod_watches:
            watch.on_add(info.pod)

    def went(self, info: PodInfo) -> None:
        """Plugins hear that the pod is gone."""
        for watch in self._pod_watches:
            watch.on_delete(info.pod)

    def wanted_next(self) -> tuple[str, str] | None:
        """uid of the pod that a plugin wants next, and the plugin; None for none."""
        for chooser in self.choosers:
            if (uid := chooser.next_pod()) is not None:
                return uid, chooser.name
        return None

    def carry_out(self, result: Placed | Unplaced) -> Placed | Unplaced | None:
        """Take note of an attempt and return what it brought; None for a pod that waits for others."""
        if isinstance(result, Placed) and result.waits:
            self.outcomes[result.pod.uid] = PodOutcome(result.pod, "")
            self.actions.hold(result)
            return None
        if isinstance(result, Placed):
            self.bound(result)
        return result

    def bound(self, placed: Placed) -> None:
        """The pod is on its node for good."""
        for plugin in self.profile_of(placed.pod).post_binds:
            plugin.post_bind(placed.pod, placed.node_name)
        self.reservations.bound(placed)

    def forget(self, placed: Placed) -> None:
        """The pod gives its place back."""
        profile = self.profile_of(placed.pod)
        self.engine.cycle.forget(profile, placed.pod, placed.evaluation, placed.node_name)

    def profile_of(self, info: PodInfo) -> Profile:
        return self.engine.profiles[info.pod.spec.scheduler_name]

    def gate(self, info: PodInfo, but: str = "") -> Status:
        """Return what keeps the pod from being tried; the gate of plugin `but` is left out."""
        for plugin in self.profile_of(info).pre_enqueues:
            status = plugin.pre_enqueue(info) if plugin.name != but else SUCCESS
            if not status.is_success:
                return status.by(plugin.name)
        return SUCCESS

    def attempt(self, info: PodInfo, class_key: Hashable, number: int) -> Placed | Unplaced:
        """One cycle, timed."""
        profile = self.profile_of(info)
        started_s = self.timer()
        result = self.engine.cycle.run(profile, info, class_key, number, self.clock.now())
        self.cycle_s.append(self.timer() - started_s)
        return result

    def place_each(self, infos: Sequence[PodInfo]) -> None:
        """Each pod once, in this order; members of a gang one after the other when the first of them is met."""
        for each in infos:
            self.came(each)
        left = {each.uid: each for each in infos}
        order, total = deque(infos), len(infos)
        while (info := self._next(left, order)) is not None:
            self._try_once(info)
            if len(left) % PROGRESS_PODS == 0:
                self.progress(total - len(left), total)
        self.progress(total, total)

    def place_arriving(self, seed: int, times: float) -> GpuReport:
        """Place pods as they arrive, until so many times the GPUs of the nodes are requested."""
        arrivals = GpuArrivals(self.engine, self.infos, times)
        for number, info in enumerate(drawn(self.infos, seed)):
            if arrivals.is_over:
                break
            self.came(info)
            if self._is_let_in(info):
                self._try_once(info)
            arrivals.tried(info, is_placed=bool(self.outcomes[info.uid].node))
            if number % PROGRESS_PODS == 0:
                self.progress(int(100 * arrivals.progress), 100)
        return arrivals.report()

    def _try_once(self, info: PodInfo) -> None:
        result = self.attempt(info, self.profile_of(info).class_key(info), 1)
        if (final := self.carry_out(result)) is not None:
            self.record(info, final)
        self.actions.settle(self._let_go, self._give_back)

    def _next(self, left: dict[str, PodInfo], order: deque[PodInfo]) -> PodInfo | None:
        """Return the pod that a plugin wants, else the first that may be tried; None at the end."""
        while (wanted := self.wanted_next()) is not None:
            uid, chooser = wanted
            if (chosen := left.pop(uid, None)) is not None and self._is_let_in(chosen, but=chooser):
                return chosen
        self.actions.settle(self._let_go, self._give_back)
        while order:
            info = order.popleft()
            if info.uid not in left:
                continue
            if self._is_let_in(info):
                return left.pop(info.uid)
        return None

    def _is_let_in(self, info: PodInfo, but: str = "") -> bool:
        """Return whether no gate keeps the pod from being tried, apart from that of one plugin."""
        gate = self.gate(info, but)
        if not gate.is_success:
            self.outcomes[info.uid] = PodOutcome(info, "", gate.reasons)
        return gate.is_success

    def _let_go(self, placed: Placed) -> None:
        self.bound(placed)
        self.record(placed.pod, placed)

    def _give_back(self, placed: Placed, status: Status) -> None:
        self.forget(placed)
        self.outcomes[placed.pod.uid] = PodOutcome(placed.pod, "", (given_back_reason(status),))

    def record(self, info: PodInfo, result: Placed | Unplaced, waited_s: float = 0.0) -> None:
        if isinstance(result, Placed):
            self.outcomes[info.uid] = PodOutcome(info, result.node_name, (), waited_s)
        else:
            self.outcomes[info.uid] = PodOutcome(info, "", reasons_of(result))

    def sample(self, at_s: float, waiting: int) -> None:
        shares = self.allocated()
        self.samples.append(ReplaySample(at_s, shares, int(self.engine.table.pod_count.sum()), waiting))
        if max(shares, default=0.0) > self._fullest_share:
            self._fullest_share = max(shares, default=0.0)
            self.fullest = self.occupancy()
        if len(self.samples) > SAMPLES_MAX:
            del self.samples[1::2]

    def occupancy(self) -> Occupancy:
        """Return what the nodes hold now."""
        table = self.engine.table
        columns = [table.registry.column(name) for name in self.resources]
        return Occupancy(table.requested[columns][:, table.rows], table.pod_count[table.rows])

    def allocated(self) -> tuple[float, ...]:
        """Share of each resource that is requested."""
        table = self.engine.table
        columns = [table.registry.column(name) for name in self.resources]
        have = table.allocatable[columns].sum(axis=1)
        return tuple((table.requested[columns].sum(axis=1) / np.maximum(have, 1)).tolist())


class _Timeline:
    """Arrivals and departures in virtual time, with the scheduler's own queue between them."""

    def __init__(self, replay: _Replay, pods: Sequence[TimedPod]) -> None:
        self._replay = replay
        self._clock = replay.clock
        self._table = replay.engine.table
        self._events: list[tuple[float, int, int]] = []
        self._departs_s: dict[str, float] = {}
        self._arrived_s: dict[str, float] = {}
        self._tried: dict[str, QueuedPod] = {}
        """Entries of pods that were tried and do not run."""
        for number, each in enumerate(pods):
            if each.arrives_s is None:
                raise InputError(f"pod {each.pod.key} has no creation time, which a time line needs")
            # At one moment departures come before arrivals: their room can be used.
            heapq.heappush(self._events, (each.arrives_s, 1, number))
            if each.departs_s is not None:
                self._departs_s[replay.infos[number].uid] = each.departs_s
                heapq.heappush(self._events, (each.departs_s, 0, number))
        self._total = len(pods)
        by_name = {p.name: {each.name: each for each in p.plugins} for p in replay.engine.profiles.values()}
        sort = next(iter(replay.engine.profiles.values())).queue_sort
        self._queue = replay.queue = SchedulingQueue(
            QueuePolicy(
                initial_backoff_s=replay.config.pod_initial_backoff_seconds,
                max_backoff_s=replay.config.pod_max_backoff_seconds,
                unschedulable_s_max=float("inf"),  # hints alone wake pods: no clock ticks between events
                sort_key=sort.sort_key,
                gate=lambda entry, but: replay.gate(entry.pod, but),
                waits_out=lambda pod: any(chooser.brings_others(pod) for chooser in replay.choosers),
                plugins=by_name.__getitem__,
            )
        )

    def run(self) -> None:
        done = 0
        while self._events:
            now_s = self._events[0][0]
            self._clock.now_s = now_s
            while self._events and self._events[0][0] == now_s:
                _, is_arrival, number = heapq.heappop(self._events)
                info = self._replay.infos[number]
                if is_arrival:
                    self._arrive(info, now_s)
                    done += 1
                else:
                    self._depart(info, now_s)
            self._drain(now_s)
            self._replay.sample(now_s, len(self._queue))
            if done % PROGRESS_PODS == 0:
                self._replay.progress(done, self._total)
        self._replay.progress(self._total, self._total)

    def _arrive(self, info: PodInfo, now_s: float) -> None:
        profile = self._replay.profile_of(info)
        self._arrived_s[info.uid] = now_s
        self._replay.came(info)
        self._queue.add(info, profile.name, profile.class_key(info), now_s)
        gate = self._replay.gate(info)
        if not gate.is_success:
            self._replay.outcomes[info.uid] = PodOutcome(info, "", gate.reasons)
        self._wake(now_s)

    def _wake(self, now_s: float) -> None:
        self._queue.activate(self._replay.actions.take_woken(), now_s)

    def _depart(self, info: PodInfo, now_s: float) -> None:
        self._queue.remove(info.uid)
        self._replay.went(info)
        row = self._table.unassign(info.uid)
        if row is not None:
            self._queue.happened(QueueingEvent(ClusterEvent.ASSIGNED_POD_DELETED, row, info, None), now_s)

    def _drain(self, now_s: float) -> None:
        """Cycles until nobody is left whom the last events can help."""
        while (entry := self._next(now_s)) is not None:
            self._try(entry, now_s)

    def _next(self, now_s: float) -> QueuedPod | None:
        """Return the pod that a plugin wants, else the queue's."""
        while (wanted := self._replay.wanted_next()) is not None:
            uid, chooser = wanted
            if (entry := self._queue.take(uid, now_s, by=chooser)) is not None:
                return entry
        self._settle(now_s)
        return self._queue.pop(now_s)

    def _try(self, entry: QueuedPod, now_s: float) -> None:
        info = entry.pod
        result = self._replay.attempt(info, entry.class_key, entry.attempt_count)
        self._tried[info.uid] = entry
        match self._replay.carry_out(result):
            case Placed() as placed:
                self._runs(placed, now_s)
            case Unplaced() as unplaced:
                self._replay.record(info, unplaced)
                self._queue.retry(entry, unplaced.status, unplaced.rejected_by, now_s)
        self._settle(now_s)

    def _settle(self, now_s: float) -> None:
        def let_go(placed: Placed) -> None:
            self._replay.bound(placed)
            self._runs(placed, now_s)

        def give_back(placed: Placed, status: Status) -> None:
            info = placed.pod
            self._replay.forget(placed)
            self._replay.outcomes[info.uid] = PodOutcome(info, "", (given_back_reason(status),))
            self._queue.retry(self._tried[info.uid], status, frozenset((status.plugin,)), now_s)

        self._replay.actions.settle(let_go, give_back)
        self._wake(now_s)

    def _runs(self, placed: Placed, now_s: float) -> None:
        info = placed.pod
        self._replay.record(info, placed, now_s - self._arrived_s[info.uid])
        self._tried.pop(info.uid, None)
        self._queue.done(info.uid)
        row = self._table.row_of(placed.node_name)
        self._queue.happened(QueueingEvent(ClusterEvent.ASSIGNED_POD_ADDED, row, None, info), now_s)


def _ordered(pods: Sequence[TimedPod], order: Order, replay: _Replay) -> list[PodInfo]:
    infos = replay.infos
    if order is Order.GIVEN:
        return infos
    if order is Order.PRIORITY:
        sort = next(iter(replay.engine.profiles.values())).queue_sort
        return sorted(infos, key=lambda info: sort.sort_key(info, 0.0))
    missing = next((each.pod.key for each in pods if each.arrives_s is None), None)
    if missing is not None:
        raise InputError(f"pod {missing} has no creation time, which --order arrival needs")
    pairs = sorted(zip(pods, infos, strict=True), key=lambda pair: pair[0].arrives_s or 0.0)
    return [info for _, info in pairs]


def _requested(infos: Sequence[PodInfo], engine: Engine) -> tuple[str, ...]:
    """Resources that some pod asks for, in the order of the columns."""
    columns: set[int] = set()
    for info in infos:
        columns.update(column for column, _ in info.requests)
    engine.table.widen()
    return tuple(engine.table.registry.names[column] for column in sorted(columns))
