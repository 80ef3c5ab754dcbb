"""Suppression over a tree: what is written, when nothing is, and what is put back."""

import json
from pathlib import Path

import pytest

from koordinator.api import cpuset
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.files import FileFailure, FileProblem
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.allowance import BatchAllowance
from koordinator.koordlet.audit import decode
from koordinator.koordlet.qos.cpu_suppress_run import REASON, STARVED
from tests.host import host_tree
from tests.koordlet.qos.pods import BE, bound_to, pod_object
from tests.koordlet.qos.qos_node import QoSNode
from tests.koordlet.qos.suppressed import (
    BATCH,
    BATCH_CONTAINER,
    WEB,
    both_versions,
    busy_node,
    round_with,
    say,
)


@both_versions
def test_best_effort_pods_get_the_cpus_that_services_leave(tmp_path: Path, version: int) -> None:
    node = busy_node(tmp_path, version)

    round_with(node, node.suppress(), service_cores=1.0)

    groups = (BE, BATCH, BATCH_CONTAINER) if version == V1 else (BE,)
    assert {node.cpus(group) for group in groups} == {"0-2"}  # 8 × 50 % − 1
    assert node.cpus(WEB) == node.all_cpus
    assert node.says("be_suppress_cpu") == {("cpuset",): 3.0}
    assert node.says("be_suppress_ls_used") == {(): 1.0}
    assert {decode(line).reason for line in node.audit.newest_first()} == {REASON}


@both_versions
def test_shrinking_is_immediate_and_growth_stepped(tmp_path: Path, version: int) -> None:
    node = busy_node(tmp_path, version)
    suppress = node.suppress()
    round_with(node, suppress, service_cores=4.0)
    assert node.cpus() == "0-1"

    seen = []
    for _ in range(4):
        if version == V2:  # the kernel would tell
            effective = tmp_path / "sys/fs/cgroup" / BE / "cpuset.cpus.effective"
            effective.write_text(node.cpus() + "\n")
        round_with(node, suppress, service_cores=0.0)
        seen.append(len(cpuset.parse(node.cpus())))

    assert seen == [3, 4, 4, 4]


def test_nothing_is_even_read_while_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = busy_node(tmp_path)
    suppress = node.suppress()
    round_with(node, suppress, 1.0)
    round_with(node, suppress, 1.0)
    reads: list[str] = []
    original = node.files.read
    monkeypatch.setattr(node.files, "read", lambda path: reads.append(path) or original(path))
    monkeypatch.setattr(node.files, "directories", lambda path: pytest.fail(f"walked {path}"))
    written = len(node.files.written)

    round_with(node, suppress, 1.0)

    assert [path for path in reads if not path.endswith(f"{BE}/cpuset.cpus")] == []
    assert len(node.files.written) == written


def test_of_a_pod_that_comes_only_its_own_groups_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = busy_node(tmp_path)
    suppress = node.suppress()
    round_with(node, suppress, 1.0)
    given = node.cpus()
    looked: list[str] = []
    original = node.files.directories
    monkeypatch.setattr(node.files, "directories", lambda path: looked.append(path) or original(path))

    before = node.view.pods
    node.add(pod_object("late", "BE", "BestEffort"))
    node.view.pods = {**node.view.pods, **before}  # records of unchanged pods are the same objects
    round_with(node, suppress, 1.0)

    assert given != node.all_cpus
    for group in (f"{BE}/podlate", f"{BE}/podlate/late-c0"):
        assert node.cpus(group) == given
    assert [path for path in looked if "/cpuset/" in path and path.endswith("podb")] == []


@both_versions
def test_the_quota_follows_what_services_leave_and_cpus_are_given_back(tmp_path: Path, version: int) -> None:
    node = busy_node(tmp_path, version)
    suppress = node.suppress()
    round_with(node, suppress, 1.0)

    say(node, "cfsQuota")
    round_with(node, suppress, 1.0)

    assert node.quota_us() == 300_000
    assert cpuset.parse(node.cpus()) == cpuset.parse(node.all_cpus)
    assert node.says("be_suppress_cpu")["cfsQuota",] == 3.0
    events = [decode(line) for line in node.audit.newest_first()]
    of_quota = [each.message for each in events if "cfs_quota" in each.message]
    assert of_quota == ["update BE group to cfs_quota: 300000"], "one event for one suppression"

    say(node, "cpuset")
    round_with(node, suppress, 1.0)
    assert node.quota_us() == -1
    assert cpuset.parse(node.cpus()) == {0, 1, 2}


