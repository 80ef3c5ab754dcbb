"""Hollow nodes lend GPUs as their agents would: the same prediction, the same victims, through the API."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec

from koordinator import clock as clocks
from koordinator.api import quantity
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.predict.gpu_trainer import GPUTrainer
from koordinator.local.nodes import behaviour, devices
from koordinator.local.nodes.behaviour import Behaviour
from koordinator.local.nodes.fleet import FleetPolicy, HollowFleet, NodeShape
from koordinator.local.nodes.lent_gpus import LentGPUs, agents_of
from koordinator.simulate.virtual_time import run_virtual
from tests.koordlet.predict.test_gpus import CLUSTER
from tests.koordlet.report.agent_node import DAY_S, GIB, NOW_S, AgentNode, cards
from tests.local.nodes.world import World, world

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
CORE, MEMORY = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory"
BATCH = {"koordinator.sh/qosClass": "BE"}


def given(core: int, memory_gib: int, *, prefix: str = "", minor: int = 0) -> str:
    """What the scheduler writes on a pod."""
    amounts = {
        f"koordinator.sh/{prefix}gpu-core": str(core),
        f"koordinator.sh/{prefix}gpu-memory": f"{memory_gib}Gi",
    }
    return json.dumps({"gpu": [{"minor": minor, "resources": amounts}]})


async def put(
    w: World, name: str, allocated: str, *, labels: dict[str, str] | None = None, **does: Any
) -> None:
    """A pod with a part of a card, bound."""
    annotations = {ALLOCATED: allocated, **behaviour.annotations(Behaviour(**does))}
    requests = {} if labels else {"cpu": "1"}
    body = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": labels or {},
            "annotations": annotations,
        },
        "spec": {"containers": [{"name": "main", "image": "train", "resources": {"requests": requests}}]},
    }
    await w.cluster.create(Pod, body, "default")
    await w.cluster.bind("default", name, "node-0")


async def free(w: World) -> list[tuple[str, str]]:
    """Core and memory that the node reports to stay free of each card."""
    metric = await w.cluster.get(NodeMetric, "node-0")
    found = metric.status.prod_reclaimable_metric
    assert found is not None
    return [(each.resources[CORE], each.resources[MEMORY]) for each in found.resource.devices]


async def is_gone(w: World, name: str) -> bool:
    try:
        await w.get(name)
    except errors.NotFound:
        return True
    return False


def test_an_owner_that_uses_more_gets_its_card_back_and_the_one_on_another_card_stays() -> None:
    async def main(clock: Clock) -> None:
        async with world(clock, policy=agents_of(60.0), gpus=2) as w:
            await w.cluster.create(NodeMetric, {"metadata": {"name": "node-0"}})
            await put(w, "web", given(100, 80), gpu_core_ratio=0.2, gpu_memory_ratio=0.25)
            await asyncio.sleep(50)
            assert await free(w) == []  # young

            await asyncio.sleep(300)
            [(core, memory)] = await free(w)
            assert 60 <= int(core) <= 70
            assert 48 * GIB <= quantity.value(memory) <= 51 * GIB

            await put(w, "job", given(60, 20, prefix="batch-"), labels=BATCH)
            await put(w, "elsewhere", given(60, 20, prefix="batch-", minor=1), labels=BATCH)
            await asyncio.sleep(120)
            assert not await is_gone(w, "job")

            busy = behaviour.annotations(Behaviour(gpu_core_ratio=0.9, gpu_memory_ratio=0.25))
            await w.cluster.patch(Pod, "web", {"metadata": {"annotations": busy}}, "default")
            await asyncio.sleep(60)
            assert await is_gone(w, "job")
            assert not await is_gone(w, "elsewhere")

    run_virtual(main)


def test_nodes_without_the_gate_report_nothing_of_it() -> None:
    async def main(clock: Clock) -> None:
        policy = FleetPolicy(predict=agents_of(60.0).predict)
        async with world(clock, policy=policy, gpus=2) as w:
            await w.cluster.create(NodeMetric, {"metadata": {"name": "node-0"}})
            await put(w, "web", given(100, 80))
            await asyncio.sleep(400)
            assert await free(w) == []

    run_virtual(main)


def test_the_prediction_of_a_node_is_its_agents(tmp_path: Path) -> None:
    shape = NodeShape(name="n1", gpus=2)
    fleet = HollowFleet([shape], agents_of(600.0))
    lent = LentGPUs(fleet)
    predict = msgspec.structs.replace(fleet.policy.predict, checkpoints=str(tmp_path / "checkpoints"))
    agent = AgentNode(tmp_path, CLUSTER, gpus=cards(), gates="BatchGPU=true", predict=predict)
    trainer = GPUTrainer(agent.shared)
    bodies = [
        ("web", given(50, 40), {}, 2 * DAY_S, 0.4),
        ("api", given(50, 40), {}, 2 * DAY_S, 0.9),
        ("new", given(30, 10, minor=1), {}, 0.0, 0.5),
        ("job", given(20, 10, prefix="batch-"), BATCH, DAY_S, 1.0),
    ]
    pods = [_pod(*each) for each in bodies]
    slots = {}
    for pod in pods:
        slots[pod.metadata.uid] = fleet.add(fleet.read(pod)[0], 0)
        fleet.start(slots[pod.metadata.uid])
        lent.changed(slots[pod.metadata.uid])
    for minute in range(30):
        now_s = NOW_S + 60 * minute
        agent.fixed.now_s = now_s
        agent.pods(*pods)
        _measure(agent, devices.running_uses(fleet, 0), {slot: uid for uid, slot in slots.items()})
        trainer.run()
        lent.learn(now_s)

    found = {gpu.minor: each for gpu, each in lent.predictions(0, now_s)}

    assert found == trainer.predictions()
    assert all(each.reclaimable.cpu_milli > 0 for each in found.values())


def _pod(name: str, allocated: str, labels: dict[str, str], age_s: float, ratio: float) -> Pod:
    requests = {} if labels else {"cpu": "1"}
    text = behaviour.encode(Behaviour(gpu_core_ratio=ratio, gpu_memory_ratio=ratio))
    raw = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "labels": labels,
            "annotations": {ALLOCATED: allocated, behaviour.ANNOTATION: text},
            "creationTimestamp": clocks.rfc3339(NOW_S - age_s),
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "resources": {"requests": requests}}]},
        "status": {"phase": "Running"},
    }
    return from_builtins(raw, Pod)


def _measure(agent: AgentNode, uses: devices.Uses, uid_of: dict[int, str]) -> None:
    for minor in (0, 1):
        at = {"gpu_minor": str(minor), "gpu_device_uuid": f"GPU-{minor}"}
        there = {uid_of[slot]: of_pod[minor] for slot, of_pod in uses.items() if minor in of_pod}
        for uid, use in there.items():
            agent.sample(kinds.POD_GPU_CORE, use.core_percent, pod_uid=uid, **at)
            agent.sample(kinds.POD_GPU_MEMORY, use.memory_bytes, pod_uid=uid, **at)
        agent.sample(kinds.NODE_GPU_CORE, sum(use.core_percent for use in there.values()), **at)
        agent.sample(kinds.NODE_GPU_MEMORY, sum(use.memory_bytes for use in there.values()), **at)
