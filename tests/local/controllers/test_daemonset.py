"""A DaemonSet has a pod on every node that wants one, and renews them within its bounds."""

import asyncio
import random
from typing import Any

import msgspec
import pytest

from koordinator.api import affinity
from koordinator.api.affinity import NodeSelectorRequirement, NodeSelectorTerm, Taint
from koordinator.api.apps import ControllerRevision, DaemonSet
from koordinator.api.core import Node, NodeSpec, Pod, PodSpec, PodStatus
from koordinator.api.meta import Condition, ObjectMeta
from koordinator.local.controllers import daemonset, pod_health, rollout
from koordinator.local.controllers.daemonset import OnNode
from tests.local.controllers.fake_kubelet import Fate
from tests.local.controllers.workload_world import (
    LABELS,
    controllers,
    edit,
    events_of,
    fetch,
    make,
    pods,
    template,
)
from tests.local.controllers.world import World, run

HASH = "controller-revision-hash"


async def add_nodes(world: World, *names: str, **spec: Any) -> None:
    for name in names:
        body = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": spec}
        await world.cluster.create(Node, body)


async def nodes_with_pods(world: World) -> list[str]:
    return sorted(pod.spec.node_name for pod in await pods(world))


def test_it_has_one_pod_on_each_node_also_on_those_that_come_later() -> None:
    async def scenario(world: World) -> None:
        await add_nodes(world, "a", "b")
        await make(world, DaemonSet)
        await asyncio.sleep(5)
        assert await nodes_with_pods(world) == ["a", "b"]

        await add_nodes(world, "c")
        await asyncio.sleep(5)
        assert await nodes_with_pods(world) == ["a", "b", "c"]
        status = (await fetch(world, DaemonSet)).status
        assert (status.desired_number_scheduled, status.current_number_scheduled) == (3, 3)
        assert (status.number_ready, status.number_available, status.updated_number_scheduled) == (3, 3, 3)
        assert (status.number_unavailable, status.number_misscheduled) == (0, 0)
        assert len(await events_of(world, "SuccessfulCreate")) == 3

    run(controllers(), scenario)


def test_its_pods_tolerate_what_befalls_nodes() -> None:
    async def scenario(world: World) -> None:
        await add_nodes(
            world, "cordoned", taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
        )
        await make(world, DaemonSet)
        await asyncio.sleep(5)

        (pod,) = await pods(world)
        keys = {t.key for t in pod.spec.tolerations}
        assert {"node.kubernetes.io/not-ready", "node.kubernetes.io/disk-pressure"} <= keys
        assert pod.spec.node_name == "cordoned"

    run(controllers(), scenario)