@both_versions
@pytest.mark.parametrize("policy", ["cfsQuota", "cpuset"])
def test_where_the_closed_loop_allows_the_whole_node_nothing_holds_batch_back(
    tmp_path: Path, version: int, policy: str
) -> None:
    node = busy_node(tmp_path, version, policy=policy)
    suppress = node.suppress()
    round_with(node, suppress, 1.0)
    assert node.quota_us() != -1 or cpuset.parse(node.cpus()) != cpuset.parse(node.all_cpus)

    node.view.allowance = BatchAllowance(cpu_threshold_percent=100)
    round_with(node, suppress, 1.0)

    assert node.quota_us() == -1
    assert cpuset.parse(node.cpus()) == cpuset.parse(node.all_cpus)
    assert not suppress.surged(8.0), "nor between two rounds"

    node.view.allowance = BatchAllowance(cpu_threshold_percent=99)
    round_with(node, suppress, 3.0)
    assert node.quota_us() != -1 or cpuset.parse(node.cpus()) != cpuset.parse(node.all_cpus)


def test_services_that_take_everything_leave_the_floor(tmp_path: Path) -> None:
    node = busy_node(tmp_path, policy="cfsQuota")
    round_with(node, node.suppress(), service_cores=8.0)
    assert node.quota_us() == 2_000

    node = busy_node(tmp_path / "other")
    round_with(node, node.suppress(), service_cores=8.0)
    assert node.cpus() == "0-1"


def test_two_cpus_are_never_taken_by_cpuset(tmp_path: Path) -> None:
    node = QoSNode(tmp_path, cpu_count=2)
    node.add(pod_object("w", "LS"))
    node.add(pod_object("b", "BE", "BestEffort"))
    say(node, cpuSuppressThresholdPercent=100)

    for cores in (0.0, 2.0, 0.5):
        round_with(node, node.suppress(), cores)

    assert node.files.written == []
    assert node.cpus() == "0-1"


def test_the_larger_of_reservation_and_system_use_counts(tmp_path: Path) -> None:
    node = busy_node(tmp_path)
    node.node_annotations["node.koordinator.sh/reservation"] = json.dumps({"resources": {"cpu": "2"}})
    node.see()
    say(node, cpuSuppressThresholdPercent=75)
    suppress = node.suppress()

    round_with(node, suppress, 0.0)
    assert len(cpuset.parse(node.cpus())) == 4  # 6 − 2

    node.clock.now_s += 1
    node.use(3.0, w=0.0, b=0.0)  # 3 cores of the system's own
    suppress.run()
    assert len(cpuset.parse(node.cpus())) == 3


def test_batch_pods_without_samples_do_not_count_as_system(tmp_path: Path) -> None:
    node = busy_node(tmp_path, policy="cfsQuota")
    suppress = node.suppress()
    node.clock.now_s += 1
    node.use(4.0, w=1.0)  # the batch pod has just started: 3 cores, no sample yet
    node.sample(kinds.NODE_BE, 3_000, be_resource="cpu", be_allocation="usage")

    suppress.run()

    assert node.quota_us() == 300_000


def test_a_group_that_vanishes_disturbs_nobody(tmp_path: Path) -> None:
    node = busy_node(tmp_path)
    node.add(pod_object("gone", "BE", "BestEffort"))
    suppress = node.suppress()
    round_with(node, suppress, 0.0)
    for group in (f"{BE}/podgone/gone-c0", f"{BE}/podgone"):
        host_tree.remove_group(tmp_path, V1, group)

    round_with(node, suppress, 2.0)

    assert {node.cpus(group) for group in (BE, BATCH, BATCH_CONTAINER)} == {"0-1"}


def test_a_refused_write_is_tried_again_but_not_every_second(tmp_path: Path) -> None:
    node = busy_node(tmp_path)
    suppress = node.suppress()
    path = node.host.cgroups.path(Knob.CPUSET, BATCH)
    node.files.refusals[path] = [FileProblem(path, FileFailure.BUSY)] * 100
    round_with(node, suppress, 1.0)
    left = len(node.files.refusals[path])
    assert left < 100

    for _ in range(5):
        round_with(node, suppress, 1.0)
    assert len(node.files.refusals[path]) == left

    node.files.refusals.clear()
    for _ in range(6):
        round_with(node, suppress, 1.0)
    assert {node.cpus(group) for group in (BE, BATCH, BATCH_CONTAINER)} == {"0-2"}


# Exclusive CPUs


def test_cpus_of_lse_pods_are_left_out_and_lsr_ones_shared(tmp_path: Path) -> None:
    node = busy_node(tmp_path)
    node.add(pod_object("lse", "LSE", "Guaranteed", annotations=bound_to("0-3")))
    say(node, cpuSuppressThresholdPercent=100)

    round_with(node, node.suppress(), 0.0)

    assert cpuset.parse(node.cpus()) == {4, 5, 6, 7}


