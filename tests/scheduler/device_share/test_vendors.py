"""How: the whole scheduler on a fake API with NPUs and cards of other vendors; templates come from their ConfigMap."""

import json
from typing import Any

import pytest

from koordinator.api.core import ConfigMap
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.scheduler.plugins.device_share.adaption import LOCK_S_MAX, lock_holder
from tests.scheduler.device_share.test_plugin import (
    ALLOCATED,
    CORE,
    MEMORY,
    RATIO,
    allocated,
    device,
    found,
    gpu_pod,
    is_bound,
)
from tests.scheduler.fake_cluster import FakeCluster
from tests.scheduler.world import EPOCH_S, Json, World, node, play

NPU_CORE, NPU_CPU = "huawei.com/npu-core", "huawei.com/npu-cpu"
VENDOR, MODEL = "node.koordinator.sh/gpu-vendor", "node.koordinator.sh/gpu-model"
ADAPTING = FeatureGates.of(Component.SCHEDULER, "DevicePluginAdaption=true")


def machine(world: World, name: str, vendor: str, model: str = "", gpus: int = 2) -> None:
    own = {VENDOR: vendor, MODEL: model}
    reported = device(name, gpus)
    for card in reported["spec"]["devices"]:
        card["resources"] |= {NPU_CORE: "20", NPU_CPU: "7"}
    reported["metadata"]["labels"] = own
    extra = {CORE: "200", RATIO: "200", MEMORY: "32Gi", NPU_CORE: "40", NPU_CPU: "14"}
    world.api.put("Node", node(name, cpu="64", memory="256Gi", extra=extra, labels=own))
    world.api.put("Device", reported)


def templates(world: World, text: str) -> None:
    meta = {"name": "gpu-shared-resource-templates", "namespace": "koordinator-system"}
    world.api.put("ConfigMap", {"metadata": meta, "data": {"data.yaml": text}})


def slice_of_npu(name: str, cores: int = 5) -> Json:
    limits = {"koordinator.sh/gpu.shared": "1", NPU_CORE: str(cores), NPU_CPU: "1", MEMORY: "4Gi"}
    body = gpu_pod(name)
    body["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1", "memory": "1Gi", **limits}
    return body


OF_910B = f"huawei-910B:\n  vir05_1c_4g: {{{NPU_CORE}: 5, {NPU_CPU}: 1, {MEMORY}: 4Gi}}\n"


def annotations(world: World, name: str) -> Json:
    return dict(found(world, name)["metadata"]["annotations"])


def test_a_slice_waits_for_its_template_and_says_which_it_got() -> None:
    async def story(world: World) -> None:
        machine(world, "other", "huawei", "310P3")
        machine(world, "fitting", "huawei", "910B")
        world.api.put("Pod", slice_of_npu("slice"))
        await world.settle()
        assert "no matched GPU shared resource template" in world.condition("slice")["message"]

        templates(world, "huawei-910B: [")
        await world.settle(2)
        assert not is_bound(world, "slice")

        templates(world, OF_910B)
        await world.settle(2)
        assert found(world, "slice")["spec"]["nodeName"] == "fitting"
        assert allocated(world, "slice")["gpu"][0]["extension"] == {
            "gpuSharedResourceTemplate": "vir05_1c_4g"
        }
        written = annotations(world, "slice")
        assert written["huawei.com/npu-core"] == "0-vir05_1c_4g"
        assert written["predicate-time"] == written["scheduling.koordinator.sh/bind-timestamp"]

        world.api.put("Pod", slice_of_npu("odd", 6))
        await world.settle()
        assert "no matched GPU shared resource template" in world.condition("odd")["message"]

    play(story, gates=ADAPTING)


@pytest.mark.parametrize(
    ("vendor", "model", "expected"),
    [
        ("huawei", "910B", {"huawei.com/npu-core": "0,1"}),
        ("huawei", "Ascend-310P3-300I-DUO", {"huawei.com/Ascend310P": "Ascend310P-0,Ascend310P-1"}),
        (
            "metax",
            "C500",
            {
                "metax-tech.com/gpu-devices-allocated": '[[{"uuid":"GPU-0","compute":100,"vRam":16384},'
                '{"uuid":"GPU-1","compute":100,"vRam":16384}]]'
            },
        ),
    ],
)
def test_vendors_find_what_they_expect_beside_our_annotation(
    vendor: str, model: str, expected: dict[str, str]
) -> None:
    async def story(world: World) -> None:
        machine(world, "a", vendor, model)
        body = gpu_pod("two", 200)
        body["metadata"]["labels"] = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
        world.api.put("Pod", body)
        await world.settle()
        written = annotations(world, "two")
        assert expected.items() <= written.items()
        assert written["scheduling.koordinator.sh/gpu-minors"] == "0,1"
        assert written["scheduling.koordinator.sh/bind-timestamp"].startswith(str(int(EPOCH_S)))
        assert found(world, "two")["metadata"]["labels"]["hami.io/vgpu-node"] == "a"

    play(story, gates=ADAPTING)


def test_without_the_gate_nothing_but_the_allocation_is_written() -> None:
    async def story(world: World) -> None:
        machine(world, "a", "metax")
        world.api.put("Pod", gpu_pod("one"))
        await world.settle()
        assert list(annotations(world, "one")) == [ALLOCATED]

    play(story)


def test_a_cambricon_node_is_locked_until_the_plugin_unlocks_it() -> None:
    async def story(world: World) -> None:
        machine(world, "a", "cambricon")
        world.api.put("Pod", gpu_pod("one"))
        await world.settle()
        assert annotations(world, "one")["CAMBRICON_DSMLU_PROFILE"] == "0_50_32"
        (locked,) = world.api.objects["Node"].values()
        assert locked["metadata"]["annotations"]["cambricon.com/dsmlu.lock"].endswith(",default,one")

        world.api.put("Pod", gpu_pod("two"))
        await world.settle()
        assert not is_bound(world, "two"), "the node is locked"

        unlocked = json.loads(json.dumps(locked))
        unlocked["metadata"]["annotations"].clear()
        world.api.put("Node", unlocked)
        await world.settle(30)
        assert is_bound(world, "two")

    play(story, gates=ADAPTING)


def test_a_lock_is_held_for_some_minutes_only() -> None:
    text = "2023-11-14T22:13:20Z,default,one"
    assert lock_holder(text, EPOCH_S + LOCK_S_MAX) == ("default", "one")
    assert lock_holder(text, EPOCH_S + LOCK_S_MAX + 1) is None
    assert lock_holder("yesterday,default,one", EPOCH_S) is None
    assert lock_holder(None, EPOCH_S) is None


def test_a_scheduler_that_may_not_read_templates_places_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = FakeCluster.list

    async def guarded(self: FakeCluster, view: type[Object], namespace: str = "", **options: Any) -> Any:
        if view is ConfigMap:
            raise errors.Forbidden("configmaps is forbidden")
        return await listed(self, view, namespace, **options)

    async def story(world: World) -> None:
        machine(world, "a", "huawei", "910B")
        world.api.put("Pod", slice_of_npu("slice"))
        world.api.put("Pod", gpu_pod("whole", 100))
        await world.settle(1)
        assert is_bound(world, "whole")
        assert "no matched GPU shared resource template" in world.condition("slice")["message"]

    monkeypatch.setattr(FakeCluster, "list", guarded)
    play(story, strict=False)
