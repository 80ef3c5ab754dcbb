"""Deleting objects: grace, finalizers, propagation, preconditions, and namespaces."""

from typing import Any

import pytest

from koordinator.clock import FixedClock, rfc3339
from koordinator.cluster import errors
from koordinator.cluster.backend import DeleteRequest, ListOptions
from koordinator.local import registry
from koordinator.local.registry import ObjectRegistry, metadata
from koordinator.local.registry.metadata import DeletionOutcome
from tests.local.registry_builders import NOW, NOW_S, backend, create, merge, names, pod

LATER = "2023-11-14T22:13:50Z"  # 30 s after NOW
SOON = "2023-11-14T22:13:25Z"  # 5 s after NOW


async def delete(
    api: ObjectRegistry, plural: str, name: str, namespace: str = "default", **options: Any
) -> tuple[dict[str, Any], bool]:
    record, is_gone = await api.delete(
        api.resolve("", "v1", plural), namespace, name, DeleteRequest(**options)
    )
    return record.obj, is_gone


async def running(api: ObjectRegistry, **meta: Any) -> None:
    body = pod("web-0", node="n1", **meta)
    body["spec"]["terminationGracePeriodSeconds"] = 30
    await create(api, "pods", body, "default")


async def test_a_running_pod_gets_its_grace() -> None:
    api = backend()
    await running(api)

    obj, is_gone = await delete(api, "pods", "web-0")

    assert not is_gone
    assert obj["metadata"]["deletionTimestamp"] == LATER
    assert obj["metadata"]["deletionGracePeriodSeconds"] == 30
    assert obj["metadata"]["generation"] == 2


async def test_a_second_delete_changes_nothing_but_may_shorten_the_grace() -> None:
    api = backend()
    await running(api)
    await delete(api, "pods", "web-0")
    version = api.store.version

    await delete(api, "pods", "web-0")
    await delete(api, "pods", "web-0", grace_period_s=60)
    assert api.store.version == version

    obj, _ = await delete(api, "pods", "web-0", grace_period_s=5)
    assert obj["metadata"]["deletionTimestamp"] == SOON
    assert obj["metadata"]["deletionGracePeriodSeconds"] == 5

    _, is_gone = await delete(api, "pods", "web-0", grace_period_s=0)
    assert is_gone
    assert names(api, "pods") == []


@pytest.mark.parametrize(
    ("asked_s", "left_s"),
    [
        pytest.param(5, 1, id="a grace that is over already leaves a second"),
        pytest.param(-1, 1, id="a negative one is a second"),
    ],
)
async def test_a_grace_is_not_shortened_into_the_past(asked_s: int, left_s: int) -> None:
    clock = FixedClock(NOW_S)
    api = registry.in_memory(clock, checks=False)
    await running(api)
    await delete(api, "pods", "web-0")
    clock.now_s += 20.0

    obj, _ = await delete(api, "pods", "web-0", grace_period_s=asked_s)

    assert obj["metadata"]["deletionTimestamp"] == rfc3339(clock.now())
    assert obj["metadata"]["deletionGracePeriodSeconds"] == left_s


@pytest.mark.parametrize(
    ("node", "phase", "grace_s"),
    [
        pytest.param("", "Pending", None, id="a pod that is on no node goes at once"),
        pytest.param("n1", "Succeeded", None, id="a pod that has ended well goes at once"),
        pytest.param("n1", "Failed", 30, id="a pod that has failed goes at once whatever is asked"),
        pytest.param("n1", "Running", 0, id="without grace a pod goes at once"),
    ],
)
async def test_nobody_waits_for(node: str, phase: str, grace_s: int | None) -> None:
    api = backend()
    body = pod("web-0", node=node)
    body["spec"]["terminationGracePeriodSeconds"] = 30
    await create(api, "pods", body, "default")
    await merge(api, "pods", "web-0", {"status": {"phase": phase}}, subresource="status")

    _, is_gone = await delete(api, "pods", "web-0", grace_period_s=grace_s)

    assert is_gone


async def test_finalizers_hold_an_object_until_the_last_is_gone() -> None:
    api = backend()
    await create(
        api, "configmaps", {"metadata": {"name": "c", "finalizers": ["a.io/x", "b.io/y"]}}, "default"
    )

    obj, is_gone = await delete(api, "configmaps", "c")
    assert not is_gone
    assert (obj["metadata"]["deletionTimestamp"], obj["metadata"]["deletionGracePeriodSeconds"]) == (NOW, 0)

    await merge(api, "configmaps", "c", {"metadata": {"finalizers": ["b.io/y"]}})
    assert names(api, "configmaps") == ["c"]
    await merge(api, "configmaps", "c", {"metadata": {"finalizers": None}})
    assert names(api, "configmaps") == []


async def test_a_pod_whose_grace_is_running_survives_its_last_finalizer() -> None:
    api = backend()
    await running(api, finalizers=["a.io/x"])
    await delete(api, "pods", "web-0")

    await merge(api, "pods", "web-0", {"metadata": {"finalizers": None}})
    assert names(api, "pods") == ["web-0"]

    _, is_gone = await delete(api, "pods", "web-0", grace_period_s=0)
    assert is_gone


async def test_a_pod_without_grace_waits_for_its_finalizers() -> None:
    api = backend()
    await running(api, finalizers=["a.io/x"])

    _, is_gone = await delete(api, "pods", "web-0", grace_period_s=0)
    assert not is_gone

    await merge(api, "pods", "web-0", {"metadata": {"finalizers": None}})
    assert names(api, "pods") == []