def test_when_lse_pods_own_everything_a_floor_is_kept_and_told_once(tmp_path: Path) -> None:
    node = busy_node(tmp_path)
    node.add(pod_object("lse", "LSE", "Guaranteed", annotations=bound_to("0-7")))
    suppress = node.suppress()

    for _ in range(3):
        round_with(node, suppress, 0.0)

    assert len(cpuset.parse(node.cpus())) == 2
    assert node.events.recorded == [STARVED]

    node.remove("lse")
    round_with(node, suppress, 0.0)
    node.add(pod_object("lse2", "LSE", "Guaranteed", annotations=bound_to("0-7")))
    round_with(node, suppress, 0.0)
    assert node.events.recorded == [STARVED, STARVED]


def test_below_a_static_kubelet_only_containers_are_narrowed(tmp_path: Path) -> None:
    node = busy_node(tmp_path)
    node.topology_annotations["kubelet.koordinator.sh/cpu-manager-policy"] = json.dumps({"policy": "static"})
    node.see()
    say(node)

    round_with(node, node.suppress(), 1.0)

    assert [node.cpus(group) for group in (BE, BATCH, BATCH_CONTAINER)] == ["0-7", "0-7", "0-2"]


def test_with_the_cpu_manager_gate_bound_containers_are_left_to_their_hook(tmp_path: Path) -> None:
    node = busy_node(tmp_path, gates="BECPUManager=true")
    node.add(pod_object("bound", "BE", "BestEffort", annotations=bound_to("4-5")))
    bound = f"{BE}/podbound/bound-c0"
    for group in (bound, BATCH_CONTAINER):
        assert node.host.cgroups.write(Knob.CPUSET, group, "4-5") is None
    node.suppress().run()

    assert node.cpus(bound) == "4-5"
    assert node.cpus(BATCH_CONTAINER) == "0-7"


# Off


@both_versions
@pytest.mark.parametrize("policy", ["cpuset", "cfsQuota"])
def test_switched_off_by_the_policy_everything_is_as_wide_as_may_be(
    tmp_path: Path, version: int, policy: str
) -> None:
    node = busy_node(tmp_path, version, policy=policy)
    suppress = node.suppress()
    round_with(node, suppress, 3.0)
    node.add(pod_object("lse", "LSE", "Guaranteed", annotations=bound_to("0-1")))

    say(node, policy, enable=False)
    suppress.run()

    assert node.says("be_suppress_cpu") == {}
    assert node.quota_us() == -1
    assert cpuset.parse(node.cpus()) == {2, 3, 4, 5, 6, 7}


@both_versions
@pytest.mark.parametrize("policy", ["cpuset", "cfsQuota"])
def test_disabled_all_files_say_what_they_said(tmp_path: Path, version: int, policy: str) -> None:
    node = busy_node(tmp_path, version, policy=policy)
    before = node.tree()
    suppress = node.suppress()
    round_with(node, suppress, 1.0)
    assert node.tree() != before

    suppress.disable()

    assert same_cpus(node, before)
    assert node.shared.executor.owners() == []


def test_pods_made_while_suppressed_are_put_back_with_the_others(tmp_path: Path) -> None:
    node = busy_node(tmp_path)
    suppress = node.suppress()
    round_with(node, suppress, 1.0)
    node.add(pod_object("known", "BE", "BestEffort"))
    round_with(node, suppress, 1.0)
    node.add(pod_object("late", "BE", "BestEffort"))
    assert node.cpus(f"{BE}/podlate/late-c0") == "0-2"

    node.start()  # killed and started anew with the gate off: neither pods nor topology are known yet
    node.suppress().disable()

    for uid in ("known", "late", "b"):
        assert node.cpus(f"{BE}/pod{uid}/{uid}-c0") == node.cpus(f"{BE}/pod{uid}") == "0-7"


def test_disabled_where_it_never_ran_nothing_is_written(tmp_path: Path) -> None:
    node = busy_node(tmp_path)
    node.suppress().disable()
    assert node.files.written == []


def same_cpus(node: QoSNode, before: dict[str, str]) -> bool:
    """On v2 an empty list of CPUs is put back as all of the parent's, as not every kernel takes it back."""
    after = node.tree()
    if node.version == V2:
        inherited = {
            name for name, text in before.items() if name.endswith("cpuset.cpus") and not text.strip()
        }
        assert all(after[name].strip() in ("", node.all_cpus) for name in inherited)
        after |= {name: before[name] for name in inherited}
    return after == before
