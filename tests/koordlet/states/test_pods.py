"""Pods as the kubelet lists them: what is kept, what is dropped, when it is asked again."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordinator.api.core import (
    Container,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from koordinator.api.meta import Condition, ObjectMeta
from koordinator.clock import SystemClock
from koordinator.host.cgroup_layout import Driver
from koordinator.host.syscalls import LinuxSyscalls, NoSyscalls
from koordinator.koordlet import node_pods
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.states import pods
from koordinator.koordlet.states.pods import PodsState
from koordinator.koordlet.view import Topic
from tests.koordlet.agent_world import BE, NODE, World, live
from tests.koordlet.pods_node import PodsNode

SERVICE, BATCH = "kubepods/burstable/podweb", f"{BE}/podbatch"


def uids(world: World) -> set[str]:
    return set(world.agent.shared.view.pods)


async def started(world: World) -> None:
    await world.create_objects({})
    world.run_pod("web", batch=False)
    world.run_pod("batch", batch=True)
    await asyncio.sleep(12)
    assert uids(world) == {"web", "batch"}


def test_an_error_of_the_kubelet_keeps_the_pods(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await started(world)
        world.kubelet.trouble = "connection refused"
        await asyncio.sleep(60)
        assert uids(world) == {"web", "batch"}
        assert world.agent.troubles() == {"pods": "/pods/: connection refused"}
        world.kubelet.trouble = ""
        await asyncio.sleep(12)
        assert world.agent.troubles() == {}

    live(tmp_path, scenario)


def test_an_empty_list_counts_only_when_nothing_runs(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await started(world)
        listed, world.kubelet.listed = world.kubelet.listed, []
        procs = tmp_path / "sys/fs/cgroup/cpu" / SERVICE / "web-0" / "cgroup.procs"
        procs.write_text("77\n")
        await asyncio.sleep(60)
        assert uids(world) == {"web", "batch"}, "the kubelet has just started"
        assert "lists no pods although some run" in world.agent.troubles()["pods"]

        procs.write_text("")
        await asyncio.sleep(12)
        assert uids(world) == set() and world.agent.shared.view.has_pods
        world.kubelet.listed = listed
        await asyncio.sleep(12)
        assert uids(world) == {"web", "batch"}

    live(tmp_path, scenario)


def test_a_node_without_pods_is_a_node_that_is_known(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.create_objects({})
        await asyncio.sleep(5)
        assert world.agent.shared.view.has_pods and world.agent.is_started.is_set()

    live(tmp_path, scenario)


def test_pods_that_did_not_change_keep_their_records_and_everybody_is_told_each_time(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await started(world)
        view = world.agent.shared.view
        reported: list[Any] = []
        view.listen(Topic.PODS, "test", lambda: reported.append(view.pods))
        before = view.pods
        await asyncio.sleep(20)
        assert [each is before for each in reported] == [True, True]

        web = world.kubelet.listed[0]
        labels = {**web.metadata.labels, "a": "b"}
        world.kubelet.listed[0] = msgspec.structs.replace(
            web, metadata=msgspec.structs.replace(web.metadata, labels=labels)
        )
        await asyncio.sleep(10)
        assert view.pods is not before
        assert view.pods["batch"] is before["batch"] and view.pods["web"] is not before["web"]

    live(tmp_path, scenario)


def test_amounts_that_nobody_can_read_cost_only_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        await started(world)
        odd = world.run_pod("odd", batch=True, cores=0.1, listed=False)
        amounts = ResourceRequirements(
            requests={"cpu": "1", "kubernetes.io/batch-cpu": "much"}, limits={"memory": ""}
        )
        container = msgspec.structs.replace(odd.spec.containers[0], resources=amounts)
        spec = msgspec.structs.replace(odd.spec, containers=[container])
        world.kubelet.listed.append(msgspec.structs.replace(odd, spec=spec))
        await asyncio.sleep(12)
        known = world.agent.shared.view.pods["odd"]
        assert known.pod.spec.containers[0].resources.requests == {"cpu": "1"}
        assert known.pod.spec.containers[0].resources.limits == {}

        await asyncio.sleep(60)
        assert world.agent.shared.view.pods["odd"] is known
        reported = [record.__dict__["problem"] for record in caplog.records if record.msg == "pod invalid"]
        assert len(reported) == 1 and "batch-cpu: 'much' is not a quantity" in reported[0]
        assert not [record for record in caplog.records if " raised " in record.getMessage()]

    gates = "CgroupReconcile=true,BEMemoryEvict=true,BECPUEvict=true,CPUAllocatableEvict=true"
    live(tmp_path, scenario, gates=gates)


def test_what_is_known_of_groups_goes_with_their_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        await started(world)
        forgotten: list[str] = []
        monkeypatch.setattr(world.agent.shared.executor, "forget", forgotten.append)
        world.end_pod("batch")
        await asyncio.sleep(12)
        assert uids(world) == {"web"} and set(forgotten) == {BATCH}

    live(tmp_path, scenario)


def pod(uid: str = "p", *, ids: tuple[str, ...] = ("c",), phase: str = "Running", **amounts: str) -> Pod:
    requests = {name.replace("_", "-"): value for name, value in amounts.items()}
    resources = ResourceRequirements(
        requests={f"kubernetes.io/{name}": value for name, value in requests.items()},
        limits={"kubernetes.io/batch-memory": "2Gi", "cpu": "1"},
    )
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="d", uid=uid),
        spec=PodSpec(containers=[Container(name=f"n{i}", resources=resources) for i in range(len(ids))]),
        status=PodStatus(
            phase=phase,
            qos_class="BestEffort",
            container_statuses=[
                ContainerStatus(name=f"n{i}", container_id=f"containerd://{each}" if each else "")
                for i, each in enumerate(ids)
            ],
        ),
    )


def test_groups_end_with_pods_phases_and_replaced_containers() -> None:
    def known(*made: Pod) -> dict[str, node_pods.PodRecord]:
        return {each.metadata.uid: node_pods.record(each, Driver.CGROUPFS) for each in made}

    old = known(pod("a", ids=("x", "y")), pod("b"), pod("c"), pod("d"))
    new = known(pod("a", ids=("x", "z")), pod("b", phase="Succeeded"), pod("d"))
    assert pods.ended(old, new) == [f"{BE}/poda/y", f"{BE}/podb", f"{BE}/podc"]
    assert pods.ended(old, old) == []


def test_a_pod_starts_until_all_its_containers_have_ids() -> None:
    def starting(made: Pod) -> bool:
        return pods.is_starting(node_pods.record(made, Driver.CGROUPFS))

    assert starting(pod(ids=("x", ""))) and not starting(pod(ids=("x",)))
    assert not starting(pod(ids=("",), phase="Failed"))


def test_batch_amounts_have_their_own_units() -> None:
    metrics = AgentMetrics(NODE, SystemClock())
    record = node_pods.record(pod(batch_cpu="1500", batch_memory="1Gi", mid_cpu="x"), Driver.CGROUPFS)

    pods.report_resources(metrics, [record])
    labels = ("p", "p", "d", "containerd://c", "n0")
    assert metrics.container_requests.values == {
        (NODE, "kubernetes.io/batch-cpu", "integer", *labels): 1500,
        (NODE, "kubernetes.io/batch-memory", "byte", *labels): 1 << 30,
    }
    assert metrics.container_limits.values == {(NODE, "kubernetes.io/batch-memory", "byte", *labels): 2 << 30}
    pods.report_resources(metrics, [])
    assert not metrics.container_requests.values and not metrics.container_limits.values


async def test_a_guess_about_names_of_groups_is_corrected_by_what_comes(tmp_path: Path) -> None:
    node = PodsNode(tmp_path, NoSyscalls())
    state, view = PodsState(node.shared, node.kubelet), node.shared.view
    node.base.rmdir()
    node.base.parent.rmdir()
    view.driver = Driver.SYSTEMD

    await state.sync()
    assert view.driver is Driver.SYSTEMD
    node.base.mkdir(parents=True)
    await state.sync()
    assert view.driver is Driver.CGROUPFS


async def test_a_new_group_makes_the_kubelet_be_asked_at_once(tmp_path: Path) -> None:
    """Real directories and the kernel's own events."""
    node = PodsNode(tmp_path, LinuxSyscalls())
    task = asyncio.create_task(PodsState(node.shared, node.kubelet).run())
    try:
        await node.until(lambda: node.kubelet.asked == 1)
        node.kubelet.listed = [pod(ids=("",))]
        (node.base / "podp").mkdir()
        await node.until(lambda: "p" in node.shared.view.pods)
        assert node.shared.view.pods["p"].containers == ()
        node.kubelet.listed = [pod(ids=("c",))]
        (node.base / "podp/c").mkdir()
        await node.until(lambda: len(node.shared.view.pods["p"].containers) == 1)
    finally:
        task.cancel()
        await asyncio.wait([task])


