"""Under random faults and restarts no device is ever given to two claims, and in the end all that can have one do."""

import asyncio
import contextlib
import random
from collections import Counter

import pytest

from koordinator.api.core import Node, Pod
from koordinator.api.dra import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.clock import LoopClock
from koordinator.cluster import errors
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.local.controllers.resource_claims import ResourceClaimController
from koordinator.scheduler.plugins.dynamic_resources.binding_conditions import Readiness, readiness
from koordinator.scheduler.plugins.dynamic_resources.claim_allocations import ClaimAllocations
from koordinator.scheduler.scheduler import Scheduler
from tests.cluster import virtual_loop
from tests.cluster.faulty_cluster import Faults, FaultyCluster
from tests.scheduler.dynamic_resources.builders import (
    DRIVER,
    claim,
    counter_slice,
    counters,
    device,
    device_class,
    exactly,
    resource_slice,
    selector,
    share,
    shareable,
    takes,
    template,
    user_of,
)
from tests.scheduler.dynamic_resources.test_shared_lives import overdrawn
from tests.scheduler.world import EPOCH_S, node

NODES, PER_NODE, PODS = ("a", "b", "c"), 3, 11
GATES = FeatureGates.of(
    Component.SCHEDULER,
    "DRAPartitionableDevices=true,DRAConsumableCapacity=true,DRADeviceBindingConditions=true",
)
SHARES = 2
"""Claims that the one device of the nodes that is shared has room for."""
UNREST_S, STEP_S, SETTLE_S = 20.0, 0.25, 700.0


