"""What is behind a Service is published: in an Endpoints object and in slices of at most a hundred."""

import asyncio
from typing import Any

import msgspec
import pytest

from koordinator.api.core import Node, Pod, Service
from koordinator.api.groups import Endpoints, EndpointSlice
from koordinator.cluster.events import EventRecorder
from koordinator.local.controllers import endpoint_slices, service_addresses
from koordinator.local.controllers.endpoints import EndpointsController
from tests.local.controllers.world import Runs, World, run

HTTP = {"name": "http", "containerPort": 8080}


def build(world: World) -> list[Runs]:
    events = EventRecorder(world.cluster, "test", rng=world.rng)
    return [events, EndpointsController(world.cluster, world.factory, events)]


async def node(world: World, name: str, zone: str) -> None:
    labels = {"topology.kubernetes.io/zone": zone}
    await world.cluster.create(Node, {"metadata": {"name": name, "labels": labels}})


async def pod(world: World, name: str, ip: str, *, ready: bool = True, **spec: Any) -> None:
    containers = [{"name": "c", "image": "x", "ports": [HTTP]}]
    body = {
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": containers} | spec,
    }
    await world.cluster.create(Pod, body, "default")
    await status(world, name, ip, ready=ready)


async def status(world: World, name: str, ip: str, *, ready: bool = True, phase: str = "Running") -> None:
    conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    patch = {"status": {"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions}}
    await world.cluster.patch(Pod, name, patch, "default", subresource="status")


async def service(world: World, name: str = "web", **spec: Any) -> Service:
    own = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}
    body = {"metadata": {"name": name, "labels": {"team": "a"}}, "spec": own | spec}
    return await world.cluster.create(Service, body, "default")


async def slices(world: World) -> list[EndpointSlice]:
    return (await world.cluster.list(EndpointSlice, "default")).items


async def subsets(world: World, name: str = "web") -> list[Any]:
    return (await world.cluster.get(Endpoints, name, "default")).subsets


def test_ready_pods_of_a_service_are_published_with_node_zone_and_port() -> None:
    async def scenario(world: World) -> None:
        await node(world, "n1", "za")
        await pod(world, "a", "10.0.0.1")
        made = await service(world)
        await asyncio.sleep(2)

        [found] = await slices(world)
        uid = (await world.cluster.get(Pod, "a", "default")).metadata.uid
        about = {"kind": "Pod", "namespace": "default", "name": "a", "uid": uid}
        assert found.endpoints == [
            {
                "addresses": ["10.0.0.1"],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "targetRef": about,
                "nodeName": "n1",
                "zone": "za",
            }
        ]
        assert (found.address_type, found.ports) == ("IPv4", [{"name": "", "port": 8080, "protocol": "TCP"}])
        assert found.metadata.labels == {
            "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            "team": "a",
        }
        [owner] = found.metadata.owner_references
        assert (owner.kind, owner.uid, owner.controller) == ("Service", made.metadata.uid, True)
        assert await subsets(world) == [
            {
                "addresses": [{"ip": "10.0.0.1", "nodeName": "n1", "targetRef": about}],
                "ports": [{"port": 8080, "protocol": "TCP"}],
            }
        ]

    run(build, scenario)


def test_a_pod_that_is_not_ready_is_published_as_such_and_one_that_ended_is_not() -> None:
    async def scenario(world: World) -> None:
        await node(world, "n1", "za")
        await pod(world, "a", "10.0.0.1")
        await pod(world, "b", "10.0.0.2", ready=False)
        await service(world)
        await asyncio.sleep(2)
        [found] = await slices(world)
        ready = {one["addresses"][0]: one["conditions"]["ready"] for one in found.endpoints}
        assert ready == {"10.0.0.1": True, "10.0.0.2": False}
        [subset] = await subsets(world)
        assert [one["ip"] for one in subset["notReadyAddresses"]] == ["10.0.0.2"]

        await status(world, "a", "10.0.0.1", ready=False, phase="Succeeded")
        await status(world, "b", "10.0.0.2", ready=True)
        await asyncio.sleep(2)

        [found] = await slices(world)
        assert [(e["addresses"], e["conditions"]["ready"]) for e in found.endpoints] == [(["10.0.0.2"], True)]

    run(build, scenario)


def test_a_pod_that_is_being_deleted_serves_but_is_not_ready() -> None:
    async def scenario(world: World) -> None:
        await node(world, "n1", "za")
        await pod(world, "a", "10.0.0.1", terminationGracePeriodSeconds=30)
        await service(world)
        await service(world, "loud", publishNotReadyAddresses=True)
        await asyncio.sleep(2)
        await world.cluster.delete(Pod, "a", "default")
        await asyncio.sleep(2)

        by_service = {
            one.metadata.labels["kubernetes.io/service-name"]: one.endpoints[0]["conditions"]
            for one in await slices(world)
        }
        assert by_service == {
            "web": {"ready": False, "serving": True, "terminating": True},
            "loud": {"ready": True, "serving": True, "terminating": True},
        }
        assert (await subsets(world), len(await subsets(world, "loud"))) == ([], 1)

    run(build, scenario)


def test_named_ports_differ_per_pod_and_sidecars_have_them_too() -> None:
    async def scenario(world: World) -> None:
        await node(world, "n1", "za")
        other = [{"name": "c", "image": "x", "ports": [{"name": "http", "containerPort": 9090}]}]
        sidecar = [{"name": "s", "image": "x", "restartPolicy": "Always", "ports": other[0]["ports"]}]
        await pod(world, "a", "10.0.0.1")
        await pod(world, "b", "10.0.0.2", containers=other)
        await pod(world, "c", "10.0.0.3", containers=[{"name": "c", "image": "x"}], initContainers=sidecar)
        await service(world, ports=[{"name": "web", "port": 80, "targetPort": "http"}])
        await asyncio.sleep(2)

        found = {one.ports[0]["port"]: len(one.endpoints) for one in await slices(world)}
        assert found == {8080: 1, 9090: 2}
        assert sorted((s["ports"][0]["port"], len(s["addresses"])) for s in await subsets(world)) == [
            (8080, 1),
            (9090, 2),
        ]

    run(build, scenario)


def test_headless_services_name_their_pods_and_need_no_port() -> None:
    async def scenario(world: World) -> None:
        await node(world, "n1", "za")
        await pod(world, "a", "10.0.0.1", hostname="web-0", subdomain="web")
        await pod(world, "b", "10.0.0.2", hostname="web-1", subdomain="elsewhere")
        await service(world, ports=[], clusterIP="None", ipFamilies=["IPv4"])
        await asyncio.sleep(2)

        [found] = await slices(world)
        assert [one.get("hostname") for one in found.endpoints] == ["web-0", None]
        assert (found.ports, found.metadata.labels["service.kubernetes.io/headless"]) == ([], "")
        [subset] = await subsets(world)
        assert ([one.get("hostname") for one in subset["addresses"]], "ports" in subset) == (
            ["web-0", None],
            False,
        )

    run(build, scenario)


def test_a_service_without_pods_has_one_empty_slice_and_one_without_selector_none() -> None:
    async def scenario(world: World) -> None:
        await service(world)
        await service(world, "by-hand", selector={})
        await service(world, "elsewhere", type="ExternalName", externalName="x.example", clusterIP="")
        await asyncio.sleep(2)

        [found] = await slices(world)
        assert (found.metadata.labels["kubernetes.io/service-name"], found.endpoints) == ("web", [])
        assert [one.metadata.name for one in (await world.cluster.list(Endpoints, "default")).items] == [
            "web"
        ]

    run(build, scenario)


def test_a_slice_holds_a_hundred_and_a_change_touches_one_slice() -> None:
    async def scenario(world: World) -> None:
        await node(world, "n1", "za")
        for number in range(205):
            await pod(world, f"p{number}", f"10.0.1.{number}")
        await service(world)
        await asyncio.sleep(5)
        before = {one.metadata.name: one.metadata.resource_version for one in await slices(world)}
        assert sorted(len(one.endpoints) for one in await slices(world)) == [5, 100, 100]

        await world.cluster.delete(Pod, "p3", "default", grace_period_s=0)
        await pod(world, "new", "10.0.2.1")
        await asyncio.sleep(5)

        after = {one.metadata.name: one.metadata.resource_version for one in await slices(world)}
        assert sum(before[name] != after[name] for name in before) == 1
        assert sum(len(one.endpoints) for one in await slices(world)) == 205

    run(build, scenario)


def test_labels_follow_and_everything_goes_with_the_service() -> None:
    async def scenario(world: World) -> None:
        await node(world, "n1", "za")
        await pod(world, "a", "10.0.0.1")
        await service(world)
        await asyncio.sleep(2)
        await world.cluster.patch(
            Service, "web", {"metadata": {"labels": {"team": None, "x": "y"}}}, "default"
        )
        await asyncio.sleep(2)
        [found] = await slices(world)
        published = await world.cluster.get(Endpoints, "web", "default")
        for labels in (found.metadata.labels, published.metadata.labels):
            assert (labels.get("team"), labels.get("x")) == (None, "y")

        await world.cluster.delete(Service, "web", "default")
        await asyncio.sleep(2)
        assert (await world.cluster.list(Endpoints, "default")).items == []

    run(build, scenario)


def test_a_pod_that_changes_its_labels_moves_and_a_new_selector_finds_others() -> None:
    async def scenario(world: World) -> None:
        await node(world, "n1", "za")
        await pod(world, "a", "10.0.0.1")
        await service(world)
        await asyncio.sleep(2)
        await world.cluster.patch(Pod, "a", {"metadata": {"labels": {"app": "other"}}}, "default")
        await asyncio.sleep(2)
        assert await subsets(world) == []

        await world.cluster.patch(Service, "web", {"spec": {"selector": {"app": "other"}}}, "default")
        await asyncio.sleep(2)
        assert len(await subsets(world)) == 1

    run(build, scenario)


def test_what_somebody_else_breaks_is_mended() -> None:
    async def scenario(world: World) -> None:
        await node(world, "n1", "za")
        await pod(world, "a", "10.0.0.1")
        await service(world)
        await asyncio.sleep(2)
        [found] = await slices(world)
        await world.cluster.patch(EndpointSlice, found.metadata.name, {"endpoints": []}, "default")
        await world.cluster.delete(Endpoints, "web", "default")
        await asyncio.sleep(2)
        [mended] = await slices(world)
        assert (len(mended.endpoints), len(await subsets(world))) == (1, 1)

        await world.cluster.delete(EndpointSlice, mended.metadata.name, "default")
        await asyncio.sleep(2)
        assert len((await slices(world))[0].endpoints) == 1

    run(build, scenario)


def test_a_pod_whose_node_is_unknown_waits_for_it() -> None:
    async def scenario(world: World) -> None:
        await pod(world, "a", "10.0.0.1")
        await service(world)
        await asyncio.sleep(2)
        assert [one.endpoints for one in await slices(world)] == [[]]

        await node(world, "n1", "za")
        await asyncio.sleep(6)
        assert [len(one.endpoints) for one in await slices(world)] == [1]

    run(build, scenario)


def test_more_than_a_thousand_addresses_are_cut_in_endpoints_and_marked() -> None:
    wanted = msgspec.convert(
        {"metadata": {"name": "web", "uid": "s"}, "spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}},
        Service,
    )
    ready = [{"type": "Ready", "status": "True"}]
    pods = [
        msgspec.convert(
            {
                "metadata": {"name": f"p{n}", "uid": f"u{n}"},
                "spec": {"nodeName": "n"},
                "status": {
                    "podIP": f"10.0.{n // 256}.{n % 256}",
                    "podIPs": [{"ip": f"10.0.{n // 256}.{n % 256}"}],
                    "conditions": ready if n < 900 else [],
                },
            },
            Pod,
        )
        for n in range(1_100)
    ]

    [subset], is_cut = endpoint_slices.subsets_of(wanted, pods)
    assert (is_cut, len(subset["addresses"]), len(subset["notReadyAddresses"])) == (True, 900, 100)
    plan = endpoint_slices.plan(wanted, pods, [], lambda _: "")
    assert sum(len(endpoints) for _, endpoints, _ in plan.creates if endpoints) == 1_100


def test_the_api_server_says_where_it_is_also_after_it_moved() -> None:
    async def scenario(world: World) -> None:
        await service_addresses.publish(world.cluster, "127.0.0.1", 1234)
        await service_addresses.publish(world.cluster, "127.0.0.1", 4321)

        [subset] = await subsets(world, "kubernetes")
        assert (subset["addresses"], subset["ports"][0]["port"]) == ([{"ip": "127.0.0.1"}], 4321)
        [found] = await slices(world)
        assert (found.metadata.name, found.ports[0]["port"]) == ("kubernetes", 4321)
        own = await world.cluster.get(Service, "kubernetes", "default")
        assert (own.spec.ports[0].target_port, own.spec.cluster_ip) == (4321, "10.96.0.1")

    run(lambda world: [], scenario)


@pytest.mark.parametrize(
    ("wish", "mode", "hints"),
    [
        pytest.param("PreferClose", "", {"forZones": [{"name": "za"}]}, id="close is the zone"),
        pytest.param("PreferSameZone", "", {"forZones": [{"name": "za"}]}, id="the zone"),
        pytest.param(
            *("PreferSameNode", "", {"forZones": [{"name": "za"}], "forNodes": [{"name": "n1"}]}),
            id="the node, and the zone where that fails",
        ),
        pytest.param("PreferClose", "Auto", None, id="the annotation goes before"),
        pytest.param("", "", None, id="no wish"),
    ],
)
def test_ready_endpoints_say_for_whom_they_are(wish: str, mode: str, hints: object) -> None:
    async def scenario(world: World) -> None:
        await node(world, "n1", "za")
        await pod(world, "a", "10.0.0.1")
        await pod(world, "b", "10.0.0.2", ready=False)
        await service(world, **({"trafficDistribution": wish} if wish else {}))
        notes = {"metadata": {"annotations": {"service.kubernetes.io/topology-mode": mode or None}}}
        await world.cluster.patch(Service, "web", notes, "default")
        await asyncio.sleep(2)

        [found] = await slices(world)
        told = {each["addresses"][0]: each.get("hints") for each in found.endpoints}
        assert told == {"10.0.0.1": hints, "10.0.0.2": None}

    run(build, scenario)
