"""Core scheduling on trees with a kernel that has cookies: who shares one, who loses it, and what a restart knows."""

from pathlib import Path

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.host.cgroup_knobs import Knob
from tests.host import host_tree
from tests.host.cookie_kernel import CookieKernel
from tests.koordlet.hooks.hook_node import BEST_EFFORT, BURSTABLE, HookNode, batch, classes, pod

GATES = "CoreSched=true"
ON = classes("coreSched", ls={"enable": True, "coreExpeller": True}, be={"enable": True, "schedIdle": 1})
FEATURES = "sys/kernel/debug/sched/features"


class CookieNode(HookNode):
    """A node whose containers have processes, with the ids given."""

    def __init__(self, root: Path, kernel: CookieKernel, gates: str = GATES) -> None:
        super().__init__(root, gates=gates, syscalls=kernel)
        self.kernel = kernel

    def run_processes(self, *pods: tuple[Pod, list[int]]) -> None:
        """Pods with the processes of their one container."""
        for each, pids in pods:
            kube = BEST_EFFORT if each.status.qos_class == "BestEffort" else BURSTABLE
            group = f"{kube}/pod{each.metadata.uid}"
            for name in (group, f"{group}/{each.metadata.uid}-c0"):
                self.group(name)
            path = self.root / f"sys/fs/cgroup/cpu/{group}/{each.metadata.uid}-c0/cgroup.procs"
            path.write_text("".join(f"{pid}\n" for pid in pids))
            for pid in pids:
                self.kernel.cookies.setdefault(pid, 0)
        self.run_pods(*(each for each, _ in pods), sandboxes=False)

    def cookies(self, *pids: int) -> list[int]:
        return [self.kernel.cookies[pid] for pid in pids]


def started(root: Path, kernel: CookieKernel | None = None) -> CookieNode:
    node = CookieNode(root, kernel or CookieKernel())
    node.hooks.start()
    node.policy(ON)
    return node


def web(name: str, **labelled: str) -> Pod:
    return pod(
        name, labels={f"koordinator.sh/{key.replace('_', '-')}": value for key, value in labelled.items()}
    )


def test_pods_of_a_group_share_a_cookie_and_others_do_not(tmp_path: Path) -> None:
    node = started(tmp_path)

    node.run_processes(
        (web("a", core_sched_group_id="x"), [100, 101]),
        (web("b", core_sched_group_id="x"), [110]),
        (web("c", core_sched_group_id="y"), [120]),
        (web("d", core_sched_policy="exclusive"), [130]),
        (web("e", core_sched_policy="none"), [140]),
    )

    a, a1, b, c, d, e = node.cookies(100, 101, 110, 120, 130, 140)
    assert a == a1 == b != 0
    assert len({a, c, d}) == 3
    assert 0 not in (c, d)
    assert e == 0
    assert node.kernel.cookies[0] == 0, "our own thread keeps none"


def test_expellers_do_not_share_with_the_best_effort_pods_they_expel(tmp_path: Path) -> None:
    node = started(tmp_path)

    node.run_processes((web("a"), [100]), (pod("job", "BE", resources=[batch(1000)]), [200]))

    service, job = node.cookies(100, 200)
    assert 0 not in (service, job)
    assert service != job


def test_new_processes_get_the_cookie_at_the_next_refresh(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.run_processes((web("a"), [100]))

    node.run_processes((web("a"), [100, 101]))

    assert len(set(node.cookies(100, 101))) == 1


def test_a_group_whose_processes_have_all_ended_gets_a_new_cookie(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.run_processes((web("a"), [100]))
    old = node.kernel.cookies.pop(100)

    node.run_processes((web("a"), [101]))

    assert node.cookies(101)[0] not in (0, old)


def test_a_policy_that_goes_takes_our_cookies_away_and_no_others(tmp_path: Path) -> None:
    node = started(tmp_path)
    own = (web("own", core_sched_policy="none"), [140])
    node.kernel.cookies[140] = 77
    node.run_processes((web("a"), [100]), own)

    node.policy(classes())

    assert node.cookies(100, 140) == [0, 77]


def test_after_a_restart_the_old_cookies_are_known(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.run_processes((web("a"), [100]))
    before = node.cookies(100)

    again = CookieNode(tmp_path, node.kernel)
    again.hooks.start()
    again.policy(ON)
    again.run_processes((web("b"), [110]), (web("a"), [100]))

    assert again.cookies(100) == before
    assert again.cookies(110) == before


def test_after_a_restart_without_the_policy_cookies_are_taken_away(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.run_processes((web("a"), [100]))

    again = CookieNode(tmp_path, node.kernel)
    again.hooks.start()
    again.policy(classes())
    again.run_processes((web("a"), [100]))

    assert again.cookies(100) == [0]


def test_a_gate_that_is_off_after_a_restart_takes_cookies_away(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.run_processes((web("a"), [100]))

    CookieNode(tmp_path, node.kernel, gates="").hooks.start()

    assert node.cookies(100) == [0]


def test_system_pods_are_never_touched(tmp_path: Path) -> None:
    node = started(tmp_path)

    node.run_processes((pod("agent", "SYSTEM"), [100]))

    assert node.cookies(100) == [0]


def test_a_vendor_kernel_is_switched_on_first(tmp_path: Path) -> None:
    host_tree.write(tmp_path, {"proc/sys/kernel/sched_core": "0"})
    node = started(tmp_path)
    node.kernel.is_on = False

    node.run_processes((web("a"), [100]))

    assert (tmp_path / "proc/sys/kernel/sched_core").read_text().strip() == "1"
    node.kernel.is_on = True  # the kernel obeys
    node.refresh()
    assert node.cookies(100) != [0]


async def test_without_sysctl_the_scheduler_feature_is_switched_and_switched_back(tmp_path: Path) -> None:
    host_tree.write(tmp_path, {FEATURES: "PLACE_LAG NO_CORE_SCHED"})
    node = started(tmp_path)
    node.kernel.is_on = False
    node.run_processes((web("a"), [100]))
    assert (tmp_path / FEATURES).read_text().strip() == "PLACE_LAG CORE_SCHED"

    await node.hooks.disable()

    assert (tmp_path / FEATURES).read_text().strip() == "PLACE_LAG NO_CORE_SCHED"


def test_a_kernel_without_core_scheduling_is_left_alone(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.kernel.is_on = False

    node.run_processes((web("a"), [100]))

    assert node.cookies(100) == [0]


def test_idle_classes_follow_the_policy_and_identity_does_not_fight_it(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.run_pods(pod("web"), pod("job", "BE"))
    job = f"{BEST_EFFORT}/podjob"
    assert node.says(Knob.CPU_IDLE, job) == "1"

    node.hooks._groups()
    assert node.says(Knob.CPU_IDLE, job) == "1"
    assert {node.says(Knob.CPU_IDLE, each) for each in (BEST_EFFORT, f"{BURSTABLE}/podweb")} == {"0"}

    node.policy(classes())
    assert node.says(Knob.CPU_IDLE, job) == "0"


def test_the_cookie_of_a_container_is_reported(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.run_processes((web("a", core_sched_group_id="x"), [100]))

    (series,) = node.shared.metrics.core_sched_cookie.values
    assert series[1:] == (
        "shop",
        "a",
        "containerd://a-c0",
        "c0",
        "a",
        "x-expeller",
        str(node.cookies(100)[0]),
    )
    assert labels.CORE_SCHED_GROUP_ID == "koordinator.sh/core-sched-group-id"
