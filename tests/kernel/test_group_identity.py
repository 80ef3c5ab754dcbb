"""Group identity with real processes: best-effort pods get what the service leaves, and all is back afterwards."""

import os
import time
from pathlib import Path

import pytest

from koordinator.host.cgroup_knobs import SHARES_MIN, V1, V2, Knob
from koordinator.host.cgroups import Cgroups
from koordinator.host.syscalls import LONGEST_SLICE_NS
from koordinator.koordlet.hooks.time_slice import LOOK_AGAIN_S
from tests.kernel.conftest import Spawn, has
from tests.kernel.hook_host import RealNode
from tests.koordlet.hooks.hook_node import BE_ON, BEST_EFFORT, BURSTABLE, LS_ON, batch, classes, pod

WEB, JOB = f"{BURSTABLE}/podweb", f"{BEST_EFFORT}/podjob"
GROUPS = {"service": WEB, "best effort": JOB}
HOG = "import os\nos.sched_setaffinity(0, {%d})\nwhile True: pass"
MEASURED_NS = 400_000_000
GIVE_UP_S = 20
START_S = 60
IDLE_SHARES, KUBELET_SHARES = 512, 1024
KERNELS_OWN = {V1: "1024", V2: "100"}
"""Shares of a group that nobody gave any."""


def share_of_service(node: RealNode) -> float:
    """What the service gets of the CPU time that both got, over some of it."""
    before, deadline = node.usage_ns(GROUPS), time.monotonic() + GIVE_UP_S
    while time.monotonic() < deadline:
        time.sleep(0.1)
        used = {name: ns - before[name] for name, ns in node.usage_ns(GROUPS).items()}
        if sum(used.values()) >= MEASURED_NS:
            return used["service"] / sum(used.values())
    raise AssertionError(f"no CPU time within {GIVE_UP_S} s")


@pytest.fixture
def node(real: Cgroups, group: str, spawn: Spawn, tmp_path: Path) -> RealNode:
    """A service and a best-effort pod that both want one whole CPU; the latter may have a third of it."""
    node = RealNode(tmp_path, real, group)
    if has(node.host.cgroups, Knob.CPU_BVT, "kubepods"):
        pytest.skip("this kernel has bvt; this is about those that have not")
    if not has(node.host.cgroups, Knob.CPU_IDLE, "kubepods"):
        pytest.skip(f"this kernel has no {Knob.CPU_IDLE}")
    node.start(pod("web"), pod("job", "BE", resources=[batch(1000)]))
    for name, shares in ((BURSTABLE, KUBELET_SHARES), (BEST_EFFORT, IDLE_SHARES)):
        assert node.host.cgroups.write(Knob.CPU_SHARES, name, str(shares)) is None
    cpu = max(os.sched_getaffinity(0))
    for name in (f"{WEB}/web-c0", f"{JOB}/job-c0"):
        wait_until_pinned(spawn(f"{group}/{name}", HOG % cpu), cpu)
    return node


def wait_until_pinned(pid: int, cpu: int) -> None:
    """Until a hog has started, which takes an emulated machine some seconds."""
    deadline = time.monotonic() + START_S
    while os.sched_getaffinity(pid) != {cpu}:
        assert time.monotonic() < deadline, f"process {pid} does not start"
        time.sleep(0.05)


def shares(node: RealNode) -> list[str | None]:
    return [node.host.cgroups.read(Knob.CPU_SHARES, group) for group in (BEST_EFFORT, JOB)]


def idle(node: RealNode) -> list[str]:
    return [node.says(Knob.CPU_IDLE, group) for group in (BEST_EFFORT, JOB)]


async def test_best_effort_pods_get_what_the_service_leaves_until_the_policy_goes(node: RealNode) -> None:
    before = shares(node)
    assert share_of_service(node) < 0.9, "they share by weight"

    node.policy(classes(ls=LS_ON, be=BE_ON))
    assert idle(node) == ["0", "1"]
    a_kubelet_starts(node)
    assert share_of_service(node) >= 0.95

    node.host.cgroups.write(Knob.CPU_SHARES, BEST_EFFORT, str(IDLE_SHARES))
    node.policy(classes())
    assert idle(node) == ["0", "0"]
    assert shares(node) == before
    assert share_of_service(node) < 0.9


