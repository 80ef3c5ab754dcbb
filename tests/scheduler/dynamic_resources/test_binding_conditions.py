"""Devices that have to be made ready once a claim has them: pods wait for that, and give them back when it fails."""

import asyncio
from typing import Any

import pytest

from koordinator.api.core import Event, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.dra import ResourceClaim, ResourceSlice
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.clock import parse_rfc3339
from koordinator.cluster.events import EventRecorder
from koordinator.local.controllers.resource_claims import ResourceClaimController
from koordinator.scheduler.config import config
from koordinator.scheduler.plugins.dynamic_resources.binding_conditions import Readiness, readiness
from koordinator.scheduler.scheduler import Scheduler
from tests.local.controllers.world import Runs, World, run
from tests.scheduler.dynamic_resources.bench import Bench
from tests.scheduler.dynamic_resources.builders import (
    DRIVER,
    claim,
    device,
    device_class,
    exactly,
    resource_slice,
    user_of,
)
from tests.scheduler.dynamic_resources.test_on_a_cluster import claim_of, node_of, put, two_nodes

Json = dict[str, Any]
ON = "DRADeviceBindingConditions=true"
TIMEOUT_S = 60


def attached(name: str, **more: Any) -> Json:
    """A device of a fabric, to be attached first."""
    conditions = {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Refused"]}
    return {**device(name), **conditions, "bindsToNode": True, **more}


def build(world: World) -> list[Runs]:
    events = EventRecorder(world.cluster, "test", rng=world.rng)
    own = {"name": "DynamicResources", "args": {"bindingTimeout": f"{TIMEOUT_S}s"}}
    settings = config.decode({"profiles": [{"schedulerName": "koord-scheduler", "pluginConfig": [own]}]})
    scheduler = Scheduler(world.cluster, settings, gates=FeatureGates.of(Component.SCHEDULER, ON))
    return [events, ResourceClaimController(world.cluster, world.factory, events), scheduler]


async def report(world: World, name: str, **conditions: str) -> None:
    """What the driver says of the claim's one device."""
    allocation = (await claim_of(world, name)).status.allocation
    assert allocation is not None
    [given] = allocation.devices.results
    said = [
        {"type": each, "status": status, "reason": "Why", "message": "because", "lastTransitionTime": WHEN}
        for each, status in conditions.items()
    ]
    entry = {"driver": given.driver, "pool": given.pool, "device": given.device, "conditions": said}
    patch = {"status": {"devices": [entry]}}
    await world.cluster.patch(ResourceClaim, name, patch, "default", subresource="status")


WHEN = "2026-01-01T00:00:00Z"


async def fabric(world: World, *devices: Json) -> None:
    await two_nodes(world, per_node=0)
    await put(world, ResourceSlice, resource_slice("fabric", *devices))
    await put(world, ResourceClaim, claim("gpu"))
    await put(world, Pod, user_of("job", "gpu"))
    await asyncio.sleep(5)


def test_a_pod_is_bound_once_the_driver_says_that_its_device_is_ready() -> None:
    async def scenario(world: World) -> None:
        await fabric(world, attached("f0"))
        assert await node_of(world, "job") == ""
        found = await claim_of(world, "gpu")
        assert found.status.allocation is not None and len(found.status.reserved_for) == 1
        [given] = found.status.allocation.devices.results
        assert (given.binding_conditions, given.binding_failure_conditions) == (["Attached"], ["Refused"])
        assert found.status.allocation.node_selector is not None, "it is attached to one node"
        given_at = found.status.allocation.allocation_timestamp
        assert given_at is not None and found.metadata.creation_timestamp is not None
        assert 0 <= parse_rfc3339(given_at) - parse_rfc3339(found.metadata.creation_timestamp) < 10
        events = (await world.cluster.list(Event)).items
        assert any(each.reason == "BindingConditionsPending" for each in events)

        await report(world, "gpu", Attached="False")
        await asyncio.sleep(5)
        assert await node_of(world, "job") == ""
        await report(world, "gpu", Attached="True")
        await asyncio.sleep(5)
        assert await node_of(world, "job") in ("a", "b")

    run(build, scenario)


def test_a_device_that_fails_is_given_back_and_tried_again() -> None:
    async def scenario(world: World) -> None:
        await fabric(world, attached("f0"))
        await report(world, "gpu", Refused="True")
        await asyncio.sleep(30)

        # Deallocated and given anew: the driver's report on the first attempt is gone.
        found = await claim_of(world, "gpu")
        assert found.status.devices == []
        await report(world, "gpu", Attached="True")
        await asyncio.sleep(30)
        assert await node_of(world, "job") in ("a", "b")

    run(build, scenario)


def test_a_device_that_takes_too_long_is_given_back() -> None:
    async def scenario(world: World) -> None:
        await fabric(world, attached("f0"))
        first = (await claim_of(world, "gpu")).status.allocation
        await asyncio.sleep(TIMEOUT_S + 30)

        second = (await claim_of(world, "gpu")).status.allocation
        assert first is not None and second is not None
        assert first.allocation_timestamp != second.allocation_timestamp, "it was given back, and given anew"
        assert await node_of(world, "job") == ""

    run(build, scenario)


def test_devices_that_need_nothing_are_given_first_and_others_not_while_the_gate_is_off() -> None:
    for gates, wanted in ((ON, ["z0", "a0"]), ("", ["z0"])):
        bench = Bench(gates=gates)
        bench.node("n")
        bench.classes(device_class())
        bench.slices(resource_slice("a", attached("a0"), node="n", pool="a"))
        bench.slices(resource_slice("z", device("z0"), pool="z"))
        bench.claims(claim("one"), claim("two"))
        for name in ("one", "two"):
            bench.place(user_of(name, name, cpu="10m"))
        given = [
            bench.promised()[name]["devices"]["results"]
            for name in ("one", "two")
            if name in bench.promised()
        ]
        assert [each["device"] for [each] in given] == wanted


NOW_S = parse_rfc3339("2026-01-01T00:01:00Z")


@pytest.mark.parametrize(
    ("conditions", "given_at", "state"),
    [
        pytest.param({}, WHEN, Readiness.PENDING, id="nothing said yet"),
        pytest.param({"Attached": "False"}, WHEN, Readiness.PENDING, id="not yet"),
        pytest.param({"Attached": "True"}, WHEN, Readiness.READY, id="ready"),
        pytest.param({"Attached": "True", "Refused": "False"}, WHEN, Readiness.READY, id="no failure"),
        pytest.param({"Attached": "True", "Refused": "True"}, WHEN, Readiness.FAILED, id="failure wins"),
        pytest.param({}, "2025-12-31T23:59:59Z", Readiness.LATE, id="too late"),
        pytest.param({"Attached": "True"}, "2025-12-31T23:00:00Z", Readiness.READY, id="late but ready"),
        pytest.param({}, None, Readiness.PENDING, id="nobody knows since when"),
        pytest.param({}, "yesterday", Readiness.PENDING, id="a time that is none"),
    ],
)
def test_a_claim_is_ready_when_all_conditions_hold_and_no_failure(
    conditions: dict[str, str], given_at: str | None, state: Readiness
) -> None:
    given = {"request": "req", "driver": DRIVER, "pool": "p", "device": "d"}
    waits = {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Refused"]}
    said = [{"type": each, "status": status} for each, status in conditions.items()]
    allocation = {"devices": {"results": [{**given, "device": "other"}, {**given, **waits}]}}
    if given_at is not None:
        allocation["allocationTimestamp"] = given_at  # type: ignore[assignment]
    status = {
        "allocation": allocation,
        "devices": [{"driver": DRIVER, "pool": "p", "device": "d", "conditions": said}] if said else [],
    }
    found = from_builtins({**claim("c", exactly()), "status": status}, ResourceClaim)

    assert readiness(found, 60, NOW_S).state is state
