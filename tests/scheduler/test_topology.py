"""Pods that look at other pods: they spread, keep company or keep away, and wake when that becomes possible."""

from collections import Counter
from typing import Any

import numpy as np

from koordinator.scheduler.plugins.inter_pod_affinity.plugin import normalized
from tests.scheduler.world import World, node, play, pod

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = "topology.kubernetes.io/zone"


def labelled(name: str, app: str, **spec: Any) -> Json:
    body = pod(name, cpu="100m", **spec)
    body["metadata"]["labels"] = {"app": app}
    return body


def zones(world: World, count: int) -> None:
    for number in range(count):
        world.api.put("Node", node(f"node-{number}", labels={ZONE: f"z{number % 2}"}))


def spread(app: str) -> Json:
    selector = {"matchLabels": {"app": app}}
    constraint = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**constraint, "labelSelector": selector}]}


def near(kind: str, app: str, **term: Any) -> Json:
    wanted = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": ZONE, **term}
    return {"affinity": {kind: {REQUIRED: [wanted]}}}


def zone_of(world: World, name: str) -> str:
    return f"z{int(world.api.placements()[name].removeprefix('node-')) % 2}"


def test_pods_spread_over_zones_and_one_too_many_waits_until_it_is_not() -> None:
    async def story(world: World) -> None:
        zones(world, 4)
        for number in range(6):
            world.api.put("Pod", labelled(f"web-{number}", "web", **spread("web")))
        await world.settle(5)
        found = Counter(zone_of(world, f"web-{number}") for number in range(6))
        assert found == {"z0": 3, "z1": 3}

        # Nothing fits in z1 any more, and z0 may be ahead by one only.
        for number in (1, 3):
            world.api.put("Node", node(f"node-{number}", labels={ZONE: "z1"}, unschedulable=True))
        for name in ("late-0", "late-1"):
            world.api.put("Pod", labelled(name, "web", **spread("web")))
        await world.settle(5)
        waiting = [name for name in ("late-0", "late-1") if not world.api.placements()[name]]
        assert len(waiting) == 1
        assert "didn't match pod topology spread constraints" in world.condition(waiting[0])["message"]

        in_z0 = next(f"web-{number}" for number in range(6) if zone_of(world, f"web-{number}") == "z0")
        world.api.remove("Pod", in_z0, "default")
        await world.settle(20)
        assert world.api.placements()[waiting[0]]

    play(story)


def test_replicas_spread_over_nodes_without_asking_for_it() -> None:
    async def story(world: World) -> None:
        world.nodes(4)
        world.api.put("Node", node("huge", cpu="64", memory="256Gi"))  # would take them all
        selector = {"matchLabels": {"app": "web"}}
        world.api.put(
            "ReplicaSet",
            {"metadata": {"name": "web", "namespace": "default"}, "spec": {"selector": selector}},
        )
        await world.settle(1)
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
        for number in range(10):
            body = labelled(f"web-{number}", "web")
            body["metadata"]["ownerReferences"] = [owner]
            world.api.put("Pod", body)
        await world.settle(5)

        for number in range(10):
            world.api.put("Pod", labelled(f"alone-{number}", "alone"))
        await world.settle(5)

        found = world.api.placements()
        assert set(Counter(found[f"web-{n}"] for n in range(10)).values()) == {2}
        assert {found[f"alone-{n}"] for n in range(10)} == {"huge"}

    play(story)


def test_a_pod_waits_for_company_and_joins_it() -> None:
    async def story(world: World) -> None:
        zones(world, 4)
        world.api.put("Pod", labelled("client", "client", **near("podAffinity", "server")))
        await world.settle(2)
        assert "didn't match pod affinity rules" in world.condition("client")["message"]

        world.api.put("Pod", labelled("server", "server"))
        await world.settle(15)
        assert zone_of(world, "client") == zone_of(world, "server")

    play(story)


def test_nobody_is_placed_where_a_pod_wants_to_be_alone() -> None:
    async def story(world: World) -> None:
        zones(world, 1)
        world.api.put("Pod", labelled("hermit", "hermit", **near("podAntiAffinity", "noisy")))
        await world.settle(1)
        world.api.put("Pod", labelled("noisy", "noisy"))
        world.api.put("Pod", labelled("quiet", "quiet"))
        await world.settle(5)
        assert world.api.placements() == {"hermit": "node-0", "noisy": "", "quiet": "node-0"}
        assert "didn't satisfy existing pods anti-affinity rules" in world.condition("noisy")["message"]

        world.api.remove("Pod", "hermit", "default")
        await world.settle(15)
        assert world.api.placements()["noisy"] == "node-0"

    play(story)


def test_labels_of_a_namespace_decide_who_is_meant() -> None:
    async def story(world: World) -> None:
        zones(world, 2)
        world.api.put("Namespace", {"metadata": {"name": "default", "labels": {}}})
        world.api.put("Pod", labelled("server", "server"))
        await world.settle(1)
        far = near("podAffinity", "server", namespaceSelector={"matchLabels": {"team": "a"}})
        world.api.put("Pod", labelled("client", "client", **far))
        await world.settle(3)
        assert world.api.placements()["client"] == ""

        world.api.put("Namespace", {"metadata": {"name": "default", "labels": {"team": "a"}}})
        await world.settle(15)
        assert world.api.placements()["client"]

    play(story)


def test_sums_of_preferences_are_scaled_in_floating_point_as_kube_scheduler_does() -> None:
    assert normalized(np.array([-100, -43, 0], np.int64)).tolist() == [0, 56, 100]
    assert normalized(np.array([7, 7], np.int64)).tolist() == [0, 0]
