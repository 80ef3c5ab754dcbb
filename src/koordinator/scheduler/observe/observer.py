"""Watch attempts from the queue to their end: metrics, the monitor of those that take too long, debug output.

It changes nothing that is decided. With all switches off it costs about 5 µs per pod, measured plugins included. How
long plugins take is measured on a sample of cycles, which run with timed methods on the plugin objects; these are
taken off afterwards: all other cycles run the bare methods, so measuring costs them nothing.
"""

import asyncio
import contextlib
import logging
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from koordinator.prometheus import HistogramSeries
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.engine.results import ExtenderAdvice, Placed, Unplaced
from koordinator.scheduler.observe import debugging
from koordinator.scheduler.observe.debugging import DebugOptions, DiagnosisDump, DumpOptions, diagnose
from koordinator.scheduler.plugin.framework import Plugin, ReasonCodes, is_pass
from koordinator.scheduler.plugin.metrics import ERROR, SCHEDULED, UNSCHEDULABLE, SchedulerMetrics
from koordinator.scheduler.plugin.status import Code, Status
from koordinator.scheduler.queue.queued_pod import QueuedPod

log = logging.getLogger(__name__)

SAMPLE_EVERY = 10
"""Cycles per sampled one, as upstream, where they are few."""

SAMPLE_GAP_S = 0.1
"""Between samples where cycles are many: measuring one costs as much as half a cycle, and some hundred samples a
minute tell enough."""

HINTS_EVERY = 100
"""Events per one whose queueing hints are measured; pods that are bound make most of them."""

_POINTS = (
    ("pre_filters", "pre_filter", "PreFilter"),
    ("filters", "filter", "Filter"),
    ("post_filters", "post_filter", "PostFilter"),
    ("pre_scorers", "pre_score", "PreScore"),
    ("scorers", "score", "Score"),
    ("scorers", "normalize_at", "ScoreExtensionNormalize"),
    ("reserves", "reserve", "Reserve"),
    ("permits", "permit", "Permit"),
    ("extensions.before_pre_filters", "before_pre_filter", "BeforePreFilter"),
    ("extensions.after_pre_filters", "after_pre_filter", "AfterPreFilter"),
    ("extensions.before_filters", "before_filter", "BeforeFilter"),
    ("extensions.after_post_filters", "after_post_filter", "AfterPostFilter"),
    ("extensions.prefer_nodes", "prefer_nodes", "PreferNodesPlugin"),
)
"""(plugins of a profile, their method, name of the extension point)."""


class CycleProbe:
    """Measures every `SAMPLE_EVERY`-th cycle, but one per `SAMPLE_GAP_S` at most, and every `HINTS_EVERY`-th event.
    `tick` gives seconds."""

    def __init__(self, metrics: SchedulerMetrics, tick: Callable[[], float]) -> None:
        self._metrics = metrics
        self._tick = tick
        self._cycles = SAMPLE_EVERY - 1
        self._next_s = float("-inf")
        self._events = -1
        self._timed: dict[str, list[Timed]] = {}
        self._hints: dict[str, list[Timed]] = {}
        self._totals: dict[str, tuple[float, Code]] = {}
        self._event = ""

    def is_due(self, now_s: float) -> bool:
        """Count this cycle and return whether to measure it."""
        self._cycles += 1
        if self._cycles < SAMPLE_EVERY or 0.0 < self._next_s - now_s <= SAMPLE_GAP_S:
            return False
        self._cycles, self._next_s = 0, now_s + SAMPLE_GAP_S
        return True

    def is_event_due(self) -> bool:
        """Count this event and return whether to measure its hints."""
        self._events += 1
        return self._events % HINTS_EVERY == 0

    @contextlib.contextmanager
    def measuring(self, profile: Profile) -> Iterator[None]:
        """Measure what plugins of the profile do inside."""
        timed = self._timed.get(profile.name)
        if timed is None:
            timed = self._timed[profile.name] = list(self._cycle_methods(profile))
        try:
            with _in_place(timed):
                yield
        finally:
            for point, (seconds, code) in self._totals.items():
                self._metrics.point_duration.of(point, code.word, profile.name).observe(seconds)
            self._totals.clear()

    @contextlib.contextmanager
    def measuring_hints(self, profiles: Iterable[Profile], event: str) -> Iterator[None]:
        """Measure the queueing hints that an event asks."""
        timed: list[Timed] = []
        for profile in profiles:
            own = self._hints.get(profile.name)
            if own is None:
                own = self._hints[profile.name] = [
                    Timed(plugin, "wakes", self._timed_hint(plugin)) for plugin in profile.plugins
                ]
            timed += own
        self._event = event
        with _in_place(timed):
            yield

    def _cycle_methods(self, profile: Profile) -> Iterator["Timed"]:
        seen: set[tuple[int, str]] = set()
        for plugins, method, point in _POINTS:
            for plugin in _plugins(operator.attrgetter(plugins)(profile)):
                if (id(plugin), method) not in seen:
                    seen.add((id(plugin), method))
                    yield Timed(plugin, method, self._timed_call(plugin, method, point))

    def _timed_call(self, plugin: Plugin[Any], method: str, point: str) -> Callable[..., Any]:
        call, tick, totals = getattr(plugin, method), self._tick, self._totals
        code_of = _CODERS.get(point, _code_of)
        series: dict[Code, HistogramSeries] = {}

        def measured(*args: Any, **options: Any) -> Any:
            began = tick()
            answer = call(*args, **options)
            seconds = max(0.0, tick() - began)
            code = code_of(answer)
            found = series.get(code)
            if found is None:
                found = series[code] = self._metrics.plugin_duration.of(plugin.name, point, code.word)
            found.observe(seconds)
            before = totals.get(point)
            totals[point] = (seconds if before is None else before[0] + seconds, code)
            return answer

        return measured

    def _timed_hint(self, plugin: Plugin[Any]) -> Callable[..., Any]:
        call, tick = plugin.wakes, self._tick

        def measured(*args: Any) -> bool:
            began = tick()
            answer = call(*args)
            hint = "Queue" if answer else "QueueSkip"
            series = self._metrics.hint_duration.of(plugin.name, self._event, hint)
            series.observe(max(0.0, tick() - began))
            return answer

        return measured


