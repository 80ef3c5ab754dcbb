"""Silent nodes are found out, their pods leave after the time that they tolerate."""

import asyncio
from typing import Any

import pytest

from koordinator import clock
from koordinator.api.affinity import Taint, Toleration
from koordinator.api.core import Node, Pod
from koordinator.api.groups import Lease
from koordinator.cluster.events import EventRecorder
from koordinator.local.controllers import node_lifecycle, pod_health
from koordinator.local.controllers.node_lifecycle import (
    NodeLifecycleController,
    PodGarbageCollector,
    TaintEvictionController,
)
from tests.local.controllers.workload_world import events_of
from tests.local.controllers.world import Runs, World, run

LEASES = node_lifecycle.LEASE_NAMESPACE


def build(world: World) -> list[Runs]:
    events = EventRecorder(world.cluster, "test", rng=world.rng)
    return [
        events,
        NodeLifecycleController(world.cluster, world.factory, events, world.rng),
        TaintEvictionController(world.cluster, world.factory, events),
        PodGarbageCollector(world.cluster, world.factory),
    ]


async def add_node(world: World, name: str) -> None:
    now = clock.rfc3339(world.cluster.clock.now())
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}
    await world.cluster.create(Node, {"metadata": {"name": name}, "status": {"conditions": [ready]}})
    await world.cluster.create(Lease, {"metadata": {"name": name}, "spec": {"renewTime": now}}, LEASES)


async def beat(world: World, name: str, duration_s: float) -> None:
    """The node's kubelet for a while."""
    for _ in range(int(duration_s / 10)):
        now = clock.rfc3339_micro(world.cluster.clock.now())
        await world.cluster.patch(Lease, name, {"spec": {"renewTime": now}}, LEASES)
        await asyncio.sleep(10)


def pod(name: str, node: str, *tolerations: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "image": "x"}],
            "tolerations": list(tolerations),
            "terminationGracePeriodSeconds": 0,
        },
    }


def tolerate(seconds: int | None) -> dict[str, Any]:
    toleration: dict[str, Any] = {"key": node_lifecycle.UNREACHABLE, "operator": "Exists"}
    return toleration if seconds is None else {**toleration, "tolerationSeconds": seconds}


async def pods(world: World) -> set[str]:
    return {found.metadata.name for found in (await world.cluster.list(Pod, "default")).items}


def test_a_silent_node_becomes_unknown_and_its_pods_leave_in_their_time() -> None:
    async def scenario(world: World) -> None:
        for name in ("quiet", "alive"):
            await add_node(world, name)
        await world.cluster.create(Pod, pod("patient", "quiet", tolerate(120)), "default")
        await world.cluster.create(Pod, pod("faithful", "quiet", tolerate(None)), "default")
        await beat(world, "alive", 30)
        assert node_lifecycle.ready_status(await world.cluster.get(Node, "quiet")) == "True"

        await beat(world, "alive", 40)
        node = await world.cluster.get(Node, "quiet")
        assert node_lifecycle.ready_status(node) == "Unknown"
        assert {(t.key, t.effect) for t in node.spec.taints} == {
            (node_lifecycle.UNREACHABLE, "NoSchedule"),
            (node_lifecycle.UNREACHABLE, "NoExecute"),
        }
        assert await pods(world) == {"patient", "faithful"}

        await beat(world, "alive", 150)
        assert await pods(world) == {"faithful"}
        assert node_lifecycle.ready_status(await world.cluster.get(Node, "alive")) == "True"

    run(build, scenario)


def test_nobody_is_evicted_while_every_node_is_silent() -> None:
    async def scenario(world: World) -> None:
        for name in ("a", "b"):
            await add_node(world, name)
        await world.cluster.create(Pod, pod("p", "a", tolerate(0)), "default")

        await asyncio.sleep(600)

        assert await pods(world) == {"p"}
        taints = (await world.cluster.get(Node, "a")).spec.taints
        assert {t.effect for t in taints} == {"NoSchedule"}

    run(build, scenario)


def test_a_cordoned_node_is_tainted_until_it_is_uncordoned() -> None:
    async def scenario(world: World) -> None:
        await add_node(world, "n")
        await world.cluster.patch(Node, "n", {"spec": {"unschedulable": True}})
        await beat(world, "n", 10)
        taints = (await world.cluster.get(Node, "n")).spec.taints
        assert [(t.key, t.effect) for t in taints] == [(node_lifecycle.UNSCHEDULABLE, "NoSchedule")]

        await world.cluster.patch(Node, "n", {"spec": {"unschedulable": None}})
        await beat(world, "n", 10)
        assert (await world.cluster.get(Node, "n")).spec.taints == []

    run(build, scenario)


def test_pods_of_a_deleted_node_are_collected_after_the_quarantine() -> None:
    async def scenario(world: World) -> None:
        await add_node(world, "n")
        await world.cluster.create(Pod, pod("p", "n"), "default")
        await beat(world, "n", 10)
        await world.cluster.delete(Node, "n")

        await asyncio.sleep(30)
        assert await pods(world) == {"p"}
        await asyncio.sleep(20)
        assert await pods(world) == set()

    run(build, scenario)


@pytest.mark.parametrize(
    ("ready", "not_ready", "per_s"),
    [
        pytest.param(10, 1, 0.1, id="a healthy zone evicts at the normal rate"),
        pytest.param(4, 6, 0.0, id="a small disrupted zone stops"),
        pytest.param(40, 60, 0.01, id="a large disrupted zone goes on slowly"),
        pytest.param(1, 2, 0.1, id="two nodes are no disruption"),
    ],
)
def test_eviction_rate(ready: int, not_ready: int, per_s: float) -> None:
    assert node_lifecycle.eviction_rate(ready, not_ready) == per_s


