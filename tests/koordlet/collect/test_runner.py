"""Collectors are repeated whatever happens in them, and nobody waits for ever for their first round."""

import asyncio
import logging
from collections.abc import Awaitable

import pytest

from koordinator.clock import Clock
from koordinator.koordlet.collect.all import CollectorRunner
from tests.koordlet.collect.collecting_node import life


class Told:
    """A collector that notes when it was asked; `answers` are told one after the other, then the last again."""

    def __init__(
        self, name: str, log: list[tuple[str, float]], *answers: bool | Exception, interval_s: float = 1.0
    ):
        self.name = name
        self.interval_s = interval_s
        self._log = log
        self._answers = list(answers) or [True]

    def collect(self) -> bool | Awaitable[bool]:
        self._log.append((self.name, asyncio.get_running_loop().time()))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Slow(Told):
    """One whose rounds last two seconds."""

    async def collect(self) -> bool:
        super().collect()
        await asyncio.sleep(2.0)
        return True


async def run(runner: CollectorRunner, for_s: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(for_s):
            await runner.run()


def test_each_starts_at_once_and_pauses_for_its_interval_after_each_round() -> None:
    async def main(_: Clock) -> None:
        log: list[tuple[str, float]] = []
        collectors = [Told("a", log), Told("b", log), Slow("slow", log), Told("rare", log, interval_s=5.0)]

        await run(CollectorRunner(collectors, used_interval_s=1.0), 6.5)

        times = {name: [at_s for each, at_s in log if each == name] for name, _ in log}
        assert times["a"] == times["b"] == [0, 1, 2, 3, 4, 5, 6]
        assert times["slow"] == [0, 3, 6]
        assert times["rare"] == [0, 5]
        order = [name for name, _ in log if name in "ab"]
        assert order == ["a", "b"] * 7

    life(main)


def test_one_that_raises_is_repeated_and_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main(_: Clock) -> None:
        log: list[tuple[str, float]] = []
        bad = Told("bad", log, ValueError("no"), ValueError("no"), True)
        runner = CollectorRunner([bad, Told("good", log)], used_interval_s=1.0)

        await run(runner, 3.5)

        assert [name for name, _ in log] == ["bad", "good"] * 4
        assert runner.missing == []

    with caplog.at_level(logging.ERROR):
        life(main)
    assert "bad raised ValueError" in caplog.text


def test_the_wait_for_first_rounds_is_bounded_and_names_who_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(_: Clock) -> None:
        log: list[tuple[str, float]] = []
        never, late = Told("never", log, False), Told("late", log, False, False, True)
        runner = CollectorRunner([never, late], used_interval_s=1.0)
        running = asyncio.create_task(runner.run())

        assert await runner.wait_started(timeout_s=5.0) == ["never"]

        assert asyncio.get_running_loop().time() == 5.0
        running.cancel()

    with caplog.at_level(logging.WARNING):
        life(main)
    assert caplog.records[-1].__dict__["missing"] == ["never"]


def test_the_wait_ends_when_all_have_started() -> None:
    async def main(_: Clock) -> None:
        log: list[tuple[str, float]] = []
        runner = CollectorRunner([Told("a", log, False, True), Slow("slow", log)], used_interval_s=1.0)
        running = asyncio.create_task(runner.run())

        assert await runner.wait_started(timeout_s=60.0) == []

        assert asyncio.get_running_loop().time() == 2.0
        running.cancel()

    life(main)
