"""Objects of dynamic resource allocation through the API with all its checks: defaults, status, quantities."""

import asyncio

import pytest

from koordinator.api import kinds
from koordinator.api.core import Namespace
from koordinator.api.dra import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.protocol import PatchType
from koordinator.local import registry
from koordinator.local.apiserver.printers.core import claim_state
from koordinator.local.schema.catalog import Catalog
from tests.scheduler.dynamic_resources.builders import (
    claim,
    device,
    device_class,
    exactly,
    resource_slice,
    template,
)


@pytest.fixture
def cluster() -> MemoryCluster:
    catalog = Catalog(kinds.BUILT_IN)
    return MemoryCluster(registry.in_memory(FixedClock(1_700_000_000.0), catalog=catalog))


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


NEEDS_LABEL = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label"


async def test_administrative_access_is_for_namespaces_whose_label_allows_it(cluster: MemoryCluster) -> None:
    asks = exactly(adminAccess=True)

    with pytest.raises(errors.Invalid) as refused:
        await cluster.create(ResourceClaim, claim("c", exactly("plain"), asks), "default")
    assert f"spec.devices.requests[1].adminAccess: Forbidden: {NEEDS_LABEL}" in refused.value.message
    with pytest.raises(errors.Invalid, match=NEEDS_LABEL):
        await cluster.create(ResourceClaimTemplate, template("t", asks), "default")

    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await cluster.patch(Namespace, "default", label)
    await cluster.create(ResourceClaimTemplate, template("t", asks), "default")
    made = await cluster.create(ResourceClaim, claim("c", asks), "default")
    given = {"request": "req", "driver": "d", "pool": "p", "device": "x", "adminAccess": True}
    status = {"status": {"allocation": {"devices": {"results": [given]}}}}
    await cluster.patch(Namespace, "default", {"metadata": {"labels": None}})
    with pytest.raises(
        errors.Invalid, match=r"status.allocation.devices.results\[0\].adminAccess: Forbidden"
    ):
        await cluster.patch(ResourceClaim, "c", status, "default", subresource="status")
    # What was allowed once may be changed otherwise.
    await cluster.patch(ResourceClaim, "c", {"metadata": {"labels": {"x": "y"}}}, "default")
    assert made.spec.devices.requests[0].exactly is not None


async def test_rules_that_taint_devices_are_checked_and_kept(cluster: MemoryCluster) -> None:
    spec = {"deviceSelector": {"driver": "d", "pool": "p"}, "taint": {"key": "k", "effect": "NoSchedule"}}
    made = await cluster.create(DeviceTaintRule, {"metadata": {"name": "r"}, "spec": spec})

    assert made.spec.device_selector is not None and made.spec.device_selector.pool == "p"
    assert made.spec.taint.effect == "NoSchedule"
    with pytest.raises(errors.Invalid, match=r"spec\.taint: Required value"):
        await cluster.create(DeviceTaintRule, {"metadata": {"name": "s"}, "spec": {}})
