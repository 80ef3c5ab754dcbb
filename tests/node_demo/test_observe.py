"""CPU time of the machine, read from the kernel's own counters."""

import os
from pathlib import Path

import numpy as np
import pytest

from koordinator.node_demo import observe
from koordinator.node_demo.observe import Moment
from koordinator.node_demo.plan import DemoError

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def moment(at_s: float = 0.0, **counters: float) -> Moment:
    zero = dict.fromkeys(
        ("busy_s", "idle_s", "steal_s", "service_s", "batch_s", "agent_s", "own_s", "awake_s"), 0.0
    )
    return Moment(at_s=at_s, work_units=int(counters.pop("work_units", 0)), **{**zero, **counters})


def test_time_waiting_for_disks_is_idle_and_stolen_time_is_neither() -> None:
    busy_s, idle_s, steal_s = observe.cpu_times("cpu  100 10 50 700 30 4 6 20 90 9\ncpu0 1 2\n")

    assert busy_s == pytest.approx(170 * TICK_S)
    assert idle_s == pytest.approx(730 * TICK_S)
    assert steal_s == pytest.approx(20 * TICK_S)


@pytest.mark.parametrize("text", ["", "cpu0 1 2 3 4 5 6 7 8\n", "cpu  1 2 3\n", "cpu  1 2 3 4 5 6 7 x\n"])
def test_a_malformed_stat_file_is_refused(text: str) -> None:
    with pytest.raises(DemoError, match="/proc/stat"):
        observe.cpu_times(text)


def test_shares_are_of_the_time_that_the_machine_had() -> None:
    after = moment(
        10.0,
        busy_s=17.0,
        idle_s=1.0,
        steal_s=2.0,
        service_s=9.0,
        batch_s=4.5,
        agent_s=0.9,
        own_s=0.0,
        work_units=50,
    )

    use = observe.use(moment(), after, cpus=2, generator_s=0.9)

    assert use.total_ratio == pytest.approx(17 / 18)
    assert use.service_ratio == pytest.approx(0.5)
    assert use.batch_ratio == pytest.approx(0.25)
    assert use.agent_ratio == pytest.approx(0.05)
    assert use.client_ratio == pytest.approx(0.05)
    assert use.other_ratio == pytest.approx(17 / 18 - 0.85)
    assert use.steal_ratio == pytest.approx(0.1)
    assert use.work_per_s == 5.0


def test_what_only_keeps_cpus_awake_counts_as_idle() -> None:
    use = observe.use(
        moment(), moment(10.0, busy_s=20.0, service_s=8.0, awake_s=12.0), cpus=2, generator_s=0.0
    )

    assert use.total_ratio == pytest.approx(0.4)
    assert use.other_ratio == pytest.approx(0.0)


def test_a_hog_that_has_not_started_has_done_nothing(tmp_path: Path) -> None:
    assert observe.work_units(tmp_path / "missing") == 0


def test_work_is_the_sum_of_all_threads(tmp_path: Path) -> None:
    np.array([3, 4], dtype=np.uint64).tofile(tmp_path / "count")

    assert observe.work_units(tmp_path / "count") == 7
