"""GPUs, virtual functions, CPUs and memory of a pod come from one NUMA node, as one decision of the whole scheduler."""

import json
import random
from typing import Any

import pytest
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
from tests.scheduler.reservation.test_plugin import AFFINITY, put_reservation, reservation
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


def room(name: str, gpus: int, **spec: Any) -> Json:
    body = reservation(name, cpu="4", memory="4Gi", allocateOnce=False, **spec)
    requests = body["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
    requests.update({CORE: str(100 * gpus), RATIO: str(100 * gpus)})
    return body


def owner(name: str) -> Json:
    body = aligned_pod(name, cpus=1, gpus=1, nic=False, binds=False)
    body["metadata"]["labels"]["app"] = "web"
    body["metadata"]["annotations"][AFFINITY] = "{}"
    return body


@pytest.mark.parametrize("policy", ["", "Aligned", "Restricted"])
def test_owners_are_aligned_within_a_reservation_that_spans_numa_nodes(policy: str) -> None:
    async def story(world: World) -> None:
        machine(world)
        put_reservation(world, room("room", 4, allocatePolicy=policy))
        await world.settle()
        for number in range(3):
            world.api.put("Pod", owner(f"web-{number}"))
            await world.settle()
            assert is_bound(world, f"web-{number}"), world.condition(f"web-{number}")
            given = numa_nodes(world, f"web-{number}")
            assert given["gpu"] == given["memory"]

    play(story)


def test_an_owner_is_aligned_with_its_reserved_card_not_with_one_that_is_free() -> None:
    async def story(world: World) -> None:
        machine(world)
        world.api.put("Pod", aligned_pod("first", cpus=1, gpus=2, nic=False, binds=False))
        await world.settle()
        [numa] = numa_nodes(world, "first")["gpu"]
        put_reservation(world, room("room", 1, allocatePolicy="Aligned"))
        await world.settle()
        world.api.remove("Pod", "first", "default")
        world.api.put("Pod", owner("web"))
        await world.settle()
        assert numa_nodes(world, "web")["gpu"] == numa_nodes(world, "web")["memory"] == {1 - numa}

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