async def test_threads_of_batch_have_long_time_slices_until_the_policy_goes(
    node: RealNode, group: str, spawn: Spawn
) -> None:
    slices = node.host.slices
    if not slices.support().is_supported:
        pytest.skip(slices.support().reason)
    [service], [batch_thread] = (
        node.host.cgroups.tasks(each) or [] for each in (f"{WEB}/web-c0", f"{JOB}/job-c0")
    )
    kernels_own = slices.slice_ns(batch_thread)

    node.policy(classes(ls=LS_ON, be=BE_ON))
    assert slices.slice_ns(batch_thread) == LONGEST_SLICE_NS
    late = spawn(f"{group}/{JOB}/job-c0", "import time\ntime.sleep(60)")
    node.clock.now_s += LOOK_AGAIN_S
    node.run_pods(pod("web"), pod("job", "BE", resources=[batch(1000)]))
    assert slices.slice_ns(late) == LONGEST_SLICE_NS
    assert slices.slice_ns(service) == kernels_own

    node.policy(classes())
    assert {slices.slice_ns(each) for each in (service, batch_thread, late)} == {kernels_own}


def a_kubelet_starts(node: RealNode) -> None:
    """It writes the shares of the best-effort class, reads them back, and ends unless they are there."""
    assert node.host.cgroups.write(Knob.CPU_SHARES, BEST_EFFORT, str(SHARES_MIN)) is None
    assert node.host.cgroups.shares(BEST_EFFORT) == SHARES_MIN


async def test_disabled_by_gate_or_at_exit_the_tree_is_as_before(node: RealNode) -> None:
    before = shares(node)
    made = [before[0], KERNELS_OWN[node.host.cgroups.version]]  # the shares of the batch hook go, too
    node.policy(classes(ls=LS_ON, be=BE_ON))
    await node.hooks.disable()
    assert (idle(node), shares(node)) == (["0", "0"], made)
    assert node.executor.owners() == ["BatchResource"] or node.executor.owners() == []

    again = node.restarted()
    again.hooks.start()
    assert idle(again) == ["0", "1"]
    off = again.restarted(gates="GroupIdentity=false")
    off.hooks.start()
    assert (idle(off), shares(off)) == (["0", "0"], before)


def test_limits_of_an_idle_pod_are_written_but_for_its_shares_which_it_gets_afterwards(
    node: RealNode,
) -> None:
    node.policy(classes(be=BE_ON))

    node.run_pods(pod("web"), pod("job", "BE", resources=[batch(500)]))

    for name in (JOB, f"{JOB}/job-c0"):
        assert node.host.cgroups.quota_us(name) == 50_000
    assert abs((node.host.cgroups.shares(f"{JOB}/job-c0") or 0) - 512) < 27
    node.policy(classes())
    assert abs((node.host.cgroups.shares(JOB) or 0) - 512) < 27


@pytest.mark.parametrize("writes", range(3))
def test_killed_at_any_write_a_restart_ends_right(node: RealNode, writes: int) -> None:
    before = shares(node)
    files, count = node.host.files, 0
    original = files.write

    class Killed(BaseException):
        pass

    def write(path: str, text: str):  # type: ignore[no-untyped-def]
        nonlocal count
        if count == writes:
            raise Killed
        count += 1
        return original(path, text)

    files.write = write  # type: ignore[method-assign]
    for spec in (classes(ls=LS_ON, be=BE_ON), classes()):
        try:
            node.policy(spec)
        except Killed:
            break
    files.write = original  # type: ignore[method-assign]

    again = node.restarted()
    again.hooks.start()
    again.policy(classes())

    assert (idle(again), shares(again)) == (["0", "0"], before)
