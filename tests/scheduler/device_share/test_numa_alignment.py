"""GPUs, virtual functions, CPUs and memory of a pod come from one NUMA node, as one decision of the whole scheduler."""

import json
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.scheduler.device_share.test_plugin import (
    CORE,
    HINT,
    MEMORY,
    RATIO,
    RDMA,
    allocated,
    device,
    found,
    gpu_pod,
    is_bound,
)
from tests.scheduler.node_numa_resource.cluster import cpus_of, numa_of, report
from tests.scheduler.world import World, node, play

Json = dict[str, Any]
GENERAL = {HINT: json.dumps({"rdma": {"vfSelector": {"matchLabels": {"type": "general"}}}})}
SINGLE = {
    "scheduling.koordinator.sh/numa-topology-spec": json.dumps({"numaTopologyPolicy": "SingleNUMANode"})
}
CPUS, GPUS, VFS = 8, 2, 2
"""Of each of two NUMA nodes."""


def machine(world: World, name: str = "a") -> None:
    extra = {CORE: "400", RATIO: "400", MEMORY: "64Gi", RDMA: "200"}
    world.api.put("Node", node(name, cpu="16", memory="32Gi", extra=extra))
    world.api.put("NodeResourceTopology", report(name))
    world.api.put("Device", device(name, 4, nics=2, numa=True))


def aligned_pod(name: str, *, cpus: int, gpus: int, nic: bool, binds: bool) -> Json:
    annotations = {**SINGLE, **(GENERAL if nic else {})}
    body = gpu_pod(name, 100 * gpus, annotations=annotations, extra={RDMA: "1"} if nic else {})
    body["metadata"]["labels"] = {"koordinator.sh/qosClass": "LSR"} if binds else {}
    body["spec"]["priority"] = 9500
    body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(cpus)
    return body


def numa_nodes(world: World, name: str) -> dict[str, set[int]]:
    """NUMA nodes of everything that a pod got: two GPUs and a NIC each, 8 CPUs, by ascending id."""
    body, devices = found(world, name), allocated(world, name)
    return {
        "gpu": {each["minor"] // 2 for each in devices["gpu"]},
        "rdma": {each["minor"] for each in devices.get("rdma", ())},
        "cpu": {cpu // CPUS for cpu in cpus_of(body)},
        "memory": set(numa_of(body)),
    }


def test_a_pod_gets_its_cpus_where_its_card_and_nic_are() -> None:
    async def story(world: World) -> None:
        machine(world)
        for name, gpus in (("two", 2), ("one", 1)):
            world.api.put("Pod", aligned_pod(name, cpus=4, gpus=gpus, nic=True, binds=True))
            await world.settle()
        first, second = numa_nodes(world, "two"), numa_nodes(world, "one")

        assert first["gpu"] == first["rdma"] == first["cpu"] == first["memory"] != second["gpu"]
        assert second["gpu"] == second["rdma"] == second["cpu"] == second["memory"]

        world.api.put("Pod", aligned_pod("late", cpus=4, gpus=2, nic=True, binds=True))
        await world.settle()
        assert not is_bound(world, "late"), "two cards are free nowhere together"

    play(story)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 20))
def test_what_is_given_is_aligned_and_nothing_is_refused_that_fits(seed: int) -> None:
    rng = random.Random(seed)

    async def story(world: World) -> None:
        machine(world)
        free = {numa: {"cpu": CPUS, "gpu": GPUS, "vf": VFS} for numa in range(2)}
        holders: dict[str, tuple[int, Json]] = {}
        for number in range(10):
            if holders and rng.random() < 0.3:
                name = rng.choice(sorted(holders))
                numa, asked = holders.pop(name)
                for key, amount in asked.items():
                    free[numa][key] += amount
                world.api.remove("Pod", name, "default")
                await world.settle()
            asked = {"cpu": rng.choice((2, 4, 6)), "gpu": rng.choice((1, 1, 2)), "vf": rng.choice((0, 1))}
            name = f"pod-{number}"
            body = aligned_pod(
                name, cpus=asked["cpu"], gpus=asked["gpu"], nic=bool(asked["vf"]), binds=rng.random() < 0.7
            )
            world.api.put("Pod", body)
            await world.settle()
            fits = any(all(asked[key] <= of[key] for key in asked) for of in free.values())
            assert is_bound(world, name) == fits, (free, asked, world.condition(name))
            if not fits:
                world.api.remove("Pod", name, "default")
                continue
            given = {numa for of in numa_nodes(world, name).values() for numa in of}
            [numa] = given
            for key, amount in asked.items():
                free[numa][key] -= amount
            holders[name] = numa, asked

    play(story)
