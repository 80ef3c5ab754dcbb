"""How: the whole scheduler on a fake API; Device objects, nodes and pods come and go as on a cluster."""

import json
from typing import Any

import pytest

from tests.scheduler.world import Json, World, node, play, pod

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
CORE, RATIO, MEMORY = (f"koordinator.sh/gpu-{part}" for part in ("core", "memory-ratio", "memory"))
RDMA = "koordinator.sh/rdma"
GIB = 1 << 30


def device(
    name: str, gpus: int = 2, *, nics: int = 0, unhealthy: tuple[int, ...] = (), numa: bool = False
) -> Json:
    """GPUs of 16 GiB, and NICs with two virtual functions each, two GPUs and one NIC at a switch."""

    def place(switch: int) -> Json:
        topology = {"socketID": 0, "nodeID": switch % 2, "pcieID": f"pci-{switch}", "busID": f"0000:{switch}"}
        return {"topology": topology} if numa else {}

    cards = [
        {
            "type": "gpu", "minor": minor, "id": f"GPU-{minor}", "health": minor not in unhealthy, **place(minor // 2),
            "resources": {CORE: "100", RATIO: "100", MEMORY: "16Gi"},
        }
        for minor in range(gpus)
    ]  # fmt: skip
    cards += [
        {
            "type": "rdma", "minor": minor, "id": f"0000:0{minor}:00.0", "health": True, **place(minor),
            "resources": {RDMA: "100"},
            "vfGroups": [
                {"labels": {"type": "general"}, "vfs": [{"busID": f"0000:0{minor}:00.{n}"} for n in (2, 3)]}
            ],
        }
        for minor in range(nics)
    ]  # fmt: skip
    return {"metadata": {"name": name}, "spec": {"devices": cards}}


def machine(world: World, name: str, gpus: int = 2, **parts: Any) -> None:
    """A node with what its Device object says, as the manager sums it."""
    extra = {
        CORE: str(100 * gpus),
        RATIO: str(100 * gpus),
        MEMORY: f"{16 * gpus}Gi",
        RDMA: str(100 * parts.get("nics", 0)),
    }
    world.api.put("Node", node(name, cpu="64", memory="256Gi", extra=extra))
    world.api.put("Device", device(name, gpus, **parts))


def gpu_pod(
    name: str, percent: int = 50, *, annotations: Json | None = None, extra: Json | None = None, **spec: Any
) -> Json:
    requests = {"cpu": "1", "memory": "1Gi", CORE: str(percent), RATIO: str(percent), **(extra or {})}
    body = pod(name, requests=requests, **spec)
    body["metadata"]["uid"] = f"uid-{name}"
    body["metadata"]["annotations"] = annotations or {}
    return body


def found(world: World, name: str) -> Json:
    return next(each for each in world.api.pods() if each["metadata"]["name"] == name)


def allocated(world: World, name: str) -> Json:
    body: Json = json.loads(found(world, name)["metadata"]["annotations"][ALLOCATED])
    return body


def minors(world: World, name: str, device_type: str = "gpu") -> list[int]:
    return [each["minor"] for each in allocated(world, name)[device_type]]


def is_bound(world: World, name: str) -> bool:
    return bool(found(world, name)["spec"].get("nodeName"))


def test_two_halves_share_a_card_and_the_pods_say_which() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=1)
        for name in ("one", "two", "three"):
            world.api.put("Pod", gpu_pod(name))
            await world.settle()

        assert allocated(world, "one") == {
            "gpu": [
                {"minor": 0, "id": "GPU-0", "resources": {CORE: "50", RATIO: "50", MEMORY: "8Gi"}},
            ]
        }
        assert minors(world, "two") == [0]
        assert not is_bound(world, "three")

    play(story)


def test_rests_of_several_cards_are_no_whole_card() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=3)
        for name in ("one", "two", "three"):
            world.api.put("Pod", gpu_pod(name, 40))
            await world.settle()
        world.api.put("Pod", gpu_pod("whole", 100))
        await world.settle()
        assert sorted(minors(world, name)[0] for name in ("one", "two", "three")) == [0, 1, 2]
        assert "Insufficient gpu devices" in world.condition("whole")["message"]

        left = minors(world, "two")
        world.api.remove("Pod", "two", "default")
        await world.settle(2)

        assert minors(world, "whole") == left

    play(story)


def test_a_card_that_is_not_healthy_is_given_to_nobody_until_it_is() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=1, unhealthy=(0,))
        world.api.put("Pod", gpu_pod("waits"))
        await world.settle()
        assert not is_bound(world, "waits")
        assert "gpu devices" in world.condition("waits")["message"]

        world.api.put("Device", device("a", 1))
        await world.settle(2)

        assert minors(world, "waits") == [0]

    play(story)


def test_a_deleted_report_leaves_nothing_to_give() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=1)
        await world.settle()
        world.api.remove("Device", "a")
        await world.settle()
        world.api.put("Pod", gpu_pod("late"))
        await world.settle()

        assert not is_bound(world, "late")

    play(story)


