"""Rounds of strategies: at once, an interval after the last, after failures more slowly, and never when off."""

import asyncio
from pathlib import Path
from typing import Any

from koordinator.clock import LoopClock
from koordinator.koordlet import agent
from koordinator.koordlet.parts import Shared, Strategy
from koordinator.simulate.virtual_time import run_virtual
from tests.koordlet.qos.acting_node import ActingNode


class Counted:
    """A strategy that notes when its rounds begin; takes `took_s`, fails while `is_failing`."""

    name = "Counted"

    def __init__(self, interval_s: float = 1.0, gates: tuple[str, ...] = (), took_s: float = 0.0) -> None:
        self.interval_s, self.gates, self.took_s = interval_s, gates, took_s
        self.is_failing = False
        self.at_s: list[float] = []
        self.disabled = 0

    async def run(self) -> None:
        self.at_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.took_s)
        if self.is_failing:
            raise RuntimeError("a bug")

    def disable(self) -> None:
        self.disabled += 1


def rounds(root: Path, seconds: float, *strategies: Counted, gates: str = "") -> None:
    async def main(_: LoopClock) -> None:
        shared: Shared = ActingNode(root, gates=gates).shared
        every: list[Strategy] = list(strategies)
        async with asyncio.TaskGroup() as group:
            agent.start(every, shared, group)
            await asyncio.sleep(seconds)
            for task in group._tasks:  # all but this one
                task.cancel()

    run_virtual(main)


def test_the_next_round_is_an_interval_after_the_end_of_the_last(tmp_path: Path) -> None:
    strategy = Counted(interval_s=2.0, took_s=0.5)
    rounds(tmp_path, 7, strategy)
    assert [round(each, 1) for each in strategy.at_s] == [0.0, 2.5, 5.0]


def test_an_interval_may_change_from_round_to_round(tmp_path: Path) -> None:
    class Slowing(Counted):
        async def run(self) -> None:
            await super().run()
            self.interval_s *= 2

    strategy = Slowing()
    rounds(tmp_path, 15, strategy)
    assert [round(each) for each in strategy.at_s] == [0, 2, 6, 14]


def test_a_strategy_that_fails_is_tried_again_and_others_go_on(tmp_path: Path, caplog: Any) -> None:
    broken, well = Counted(), Counted()
    broken.is_failing = True
    rounds(tmp_path, 60, broken, well)
    gaps = [b - a for a, b in zip(broken.at_s, broken.at_s[1:], strict=False)]
    assert [round(each) for each in gaps[:5]] == [1, 2, 4, 8, 10] and max(gaps) <= 10.1
    assert len(well.at_s) >= 59
    assert "a bug" in caplog.text


def test_who_is_off_puts_back_once_and_never_runs(tmp_path: Path) -> None:
    without_interval = Counted(interval_s=0)
    gate_off = Counted(gates=("CPUEvict", "BECPUEvict"))
    one_gate_on = Counted(gates=("CPUEvict", "BECPUSuppress"))
    rounds(tmp_path, 5, without_interval, gate_off, one_gate_on)
    assert (without_interval.at_s, without_interval.disabled) == ([], 1)
    assert (gate_off.at_s, gate_off.disabled) == ([], 1)
    assert len(one_gate_on.at_s) == 5 and one_gate_on.disabled == 0
