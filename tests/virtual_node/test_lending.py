"""Two clusters, one of which lends its idle nodes to the other."""

import json

from koordinator.api import labels
from koordinator.api.core import Node, Pod, Secret
from koordinator.cluster import errors
from koordinator.virtual_node.offer import LendingPolicy
from koordinator.virtual_node.pods import PodRules
from koordinator.virtual_node.translate import Sharing
from tests.cluster.faulty_cluster import Faults, FaultyCluster
from tests.virtual_node.world import LENT, NODE, REPORT_S, World, run


def test_a_pod_on_the_virtual_node_runs_in_the_lender_and_its_status_comes_back() -> None:
    async def scenario(world: World) -> None:
        async with world.lending():
            await world.offers("57600m")  # two nodes of 32 cores, less a tenth
            await world.borrow("job")

            pod = await world.phase("job", "Running")

            [lent] = (await world.lender.pods(LENT)).values()
            assert lent.metadata.name == f"default-job-{pod.metadata.uid[:8]}"
            assert lent.spec["priorityClassName"] == "koord-batch"
            assert lent.metadata.labels[labels.QOS_CLASS] == "BE"
            assert lent.spec["automountServiceAccountToken"] is False
            assert pod.status["podIP"] == "10.0.0.7"

    run(scenario)


def test_the_virtual_node_tells_who_it_is_what_it_has_and_its_largest_hole() -> None:
    async def scenario(world: World) -> None:
        await world.lender.add_node("big", cpu=64, memory="256Gi")
        async with world.lending():
            await world.offers("115200m")

            node = await world.node()

            assert node.metadata.labels["type"] == "virtual-kubelet"
            assert node.metadata.labels[labels.VIRTUAL_NODE_SOURCE] == "web"
            assert [(one.key, one.value, one.effect) for one in node.spec.taints] == [
                ("virtual-kubelet.io/provider", "koordinator", "NoSchedule")
            ]
            hole = json.loads(node.metadata.annotations[labels.LARGEST_FREE])
            assert hole == {"cpu": "57600m", "memory": "235929Mi"}
            assert [one.status for one in node.status.conditions if one.type == "Ready"] == ["True"]

    run(scenario)


def test_busy_cordoned_tainted_and_silent_nodes_are_not_offered() -> None:
    async def scenario(world: World) -> None:
        for name in ("busy", "cordoned", "tainted", "used"):
            await world.lender.add_node(name)
        await world.online("web", "4", "busy")  # an eighth of the node
        world.usage["used"] = 6_000
        taint = [{"key": "gpu", "effect": "NoSchedule"}]
        await world.lender.cluster.patch(Node, "tainted", {"spec": {"taints": taint}})
        await world.lender.cluster.patch(Node, "cordoned", {"spec": {"unschedulable": True}})
        async with world.lending():
            await world.offers("57600m")
            world.silent = {"n0"}

            await world.offers("28800m", within_s=600)

    run(scenario)


def test_a_node_is_offered_only_after_it_was_idle_for_ten_minutes() -> None:
    async def scenario(world: World) -> None:
        await world.online("web", "8", "n0")
        world.usage["n0"] = 8_000
        async with world.lending():
            await world.offers("28800m")
            await world.lender.cluster.delete(Pod, "web", "default", grace_period_s=0)
            world.usage["n0"] = 100
            began_s = world.now_s()

            await world.offers("57600m", within_s=1500)

            assert world.now_s() - began_s >= 600

    run(scenario)


def test_a_node_stays_offered_between_reports_that_are_further_apart_than_it_has_to_be_idle() -> None:
    async def scenario(world: World) -> None:
        async with world.lending(policy=LendingPolicy(idle_for_s=10.0)):
            await world.offers("57600m")
            for _ in range(6):
                await world.pass_time(REPORT_S / 3)
                assert (await world.node()).status.allocatable["cpu"] == "57600m"

    run(scenario)


def test_a_pod_larger_than_every_hole_is_refused_until_one_is_large_enough() -> None:
    async def scenario(world: World) -> None:
        async with world.lending():
            await world.offers("57600m")
            await world.borrow("large", "30")

            waiting = await world.phase("large", "Pending", "OutOfHole")
            assert "no idle node of web has room for cpu 30" in waiting.status["message"]
            assert await world.lender.pods(LENT) == {}
            await world.lender.add_node("big", cpu=64)

            await world.phase("large", "Running", within_s=200)

    run(scenario)