class Timed(NamedTuple):
    """A method of a plugin object and what stands in its place while it is measured."""

    plugin: Plugin[Any]
    method: str
    measured: Callable[..., Any]


@contextlib.contextmanager
def _in_place(timed: Iterable[Timed]) -> Iterator[None]:
    for plugin, method, measured in timed:
        vars(plugin)[method] = measured
    try:
        yield
    finally:
        for plugin, method, _ in timed:
            vars(plugin).pop(method, None)


def _plugins(found: Any) -> Iterator[Plugin[Any]]:
    """Yield the plugins of a point: several, several with weights, one, or none."""
    for entry in found if isinstance(found, tuple) else (found,):
        plugin = entry[0] if isinstance(entry, tuple) else entry
        if plugin is not None:
            yield plugin


def _code_of(answer: Any) -> Code:
    """Return what an extension point answered that answers with a status, or with something that has one."""
    if isinstance(answer, Status):
        return answer.code
    status = getattr(answer, "status", None)
    return status.code if isinstance(status, Status) else Code.SUCCESS


def _code_of_filter(codes: ReasonCodes) -> Code:
    """Return the code of a Filter: one that let no row pass refuses the pod."""
    if is_pass(codes) or not codes.size or not codes.all():
        return Code.SUCCESS
    return Code.UNSCHEDULABLE


def _success(_: Any) -> Code:
    return Code.SUCCESS


_CODERS: dict[str, Callable[[Any], Code]] = {
    "Filter": _code_of_filter,
    "Score": _success,
    "ScoreExtensionNormalize": _success,
}
"""The text for the code of an answer, where it differs from its status."""


class MonitorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds between scans; how long an attempt may take; when a popped pod that nobody started is forgotten."""

    period_s: float = 10.0
    timeout_s: float = 30.0
    drop_unhandled_s: float = 5.0


class Attempt(msgspec.Struct):
    """A pod that left the queue. `started_s` is set when its cycle begins."""

    key: str
    profile: str
    popped_s: float
    attempt_count: int
    started_s: float | None = None


class Monitor:
    """Follows attempts from the queue to their end. Times are arguments; `overdue` hears of each attempt
    that is too slow, on each scan and at its end, and how many seconds it took so far."""

    def __init__(self, options: MonitorOptions, overdue: Callable[[Attempt, float], None]) -> None:
        self.options = options
        self._overdue = overdue
        self._attempts: dict[str, Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def popped(self, uid: str, attempt: Attempt) -> None:
        self._attempts[uid] = attempt

    def started(self, uid: str, now_s: float) -> None:
        """Note that its cycle begins."""
        attempt = self._attempts.get(uid)
        if attempt is not None:
            attempt.started_s = now_s

    def completed(self, uid: str, now_s: float) -> float:
        """The attempt ended; how long it took (0 when nobody followed it)."""
        attempt = self._attempts.pop(uid, None)
        if attempt is None or attempt.started_s is None:
            return 0.0
        duration_s = max(0.0, now_s - attempt.started_s)
        if duration_s > self.options.timeout_s:
            self._overdue(attempt, duration_s)
        return duration_s

    def forget(self, uid: str) -> None:
        """Nobody needs to know how it ends."""
        self._attempts.pop(uid, None)

    def scan(self, now_s: float) -> None:
        """Tell of slow attempts; forget pods that were popped and never started."""
        for uid, attempt in list(self._attempts.items()):
            if attempt.started_s is None:
                if now_s - attempt.popped_s > self.options.drop_unhandled_s:
                    del self._attempts[uid]
            elif now_s - attempt.started_s > self.options.timeout_s:
                self._overdue(attempt, now_s - attempt.started_s)


class ObserverOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of what is watched."""

    monitor: MonitorOptions = MonitorOptions()
    debug: DebugOptions = msgspec.field(default_factory=DebugOptions)
    dump: DumpOptions = DumpOptions()


