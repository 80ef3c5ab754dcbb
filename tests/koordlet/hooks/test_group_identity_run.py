"""Group identity on trees: values of groups, the kernel's switches, unknown pods, cpu.idle, and the way back."""

from pathlib import Path

import pytest

from koordinator.api import labels
from koordinator.api.qos import KubeQoS
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.koordlet.hooks.contexts import HookStage, PodContext
from koordinator.koordlet.hooks.hook import IdleGroups
from koordinator.koordlet.writing.update_plan import Update
from tests.host import host_tree
from tests.koordlet.hooks.hook_node import (
    BE_ON,
    BEST_EFFORT,
    BURSTABLE,
    LS_ON,
    ROOT,
    HookNode,
    batch,
    classes,
    pod,
)

IDENTITY = "proc/sys/kernel/sched_group_identity_enabled"
CORE_SCHED = "proc/sys/kernel/sched_core"
WEB = f"{BURSTABLE}/podweb"
JOB = f"{BEST_EFFORT}/podjob"


def started(root: Path, **how: object) -> HookNode:
    node = HookNode(root, **how)  # type: ignore[arg-type]
    node.hooks.start()
    node.run_pods(pod("web"), pod("job", "BE", resources=[batch(1000)]))
    return node


def test_a_policy_gives_classes_pods_and_containers_their_identity_at_once(tmp_path: Path) -> None:
    node = started(tmp_path)

    node.policy(classes(lsr=LS_ON, ls=LS_ON, be=BE_ON))

    found = {each: node.says(Knob.CPU_BVT, each) for each in (ROOT, BURSTABLE, BEST_EFFORT, WEB, JOB)}
    assert found == {ROOT: "0", BURSTABLE: "2", BEST_EFFORT: "-1", WEB: "2", JOB: "-1"}
    assert node.says(Knob.CPU_BVT, f"{WEB}/web-c0") == "2"
    assert node.says(Knob.CPU_BVT, f"{JOB}/job-c0") == "-1"


