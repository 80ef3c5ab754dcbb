"""Replicas share their spec, and nobody can tell but by the memory."""

from typing import Any

import msgspec
import pytest

from koordinator.api.core import Pod
from koordinator.api.groups import PriorityClass
from koordinator.clock import SystemClock
from koordinator.cluster import errors
from koordinator.cluster.backend import ObjectRecord, WriteOptions
from koordinator.local import registry
from koordinator.local.registry.registry import ObjectRegistry
from koordinator.local.schema import known

OPTIONS = WriteOptions(field_manager="tests", field_validation="Strict")
SPEC: dict[str, Any] = {
    "containers": [
        {
            "name": "main",
            "image": "app:v1",
            "ports": [{"containerPort": 80}],
            "resources": {"limits": {"cpu": "1"}},
        }
    ]
}


@pytest.fixture
def backend() -> ObjectRegistry:
    return registry.in_memory(SystemClock())


def body(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": msgspec.json.decode(msgspec.json.encode(spec))}


async def create(backend: ObjectRegistry, name: str, spec: dict[str, Any] = SPEC) -> ObjectRecord:
    return await backend.create(Pod.resource, "default", body(name, spec), OPTIONS)


def without_identity(record: ObjectRecord) -> bytes:
    meta = {
        key: value
        for key, value in record.obj["metadata"].items()
        if key not in ("name", "uid", "resourceVersion", "creationTimestamp")
    }
    meta["managedFields"] = [
        {key: value for key, value in entry.items() if key != "time"} for entry in meta["managedFields"]
    ]
    return msgspec.json.encode({**record.obj, "metadata": meta})


async def test_replicas_equal_the_first_and_share_their_spec(backend: ObjectRegistry) -> None:
    records = [await create(backend, f"web-{number}") for number in range(6)]
    assert len({without_identity(record) for record in records}) == 1
    assert records[-1].obj["spec"] is records[-2].obj["spec"]
    assert records[-1].obj["spec"]["tolerations"]


async def test_what_was_fine_does_not_excuse_what_is_not(backend: ObjectRegistry) -> None:
    for number in range(4):
        await create(backend, f"web-{number}")
    with pytest.raises(errors.Invalid, match=r"metadata\.name"):
        await create(backend, "Not A Name")
    with pytest.raises(errors.Invalid, match=r"spec\.containers\[0\]\.name"):
        await create(backend, "other", {"containers": [{**SPEC["containers"][0], "name": "-"}]})
    with pytest.raises(errors.Invalid, match="ownerReferences"):
        owned = body("owned", SPEC)
        owned["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": "", "uid": "u"}]
        await backend.create(Pod.resource, "default", owned, OPTIONS)


async def test_refusals_are_the_same_however_often_they_are_asked_for(backend: ObjectRegistry) -> None:
    texts = set()
    for number in range(4):
        with pytest.raises(errors.ApiError) as caught:
            await create(backend, f"web-{number}", {**SPEC, "unheard": 1})
        texts.add(str(caught.value))
        with pytest.raises(errors.ApiError) as caught:
            await create(backend, "same", {**SPEC, "restartPolicy": "Sometimes"})
        texts.add(str(caught.value))
    assert len(texts) == 2


async def test_a_new_priority_class_counts_for_the_next_replica(backend: ObjectRegistry) -> None:
    before = [await create(backend, f"web-{number}") for number in range(4)]
    high = {"metadata": {"name": "high"}, "value": 7, "globalDefault": True}
    await backend.create(PriorityClass.resource, "", high, OPTIONS)
    after = [await create(backend, f"later-{number}") for number in range(4)]
    assert [record.obj["spec"]["priority"] for record in before] == [0] * 4
    assert [record.obj["spec"]["priority"] for record in after] == [7] * 4
    assert after[-1].obj["spec"]["priorityClassName"] == "high"
    assert "priorityClassName" not in before[-1].obj["spec"]


async def test_whoever_sent_a_spec_may_change_it_afterwards(backend: ObjectRegistry) -> None:
    for number in range(4):
        sent = body(f"web-{number}", SPEC)
        await backend.create(Pod.resource, "default", sent, OPTIONS)
        sent["spec"]["containers"][0]["image"] = "other:v2"
    fresh = await create(backend, "fresh")
    assert fresh.obj["spec"]["containers"][0]["image"] == "app:v1"


async def test_a_change_to_one_replica_leaves_the_others_alone(backend: ObjectRegistry) -> None:
    for number in range(4):
        await create(backend, f"web-{number}")
    binding = {"metadata": {"name": "web-3"}, "target": {"kind": "Node", "name": "node-1"}}
    await backend.connect(Pod.resource, "default", "web-3", "binding", binding, OPTIONS)
    nodes = [
        backend.get(Pod.resource, "default", f"web-{number}").obj["spec"].get("nodeName")
        for number in range(4)
    ]
    assert nodes == [None, None, None, "node-1"]


def test_only_so_many_values_are_remembered() -> None:
    shared = known.InternTable()
    for number in range(3 * known.KNOWN_MAX):
        value = {"number": number}
        text = shared.text(value)
        assert text is not None
        shared.seen(text, value)
        shared.seen(text, value)
    found = [shared.find(b'{"number":%d}' % number) for number in range(3 * known.KNOWN_MAX)]
    assert sum(one is not None for one in found) == known.KNOWN_MAX
    assert found[-1] == {"number": 3 * known.KNOWN_MAX - 1}
    assert shared.text({"a": "x" * known.TEXT_BYTES_MAX}) is None