def test_the_shortest_toleration_counts_and_an_untolerated_taint_ends_it_now() -> None:
    unreachable = Taint(key="u", effect="NoExecute")
    dedicated = Taint(key="d", effect="NoExecute")
    both = [
        Toleration(key="u", operator="Exists", toleration_seconds=300),
        Toleration(key="d", operator="Exists", toleration_seconds=30),
    ]

    assert node_lifecycle.stay_s([unreachable, dedicated], both) == 30
    assert node_lifecycle.stay_s([unreachable, dedicated], both[:1]) == 0
    assert node_lifecycle.stay_s([unreachable], [Toleration(operator="Exists")]) is None
    assert node_lifecycle.stay_s([], []) is None


async def disruption_of(world: World, name: str) -> tuple[str, str]:
    """Phase of a pod and why it is disturbed."""
    found = await world.cluster.get(Pod, name, "default")
    told = [c.reason for c in found.status.conditions if (c.type, c.status) == ("DisruptionTarget", "True")]
    return found.status.phase, "".join(told)


async def make_ready(world: World, name: str) -> None:
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await world.cluster.patch(Pod, name, {"status": status}, "default", subresource="status")


def test_pods_of_a_silent_node_are_not_ready_any_more() -> None:
    async def scenario(world: World) -> None:
        for name in ("quiet", "alive"):
            await add_node(world, name)
        for name, node in (("lost", "quiet"), ("fine", "alive")):
            await world.cluster.create(Pod, pod(name, node, tolerate(None)), "default")
            await make_ready(world, name)

        await beat(world, "alive", 70)

        assert not pod_health.is_ready(await world.cluster.get(Pod, "lost", "default"))
        assert pod_health.is_ready(await world.cluster.get(Pod, "fine", "default"))
        (told,) = [
            event for event in await events_of(world, "NodeNotReady") if event.involved_object.kind == "Pod"
        ]
        assert told.message == "Node is not ready"

    run(build, scenario)


def test_a_node_that_never_reported_gets_more_time() -> None:
    async def scenario(world: World) -> None:
        await world.cluster.create(Node, {"metadata": {"name": "new"}})
        await asyncio.sleep(57)
        assert node_lifecycle.ready_status(await world.cluster.get(Node, "new")) == ""

        await asyncio.sleep(10)
        assert node_lifecycle.ready_status(await world.cluster.get(Node, "new")) == "Unknown"

    run(build, scenario)


def test_a_taint_tells_pods_why_they_go_and_that_they_may_stay_after_all() -> None:
    async def scenario(world: World) -> None:
        await add_node(world, "a")
        kept = {"finalizers": ["test/kept"]}
        for name, seconds in (("patient", 20), ("ends", 5)):
            body = pod(name, "a", {"key": "mine", "operator": "Exists", "tolerationSeconds": seconds})
            await world.cluster.create(Pod, {**body, "metadata": {**body["metadata"], **kept}}, "default")
        taint = {"key": "mine", "effect": "NoExecute"}
        await world.cluster.patch(Node, "a", {"spec": {"taints": [taint]}})
        await asyncio.sleep(10)
        assert (await disruption_of(world, "ends"))[1] == "DeletionByTaintManager"

        await world.cluster.patch(Node, "a", {"spec": {"taints": None}})
        await asyncio.sleep(20)
        assert (await disruption_of(world, "patient"))[1] == ""
        messages = {event.message for event in await events_of(world, "TaintManagerEviction")}
        assert messages == {
            *("Marking for deletion Pod default/ends", "Cancelling deletion of Pod default/patient"),
        }

    run(build, scenario)


def test_pods_that_are_collected_have_failed_first() -> None:
    async def scenario(world: World) -> None:
        await add_node(world, "a")
        kept = {"finalizers": ["test/kept"]}
        for name, node in (("orphan", "gone"), ("unplaced", "")):
            body = pod(name, node)
            await world.cluster.create(Pod, {**body, "metadata": {**body["metadata"], **kept}}, "default")
        await world.cluster.delete(Pod, "unplaced", "default")
        await asyncio.sleep(60)

        assert await disruption_of(world, "orphan") == ("Failed", "DeletionByPodGC")
        assert await disruption_of(world, "unplaced") == ("Failed", "")

    run(build, scenario)


def test_the_node_that_has_waited_longest_is_the_next_whose_pods_leave() -> None:
    async def scenario(world: World) -> None:
        for name in ("a", "b", "c", "d", "e"):
            await add_node(world, name)
        await call_ready(world, "a", "False")
        await asyncio.sleep(1)
        await call_ready(world, "b", "False")
        await asyncio.sleep(6)
        # Whoever takes its taints away puts it at the end.
        await world.cluster.patch(Node, "a", {"spec": {"taints": None}})
        await asyncio.sleep(5)

        marked = {
            name: any(t.effect == "NoExecute" for t in (await world.cluster.get(Node, name)).spec.taints)
            for name in ("a", "b")
        }
        assert marked == {"a": False, "b": True}

    run(build, scenario)


async def call_ready(world: World, name: str, status: str) -> None:
    now = clock.rfc3339(world.cluster.clock.now())
    ready = {"type": "Ready", "status": status, "lastHeartbeatTime": now, "lastTransitionTime": now}
    await world.cluster.patch(Node, name, {"status": {"conditions": [ready]}}, subresource="status")