def test_nodes_that_do_not_match_or_are_tainted_get_no_pod() -> None:
    async def scenario(world: World) -> None:
        await add_nodes(world, "plain", "ssd")
        await add_nodes(world, "tainted", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
        await world.cluster.patch(Node, "ssd", {"metadata": {"labels": {"disk": "ssd"}}})
        await make(world, DaemonSet, template=template(nodeSelector={"disk": "ssd"}))
        await asyncio.sleep(5)
        assert await nodes_with_pods(world) == ["ssd"]

        await world.cluster.patch(Node, "plain", {"metadata": {"labels": {"disk": "ssd"}}})
        await world.cluster.patch(Node, "ssd", {"metadata": {"labels": {"disk": None}}})
        await asyncio.sleep(5)
        assert await nodes_with_pods(world) == ["plain"]

    run(controllers(), scenario)


def test_a_no_execute_taint_removes_its_pod_and_a_no_schedule_taint_lets_it_stay() -> None:
    async def scenario(world: World) -> None:
        await add_nodes(world, "a", "b")
        await make(world, DaemonSet)
        await asyncio.sleep(5)

        for name, effect in (("a", "NoExecute"), ("b", "NoSchedule")):
            await world.cluster.patch(Node, name, {"spec": {"taints": [{"key": "k", "effect": effect}]}})
        await asyncio.sleep(5)

        assert await nodes_with_pods(world) == ["b"]
        status = (await fetch(world, DaemonSet)).status
        assert (status.desired_number_scheduled, status.number_misscheduled) == (0, 1)

    run(controllers(), scenario)


@pytest.mark.parametrize(
    ("bounds", "missing", "extra"),
    [
        pytest.param({}, 1, 0, id="one at a time by default"),
        pytest.param({"maxUnavailable": "40%"}, 2, 0, id="a share of the nodes, rounded up"),
        pytest.param({"maxSurge": 2, "maxUnavailable": 0}, 0, 2, id="new pods beside the old ones"),
    ],
)
def test_a_rolling_update_keeps_its_bounds(bounds: dict[str, Any], missing: int, extra: int) -> None:
    async def scenario(world: World) -> None:
        await add_nodes(world, *"abcde")
        await make(world, DaemonSet, updateStrategy={"type": "RollingUpdate", "rollingUpdate": bounds})
        await asyncio.sleep(10)
        await edit(world, DaemonSet, template=template("new"))

        for _ in range(400):
            await asyncio.sleep(0.2)
            active = [pod for pod in await pods(world) if pod_health.is_active(pod)]
            up = {pod.spec.node_name for pod in active if pod_health.is_ready(pod)}
            assert len(up) >= 5 - missing
            assert len(active) <= 5 + extra

        found = await pods(world)
        assert [pod.spec.containers[0].image for pod in found] == ["new"] * 5
        status = (await fetch(world, DaemonSet)).status
        assert (status.updated_number_scheduled, status.number_available) == (5, 5)

    run(controllers(lambda _: Fate(ready_s=1.0, stop_s=2.0)), scenario)


def test_on_delete_waits_for_somebody_to_delete_the_old_pods() -> None:
    async def scenario(world: World) -> None:
        await add_nodes(world, "a", "b")
        await make(world, DaemonSet, updateStrategy={"type": "OnDelete"})
        await asyncio.sleep(5)
        await edit(world, DaemonSet, template=template("new"))
        await asyncio.sleep(30)
        assert {pod.spec.containers[0].image for pod in await pods(world)} == {"a"}
        assert (await fetch(world, DaemonSet)).status.updated_number_scheduled == 0

        await world.cluster.delete(Pod, (await pods(world))[0].metadata.name, "default")
        await asyncio.sleep(5)
        assert sorted(pod.spec.containers[0].image for pod in await pods(world)) == ["a", "new"]

    run(controllers(), scenario)


def test_every_template_has_a_numbered_revision_that_can_be_brought_back() -> None:
    async def scenario(world: World) -> None:
        await add_nodes(world, "a")
        await make(world, DaemonSet, revisionHistoryLimit=1)
        for image in ("b", "c", "a"):
            await asyncio.sleep(20)
            await edit(world, DaemonSet, template=template(image))
        await asyncio.sleep(20)

        found = (await world.cluster.list(ControllerRevision, "default")).items
        by_number = {one.revision: one for one in found}
        images = {
            n: one.data["spec"]["template"]["spec"]["containers"][0]["image"] for n, one in by_number.items()
        }
        assert images == {3: "c", 4: "a"}
        assert by_number[4].data["spec"]["template"]["$patch"] == "replace"
        (pod,) = await pods(world)
        assert by_number[4].metadata.name == f"web-{pod.metadata.labels[HASH]}"

    run(controllers(), scenario)


def test_a_pod_that_fails_is_made_anew_with_growing_pauses() -> None:
    async def scenario(world: World) -> None:
        await add_nodes(world, "a")
        await make(world, DaemonSet)
        await asyncio.sleep(60)

        failures = await events_of(world, "FailedDaemonPod")
        assert "on node a, will try to kill it" in failures[0].message
        made = await events_of(world, "SuccessfulCreate")
        # Every second at first, then after 2, 4, 8, ... seconds.
        assert 4 <= sum(event.count for event in made) <= 8

    run(controllers(lambda _: Fate(ready_s=0.1, run_s=0.1, exit_code=1)), scenario)


@pytest.mark.parametrize("seed", range(4))
def test_nodes_may_come_and_go_and_be_relabelled_and_there_is_one_pod_where_one_is_wanted(seed: int) -> None:
    rng = random.Random(seed)

    async def scenario(world: World) -> None:
        await make(world, DaemonSet, template=template(nodeSelector={"role": "worker"}))
        alive: dict[str, bool] = {}
        for number in range(60):
            match rng.randrange(3):
                case 0:
                    name = f"n{number}"
                    await add_nodes(world, name)
                    alive[name] = False
                case 1 if alive:
                    name = rng.choice(list(alive))
                    alive[name] = not alive[name]
                    labels = {"role": "worker" if alive[name] else "other"}
                    await world.cluster.patch(Node, name, {"metadata": {"labels": labels}})
                case 2 if alive:
                    name = rng.choice(list(alive))
                    del alive[name]
                    await world.cluster.delete(Node, name)
            await asyncio.sleep(rng.choice([0.0, 0.1, 1.0]))
        await asyncio.sleep(20)

        # Pods of nodes that are gone are left to the pod garbage collector.
        left = [name for name in await nodes_with_pods(world) if name in alive]
        assert left == sorted(name for name, wanted in alive.items() if wanted)

    run(controllers(), scenario)


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        pytest.param("In", ["5"], True, id="in"),
        pytest.param("NotIn", ["5"], False, id="not in"),
        pytest.param("Gt", ["4"], True, id="greater"),
        pytest.param("Lt", ["5"], False, id="not less than itself"),
        pytest.param("Gt", ["x"], False, id="no number compares with nothing"),
        pytest.param("DoesNotExist", [], False, id="is there"),
        pytest.param("Near", ["5"], False, id="an unknown operator matches nothing"),
    ],
)
def test_node_affinity_operators(operator: str, values: list[str], expected: bool) -> None:
    term = NodeSelectorTerm(
        match_expressions=[NodeSelectorRequirement(key="cores", operator=operator, values=values)]
    )
    assert affinity.any_term_holds([term], {"cores": "5"}, "n") is expected