def test_a_pod_leaves_its_card_to_the_next() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=1)
        world.api.put("Pod", gpu_pod("first", 100))
        await world.settle()
        world.api.put("Pod", gpu_pod("second", 100))
        await world.settle()
        assert not is_bound(world, "second")

        world.api.remove("Pod", "first", "default")
        await world.settle(2)

        assert minors(world, "second") == [0]

    play(story)


def test_what_bound_pods_hold_is_known_after_a_restart_whatever_comes_first() -> None:
    async def story(world: World) -> None:
        held = {"gpu": [{"minor": 0, "resources": {CORE: "100", RATIO: "100", MEMORY: "16Gi"}}]}
        body = gpu_pod("old", 100, annotations={ALLOCATED: json.dumps(held)}, nodeName="a")
        world.api.put("Pod", body)
        await world.settle()
        machine(world, "a", gpus=2)
        world.api.put("Pod", gpu_pod("new", 100))
        await world.settle()

        assert minors(world, "new") == [1]

    play(story)


def test_gpu_and_rdma_come_from_the_same_switch() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=4, nics=2, numa=True)
        general = {"rdma": {"vfSelector": {"matchLabels": {"type": "general"}}}}
        joint = {
            JOINT: json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}),
            HINT: json.dumps(general),
        }
        for name in ("one", "two"):
            world.api.put("Pod", gpu_pod(name, 200, annotations=joint, extra={RDMA: "1"}))
            await world.settle()

        for name in ("one", "two"):
            [nic] = allocated(world, name)["rdma"]
            assert {minor // 2 for minor in minors(world, name)} == {nic["minor"]}
            assert nic["extension"]["vfs"] == [{"minor": -1, "busID": f"0000:0{nic['minor']}:00.2"}]
        assert {minors(world, "one")[0] // 2, minors(world, "two")[0] // 2} == {0, 1}

    play(story)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ({CORE: "150", RATIO: "150"}, "invalid resource device requests"),
        ({CORE: "50"}, "invalid resource device requests: [koordinator.sh/gpu-core]"),
        ({RDMA: "150"}, "invalid resource unit koordinator.sh/rdma: 150"),
    ],
)
def test_requests_that_make_no_sense_are_told(requests: Json, message: str) -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=4, nics=4)
        world.api.put("Pod", pod("odd", requests={"cpu": "1", "memory": "1Gi", **requests}))
        await world.settle()

        assert message in world.condition("odd")["message"]

    play(story)


def test_a_hint_that_cannot_be_read_is_told_with_its_place() -> None:
    async def story(world: World) -> None:
        machine(world, "a")
        world.api.put("Pod", gpu_pod("odd", annotations={HINT: "{"}))
        await world.settle()

        assert "device-allocate-hint" in world.condition("odd")["message"]

    play(story)


@pytest.mark.parametrize(
    ("hint", "place"),
    [
        pytest.param(
            {"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}, "selector", id="operator"
        ),
        pytest.param(
            {"vfSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            "vfSelector",
            id="no values",
        ),
    ],
)
def test_a_hint_that_selects_in_no_known_way_is_told_with_its_place(hint: Json, place: str) -> None:
    async def story(world: World) -> None:
        machine(world, "a", nics=1)
        annotations = {HINT: json.dumps({"rdma": hint})}
        world.api.put("Pod", gpu_pod("odd", annotations=annotations, extra={RDMA: "1"}))
        await world.settle()

        assert f"device-allocate-hint: rdma.{place}: " in world.condition("odd")["message"]

    play(story)


def test_nodes_without_a_report_leave_the_choice_to_their_device_plugins() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("plain", cpu="8", extra={"nvidia.com/gpu": "2"}))
        world.api.put("Pod", pod("p", requests={"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}))
        await world.settle()

        assert is_bound(world, "p")
        assert ALLOCATED not in found(world, "p")["metadata"].get("annotations", {})

    play(story)


def test_the_emptier_machine_is_preferred() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2)
        machine(world, "b", gpus=2)
        world.api.put("Pod", gpu_pod("one", 100))
        await world.settle()
        world.api.put("Pod", gpu_pod("two", 100))
        await world.settle()

        assert {found(world, name)["spec"]["nodeName"] for name in ("one", "two")} == {"a", "b"}

    play(story)


def test_a_node_that_vouches_for_nics_which_are_not_there_is_told_as_a_metric() -> None:
    async def story(world: World) -> None:
        machine(world, "a", gpus=2, nics=2)  # the Node promises more than the Device has
        planned = device("a", 2, nics=1)
        planned["metadata"]["labels"] = {"node.koordinator.sh/secondary-device-well-planned": "true"}
        world.api.put("Device", planned)
        world.api.put("Pod", gpu_pod("alone", 100, extra={RDMA: "100"}))
        await world.settle()
        assert is_bound(world, "alone")

        joint = {JOINT: json.dumps({"deviceTypes": ["gpu", "rdma"]})}
        world.api.put("Pod", gpu_pod("joint", 100, annotations=joint, extra={RDMA: "100"}))
        await world.settle()

        assert not is_bound(world, "joint")
        told = world.scheduler.metrics.registry.text()
        assert 'scheduler_secondary_device_not_well_planned{node_name="a"} 1' in told

    play(story)