def test_a_pod_that_fits_nowhere_for_long_fails_so_that_its_owner_tries_elsewhere() -> None:
    async def scenario(world: World) -> None:
        async with world.lending(rules=PodRules(refuse_after_s=120.0)):
            await world.offers("57600m")
            await world.borrow("large", "30")

            await world.phase("large", "Failed", "OutOfHole", within_s=150)

    run(scenario)


def test_holes_are_counted_node_by_node_and_not_in_sum() -> None:
    async def scenario(world: World) -> None:
        async with world.lending():
            await world.offers("57600m")
            for name in ("a", "b", "c"):
                await world.borrow(name, "16")

            await world.phase("a", "Running")
            await world.phase("b", "Running")
            # 57.6 - 32 cores are left in sum, and 12.8 on each node.
            await world.phase("c", "Pending", "OutOfHole")

    run(scenario)


def test_pods_that_reach_for_the_host_are_refused_with_every_reason() -> None:
    async def scenario(world: World) -> None:
        async with world.lending():
            await world.offers("57600m")
            volume = {"name": "etc", "hostPath": {"path": "/etc"}}
            container = {"securityContext": {"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}}}
            await world.borrow("root", container=container, volumes=[volume], hostNetwork=True)

            pod = await world.phase("root", "Failed", "NotSupported")

            for why in (
                "spec.hostNetwork is not allowed",
                "volume etc: hostPath is not allowed",
                "container main: privileged is not allowed",
                "capabilities SYS_ADMIN are not allowed",
            ):
                assert why in pod.status["message"]
            assert await world.lender.pods(LENT) == {}

    run(scenario)


def test_only_allowed_secrets_leave_and_copies_follow_their_originals() -> None:
    async def scenario(world: World) -> None:
        here, there = world.borrower.cluster, world.lender.cluster
        for name in ("db", "root"):
            await here.create(Secret, {"metadata": {"name": name}, "data": {"key": "b25l"}}, "default")

        def reading(secret: str) -> dict[str, object]:
            return {"container": {"envFrom": [{"secretRef": {"name": secret}}]}}

        async with world.lending(rules=PodRules(sharing=Sharing(secrets=("default/d*",)))):
            await world.offers("57600m")
            await world.borrow("allowed", **reading("db"))
            await world.borrow("forbidden", **reading("root"))
            await world.borrow("early", **reading("d-late"))

            await world.phase("allowed", "Running")
            pod = await world.phase("forbidden", "Failed", "NotSupported")
            assert "Secret root must not leave this cluster" in pod.status["message"]
            await world.phase("early", "Pending", "MissingObjects")
            [lent] = (await world.lender.pods(LENT)).values()
            [copy] = (await there.list(Secret, LENT)).items
            assert lent.spec["containers"][0]["envFrom"] == [{"secretRef": {"name": copy.metadata.name}}]
            assert [one.uid for one in copy.metadata.owner_references] == [lent.metadata.uid]
            await here.patch(Secret, "db", {"data": {"key": "dHdv", "more": "eA=="}}, "default")
            await here.create(Secret, {"metadata": {"name": "d-late"}, "data": {}}, "default")

            await world.phase("early", "Running")

            async def followed() -> bool:
                return (await there.get(Secret, copy.metadata.name, LENT)).data == {
                    "key": "dHdv",
                    "more": "eA==",
                }

            await world.until(followed, within_s=90)

    run(scenario)


def test_a_deleted_pod_goes_when_its_containers_have_ended_in_the_lender() -> None:
    async def scenario(world: World) -> None:
        async with world.lending():
            await world.offers("57600m")
            await world.borrow("job")
            await world.phase("job", "Running")
            world.kubelets = False

            await world.borrower.cluster.delete(Pod, "job", "default", grace_period_s=20)
            await world.pass_time(30)
            assert (await world.borrowed("job")).is_deleted
            [lent] = (await world.lender.pods(LENT)).values()
            assert lent.metadata.deletion_grace_period_seconds == 20
            world.kubelets = True

            await world.gone("job")
            assert await world.lender.pods(LENT) == {}

    run(scenario)


def test_a_pod_that_vanished_from_the_borrower_is_taken_out_of_the_lender() -> None:
    async def scenario(world: World) -> None:
        async with world.lending():
            await world.offers("57600m")
            await world.borrow("job")
            await world.phase("job", "Running")

            await world.borrower.cluster.delete(Pod, "job", "default", grace_period_s=0)

            await world.nothing_lent()

    run(scenario)


def test_a_pod_that_the_lender_deletes_fails_as_reclaimed_in_the_borrower() -> None:
    async def scenario(world: World) -> None:
        async with world.lending():
            await world.offers("57600m")
            await world.borrow("job")
            await world.phase("job", "Running")
            [name] = await world.lender.pods(LENT)

            await world.lender.cluster.delete(Pod, name, LENT)

            pod = await world.phase("job", "Failed", "Reclaimed")
            targets = [one for one in pod.status["conditions"] if one["type"] == "DisruptionTarget"]
            assert [one["status"] for one in targets] == ["True"]
            assert pod.status["containerStatuses"][0]["state"]["terminated"]["reason"] == "Reclaimed"
            await world.pass_time(60)
            assert await world.lender.pods(LENT) == {}  # and it does not run again

    run(scenario)


def test_an_online_pod_without_a_place_gets_one_from_who_loses_least() -> None:
    async def scenario(world: World) -> None:
        async with world.lending() as nodes:
            await world.offers("57600m")
            for name, cpu in (("old", "18"), ("large", "22")):
                await world.borrow(name, cpu)
                await world.phase(name, "Running")
            await world.pass_time(300)
            await world.borrow("young", "8")
            await world.phase("young", "Running")

            await world.online("web", "12")
            await world.pass_time(3)

            pod = await world.phase("young", "Failed", "Reclaimed")
            assert "default/web needs its place on" in pod.status["message"]
            web = (await world.lender.pods("default"))["web"]
            assert web.phase == "Running"
            for name in ("old", "large"):
                assert (await world.borrowed(name)).phase == "Running"
            assert nodes.metrics.reclaimed.values == {("OnlinePodPending",): 1}

    run(scenario)


def test_the_borrower_hears_of_less_room_before_the_first_pod_is_evicted() -> None:
    async def scenario(world: World) -> None:
        async with world.lending():
            await world.offers("57600m")
            for name in ("a", "b"):
                await world.borrow(name, "20")
                await world.phase(name, "Running")
            told: list[str] = []
            world.lender.on_evicted = lambda: told.append(world.allocatable_now())

            await world.online("web", "20")
            await world.until(lambda: world.are(told))

            # One pod of twenty cores stays, with 8.8 beside it; nothing is offered of what the other one leaves.
            assert told == ["28800m"]

    run(scenario)


def test_nobody_is_evicted_for_a_pod_that_no_eviction_helps() -> None:
    async def scenario(world: World) -> None:
        async with world.lending() as nodes:
            await world.offers("57600m")
            await world.borrow("job", "20")
            await world.phase("job", "Running")

            await world.online("huge", "40")
            await world.online("elsewhere", "20", nodeSelector={"disk": "fast"})
            await world.pass_time(120)

            assert (await world.borrowed("job")).phase == "Running"
            assert nodes.metrics.reclaimed.values == {}

    run(scenario)


def test_all_leave_a_node_whose_own_pods_are_busy_and_none_come_back_at_once() -> None:
    async def scenario(world: World) -> None:
        async with world.lending():
            await world.offers("57600m")
            await world.borrow("job", "4")
            await world.phase("job", "Running")
            [lent] = (await world.lender.pods(LENT)).values()
            world.lent_usage = 30_000  # its own use does not count against it
            await world.pass_time(3 * REPORT_S)
            assert (await world.borrowed("job")).phase == "Running"

            world.usage[lent.spec["nodeName"]] = 17_000

            await world.phase("job", "Failed", "Reclaimed", within_s=2 * REPORT_S)
            await world.offers("28800m")

    run(scenario)


def test_a_restarted_process_goes_on_with_the_pods_that_it_finds() -> None:
    async def scenario(world: World) -> None:
        async with world.lending():
            await world.offers("57600m")
            for name in ("stays", "ends", "leaves"):
                await world.borrow(name)
                await world.phase(name, "Running")
        lent = await world.lender.pods(LENT)
        [taken] = [name for name in lent if "ends" in name]
        await world.lender.cluster.delete(Pod, taken, LENT, grace_period_s=0)
        await world.borrower.cluster.delete(Pod, "leaves", "default", grace_period_s=30)
        await world.pass_time(60)

        async with world.lending():
            await world.phase("ends", "Failed", "Reclaimed")
            await world.gone("leaves")

            assert (await world.borrowed("stays")).phase == "Running"
            assert set(await world.lender.pods(LENT)) == {name for name in lent if "stays" in name}
            await world.offers("57600m")

    run(scenario)


def test_a_node_is_not_ready_while_the_lender_does_not_answer() -> None:
    async def scenario(world: World) -> None:
        lender = FaultyCluster(world.lender.cluster, Faults(), world.rng)
        async with world.lending(lender=lender):
            await world.offers("57600m")
            await world.borrow("job")
            await world.phase("job", "Running")
            lender.misbehave(Faults(lost_before_ratio=1.0))

            await world.ready("False")
            await world.offers("4")  # no more than what is lent
            lender.heal()

            await world.ready("True")
            await world.offers("57600m")
            assert (await world.borrowed("job")).phase == "Running"

    run(scenario)


def test_each_value_of_a_label_has_a_virtual_node_of_its_own() -> None:
    async def scenario(world: World) -> None:
        await world.lender.add_node("east", zone="east")
        await world.lender.add_node("west", cpu=16, zone="west")
        async with world.lending(node_per="zone"):
            await world.until(lambda: world.has_nodes(f"{NODE}-east", f"{NODE}-west"))
            await world.borrow("job", node=f"{NODE}-west")
            await world.phase("job", "Running")

            [lent] = (await world.lender.pods(LENT)).values()
            assert lent.spec["nodeName"] == "west"
            assert (await world.node(f"{NODE}-west")).metadata.labels["zone"] == "west"

    run(scenario)


def test_variables_have_the_values_of_the_borrower() -> None:
    async def scenario(world: World) -> None:
        env = [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in (
                ("NAME", "metadata.name"),
                ("APP", "metadata.labels['app']"),
                ("IP", "status.podIP"),
            )
        ]
        async with world.lending():
            await world.offers("57600m")
            await world.borrow("job", container={"env": env})
            await world.phase("job", "Running")

            [lent] = (await world.lender.pods(LENT)).values()
            told = {one["name"]: one.get("value") for one in lent.spec["containers"][0]["env"]}
            assert told == {"NAME": "job", "APP": "", "IP": None}
            assert lent.spec["hostname"] == "job"

    run(scenario)


def test_what_the_lenders_scheduler_cannot_place_is_given_back() -> None:
    async def scenario(world: World) -> None:
        async with world.lending():
            await world.offers("57600m")
            world.places = False

            await world.borrow("job")

            pod = await world.phase("job", "Failed", "OutOfHole", within_s=90)
            assert "the scheduler of web could not place it" in pod.status["message"]
            await world.nothing_lent()

    run(scenario)


def test_a_pod_of_that_name_that_is_none_of_ours_is_left_alone() -> None:
    async def scenario(world: World) -> None:
        async with world.lending():
            await world.offers("57600m")
            world.kubelets = False
            pod = await world.borrow("job", bind=False)
            name = f"default-job-{pod.metadata.uid[:8]}"
            body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
            await world.lender.cluster.create(Pod, body, LENT)
            await world.borrower.cluster.bind("default", "job", NODE)

            pod = await world.phase("job", "Failed", "NotSupported")
            assert "is another pod" in pod.status["message"]
            await world.lender.cluster.get(Pod, name, LENT)

    run(scenario)


def test_an_answer_that_is_lost_costs_the_pod_its_try_rather_than_a_second_run() -> None:
    async def scenario(world: World) -> None:
        lender = FaultyCluster(world.lender.cluster, Faults(), world.rng)
        async with world.lending(lender=lender):
            await world.offers("57600m")
            lender.misbehave(Faults(lost_before_ratio=1.0))
            original = lender.create

            async def create(*args: object, **options: object) -> object:
                raise errors.ConnectionFailed("reset")

            lender.create = create  # type: ignore[method-assign, assignment]
            lender.heal()
            await world.borrow("job")
            await world.phase("job", "Failed", "Reclaimed")
            lender.create = original  # type: ignore[method-assign]

            await world.pass_time(60)

            assert await world.lender.pods(LENT) == {}

    run(scenario)
