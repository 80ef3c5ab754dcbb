"""Which plugins take part in a cycle, counted without touching each of them."""

from collections.abc import Iterable, Iterator
from typing import Any

from koordinator.scheduler.plugin.framework import Plugin


class Participation:
    """Plugins by extension point (PreFilter, Filter, PreScore, Score) that the evaluations of some classes of pods
    ask, and in how many cycles that was."""

    __slots__ = ("_points", "cycle_count")

    def __init__(self, points: Iterable[tuple[str, Iterable[Plugin[Any]]]]) -> None:
        self._points = tuple((point, tuple(plugin.name for plugin in plugins)) for point, plugins in points)
        self.cycle_count = 0

    def pairs(self) -> Iterator[tuple[str, str]]:
        """(plugin, extension point)"""
        for point, names in self._points:
            for name in names:
                yield name, point
