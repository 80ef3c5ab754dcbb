"""How long plugins take, measured on a sample of cycles.

A sampled cycle runs with timed methods on the plugin objects, which are taken off afterwards: all other cycles
run the bare methods, so measuring costs them nothing.
"""

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from koordinator.scheduler.framework import Plugin
from koordinator.scheduler.metrics import Metrics
from koordinator.scheduler.profile import Profile
from koordinator.scheduler.status import Code, Status

SAMPLE_EVERY = 100
"""Cycles per sampled one. Upstream samples one of ten; a cycle here costs a hundredth of upstream's, so its
measurement weighs more."""

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
    ("extensions.before_scores", "before_score", "BeforeScore"),
    ("extensions.after_post_filters", "after_post_filter", "AfterPostFilter"),
    ("extensions.prefer_nodes", "prefer_nodes", "PreferNodesPlugin"),
)
"""(plugins of a profile, their method, name of the extension point)."""


class Probe:
    """Measures every `SAMPLE_EVERY`-th cycle. `tick` gives seconds."""

    def __init__(self, metrics: Metrics, tick: Callable[[], float]) -> None:
        self._metrics = metrics
        self._tick = tick
        self._cycles = -1

    def is_due(self) -> bool:
        """Whether to measure this cycle; counts it."""
        self._cycles += 1
        return self._cycles % SAMPLE_EVERY == 0

    @contextlib.contextmanager
    def measuring(self, profile: Profile) -> Iterator[None]:
        """Measure what plugins of the profile do inside."""
        totals: dict[str, float] = {}
        codes: dict[str, Code] = {}
        timed: list[tuple[Plugin[Any], str]] = []

        def record(point: str, plugin: str, answer: Any, seconds: float) -> None:
            code = _code_of(answer)
            self._metrics.plugin_duration.of(plugin, point, code.word).observe(seconds)
            totals[point] = totals.get(point, 0.0) + seconds
            codes[point] = code

        for plugins, method, point in _POINTS:
            for plugin in _plugins(operator.attrgetter(plugins)(profile)):
                if method not in vars(plugin):
                    setattr(plugin, method, self._timed(getattr(plugin, method), point, plugin.name, record))
                    timed.append((plugin, method))
        try:
            yield
        finally:
            for plugin, method in timed:
                delattr(plugin, method)
            for point, seconds in totals.items():
                series = self._metrics.point_duration.of(point, codes[point].word, profile.name)
                series.observe(seconds)

    def _timed(
        self,
        call: Callable[..., Any],
        point: str,
        plugin: str,
        record: Callable[[str, str, Any, float], None],
    ) -> Callable[..., Any]:
        def measured(*args: Any, **options: Any) -> Any:
            began = self._tick()
            answer = call(*args, **options)
            record(point, plugin, answer, max(0.0, self._tick() - began))
            return answer

        return measured


def _plugins(found: Any) -> Iterator[Plugin[Any]]:
    """The plugins of a point: several, several with weights, one, or none."""
    for entry in found if isinstance(found, tuple) else (found,):
        plugin = entry[0] if isinstance(entry, tuple) else entry
        if plugin is not None:
            yield plugin


def _code_of(answer: Any) -> Code:
    """What an extension point answered, whatever it answers with."""
    if isinstance(answer, Status):
        return answer.code
    status = getattr(answer, "status", None)
    if isinstance(status, Status):
        return status.code
    if isinstance(answer, np.ndarray) and answer.dtype == np.uint16 and answer.size and bool(answer.all()):
        return Code.UNSCHEDULABLE  # a Filter that let no row pass
    return Code.SUCCESS