class Observer:
    """Told about each attempt: `popped`, `search`, then `placed` or `failed`."""

    def __init__(self, engine: Engine, options: ObserverOptions | None = None) -> None:
        options = options or ObserverOptions()
        self.metrics = engine.metrics
        self.debug = options.debug
        self.monitor = Monitor(options.monitor, self._overdue)
        self._engine = engine
        self._clock = engine.clock
        self._dump = DiagnosisDump(options.dump)
        self._probe = CycleProbe(self.metrics, engine.clock.now)
        self._of_profile = {name: self.metrics.of(name) for name in engine.profiles}

    def popped(self, entry: QueuedPod, now_s: float) -> None:
        """Note that a pod left the queue."""
        pod = entry.pod
        if pod.pod.metadata.deletion_timestamp is None:
            self.monitor.popped(pod.uid, Attempt(pod.key, entry.profile_name, now_s, entry.attempt_count))

    def search(
        self, profile: Profile, entry: QueuedPod, advice: ExtenderAdvice | None = None
    ) -> Placed | Unplaced:
        """Run the cycle of a popped pod."""
        began_s = self._clock.now()
        pod = entry.pod
        self.monitor.started(pod.uid, began_s)
        if self.debug.top_scores or self.debug.filters:
            self._log_scores(profile, entry, began_s)
        if self._probe.is_due(began_s):
            with self._probe.measuring(profile):
                result = self._run(profile, entry, began_s, advice)
        else:
            result = self._run(profile, entry, began_s, advice)
        evaluated = 0
        if result.evaluation is not None:
            evaluated = int(result.evaluation.candidates.size)
            result.evaluation.participation.cycle_count += 1
        feasible = result.feasible_count if isinstance(result, Placed) else 0
        seconds = max(0.0, self._clock.now() - began_s)
        self._of_profile[profile.name].searched(seconds, evaluated, feasible)
        if isinstance(result, Unplaced) and self.debug.diagnosis:
            found = diagnose(pod, result, self._engine.table, began_s)
            self._dump.write(pod, found, blocking=self.debug.diagnosis_blocking)
        return result

    def placed(self, entry: QueuedPod, now_s: float) -> None:
        """Note that a pod was bound."""
        of_profile = self._of_profile[entry.profile_name]
        of_profile.attempted(SCHEDULED, self.monitor.completed(entry.pod.uid, now_s))
        if entry.first_attempt_s is not None:
            of_profile.placed(entry.attempt_count, max(0.0, now_s - entry.first_attempt_s))

    def failed(self, entry: QueuedPod, status: Status, now_s: float) -> None:
        """Note that an attempt ended without a binding."""
        result = UNSCHEDULABLE if status.is_rejected else ERROR
        seconds = self.monitor.completed(entry.pod.uid, now_s)
        self._of_profile[entry.profile_name].attempted(result, seconds)

    def ran(self, point: str, profile: str, status: Status, seconds: float) -> None:
        """Note that all plugins of an extension point of the binding ran."""
        self.metrics.point_duration.of(point, status.code.word, profile).observe(seconds)

    def waited(self, status: Status, seconds: float) -> None:
        """Note that a pod waited for Permit plugins."""
        self.metrics.permit_wait.of(status.code.word).observe(seconds)

    def interrupted(self, entry: QueuedPod) -> None:
        """Note that an attempt was given up because the scheduler stops."""
        self.monitor.forget(entry.pod.uid)

    async def run(self) -> None:
        """Scan for slow attempts and write diagnoses until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._dump.run(), name="diagnosis dump")
            group.create_task(self._scan(), name="scheduling monitor")

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(self.monitor.options.period_s)
            self.monitor.scan(self._clock.now())

    def _run(
        self, profile: Profile, entry: QueuedPod, now_s: float, advice: ExtenderAdvice | None
    ) -> Placed | Unplaced:
        cycle = self._engine.cycle
        return cycle.run(profile, entry.pod, entry.class_key, entry.attempt_count, now_s, advice)

    def _log_scores(self, profile: Profile, entry: QueuedPod, now_s: float) -> None:
        """Debug output, from the evaluation that the cycle is going to decide on."""
        profile.refresh(now_s)
        table, pod = self._engine.table, entry.pod
        if table.node_count == 0:
            return
        evaluation = self._engine.cache.evaluate(profile, pod, entry.class_key)
        if self.debug.filters:
            for line in debugging.failed_filters(pod, evaluation, table):
                log.info("%s", line)
        if self.debug.top_scores:
            scores = debugging.top_scores(evaluation, table, self.debug.top_scores)
            if scores:
                text = debugging.score_table(pod, scores)
                log.info("Top%d scores for Pod %r\n%s", self.debug.top_scores, pod.key, text)

    def _overdue(self, attempt: Attempt, duration_s: float) -> None:
        self.metrics.timeouts.inc(attempt.profile)
        log.warning(
            "!!!CRITICAL TIMEOUT!!! scheduling takes too long",  # operators search for it
            extra={
                "pod": attempt.key,
                "profile": attempt.profile,
                "attempts": attempt.attempt_count,
                "duration_s": round(duration_s, 3),
                "timeout_s": self.monitor.options.timeout_s,
            },
        )
