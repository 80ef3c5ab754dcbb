"""What is measured, and in which order."""

import pytest

from koordinator.node_demo import plan
from koordinator.node_demo.plan import BASELINES, MODES, DemoMode, DemoRun, DemoScenario, Hog, ServiceKind

SCENARIOS = [
    DemoScenario(40, Hog.CPU),
    DemoScenario(40, Hog.DISK),
    DemoScenario(40, Hog.MEMORY),
    DemoScenario(60, Hog.CPU),
]
DEFAULT_SECONDS, DEFAULT_REPEATS = 4, 2


def test_the_rate_makes_the_service_use_its_share_of_all_cpus() -> None:
    assert plan.rate_per_s(40, cpus=2, request_cpu_s=0.001) == pytest.approx(800)


def test_every_scenario_is_measured_unmanaged_and_managed_in_every_repetition() -> None:
    runs = plan.runs(SCENARIOS, repeats=3)

    for mode in (DemoMode.UNMANAGED, DemoMode.MANAGED):
        found = [(run.scenario, run.repeat) for run in runs if run.mode is mode]
        assert sorted(found) == sorted((scenario, n) for scenario in SCENARIOS for n in range(3))


def test_being_alone_is_measured_once_for_scenarios_with_the_same_requests() -> None:
    runs = plan.runs(SCENARIOS, repeats=1)

    for mode in BASELINES:
        alone = [run.scenario for run in runs if run.mode is mode]
        assert alone == [DemoScenario(40, Hog.CPU), DemoScenario(40, Hog.DISK), DemoScenario(60, Hog.CPU)]


def test_a_service_is_measured_at_one_load_before_the_next_is_started() -> None:
    both = [DemoScenario(40, hog, kind) for kind in (ServiceKind.NGINX, ServiceKind.REDIS) for hog in Hog]

    kinds = [run.scenario.service for run in plan.runs(both, repeats=2)]

    assert kinds == sorted(kinds)


def test_redis_answers_in_one_thread() -> None:
    assert plan.usable_cpus(ServiceKind.REDIS, 8) == 1
    assert plan.usable_cpus(ServiceKind.NGINX, 8) == 8


def test_repetitions_are_interleaved_so_that_drift_meets_all_modes() -> None:
    runs = plan.runs([DemoScenario(40, Hog.CPU)], repeats=2)

    assert [run.mode for run in runs] == [*MODES, *MODES]


def test_only_the_modes_that_were_asked_for_are_measured() -> None:
    runs = plan.runs(SCENARIOS, repeats=1, modes=(DemoMode.ALONE, DemoMode.DEFAULT))

    assert {run.mode for run in runs} == {DemoMode.ALONE, DemoMode.DEFAULT}


def test_only_requests_beside_a_disk_hog_read_from_the_disk() -> None:
    assert [each.disk_every > 0 for each in SCENARIOS] == [False, True, False, False]


def test_the_whole_demonstration_takes_under_seven_minutes() -> None:
    planned = plan.runs(SCENARIOS, repeats=DEFAULT_REPEATS)

    assert plan.expected_s(planned, seconds=DEFAULT_SECONDS) < 7 * 60


def test_cpus_are_kept_awake_where_neither_service_nor_batch_keeps_them_so() -> None:
    def kept(mode: DemoMode) -> set[Hog]:
        runs = [DemoRun(DemoScenario(40, hog), mode, 0) for hog in Hog]
        return {run.scenario.hog for run in runs if plan.is_kept_awake(run)}

    assert kept(DemoMode.AWAKE) == set(Hog)
    assert kept(DemoMode.CLOSED_LOOP) == {Hog.DISK, Hog.NETWORK}
    assert kept(DemoMode.ALONE) == kept(DemoMode.MANAGED) == set()