class Life:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        clock = LoopClock(asyncio.get_running_loop(), EPOCH_S)
        self.api = MemoryCluster(registry.in_memory(clock, checks=False))
        faults = Faults.drawn(self.rng)
        self.faulty = FaultyCluster(self.api, faults, random.Random(self.rng.getrandbits(64)))
        self.scheduler = Scheduler(self.faulty, seed=seed, gates=GATES)

    async def prepare(self) -> None:
        await self.api.create(DeviceClass, device_class())
        far = selector(f"'far' in device.attributes['{DRIVER}']")
        await self.api.create(ResourceClaimTemplate, template("far", exactly(selectors=far)), "default")
        near = f"!device.allowMultipleAllocations && !('far' in device.attributes['{DRIVER}'])"
        whole = exactly(selectors=selector(near))
        await self.api.create(ResourceClaimTemplate, template("one", whole), "default")
        part = share("40Gi", selectors=selector("device.allowMultipleAllocations"))
        await self.api.create(ResourceClaimTemplate, template("part", part), "default")
        await self.api.create(ResourceClaim, claim("shared"), "default")
        for name in NODES:
            await self.api.create(Node, node(name))
            # A card whole or in two halves, and one that claims share.
            whole, *halves = (device(f"{name}{number}") for number in range(PER_NODE))
            whole["consumesCounters"] = [takes("card", units=2)]
            for half in halves:
                half["consumesCounters"] = [takes("card", units=1)]
            shared = shareable(f"{name}-shared")
            far = {**device(f"{name}-far", far=True), "bindingConditions": ["Attached"]}
            far["bindingFailureConditions"] = ["Refused"]
            parts = resource_slice(name, whole, *halves, shared, far, node=name, count=2)
            await self.api.create(ResourceSlice, parts)
            card = counter_slice(f"{name}-card", counters("card", units=2), pool=name)
            await self.api.create(ResourceSlice, card)

    async def check(self) -> None:
        """No device in two claims, no counter and no capacity overdrawn."""
        claims = (await self.api.list(ResourceClaim)).items
        given = [each.status.allocation for each in claims if each.status.allocation is not None]
        assert overdrawn((await self.api.list(ResourceSlice)).items, given) == []
        pods = {pod.metadata.uid: pod for pod in (await self.api.list(Pod)).items}
        for each in claims:
            users = [pods[user.uid] for user in each.status.reserved_for if user.uid in pods]
            if any(pod.spec.node_name for pod in users):
                assert readiness(each, UNREST_S, 0.0).state is Readiness.READY, (
                    "bound before its device was ready"
                )

    async def attach(self, *, may_fail: bool) -> None:
        """What the driver does: devices that claims have get ready, or fail."""
        for each in (await self.api.list(ResourceClaim)).items:
            if each.status.allocation is None or each.status.devices:
                continue
            [given] = each.status.allocation.devices.results
            if given.binding_conditions:
                kind = "Refused" if may_fail and self.rng.random() < 0.3 else "Attached"
                when = "2026-01-01T00:00:00Z"
                said = {
                    "type": kind,
                    "status": "True",
                    "reason": "x",
                    "message": "",
                    "lastTransitionTime": when,
                }
                key = {"driver": given.driver, "pool": given.pool, "device": given.device}
                patch = {"status": {"devices": [{**key, "conditions": [said]}]}}
                meta = each.metadata
                with contextlib.suppress(errors.NotFound):
                    await self.api.patch(
                        ResourceClaim, meta.name, patch, meta.namespace, subresource="status"
                    )

    async def unrest(self) -> None:
        number = 0
        for _ in range(int(UNREST_S / STEP_S)):
            await asyncio.sleep(STEP_S)
            await self.check()
            if self.rng.random() < 0.3:
                await self.attach(may_fail=True)
            if number < PODS and self.rng.random() < 0.4:
                body = (
                    user_of(f"p{number}", "shared", cpu="10m")
                    if number % 4 == 0
                    else user_of(f"p{number}", templates=(("far", "part", "one")[number % 3],), cpu="10m")
                )
                await self.api.create(Pod, body, "default")
                number += 1
            elif number and self.rng.random() < 0.05:
                with contextlib.suppress(errors.NotFound):
                    name = f"p{self.rng.randrange(number)}"
                    await self.api.delete(Pod, name, "default", grace_period_s=0)

    async def live(self) -> None:
        factory = InformerFactory(self.api, random.Random(0))
        events = EventRecorder(self.api, "test", rng=random.Random(1))
        controller = ResourceClaimController(self.api, factory, events)
        await self.prepare()
        async with asyncio.TaskGroup() as group:
            factory.start(group)
            tasks = [group.create_task(controller.run()), group.create_task(events.run())]
            first = group.create_task(self.scheduler.run())
            await self.unrest()
            first.cancel()
            self.scheduler = Scheduler(self.faulty, gates=GATES)
            tasks.append(group.create_task(self.scheduler.run()))
            await asyncio.sleep(5)
            await self.check()
            self.faulty.heal()
            for _ in range(70):
                await asyncio.sleep(SETTLE_S / 70)
                await self.attach(may_fail=False)
                await self.check()
            await self.check_settled()
            await factory.stop()
            for task in tasks:
                task.cancel()

    async def check_settled(self) -> None:
        pods = {pod.metadata.uid: pod for pod in (await self.api.list(Pod)).items}
        claims = (await self.api.list(ResourceClaim)).items
        used = [each for each in claims if each.status.allocation is not None]
        assert all(user.uid in pods for each in claims for user in each.status.reserved_for)
        reserved = {user.uid for each in used for user in each.status.reserved_for}
        bound = {uid for uid, pod in pods.items() if pod.spec.node_name}
        waiting = {pods[uid].key: pods[uid].status.conditions for uid in reserved - bound}
        assert bound == reserved, waiting
        given = Counter(
            result.device
            for each in used
            if each.status.allocation is not None
            for result in each.status.allocation.devices.results
        )
        for uid in pods.keys() - bound:
            template_name = pods[uid].spec.resource_claims[0].resource_claim_template_name
            if template_name == "far":
                assert all(given[f"{name}-far"] == 1 for name in NODES)
            elif template_name == "part":
                assert all(given[f"{name}-shared"] == SHARES for name in NODES), "shares are left"
            else:
                assert all(
                    2 * given[f"{name}0"] + given[f"{name}1"] + given[f"{name}2"] == 2 for name in NODES
                )
        books = self.scheduler.table.shared(ClaimAllocations)
        assert not list(books.promises)
        booked = sum(books.inventory.used_keys.values()) + sum(books.inventory.shares.values())
        assert booked == len(used)


@pytest.mark.parametrize("seed", range(8))
def test_no_device_is_given_twice_whatever_the_api_does(seed: int) -> None:
    async def main() -> None:
        await Life(seed).live()

    virtual_loop.run(main())