def test_a_container_without_an_id_is_asked_for_again_soon_but_not_for_ever(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await started(world)
        state = world.agent.states._pods
        world.kubelet.listed.append(pod("late", ids=("",)))
        before = world.kubelet.asked
        state._wake.set()  # as the watch does
        await asyncio.sleep(30)
        often = world.kubelet.asked - before
        assert 10 <= often <= 14
        await asyncio.sleep(60)
        assert world.kubelet.asked - before - often <= 6

    live(tmp_path, scenario)


def test_a_kubelet_that_fails_after_a_group_came_is_asked_at_its_usual_pace_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await started(world)
        world.kubelet.trouble = "no answer"
        world.agent.states._pods._wake.set()  # as the watch does
        await asyncio.sleep(20)
        before = world.kubelet.asked
        await asyncio.sleep(60)
        assert world.kubelet.asked - before <= 6

    live(tmp_path, scenario)


def test_amounts_that_the_kubelet_does_not_grant_are_no_amounts_of_the_pod(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await started(world)
        web = world.kubelet.listed[0]
        wanted = ResourceRequirements(requests={"cpu": "9"}, limits={"cpu": "9"})
        container = msgspec.structs.replace(web.spec.containers[0], resources=wanted)
        before = ResourceRequirements(requests={"cpu": "1"}, limits={"cpu": "2"})
        reported = msgspec.structs.replace(
            web.status.container_statuses[0], name=container.name, resources=before
        )
        pending = Condition(type="PodResizePending", status="True", reason="Deferred")
        world.kubelet.listed[0] = msgspec.structs.replace(
            web,
            spec=msgspec.structs.replace(web.spec, containers=[container]),
            status=msgspec.structs.replace(
                web.status, conditions=[*web.status.conditions, pending], container_statuses=[reported]
            ),
        )
        await asyncio.sleep(12)
        known = world.agent.shared.view.pods["web"]
        assert known.pod.spec.containers[0].resources == before
        await asyncio.sleep(30)
        assert world.agent.shared.view.pods["web"] is known

    live(tmp_path, scenario)
