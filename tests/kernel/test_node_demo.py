"""The demonstration itself, as short as it can be: real programs in real groups."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from koordinator.host.cgroups import Cgroups
from koordinator.node_demo import awake, own_groups, plan, real_servers, show
from koordinator.node_demo.awake import KeptAwakeBy
from koordinator.node_demo.plan import DemoMode, DemoRun, DemoScenario, Hog, ServiceKind

BY_HAND = (DemoMode.ALONE, DemoMode.AWAKE, DemoMode.UNMANAGED, DemoMode.MANAGED)
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


async def test_a_short_demonstration_measures_all_modes_and_leaves_nothing_behind(
    real: Cgroups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    planned = plan.runs([DemoScenario(2, Hog.CPU)], repeats=1, modes=BY_HAND)
    prepared = show.prepare(planned, seconds=1.0, disk_dir=tmp_path, by_hand=True)

    shown = await show.show(prepared, lambda number, run: None)

    alone, awake, unmanaged, managed = shown.measured
    assert [each.run.mode for each in shown.measured] == list(BY_HAND)
    assert all(each.latency.requests > 0 for each in shown.measured)
    assert alone.use.batch_ratio == 0.0
    assert awake.use.batch_ratio == 0.0
    assert unmanaged.use.batch_ratio > 0.0
    assert managed.use.work_per_s > 0
    assert managed.use.service_ratio > 0.0
    assert set(managed.evidence.values()) == {"1"}
    assert not real.exists(own_groups.name())


async def test_interrupted_it_keeps_what_was_measured_and_leaves_nothing_behind(
    real: Cgroups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    planned = plan.runs([DemoScenario(2, Hog.CPU)], repeats=9, modes=(DemoMode.AWAKE, DemoMode.MANAGED))
    prepared = show.prepare(planned, seconds=1.0, disk_dir=tmp_path, by_hand=True)

    def stop_in_the_third(number: int, run: DemoRun) -> None:
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    shown = await show.show(prepared, stop_in_the_third)

    assert [each.run for each in shown.measured] == planned[:2]
    assert shown.stopped == "it was interrupted"
    assert not real.exists(own_groups.name())
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [each for each in commands if str(tmp_path).encode() in each], "no program of it runs on"


@pytest.mark.parametrize("kind", [ServiceKind.MEMORY, ServiceKind.REDIS, ServiceKind.NGINX])
async def test_every_service_answers_beside_a_hog_of_another_resource(
    kind: ServiceKind, real: Cgroups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what_to_do := real_servers.missing(kind):
        pytest.skip(what_to_do)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scenarios = [DemoScenario(2, Hog.NETWORK, kind), DemoScenario(2, Hog.DISK, kind)]
    planned = plan.runs(scenarios, repeats=1, modes=(DemoMode.UNMANAGED,))
    prepared = show.prepare(planned, seconds=1.0, disk_dir=tmp_path, by_hand=True)

    shown = await show.show(prepared, lambda number, run: None)

    assert all(each.latency.requests > 0 for each in shown.measured)
    assert all(each.use.work_per_s > 0 for each in shown.measured)
    assert shown.request_cpu_ms[kind] > 0


@pytest.mark.timeout(300)  # batch resources appear half a minute after the agent's start
async def test_on_a_cluster_the_node_agent_makes_best_effort_pods_yield(
    real: Cgroups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    planned = plan.runs([DemoScenario(2, Hog.CPU)], repeats=1, modes=(DemoMode.MANAGED,))
    prepared = show.prepare(planned, seconds=1.0, disk_dir=tmp_path, busy=True)

    shown = await show.show(prepared, lambda number, run: None)

    managed = shown.measured[-1]
    assert managed.use.work_per_s > 0
    assert managed.use.agent_ratio >= 0.0
    [idle] = [path for path in managed.evidence if path.endswith("cpu.idle")]
    assert managed.evidence[idle] == "1"
    assert idle in {each.path for each in shown.written}
    assert not real.exists(own_groups.name())


async def test_idle_cpus_poll_while_pm_qos_is_asked_for_no_latency() -> None:
    if awake.means() is not KeptAwakeBy.PM_QOS:
        pytest.skip("idle CPUs of this kernel cannot poll")

    def polled_us() -> list[int]:
        times = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpuidle/state0/time")
        return [int(each.read_text()) for each in sorted(times)]

    def grows_by_s(seconds: float) -> float:
        before = polled_us()
        time.sleep(seconds)
        return sum(polled_us()) / 1e6 - sum(before) / 1e6

    with awake.polling():
        assert grows_by_s(0.5) > 0.1
    assert grows_by_s(0.5) < 0.1, "the request ends with the file"