def test_a_policy_that_goes_leaves_zeros(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.policy(classes(lsr=LS_ON, ls=LS_ON, be=BE_ON))

    node.policy(classes())

    groups = (BURSTABLE, BEST_EFFORT, WEB, JOB, f"{WEB}/web-c0", f"{JOB}/job-c0")
    assert {node.says(Knob.CPU_BVT, each) for each in groups} == {"0"}


def test_an_annotated_pod_keeps_its_identity_when_the_policy_changes(tmp_path: Path) -> None:
    node = HookNode(tmp_path)
    node.hooks.start()
    own = {labels.CPU_QOS: '{"enable":true,"groupIdentity":-1}'}
    node.run_pods(pod("web", annotations=own))

    for identity in (2, 1):
        node.policy(classes(ls={"enable": True, "groupIdentity": identity}))

        assert node.says(Knob.CPU_BVT, WEB) == "-1"
        assert node.says(Knob.CPU_BVT, f"{WEB}/web-c0") == "-1"


def test_the_kernels_switches_are_turned_first(tmp_path: Path) -> None:
    host_tree.write(tmp_path, {IDENTITY: "0", CORE_SCHED: "1"})
    node = started(tmp_path)
    node.policy(classes())
    assert (tmp_path / IDENTITY).read_text().strip() == "0"

    node.policy(classes(ls=LS_ON))

    written = [Path(path).name for path, _ in node.files.written]
    switches = [written.index("sched_core"), written.index("sched_group_identity_enabled")]
    assert switches == sorted(switches)
    assert written.index("cpu.bvt_warp_ns") > switches[1]
    assert (tmp_path / IDENTITY).read_text().strip() == "1"


def test_nothing_is_written_while_the_kernels_switch_is_off_and_nobody_wants_it(tmp_path: Path) -> None:
    host_tree.write(tmp_path, {IDENTITY: "0"})
    node = HookNode(tmp_path)
    node.host.files.write(node.host.cgroups.path(Knob.CPU_BVT, BURSTABLE), "2")
    node.hooks.start()
    node.run_pods(pod("web"))
    node.policy(classes())

    assert node.says(Knob.CPU_BVT, BURSTABLE) == "2"


def test_no_identity_is_written_before_the_policy_is_known(tmp_path: Path) -> None:
    node = HookNode(tmp_path)
    node.group(WEB)
    for group in (BURSTABLE, WEB):
        node.host.files.write(node.host.cgroups.path(Knob.CPU_BVT, group), "2")
    node.hooks.start()
    node.run_pods(pod("web"))

    assert {node.says(Knob.CPU_BVT, each) for each in (BURSTABLE, WEB)} == {"2"}


@pytest.mark.parametrize("text", ["", "on"])
def test_a_switch_that_cannot_be_read_stops_everything(tmp_path: Path, text: str) -> None:
    host_tree.write(tmp_path, {IDENTITY: text})
    node = started(tmp_path)

    node.policy(classes(ls=LS_ON))

    assert node.says(Knob.CPU_BVT, BURSTABLE) == "0"


def test_pods_that_the_kubelet_did_not_tell_of_get_the_value_of_their_class(tmp_path: Path) -> None:
    node = started(tmp_path)
    stranger = f"{BURSTABLE}/podstranger"
    node.group(stranger)
    node.group(f"{stranger}/x")

    node.policy(classes(ls=LS_ON))

    assert node.says(Knob.CPU_BVT, stranger) == node.says(Knob.CPU_BVT, f"{stranger}/x") == "2"


def test_what_the_kubelet_resets_is_set_again(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.policy(classes(ls=LS_ON))
    node.host.files.write(node.host.cgroups.path(Knob.CPU_BVT, WEB), "0")

    node.clock.now_s += 61
    node.refresh()

    assert node.says(Knob.CPU_BVT, WEB) == "2"


async def test_switched_off_everything_is_zero_and_the_switch_as_before(tmp_path: Path) -> None:
    host_tree.write(tmp_path, {IDENTITY: "0"})
    node = started(tmp_path)
    node.policy(classes(ls=LS_ON, be=BE_ON))

    await node.hooks.disable()

    groups = (BURSTABLE, BEST_EFFORT, WEB, JOB, f"{WEB}/web-c0")
    assert {node.says(Knob.CPU_BVT, each) for each in groups} == {"0"}
    assert (tmp_path / IDENTITY).read_text().strip() == "0"
    assert "GroupIdentity" not in node.executor.owners()


def test_a_gate_that_is_off_after_a_restart_puts_identities_back(tmp_path: Path) -> None:
    node = started(tmp_path)
    node.policy(classes(ls=LS_ON, be=BE_ON))

    again = node.restarted(gates="GroupIdentity=false")
    again.hooks.start()

    assert {again.says(Knob.CPU_BVT, each) for each in (BURSTABLE, WEB, JOB)} == {"0"}


IDLE_WEIGHT = {V1: "3", V2: "0"}
OF_KUBELET = {V1: "2", V2: "1"}
OF_JOB = {V1: "1024", V2: "39"}


@pytest.mark.parametrize("version", [V1, V2])
def test_without_bvt_best_effort_pods_are_idle_and_their_class_takes_the_kubelets_shares(
    tmp_path: Path, version: int
) -> None:
    node = started(tmp_path, vendor=False, version=version)
    groups = (ROOT, BURSTABLE, BEST_EFFORT, WEB, JOB)

    node.policy(classes(ls=LS_ON, be=BE_ON))
    assert [node.says(Knob.CPU_IDLE, each) for each in groups] == ["0", "0", "0", "0", "1"]
    path = node.host.cgroups.path(Knob.CPU_SHARES, BEST_EFFORT)
    assert node.host.files.write(path, OF_KUBELET[version]) is None, "a kubelet writes it at its start"

    node.policy(classes())
    assert {node.says(Knob.CPU_IDLE, each) for each in groups} == {"0"}


def test_pods_and_others_that_come_later_are_idle_too(tmp_path: Path) -> None:
    node = started(tmp_path, vendor=False)
    node.policy(classes(be=BE_ON))
    stranger = f"{BEST_EFFORT}/hadoop-yarn"
    node.group(stranger)

    node.run_pods(pod("web"), pod("job", "BE"), pod("more", "BE"))
    node.hooks._idle.refresh()

    assert node.says(Knob.CPU_IDLE, f"{BEST_EFFORT}/podmore") == "1"
    assert node.says(Knob.CPU_IDLE, stranger) == "1"


def test_a_pod_is_idle_before_its_first_container_exists(tmp_path: Path) -> None:
    node = started(tmp_path, vendor=False)
    node.policy(classes(be=BE_ON))
    new = f"{BEST_EFFORT}/podnew"
    node.group(new)
    context = PodContext("shop", "new", "new", {labels.QOS_CLASS: "BE"}, {}, new, KubeQoS.BEST_EFFORT)

    node.hooks.at_runtime(HookStage.PRE_RUN_POD_SANDBOX, context)

    assert node.says(Knob.CPU_IDLE, new) == "1"


@pytest.mark.parametrize("version", [V1, V2])
async def test_a_pod_that_is_no_longer_idle_has_the_shares_it_should_have(
    tmp_path: Path, version: int
) -> None:
    node = HookNode(tmp_path, vendor=False, version=version)
    node.group(JOB)
    node.host.files.write(node.host.cgroups.path(Knob.CPU_SHARES, JOB), OF_KUBELET[version])
    node.hooks.start()
    node.policy(classes(be=BE_ON))
    node.run_pods(pod("job", "BE", resources=[batch(500)]))
    assert node.says(Knob.CPU_SHARES, JOB) == IDLE_WEIGHT[version]

    node.run_pods(pod("job", "BE", resources=[batch(1000)]))
    assert node.says(Knob.CPU_SHARES, JOB) == IDLE_WEIGHT[version], "the kernel refuses any other"
    node.policy(classes())
    assert node.says(Knob.CPU_SHARES, JOB) == OF_JOB[version]

    node.policy(classes(be=BE_ON))
    await node.hooks.disable()
    assert (node.says(Knob.CPU_IDLE, JOB), node.says(Knob.CPU_SHARES, JOB)) == ("0", OF_KUBELET[version])
    assert node.executor.owners() == []


def test_batch_limits_that_go_while_a_pod_is_idle_are_gone_afterwards(tmp_path: Path) -> None:
    node = HookNode(tmp_path, vendor=False)
    node.group(JOB)
    node.host.files.write(node.host.cgroups.path(Knob.CPU_SHARES, JOB), "2")
    node.hooks.start()
    node.policy(classes(be=BE_ON))
    node.run_pods(pod("job", "BE", resources=[batch(500)]))

    without = node.restarted(gates="BatchResource=false")
    without.hooks.start()
    assert without.says(Knob.CPU_SHARES, JOB) == "3"
    without.policy(classes())

    assert without.says(Knob.CPU_SHARES, JOB) == "2"


def test_a_class_that_an_older_agent_made_idle_is_given_back(tmp_path: Path) -> None:
    node = started(tmp_path, vendor=False)
    path = node.host.cgroups.path(Knob.CPU_SHARES, BEST_EFFORT)
    node.host.files.write(path, "2")
    node.executor.update([Update(BEST_EFFORT, Knob.CPU_IDLE, "1")], owner=IdleGroups.name)
    assert node.says(Knob.CPU_SHARES, BEST_EFFORT) == "3"

    again = node.restarted()
    again.hooks.start()
    again.policy(classes(be=BE_ON))

    found = [again.says(knob, BEST_EFFORT) for knob in (Knob.CPU_IDLE, Knob.CPU_SHARES)]
    assert (found, again.says(Knob.CPU_IDLE, JOB)) == (["0", "2"], "1")
