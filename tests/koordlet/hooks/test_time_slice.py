"""Time slices on trees with a kernel that has them: whose threads get long ones, and how they get their own again."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from koordinator.host.syscalls import LONGEST_SLICE_NS
from koordinator.koordlet.hooks.time_slice import LOOK_AGAIN_S
from tests.host.slice_kernel import BASE_NS, RESET_ON_FORK, SliceKernel
from tests.koordlet.hooks.hook_node import BE_ON, BEST_EFFORT, BURSTABLE, LS_ON, HookNode, batch, classes, pod

WEB, JOB = f"{BURSTABLE}/podweb", f"{BEST_EFFORT}/podjob"
ON = classes(ls=LS_ON, be=BE_ON)
WEB_THREADS, JOB_THREADS, DEEP = (100, 101), (200, 201), 210


class SliceNode(HookNode):
    """A service and a batch pod with their threads, one of them in a group that the pod made."""

    def __init__(self, root: Path, kernel: SliceKernel, **how: str) -> None:
        super().__init__(root, syscalls=kernel, vendor=False, **how)  # type: ignore[arg-type]
        self.kernel = kernel

    def run_processes(self) -> None:
        for group, threads in ((f"{WEB}/web-c0", WEB_THREADS), (f"{JOB}/job-c0", JOB_THREADS)):
            self.group(group.rpartition("/")[0])
            self.threads(group, threads)
        self.threads(f"{JOB}/job-c0/own", (DEEP,))
        self.pods()

    def pods(self) -> None:
        self.run_pods(pod("web"), pod("job", "BE", resources=[batch(1000)]))

    def threads(self, group: str, threads: Sequence[int]) -> None:
        if not self.host.cgroups.exists(group):
            self.group(group)
        path = self.root / f"sys/fs/cgroup/cpu/{group}/tasks"
        path.write_text("".join(f"{each}\n" for each in threads))

    def slices(self, *threads: int) -> set[int]:
        return {self.kernel.slices[each] for each in threads}


def started(root: Path) -> SliceNode:
    node = SliceNode(root, SliceKernel(*WEB_THREADS, *JOB_THREADS, DEEP))
    node.hooks.start()
    node.run_processes()
    return node


def test_threads_of_batch_get_long_slices_with_the_policy_and_lose_them_with_it(tmp_path: Path) -> None:
    node = started(tmp_path)
    assert node.kernel.changes == 0

    node.policy(ON)
    assert node.slices(*JOB_THREADS, DEEP) == {LONGEST_SLICE_NS}
    assert node.slices(*WEB_THREADS) == {BASE_NS}

    node.policy(classes())
    assert node.slices(*JOB_THREADS, DEEP, *WEB_THREADS) == {BASE_NS}
    assert "TimeSlice" not in node.executor.owners()


def test_threads_of_a_new_container_get_theirs_with_the_next_pods_and_no_other_is_asked_again(
    tmp_path: Path,
) -> None:
    node = started(tmp_path)
    node.policy(ON)
    before = node.kernel.changes
    node.threads(f"{JOB}/job-c1", ())
    node.pods()
    node.kernel.slices[202] = BASE_NS
    node.threads(f"{JOB}/job-c1", (202,))

    node.pods()

    assert node.slices(202) == {LONGEST_SLICE_NS}
    assert node.kernel.changes == before + 1


def test_a_thread_that_a_runtime_started_in_a_container_gets_its_within_a_minute(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.policy(ON)
    node.pods()
    node.kernel.slices[202] = BASE_NS
    node.threads(f"{JOB}/job-c0", (*JOB_THREADS, 202))

    node.clock.now_s += LOOK_AGAIN_S - 1
    node.pods()
    assert node.slices(202) == {BASE_NS}
    node.clock.now_s += 1
    node.pods()
    assert node.slices(202) == {LONGEST_SLICE_NS}


def test_nice_values_flags_and_other_policies_stay(tmp_path: Path) -> None:
    node = started(tmp_path)
    fifo, batch_thread = JOB_THREADS
    node.kernel.policies = {fifo: 1, batch_thread: 3}
    node.kernel.nice, node.kernel.flags = {batch_thread: 5}, {batch_thread: RESET_ON_FORK}

    node.policy(ON)

    assert node.slices(fifo) == {BASE_NS}
    assert node.slices(batch_thread) == {LONGEST_SLICE_NS}


def test_a_thread_that_ends_meanwhile_is_in_nobodys_way(tmp_path: Path) -> None:
    node = started(tmp_path)
    del node.kernel.slices[JOB_THREADS[0]]

    node.policy(ON)

    assert node.slices(JOB_THREADS[1], DEEP) == {LONGEST_SLICE_NS}


def test_after_a_kill_slices_are_given_back_by_an_agent_that_must_not_give_any(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.policy(ON)

    off = node.restarted(syscalls=node.kernel, gates="GroupIdentity=false,CoreSched=false")
    off.hooks.start()

    assert node.slices(*JOB_THREADS, DEEP) == {BASE_NS}
    assert "TimeSlice" not in off.executor.owners()


async def test_at_exit_slices_are_as_before(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.policy(ON)

    await node.hooks.disable()

    assert node.slices(*JOB_THREADS, DEEP) == {BASE_NS}


def test_a_pod_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.policy(ON)
    shutil.rmtree(node.root / f"sys/fs/cgroup/cpu/{JOB}")

    node.run_pods(pod("web"))

    assert JOB not in node.hooks._idle._slices._given


def test_a_kernel_without_slices_of_threads_is_left_alone(tmp_path: Path) -> None:
    node = SliceNode(tmp_path, SliceKernel(*WEB_THREADS, *JOB_THREADS, DEEP))
    node.kernel.slices[0] = 0
    node.hooks.start()
    node.run_processes()

    node.policy(ON)

    assert node.kernel.changes == 0
    assert not node.host.slices.support().is_supported
