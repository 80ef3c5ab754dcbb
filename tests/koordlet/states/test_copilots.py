"""What the node agent knows of other runtimes' containers: from their agents, and without them."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from koordinator.api.decode import from_builtins
from koordinator.api.slo import HostApplicationSpec, NodeSLOSpec
from koordinator.koordlet.states.copilots import RESCAN_ROUNDS, CopilotsState
from tests.host import host_tree
from tests.koordlet.copilot_double import CopilotDouble, told, yarn_id
from tests.koordlet.qos.acting_node import ActingNode

GROUP = "kubepods/besteffort/hadoop-yarn"


@pytest.fixture
async def node(tmp_path: Path) -> ActingNode:
    made = ActingNode(tmp_path)
    socket_of(made).parent.mkdir(parents=True)
    return made


@pytest.fixture
async def copilot(node: ActingNode) -> AsyncIterator[CopilotDouble]:
    async with CopilotDouble(told(1), told(2, cpu="2")).served(socket_of(node)) as served:
        yield served


def socket_of(node: ActingNode) -> Path:
    return Path(node.host.roots.var_run) / "yarn-copilot" / "yarn-copilot.sock"


def run(node: ActingNode, number: int) -> None:
    """Let a container have a group with a process in it."""
    group = f"{GROUP}/{yarn_id(number)}"
    host_tree.group(node.root, 1, group)
    Path(f"{node.host.cgroups.directory(group)}/cgroup.procs").write_text("4711\n")


def names(node: ActingNode) -> list[str]:
    return sorted(each.record.pod.metadata.name for each in node.view.foreign.values())


async def test_containers_are_known_as_best_effort_pods_of_the_batch_class(
    node: ActingNode, copilot: CopilotDouble
) -> None:
    await CopilotsState(node.shared).sync()

    assert names(node) == [yarn_id(1), yarn_id(2)]
    record = node.view.foreign[yarn_id(2)].record
    assert record.group == f"{GROUP}/{yarn_id(2)}"
    requests = record.pod.spec.containers[0].resources.requests
    assert requests == {"kubernetes.io/batch-cpu": "2k", "kubernetes.io/batch-memory": "1Gi"}


async def test_the_list_stays_the_same_object_while_nothing_changes(
    node: ActingNode, copilot: CopilotDouble
) -> None:
    state = CopilotsState(node.shared)
    await state.sync()
    before = node.view.foreign
    await state.sync()
    assert node.view.foreign is before


async def test_without_its_agent_a_container_is_known_as_long_as_its_group_is_there(node: ActingNode) -> None:
    state = CopilotsState(node.shared)
    async with CopilotDouble(told(1), told(2, cpu="2"), told(4)).served(socket_of(node)):
        await state.sync()
        os.rename(socket_of(node), socket_of(node).with_suffix(".kept"))
    os.rename(socket_of(node).with_suffix(".kept"), socket_of(node))  # as a killed agent leaves it
    for number in (2, 3, 4):
        run(node, number)
    host_tree.group(node.root, 1, f"{GROUP}/no-container")
    host_tree.group(node.root, 1, f"{GROUP}/{yarn_id(5)}")  # nothing runs in it

    await state.sync()

    assert names(node) == [yarn_id(2), yarn_id(3), yarn_id(4)]
    assert "no answer" in state.problem
    assert (
        node.view.foreign[yarn_id(2)]
        .record.pod.spec.containers[0]
        .resources.requests["kubernetes.io/batch-cpu"]
        == "2k"
    )


def declare_yarn(node: ActingNode) -> None:
    application = {
        "name": "yarn",
        "priority": "koord-batch",
        "qos": "BE",
        "cgroupPath": {"base": "KubepodsBesteffort", "relativePath": "hadoop-yarn/"},
    }
    node.view.slo = NodeSLOSpec(host_applications=[from_builtins(application, HostApplicationSpec)])


async def test_an_agent_restarted_beside_a_dead_one_looks_into_host_applications(node: ActingNode) -> None:
    declare_yarn(node)
    async with CopilotDouble().served(socket_of(node)):
        os.rename(socket_of(node), socket_of(node).with_suffix(".kept"))
    os.rename(socket_of(node).with_suffix(".kept"), socket_of(node))
    run(node, 7)

    await CopilotsState(node.shared).sync()

    assert names(node) == [yarn_id(7)]


async def test_an_agent_that_ended_takes_its_containers_along(node: ActingNode) -> None:
    state = CopilotsState(node.shared)
    async with CopilotDouble(told(2)).served(socket_of(node)):
        await state.sync()
        assert names(node) == [yarn_id(2)]
    for _ in range(RESCAN_ROUNDS):
        await state.sync()
    assert (names(node), state.problem) == ([], "")


async def test_an_agent_that_ended_leaves_the_containers_of_host_applications(node: ActingNode) -> None:
    declare_yarn(node)
    state = CopilotsState(node.shared)
    async with CopilotDouble(told(2)).served(socket_of(node)):
        await state.sync()
    for number in (2, 3):
        run(node, number)
    for _ in range(RESCAN_ROUNDS + 1):
        await state.sync()
        assert names(node) == [yarn_id(2), yarn_id(3)]
    assert {each.socket for each in node.view.foreign.values()} == {""}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(web.Response(status=503, text="no"), id="status"),
        pytest.param(web.Response(text="null"), id="no list"),
        pytest.param(web.Response(text='[{"name": 3}]'), id="no container"),
    ],
)
async def test_a_damaged_answer_is_told_and_changes_nothing_else(
    node: ActingNode, copilot: CopilotDouble, answer: web.Response
) -> None:
    copilot.answer = answer
    state = CopilotsState(node.shared)
    await state.sync()
    assert (names(node), bool(state.problem)) == ([], True)


async def test_amounts_may_be_numbers_and_limits_left_out(node: ActingNode, copilot: CopilotDouble) -> None:
    copilot.containers = [told(2) | {"resources": {"requests": {"cpu": 2, "memory": 1 << 30}}}]
    state = CopilotsState(node.shared)
    await state.sync()
    assert state.problem == ""
    (container,) = node.view.foreign[yarn_id(2)].record.pod.spec.containers
    expected = {"kubernetes.io/batch-cpu": "2k", "kubernetes.io/batch-memory": "1Gi"}
    assert container.resources.requests == expected


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param({"cgroupDir": "kubepods/besteffort"}, id="a group of others"),
        pytest.param({"cgroupDir": f"../../{yarn_id(2)}"}, id="out of the root"),
        pytest.param({"resources": {"requests": {"cpu": "lots"}, "limits": {}}}, id="no amount"),
    ],
)
async def test_a_container_that_makes_no_sense_is_left_out_and_told(
    node: ActingNode, copilot: CopilotDouble, damage: dict[str, object]
) -> None:
    copilot.containers = [told(1), told(2) | damage]
    state = CopilotsState(node.shared)
    await state.sync()
    assert names(node) == [yarn_id(1)]
    assert state.problem


async def test_a_socket_that_anybody_may_use_is_not_asked(node: ActingNode, copilot: CopilotDouble) -> None:
    os.chmod(socket_of(node), 0o666)
    await CopilotsState(node.shared).sync()
    assert names(node) == []
