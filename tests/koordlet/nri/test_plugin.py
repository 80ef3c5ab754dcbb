"""The plugin beside a runtime on a real socket: joining, answers, losing the runtime and finding it again."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from koordinator.api import labels
from koordinator.host.cgroup_knobs import Knob
from koordinator.koordlet.config import HookConfig
from koordinator.koordlet.hooks.contexts import BindMount, DeviceNode, HookResponse, HookStage, ResctrlGroup
from koordinator.koordlet.nri import adjustments, messages
from koordinator.koordlet.nri import plugin as nri
from koordinator.koordlet.nri.messages import Container, Event, PodSandbox
from tests.koordlet.hooks.hook_node import BEST_EFFORT, HookNode
from tests.koordlet.nri.double import Connection, Refused, Runtime
from tests.koordlet.nri.joining import QUICK, new_plugin, running

BATCH = json.dumps(
    {
        "containers": {
            "main": {
                "requests": {"kubernetes.io/batch-cpu": "500"},
                "limits": {"kubernetes.io/batch-cpu": "700", "kubernetes.io/batch-memory": "64Mi"},
            }
        }
    }
)
GROUP = f"{BEST_EFFORT}/podjob"
JOB = PodSandbox(
    "s1",
    "job",
    "job",
    "default",
    {labels.QOS_CLASS: "BE"},
    {labels.EXTENDED_RESOURCE_SPEC: BATCH},
    linux=messages.LinuxPodSandbox(cgroup_parent=f"/{GROUP}"),
)
MAIN = Container("c1", "s1", "main")
BOUND = {"scheduling.koordinator.sh/resource-status": "{"}


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    (tmp_path / "nri").mkdir()
    made = Runtime(tmp_path / "nri/nri.sock")
    await made.start()
    yield made
    await made.stop()


def batch_node(root: Path, hooks: HookConfig | None = None) -> HookNode:
    node = HookNode(root, hooks=hooks)
    node.group(GROUP)
    node.hooks.start()
    return node


def delivery(node: HookNode) -> dict[str, float]:
    """Mode → whether BatchResource goes that way now; metrics and NodeMetric agree."""
    values = node.shared.metrics.hook_delivery.values
    found = {labels[2]: value for labels, value in values.items() if labels[1] == "BatchResource"}
    assert node.shared.view.extensions["hookDelivery"]["BatchResource"] == found
    return found


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - metrics do not tell us
            await asyncio.sleep(0)


async def create(connection: Connection, pod: PodSandbox = JOB) -> messages.CreateContainerResponse:
    request = messages.CreateContainerRequest(pod, MAIN)
    return await connection.call("CreateContainer", request, messages.CreateContainerResponse)


async def test_a_batch_container_and_its_pod_get_their_limits(tmp_path: Path, runtime: Runtime) -> None:
    node = batch_node(tmp_path)
    async with running(new_plugin(node)):
        connection = await runtime.plugin()
        await connection.register()
        await connection.state_change(Event.RUN_POD_SANDBOX, JOB)
        created = await create(connection)

    registered = connection.registered
    assert (registered.plugin_name, registered.plugin_idx) == ("koordlet_nri", "00")
    assert created.adjust is not None and created.adjust.linux is not None
    resources = created.adjust.linux.resources
    assert resources == messages.LinuxResources(
        messages.LinuxMemory(64 << 20), messages.LinuxCPU(shares=512, quota=70_000)
    )
    assert (node.says(Knob.CPU_SHARES, GROUP), node.says(Knob.CPU_QUOTA, GROUP)) == ("512", "70000")
    assert node.says(Knob.MEMORY_LIMIT, GROUP) == str(64 << 20)


async def test_an_update_is_answered_with_what_the_container_keeps(tmp_path: Path, runtime: Runtime) -> None:
    async with running(new_plugin(batch_node(tmp_path))):
        connection = await runtime.plugin()
        await connection.register()
        wanted = messages.LinuxResources(cpu=messages.LinuxCPU(shares=2))
        answer = await connection.call(
            "UpdateContainer",
            messages.UpdateContainerRequest(JOB, MAIN, wanted),
            messages.UpdateContainerResponse,
        )

    (update,) = answer.update
    assert update.container_id == "c1" and update.linux is not None and update.linux.resources is not None
    assert update.linux.resources.cpu == messages.LinuxCPU(shares=512, quota=70_000)


async def test_a_pod_without_anything_of_ours_is_left_alone(tmp_path: Path, runtime: Runtime) -> None:
    async with running(new_plugin(batch_node(tmp_path))):
        connection = await runtime.plugin()
        await connection.register()

        created = await create(connection, PodSandbox("s2", "web", "web", "default"))

    assert created == messages.CreateContainerResponse()


async def test_a_lost_runtime_is_joined_again_and_metrics_tell(tmp_path: Path, runtime: Runtime) -> None:
    node = batch_node(tmp_path)
    async with running(new_plugin(node)):
        connection = await runtime.plugin()
        await connection.register()
        await until(lambda: delivery(node) == {"nri": 1, "proxy": 0, "reconciler": 1})

        await runtime.stop()
        await until(lambda: delivery(node) == {"nri": 0, "proxy": 0, "reconciler": 1})
        await runtime.start()
        connection = await runtime.plugin()
        await connection.register(parts=3)

        assert (await create(connection)).adjust is not None


async def test_a_new_socket_is_tried_before_the_pause_is_over(tmp_path: Path, runtime: Runtime) -> None:
    await runtime.stop()
    patient = msgspec.structs.replace(QUICK, backoff_s=60.0, backoff_max_s=60.0)
    async with running(new_plugin(batch_node(tmp_path), patient)):
        await asyncio.sleep(0.01)
        await runtime.start()

        await (await runtime.plugin()).register()


async def test_a_runtime_that_does_not_register_us_is_given_up(
    tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    hasty = msgspec.structs.replace(QUICK, connect_timeout_s=0.05)
    async with running(new_plugin(batch_node(tmp_path), hasty)):
        await runtime.plugin()
        await runtime.plugin()  # the next try

    assert "did not answer within 0.05 s" in caplog.records[-1].__dict__["problem"]


@pytest.mark.parametrize("mode", [0o666, 0o602])
async def test_a_socket_that_everybody_may_write_is_not_joined(
    tmp_path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    os.chmod(runtime.path, mode)
    with caplog.at_level(logging.WARNING):
        async with running(new_plugin(batch_node(tmp_path))):
            await asyncio.sleep(0.1)

    assert runtime.connections.empty()
    told = [each.__dict__["problem"] for each in caplog.records if "not delivered by NRI" in each.message]
    assert len(told) == 1 and "can be written by everybody" in told[0]


@pytest.mark.parametrize(("policy", "refused"), [("Ignore", False), ("Fail", True)])
async def test_a_failing_hook_refuses_the_container_only_where_that_is_asked_for(
    tmp_path: Path, runtime: Runtime, policy: str, refused: bool
) -> None:
    broken = msgspec.structs.replace(JOB, annotations={**JOB.annotations, **BOUND})
    node = batch_node(tmp_path, HookConfig(plugin_failure_policy=policy))
    async with running(new_plugin(node)):
        connection = await runtime.plugin()
        await connection.register()
        if refused:
            with pytest.raises(Refused, match="resource-status"):
                await create(connection, broken)
        else:
            assert (await create(connection, broken)).adjust is not None
        assert (await create(connection)).adjust is not None, "the connection goes on"


async def test_calls_that_nobody_knows_are_refused_and_the_connection_goes_on(
    tmp_path: Path, runtime: Runtime
) -> None:
    async with running(new_plugin(batch_node(tmp_path))):
        connection = await runtime.plugin()
        await connection.register()
        with pytest.raises(Refused, match="12: no method 'Paint'"):
            await connection.call("Paint", messages.Empty(), messages.Empty)
        with pytest.raises(Refused, match="12: no service 'x'"):
            await connection.call("Configure", messages.Empty(), messages.Empty, service="x")
        with pytest.raises(Refused, match="3: protobuf"):
            await connection.call("CreateContainer", messages.ConfigureResponse(), messages.Empty)
            await connection.call("CreateContainer", messages.RegisterPluginRequest("\x08"), messages.Empty)
        outside = msgspec.structs.replace(JOB, linux=messages.LinuxPodSandbox(cgroup_parent="/../../etc"))
        with pytest.raises(Refused):
            await create(connection, outside)
        for method in ("StopContainer", "UpdatePodSandbox", "Shutdown"):
            await connection.call(method, messages.Empty(), messages.Empty)
        assert (await create(connection)).adjust is not None


async def test_a_configuration_narrows_events_and_a_wrong_one_is_refused(
    tmp_path: Path, runtime: Runtime
) -> None:
    async with running(new_plugin(batch_node(tmp_path))):
        connection = await runtime.plugin()
        with pytest.raises(Refused, match="'dance' is no event of NRI"):
            await connection.register("events: [Dance]")
        connection.writer.close()
        connection = await runtime.plugin()
        await connection.register("events: [CreateContainer, StopContainer]")

    assert connection.events == 1 << (Event.CREATE_CONTAINER - 1)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        pytest.param("[all]", ["RUN_POD_SANDBOX", "CREATE_CONTAINER", "UPDATE_CONTAINER"], id="all"),
        pytest.param("[Pod]", ["RUN_POD_SANDBOX"], id="pods"),
        pytest.param("[container]", ["CREATE_CONTAINER", "UPDATE_CONTAINER"], id="containers"),
        pytest.param(
            "['RunPodSandbox, updatecontainer']", ["RUN_POD_SANDBOX", "UPDATE_CONTAINER"], id="commas"
        ),
        pytest.param("[]", [], id="none"),
    ],
)
def test_events_may_be_named_in_groups(tmp_path: Path, listed: str, expected: list[str]) -> None:
    events = new_plugin(HookNode(tmp_path)).events
    assert [each.name for each in nri.narrowed(events, f"events: {listed}")] == expected


def test_events_are_those_that_a_hook_answers(tmp_path: Path) -> None:
    assert [each.name for each in new_plugin(HookNode(tmp_path)).events] == [
        "RUN_POD_SANDBOX",
        "CREATE_CONTAINER",
        "UPDATE_CONTAINER",
    ]
    stages = (HookStage.PRE_RUN_POD_SANDBOX, HookStage.PRE_UPDATE_CONTAINER_RESOURCES)
    switched_off = new_plugin(HookNode(tmp_path), disabled_stages=stages)
    assert switched_off.events == (Event.CREATE_CONTAINER,)
    assert nri.mask_of(()) == 1 << (Event.REMOVE_CONTAINER - 1), "0 would ask for all events"


async def test_without_a_hook_for_runtimes_nobody_is_joined(tmp_path: Path, runtime: Runtime) -> None:
    node = HookNode(tmp_path, gates="GroupIdentity=false,CPUSetAllocator=false,BatchResource=false")

    await new_plugin(node).run()

    assert runtime.connections.empty()


def test_all_that_hooks_say_becomes_an_adjustment() -> None:
    response = HookResponse(
        shares=2,
        quota_us=-1,
        cpuset="0-1",
        memory_bytes=-1,
        oom_score_adj=0,
        resctrl=ResctrlGroup("koordlet-uid", ""),
        environment={"A": "b"},
        mounts=(BindMount("/host", "/inside"),),
        devices=(DeviceNode("/dev/infiniband/rdma_cm", 10, 58),),
    )

    found = adjustments.adjustment(response)

    assert found == messages.ContainerAdjustment(
        mounts=(messages.Mount("/inside", "bind", "/host", ("rbind", "rw")),),
        env=(messages.KeyValue("A", "b"),),
        linux=messages.LinuxContainerAdjustment(
            (messages.LinuxDevice("/dev/infiniband/rdma_cm", "c", 10, 58, 0o666),),
            messages.LinuxResources(
                messages.LinuxMemory(-1), messages.LinuxCPU(2, -1, None, "0-1"), "koordlet-uid"
            ),
            0,
        ),
    )


def test_an_empty_cpu_list_cannot_be_told_to_a_runtime() -> None:
    assert adjustments.adjustment(HookResponse(cpuset="")) is None
    assert adjustments.updates("c1", HookResponse(cpuset="")) == ()