@pytest.mark.parametrize(
    ("present", "propagation", "orphans_by_default", "expected"),
    [
        ([], "", False, []),
        ([], "", True, ["orphan"]),
        ([], "Background", True, []),
        ([], "Foreground", False, ["foregroundDeletion"]),
        ([], "Orphan", False, ["orphan"]),
        (["a"], "Foreground", False, ["a", "foregroundDeletion"]),
        (["foregroundDeletion"], "", False, ["foregroundDeletion"]),
        (["foregroundDeletion"], "Orphan", False, ["orphan"]),
        (["orphan", "a"], "Background", False, ["a"]),
        (["orphan", "foregroundDeletion"], "", False, ["orphan"]),
    ],
)
def test_propagation_marks(
    present: list[str], propagation: str, orphans_by_default: bool, expected: list[str]
) -> None:
    assert metadata.finalizers({"finalizers": present}, propagation, orphans_by_default) == expected


async def test_foreground_deletion_waits_for_the_garbage_collector() -> None:
    api = backend()
    await create(api, "configmaps", {"metadata": {"name": "c"}}, "default")

    obj, is_gone = await delete(api, "configmaps", "c", propagation="Foreground")

    assert not is_gone
    assert obj["metadata"]["finalizers"] == ["foregroundDeletion"]


async def test_an_object_that_only_waited_for_its_mark_goes_when_the_policy_changes() -> None:
    api = backend()
    await create(api, "configmaps", {"metadata": {"name": "c"}}, "default")
    await delete(api, "configmaps", "c", propagation="Orphan")

    _, is_gone = await delete(api, "configmaps", "c", propagation="Background")

    assert is_gone


async def test_an_unknown_policy_is_refused() -> None:
    api = backend()
    await create(api, "configmaps", {"metadata": {"name": "c"}}, "default")

    with pytest.raises(errors.Invalid, match='propagationPolicy: Unsupported value: "Sideways"'):
        await delete(api, "configmaps", "c", propagation="Sideways")


@pytest.mark.parametrize(
    ("guard", "message"),
    [
        ({"uid": "other"}, "the UID in the precondition (other) does not match the UID in record ("),
        (
            {"resource_version": "1"},
            "the ResourceVersion in the precondition (1) does not match the Resource",
        ),
    ],
)
async def test_preconditions_guard_a_delete(guard: dict[str, str], message: str) -> None:
    api = backend()
    await create(api, "configmaps", {"metadata": {"name": "c"}}, "default")

    with pytest.raises(errors.Conflict) as refused:
        await delete(api, "configmaps", "c", **guard)

    assert message in str(refused.value)
    assert names(api, "configmaps") == ["c"]


async def test_what_is_not_there_cannot_be_deleted() -> None:
    with pytest.raises(errors.NotFound, match='pods "web-0" not found'):
        await delete(backend(), "pods", "web-0")


async def test_a_namespace_terminates_until_it_is_finalized() -> None:
    api = backend()
    await create(api, "namespaces", {"metadata": {"name": "shop"}})
    namespaces = api.resolve("", "v1", "namespaces")
    assert api.get(namespaces, "", "shop").obj["spec"] == {"finalizers": ["kubernetes"]}

    obj, is_gone = await delete(api, "namespaces", "shop", "")
    assert not is_gone
    assert obj["status"]["phase"] == "Terminating"
    assert obj["metadata"]["deletionTimestamp"] == NOW
    assert (await delete(api, "namespaces", "shop", ""))[1] is False

    stored = api.get(namespaces, "", "shop").obj
    await api.update(namespaces, "", "shop", {**stored, "spec": {"finalizers": []}}, subresource="finalize")
    assert "shop" not in names(api, "namespaces")


async def test_only_finalize_takes_the_namespace_finalizer_away() -> None:
    api = backend()
    await create(api, "namespaces", {"metadata": {"name": "shop"}})

    record = await merge(api, "namespaces", "shop", {"spec": {"finalizers": []}}, "")

    assert record.obj["spec"]["finalizers"] == ["kubernetes"]


async def test_the_default_namespace_stays() -> None:
    with pytest.raises(errors.Forbidden) as refused:
        await delete(backend(), "namespaces", "default", "")

    assert str(refused.value) == 'namespaces "default" is forbidden: this namespace may not be deleted'


async def test_a_collection_is_deleted_by_selector() -> None:
    api = backend()
    for name, app in [("a", "web"), ("b", "api"), ("c", "web")]:
        await create(api, "pods", pod(name, labels={"app": app}), "default")
    chosen = ListOptions(label_selector="app=web")

    deleted = await api.delete_collection(api.resolve("", "v1", "pods"), "default", chosen, DeleteRequest())

    assert [record.obj["metadata"]["name"] for record in deleted] == ["a", "c"]
    assert names(api, "pods") == ["b"]


def test_deciding_leaves_the_object_as_it_was() -> None:
    obj = {"metadata": {"name": "c", "finalizers": ["a.io/b"], "generation": 1}}

    decided = metadata.decide_deletion(
        obj, grace_s=None, asked_s=None, propagation="", orphans_by_default=False, now_s=0.0
    )

    assert decided.fate is DeletionOutcome.MARKED
    assert decided.obj["metadata"]["generation"] == 2
    assert obj == {"metadata": {"name": "c", "finalizers": ["a.io/b"], "generation": 1}}