def test_a_taint_that_only_prefers_keeps_nobody_away() -> None:
    node = Node(spec=NodeSpec(taints=[Taint(key="k", effect="PreferNoSchedule")]))
    found = daemonset.eligibility(PodSpec())(node)
    assert found == daemonset.Eligibility(True, True)


def test_what_upstream_counts_for_old_clients_is_on_pods_and_not_on_revisions() -> None:
    async def scenario(world: World) -> None:
        await add_nodes(world, "a")
        body = {"metadata": {"name": "web", "annotations": {daemonset.TEMPLATE_GENERATION: "4"}}}
        body["spec"] = {"selector": {"matchLabels": LABELS}, "template": template()}
        await world.cluster.create(DaemonSet, body, "default")
        await asyncio.sleep(5)

        (pod,) = await pods(world)
        assert pod.metadata.labels["pod-template-generation"] == "4"
        (revision,) = (await world.cluster.list(ControllerRevision)).items
        assert set(revision.metadata.labels) == {"app", HASH}

    run(controllers(), scenario)


def planned(*places: OnNode, surge: int = 0, unavailable: int = 0) -> tuple[list[str], list[str]]:
    """Nodes that get a pod and pods that go, in the next step of an update."""
    bounds = rollout.RolloutBounds(surge, unavailable)
    plan = daemonset.plan_update(places, bounds, daemonset.PodCriteria("new", 0, 100.0))
    return plan.create, [pod.metadata.name for pod in plan.delete]


def place(node: str, *pods: Pod, starts: bool = True) -> OnNode:
    return OnNode(node, daemonset.Eligibility(starts, True), list(pods))


def pod_of(name: str, revision: str, *, ready: bool = True) -> Pod:
    meta = ObjectMeta(name=name, labels={HASH: revision})
    return Pod(metadata=meta, status=PodStatus(conditions=[Condition(type="Ready", status=str(ready))]))


def test_a_surge_is_as_large_as_allowed_whatever_does_not_work_besides() -> None:
    broken = place("a", pod_of("old-a", "old", ready=False))
    others = [place(node, pod_of(f"old-{node}", "old")) for node in "bc"]

    assert planned(broken, *others, surge=1) == (["a", "b"], [])


def test_old_pods_where_none_may_start_go_once_enough_others_work() -> None:
    leaving = place("a", pod_of("old-a", "old"), starts=False)
    waiting = place("b", pod_of("new-b", "new", ready=False))
    working = place("b", pod_of("new-b", "new"))

    assert planned(leaving, waiting, surge=1) == ([], [])
    assert planned(leaving, working, surge=1) == ([], ["old-a"])
    assert planned(place("a", pod_of("old-a", "old", ready=False), starts=False), surge=1) == ([], ["old-a"])


def test_an_update_reaches_pods_where_none_may_start_now() -> None:
    assert planned(place("a", pod_of("old-a", "old"), starts=False), unavailable=1) == ([], ["old-a"])


def steps(*places: OnNode, surges: bool) -> tuple[list[str], list[str]]:
    plan = daemonset.plan_pods(places, daemonset.PodCriteria("new", 0, 100.0), surges=surges)
    return plan.create, [pod.metadata.name for pod in plan.delete]


def test_with_a_surge_an_old_pod_that_is_not_ready_gives_way_at_once() -> None:
    both = place("a", pod_of("old-a", "old", ready=False), pod_of("new-a", "new", ready=False))

    assert steps(both, surges=True) == ([], ["old-a"])


def test_with_a_surge_a_pod_that_failed_is_replaced_before_it_is_gone() -> None:
    failed = msgspec.structs.replace(pod_of("new-a", "new"), status=PodStatus(phase="Failed"))

    assert steps(place("a", failed), surges=True) == (["a"], ["new-a"])
    assert steps(place("a", failed), surges=False) == ([], ["new-a"])


def test_pods_of_a_node_that_is_gone_are_left_alone_unless_they_wait_for_it() -> None:
    placed = msgspec.structs.replace(pod_of("placed", "new"), spec=PodSpec(node_name="gone"))
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gone"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    spec = msgspec.convert({"affinity": {"nodeAffinity": required}}, PodSpec)
    waiting = msgspec.structs.replace(pod_of("waiting", "new"), spec=spec)

    found = daemonset.by_node({}, [placed, waiting])

    assert steps(*found, surges=False) == ([], ["waiting"])
