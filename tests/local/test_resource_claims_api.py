"""Objects of dynamic resource allocation through the API with all its checks: defaults, status, quantities."""

import asyncio

import pytest

from koordinator.api import kinds
from koordinator.api.dra import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.protocol import PatchType
from koordinator.local import registry
from koordinator.local.apiserver.printers.core import claim_state
from koordinator.local.patches import ObjectPatcher
from koordinator.local.schema.catalog import Catalog
from tests.scheduler.dynamic_resources.builders import (
    claim,
    device,
    device_class,
    resource_slice,
    template,
)


@pytest.fixture
def cluster() -> MemoryCluster:
    catalog = Catalog(kinds.BUILT_IN)
    return MemoryCluster(
        registry.in_memory(FixedClock(1_700_000_000.0), schemas=catalog, patcher=ObjectPatcher(catalog))
    )


async def test_requests_get_the_defaults_of_the_api(cluster: MemoryCluster) -> None:
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    choice = {"name": "f", "firstAvailable": [{"name": "s", "deviceClassName": "gpu"}]}

    made = await cluster.create(ResourceClaim, claim("c", request, choice), "default")
    await cluster.create(ResourceClaimTemplate, template("t", request), "default")

    exactly = made.spec.devices.requests[0].exactly
    assert exactly is not None and (exactly.allocation_mode, exactly.count) == ("ExactCount", 1)
    assert made.spec.devices.requests[1].first_available[0].count == 1
    found = await cluster.get(ResourceClaimTemplate, "t", "default")
    assert found.spec.spec["devices"]["requests"][0]["exactly"]["count"] == 1


async def test_slices_keep_attributes_and_amounts_of_all_kinds(cluster: MemoryCluster) -> None:
    gpu = device("gpu", memory="40Gi", model="a100", numa=1, healthy=True)
    made = await cluster.create(ResourceSlice, resource_slice("s", gpu))
    await cluster.create(DeviceClass, device_class())

    [found] = made.spec.devices
    assert found.capacity["memory"].value == "40Gi"
    assert [found.attributes[name] for name in ("model", "numa", "healthy")] == [
        type(found.attributes["model"])(string="a100"),
        type(found.attributes["model"])(int_=1),
        type(found.attributes["model"])(bool_=True),
    ]
    bad = resource_slice("bad", device("gpu", memory="much"))
    with pytest.raises(errors.ApiError):
        await cluster.create(ResourceSlice, bad)


async def test_users_of_a_claim_are_taken_off_by_uid(cluster: MemoryCluster) -> None:
    await cluster.create(ResourceClaim, claim("c"), "default")
    users = [{"resource": "pods", "name": name, "uid": name} for name in ("a", "b")]
    allocation = {
        "devices": {"results": [{"request": "req", "driver": "d.example.com", "pool": "p", "device": "x"}]}
    }
    status = {"status": {"allocation": allocation, "reservedFor": users}}
    await cluster.patch(ResourceClaim, "c", status, "default", subresource="status")
    without_a = {"status": {"reservedFor": [{"$patch": "delete", "uid": "a"}]}}

    left = await cluster.patch(
        ResourceClaim, "c", without_a, "default", patch_type=PatchType.STRATEGIC, subresource="status"
    )

    assert [user.uid for user in left.status.reserved_for] == ["b"]
    assert left.status.allocation is not None
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("status", "is_going", "state"),
    [
        ({}, False, "pending"),
        ({"allocation": {"devices": {}}}, False, "allocated"),
        ({"allocation": {"devices": {}}, "reservedFor": [{}]}, False, "allocated,reserved"),
        ({"allocation": {"devices": {}}}, True, "deleted,allocated"),
    ],
)
def test_kubectl_shows_the_state_of_claims(status: dict[str, object], is_going: bool, state: str) -> None:
    meta = {"name": "c"} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if is_going else {})
    assert claim_state({"metadata": meta, "status": status}) == state
