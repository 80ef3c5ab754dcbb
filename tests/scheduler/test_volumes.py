"""Pods with volumes go where these can be, get what they were promised, and nobody gets it twice."""

from typing import Any

import pytest

from koordinator.api.decode import from_builtins
from koordinator.api.storage import PersistentVolume, PersistentVolumeClaim
from koordinator.scheduler.config import config
from koordinator.scheduler.plugins.volumes.catalog import CLASS_ANNOTATION, class_of, class_of_volume
from tests.scheduler.world import World, node, play, pod

Json = dict[str, Any]


def claim(name: str, storage_class: str = "local", **spec: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "10Gi"}},
            **spec,
        },
        "status": {"phase": "Pending"},
    }


def volume(name: str, host: str, size: str = "20Gi") -> Json:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}
    return {
        "metadata": {"name": name},
        "spec": {
            "storageClassName": "local",
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": size},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
        "status": {"phase": "Available"},
    }


def classes(world: World) -> None:
    for name, provisioner in (("local", "kubernetes.io/no-provisioner"), ("made", "csi.example.com")):
        body = {
            "metadata": {"name": name},
            "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        world.api.put("StorageClass", body)


def user_of(name: str, *claims: str, **parts: Any) -> Json:
    volumes = [
        {"name": f"v{number}", "persistentVolumeClaim": {"claimName": each}}
        for number, each in enumerate(claims)
    ]
    return pod(name, volumes=volumes, **parts)


def bind(world: World, name: str, volume_name: str) -> None:
    """What the volume controller does."""
    found = world.api.objects["PersistentVolumeClaim"][("default", name)]
    found = {
        **found,
        "metadata": {
            **found["metadata"],
            "annotations": {
                **found["metadata"].get("annotations", {}),
                "pv.kubernetes.io/bind-completed": "yes",
            },
        },
        "spec": {**found["spec"], "volumeName": volume_name},
        "status": {"phase": "Bound"},
    }
    world.api.put("PersistentVolumeClaim", found)


async def a_pod_with_a_claim(world: World, storage_class: str) -> None:
    """The pod `db` asks for the claim `data`, and the scheduler had its time."""
    classes(world)
    world.api.put("PersistentVolumeClaim", claim("data", storage_class))
    await world.settle(1)
    world.api.put("Pod", user_of("db", "data"))
    await world.settle(5)


@pytest.mark.parametrize(
    ("annotated", "named", "found"),
    [
        pytest.param("old", "new", "old", id="the annotation goes before the field"),
        pytest.param(None, "new", "new", id="the field"),
        pytest.param("old", None, "old", id="the annotation alone"),
        pytest.param(None, None, "", id="neither"),
        pytest.param("", "new", "", id="an empty annotation wants no class"),
    ],
)
def test_claims_and_volumes_name_their_class_by_the_beta_annotation_or_the_field(
    annotated: str | None, named: str | None, found: str
) -> None:
    body = {
        "metadata": {"annotations": {} if annotated is None else {CLASS_ANNOTATION: annotated}},
        "spec": {} if named is None else {"storageClassName": named},
    }

    assert class_of(from_builtins(body, PersistentVolumeClaim)) == found
    assert class_of_volume(from_builtins(body, PersistentVolume)) == found


def test_a_pod_follows_the_volume_and_is_bound_once_its_claim_is() -> None:
    async def story(world: World) -> None:
        world.nodes(3)
        world.api.put("PersistentVolume", volume("disk-1", "node-1"))
        await a_pod_with_a_claim(world, "local")

        reference = world.api.objects["PersistentVolume"][("", "disk-1")]["spec"]["claimRef"]
        assert (reference["namespace"], reference["name"]) == ("default", "data")
        assert world.api.placements()["db"] == ""

        bind(world, "data", "disk-1")
        await world.settle(5)
        assert world.api.placements()["db"] == "node-1"

    play(story)


def test_a_claim_takes_volumes_of_its_attributes_class_only() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        classes(world)
        fast = volume("fast", "node-1")
        fast["spec"]["volumeAttributesClassName"] = "fast"
        world.api.put("PersistentVolume", fast)
        world.api.put("PersistentVolume", volume("plain", "node-0"))
        world.api.put("PersistentVolumeClaim", claim("data", volumeAttributesClassName="fast"))
        world.api.put("Pod", user_of("p", "data"))
        await world.settle(1)
        assert world.api.objects["PersistentVolume"][("", "fast")]["spec"]["claimRef"]["name"] == "data"
        assert "claimRef" not in world.api.objects["PersistentVolume"][("", "plain")]["spec"]

    play(story)


def test_a_volume_is_promised_to_one_claim_only() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        classes(world)
        world.api.put("PersistentVolume", volume("disk-1", "node-1"))
        for name in ("a", "b"):
            world.api.put("PersistentVolumeClaim", claim(name))
        await world.settle(1)
        for name in ("a", "b"):
            world.api.put("Pod", user_of(f"db-{name}", name))
        await world.settle(5)

        conditions = [world.condition(f"db-{name}") for name in ("a", "b")]
        messages = [each["message"] for each in conditions if each]
        assert len(messages) == 1
        assert "2 node(s) didn't find available persistent volumes to bind" in messages[0]

        world.api.put("PersistentVolume", volume("disk-0", "node-0"))
        await world.settle(30)
        owners = {body["spec"]["claimRef"]["name"] for body in world.api.objects["PersistentVolume"].values()}
        assert owners == {"a", "b"}

    play(story)


def test_a_volume_is_made_for_the_node_that_the_pod_gets() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        await a_pod_with_a_claim(world, "made")

        found = world.api.objects["PersistentVolumeClaim"][("default", "data")]
        assert found["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "node-0"
        world.api.put("PersistentVolume", {**volume("pv-1", "node-0"), "status": {"phase": "Bound"}})
        bind(world, "data", "pv-1")
        await world.settle(5)
        assert world.api.placements()["db"] == "node-0"

    play(story)


def test_pods_that_wait_for_volumes_do_not_hold_up_others() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="64", memory="256Gi")
        classes(world)
        for number in range(20):
            world.api.put("PersistentVolumeClaim", claim(f"c{number}", "made"))
        await world.settle(1)
        for number in range(20):
            world.api.put("Pod", user_of(f"db{number}", f"c{number}", cpu="100m"))
        await world.settle(2)
        world.api.put("Pod", pod("web", cpu="100m"))
        await world.settle(2)

        assert {name for name, host in world.api.placements().items() if host} == {"web"}

    play(story, config.decode({"parallelism": 1}))


def test_a_driver_that_gives_up_lets_the_pod_try_again() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        await a_pod_with_a_claim(world, "made")

        found = world.api.objects["PersistentVolumeClaim"][("default", "data")]
        annotations = {"volume.kubernetes.io/selected-node": None}
        world.api.put(
            "PersistentVolumeClaim", {**found, "metadata": {**found["metadata"], "annotations": {}}}
        )
        await world.settle(0.05)
        assert "provisioning failed" in world.condition("db")["message"]

        await world.settle(20)
        found = world.api.objects["PersistentVolumeClaim"][("default", "data")]
        assert annotations.keys() <= found["metadata"]["annotations"].keys()

    play(story)


def test_a_pod_that_waits_for_its_claim_to_be_made_is_woken() -> None:
    async def story(world: World) -> None:
        world.nodes(1)
        classes(world)
        world.api.put("Pod", user_of("db", "data"))
        await world.settle(2)
        assert 'persistentvolumeclaim "data" not found' in world.condition("db")["message"]

        world.api.put("PersistentVolume", volume("disk", "node-0"))
        world.api.put("PersistentVolumeClaim", claim("data"))
        await world.settle(5)
        bind(world, "data", "disk")
        await world.settle(15)
        assert world.api.placements()["db"] == "node-0"

    play(story)


def test_a_node_takes_no_more_volumes_than_its_driver_allows() -> None:
    async def story(world: World) -> None:
        world.api.put("Node", node("small"))
        limited = {"name": "csi.example.com", "nodeID": "small", "allocatable": {"count": 2}}
        world.api.put("CSINode", {"metadata": {"name": "small"}, "spec": {"drivers": [limited]}})
        for number in range(3):
            source = {"driver": "csi.example.com", "volumeHandle": f"h{number}"}
            body = {
                "metadata": {"name": f"pv{number}"},
                "spec": {"csi": source},
                "status": {"phase": "Bound"},
            }
            world.api.put("PersistentVolume", body)
            world.api.put("PersistentVolumeClaim", claim(f"c{number}"))
            bind(world, f"c{number}", f"pv{number}")
        await world.settle(1)
        for number in range(3):
            world.api.put("Pod", user_of(f"p{number}", f"c{number}", cpu="100m"))
        await world.settle(5)

        waiting = [name for name, host in world.api.placements().items() if not host]
        assert len(waiting) == 1
        assert "1 node(s) exceed max volume count" in world.condition(waiting[0])["message"]

        gone = next(name for name, host in world.api.placements().items() if host)
        world.api.remove("Pod", gone, "default")
        await world.settle(20)
        assert all(world.api.placements().values())

    play(story)


def test_a_claim_for_one_pod_is_freed_by_evicting_its_less_important_user() -> None:
    async def story(world: World) -> None:
        world.nodes(2)
        classes(world)
        world.api.put("PersistentVolume", {**volume("disk", "node-1"), "status": {"phase": "Bound"}})
        world.api.put("PersistentVolumeClaim", claim("data", accessModes=["ReadWriteOncePod"]))
        bind(world, "data", "disk")
        await world.settle(1)
        world.api.put("Pod", user_of("low", "data", priority=1))
        await world.settle(2)
        assert world.api.placements()["low"] == "node-1"

        world.api.put("Pod", user_of("equal", "data", priority=1))
        await world.settle(2)
        text = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use"
        assert text in world.condition("equal")["message"]

        world.api.put("Pod", user_of("high", "data", priority=9))
        await world.settle(10)
        assert world.api.placements() == {"equal": "", "high": "node-1"}

    play(story)
