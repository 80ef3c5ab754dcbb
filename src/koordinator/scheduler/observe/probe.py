"""Measure how long plugins take, on a sample of cycles.

A sampled cycle runs with timed methods on the plugin objects, which are taken off afterwards: all other cycles
run the bare methods, so measuring costs them nothing.
"""

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from koordinator.prometheus import HistogramSeries
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.plugin.framework import Plugin, ReasonCodes, is_pass
from koordinator.scheduler.plugin.metrics import SchedulerMetrics
from koordinator.scheduler.plugin.status import Code, Status

SAMPLE_EVERY = 10
"""Cycles per sampled one, as upstream, where they are few."""

SAMPLE_GAP_S = 0.02
"""Between samples where cycles are many: measuring one costs as much as half a cycle, and some thousand samples a
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
    """A Filter that let no row pass refuses the pod."""
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
"""How the code of an answer is told, where it is not by its status."""
