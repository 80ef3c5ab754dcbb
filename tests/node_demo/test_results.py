"""Medians, comparisons and promises."""

import pytest

from koordinator.node_demo import plan, results, texts
from koordinator.node_demo.plan import DemoMode, DemoScenario, Hog
from koordinator.node_demo.stage import Written
from tests.node_demo.measurements import measured


def test_a_row_is_the_median_of_its_runs() -> None:
    runs = [measured(repeat=n, p99_ms=p99) for n, p99 in enumerate((9.0, 2.0, 3.0))]

    [row] = results.summarise(runs)

    assert (row.p99_ms, row.p99_min_ms, row.p99_max_ms, row.runs) == (3.0, 2.0, 9.0, 3)


def test_p99_is_compared_with_the_service_alone_at_the_same_load() -> None:
    runs = [
        measured(p99_ms=2.0),
        measured(load_percent=60, p99_ms=100.0),
        measured(DemoMode.UNMANAGED, p99_ms=10.0),
    ]

    rows = {(row.scenario.load_percent, row.mode): row for row in results.summarise(runs)}

    assert rows[40, DemoMode.UNMANAGED].p99_to_alone == 5.0


def test_a_memory_hog_is_compared_with_the_same_service_alone_as_a_cpu_hog() -> None:
    rows = results.summarise([measured(p99_ms=2.0), measured(DemoMode.MANAGED, hog=Hog.MEMORY, p99_ms=3.0)])

    assert rows[-1].scenario == DemoScenario(40, Hog.MEMORY)
    assert rows[-1].p99_to_alone == 1.5


def test_p99_is_compared_with_cpus_kept_awake_where_that_was_measured() -> None:
    runs = [
        measured(p99_ms=4.0),
        measured(DemoMode.AWAKE, p99_ms=2.0),
        measured(DemoMode.MANAGED, p99_ms=3.0),
    ]

    row = results.summarise(runs)[-1]

    assert (row.p99_to_alone, row.p99_to_awake) == (0.75, 1.5)


def test_without_a_baseline_nothing_is_compared_or_promised() -> None:
    [row] = results.summarise([measured(DemoMode.MANAGED, p99_ms=900.0)])

    assert (row.p99_to_alone, row.p99_to_awake, row.batch_of_left) == (None, None, None)
    assert [each.text for each in texts.verdicts([row])] == ["40 % load, cpu hog: CPUs used at least 90%"]


def test_what_is_left_is_what_neither_the_service_alone_nor_others_use() -> None:
    run = measured(DemoMode.MANAGED, batch_ratio=0.5, service_ratio=0.2, client_ratio=0.05, other_ratio=0.05)

    assert results.batch_of_left(run, alone_service_ratio=0.4) == pytest.approx(1.0)


def test_what_the_agent_uses_is_a_loss_for_batch() -> None:
    run = measured(DemoMode.MANAGED, batch_ratio=0.45, agent_ratio=0.05, client_ratio=0.05, other_ratio=0.05)

    assert results.batch_of_left(run, alone_service_ratio=0.4) == pytest.approx(0.9)


def test_a_quiet_machine_has_nothing_to_report() -> None:
    assert results.disturbances([measured()]) == []


@pytest.mark.parametrize(
    ("disturbed", "word"),
    [
        pytest.param({"other_ratio": 0.3}, "other processes", id="others were busy"),
        pytest.param({"steal_ratio": 0.1}, "hypervisor", id="the hypervisor took CPUs away"),
    ],
)
def test_a_disturbed_run_is_reported(disturbed: dict[str, float], word: str) -> None:
    [sentence] = results.disturbances([measured(), measured(**disturbed)])

    assert word in sentence
    assert "In 1 of 2 runs" in sentence


@pytest.mark.parametrize(
    ("load_percent", "p99_ms", "total", "batch", "kept"),
    [
        pytest.param(40, 3.7, 0.95, 0.55, [True, True, True], id="calm: all kept"),
        pytest.param(40, 3.8, 0.89, 0.45, [False, False, False], id="calm: all missed"),
        pytest.param(60, 7.4, 0.95, 0.5, [True, True, True], id="rush: p99 may be higher"),
        pytest.param(60, 7.6, 0.95, 0.5, [False, True, True], id="rush: but not by so much"),
    ],
)
def test_promises_are_kept_or_missed(
    load_percent: int, p99_ms: float, total: float, batch: float, kept: list[bool]
) -> None:
    alone = measured(load_percent=load_percent)
    managed = measured(
        DemoMode.MANAGED, load_percent=load_percent, p99_ms=p99_ms, total_ratio=total, batch_ratio=batch
    )

    found = texts.verdicts(results.summarise([alone, managed]))

    assert [each.is_kept for each in found] == kept


@pytest.mark.parametrize(
    ("load_percent", "hog", "p99_ms", "total", "kept"),
    [
        pytest.param(40, Hog.CPU, 3.5, 0.91, [True, True], id="calm: all kept"),
        pytest.param(40, Hog.CPU, 3.7, 0.89, [False, False], id="calm: all missed"),
        pytest.param(60, Hog.MEMORY, 4.4, 0.95, [True, True], id="rush: p99 may be higher"),
        pytest.param(60, Hog.DISK, 4.6, 0.50, [False], id="a disk hog needs no CPU"),
    ],
)
def test_in_the_closed_loop_p99_is_held_to_cpus_kept_awake(
    load_percent: int, hog: Hog, p99_ms: float, total: float, kept: list[bool]
) -> None:
    baseline = plan.alone_like(DemoScenario(load_percent, hog)).hog
    awake = measured(DemoMode.AWAKE, load_percent=load_percent, hog=baseline)
    closed = measured(DemoMode.CLOSED_LOOP, load_percent, hog, p99_ms=p99_ms, total_ratio=total)

    found = texts.verdicts(results.summarise([awake, closed]))

    assert [each.is_kept for each in found] == kept


def test_nothing_is_promised_for_unmanaged_batch() -> None:
    assert texts.verdicts(results.summarise([measured(), measured(DemoMode.UNMANAGED, p99_ms=900.0)])) == []


def test_a_line_of_the_table_has_a_cell_per_column() -> None:
    for row in results.summarise([measured(), measured(DemoMode.MANAGED, batch_ratio=0.5, work_per_s=512.4)]):
        assert len(texts.cells(row)) == len(texts.HEADER)
    assert texts.cells(row)[-1] == "512 units"


def test_what_groups_held_tells_who_wrote_it() -> None:
    path = "/sys/fs/cgroup/cpu/kubepods/besteffort/podbatch-0/cpu.idle"

    lines = texts.held([measured(DemoMode.MANAGED)], [Written(path, f"update {path} to 1", "runtime-hooks")])

    assert lines == [f"held   {path} = 1, written by koordlet (runtime-hooks)"]
