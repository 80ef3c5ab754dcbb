"""Explanations of gangs: how many members fit, what the first that does not lacks, what would help."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.decode import from_builtins
from koordinator.api.network_topology import NetworkTopologySpec
from koordinator.api.sigs import ElasticQuota
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import PluginConfig, SchedulerConfig
from koordinator.scheduler.explain import gang_group
from koordinator.scheduler.explain.answer import GangAnswer, PodVerdict
from koordinator.scheduler.explain.decide import PodQuestion
from koordinator.scheduler.explain.gang_group import group_of
from koordinator.scheduler.explain.gangs import ordinal
from koordinator.scheduler.plugin.topology_tree import build
from koordinator.scheduler.serve.explain_service import explain_gang_live, explain_live
from tests.scheduler import world
from tests.scheduler.coscheduling.gang_builders import in_group, pod_group
from tests.scheduler.explain.builders import Bench
from tests.scheduler.world import World, play

GANG = "gang.scheduling.koordinator.sh"
GPU = "nvidia.com/gpu"


def changes(answer: GangAnswer) -> list[str]:
    return [each.change for each in answer.remedies]


def bench(nodes: int, cpu: str = "4") -> Bench:
    made = Bench()
    for number in range(nodes):
        made.node(f"n-{number}", cpu=cpu)
    return made


def test_the_first_member_that_does_not_fit_says_what_it_lacks() -> None:
    cluster = Bench()
    for number in range(4):
        cluster.node(f"n-{number}", cpu="64", extra={GPU: "8"})
    cluster.running("other", "n-3", requests={GPU: "2"})
    cluster.pod_group("train", 8).members("train", 8, requests={GPU: "4"})

    answer = cluster.gang("train")

    assert answer.verdict is PodVerdict.UNSCHEDULABLE
    assert answer.sentence == (
        "Gang default/train is pending: 7 of 8 members fit; the 8th (default/train-7) lacks at least 2 "
        "nvidia.com/gpu on every node."
    )
    assert answer.fit is not None
    assert answer.fit.nodes == {"n-0": 2, "n-1": 2, "n-2": 2, "n-3": 1}


def test_a_gang_that_fits_says_where_and_leaves_no_trace() -> None:
    cluster = bench(2)
    cluster.pod_group("job", 3).members("job", 3, cpu="2")
    before = cluster.engine.table.requested.copy()

    answer = cluster.gang("job")

    assert (answer.verdict, answer.state) == (PodVerdict.SCHEDULABLE, "queued")
    assert "all 3 members find a place on 2 nodes" in answer.sentence
    assert (cluster.engine.table.requested == before).all()
    assert cluster.engine.table.assumed_count == 0
    group = group_of(cluster.engine, "default/job")
    assert group is not None and group.gang.group.representative == ""
    assert group.books.rounds.round is None


def test_members_that_do_not_exist_yet_are_counted_and_nothing_is_tried() -> None:
    cluster = bench(1)
    cluster.pod_group("job", 3).members("job", 1)

    answer = cluster.gang("job")

    assert (answer.verdict, answer.state) == (PodVerdict.GATED, "waiting for members")
    assert answer.sentence == "Gang default/job waits for members: default/job has 1 of at least 3 members."
    assert changes(answer) == [
        "create 2 more members of default/job",
        "lower spec.minMember of default/job from 3 to 1",
    ]
    assert answer.gangs[0].missing == 2


def test_a_group_waits_for_gangs_that_nobody_has_described() -> None:
    cluster = bench(1)
    cluster.pod_group("ps", 1, **{f"{GANG}/groups": '["default/ps","default/worker","default/gone"]'})
    cluster.members("ps", 1)
    cluster.members("worker", 1)

    sentence = cluster.gang("ps").sentence

    assert sentence.startswith("Gang group default/gone, default/ps, default/worker waits for members: ")
    assert "default/gone does not exist: no PodGroup and no pod names it" in sentence
    assert "nobody has described default/worker: create PodGroup worker in namespace default" in sentence


def test_roles_are_tried_together() -> None:
    cluster = bench(1, cpu="4")
    together = {f"{GANG}/groups": '["default/ps","default/worker"]'}
    cluster.pod_group("ps", 1, **together).members("ps", 1, cpu="2")
    cluster.pod_group("worker", 2, **together).members("worker", 2, cpu="2")

    answer = cluster.gang("worker")

    assert answer.sentence == (
        "Gang group default/ps, default/worker is pending: 2 of 3 members fit; the 3rd (default/worker-1) "
        "lacks 2 cores on every node."
    ).replace(" on every node", "")
    assert [(line.gang, line.minimum, line.pending) for line in answer.gangs] == [
        ("default/ps", 1, 1),
        ("default/worker", 2, 2),
    ]


def test_members_beyond_the_minimum_keep_nobody() -> None:
    cluster = bench(1)
    cluster.pod_group("job", 2).members("job", 3, cpu="2")

    answer = cluster.gang("job")

    assert answer.verdict is PodVerdict.SCHEDULABLE
    assert "2 of 3 members find a place, and 2 are enough to start" in answer.sentence


def test_what_would_help_is_tried_with_all_members() -> None:
    cluster = bench(2)
    cluster.node("tainted", cpu="8", taints=[{"key": "gpu", "effect": "NoSchedule"}])
    cluster.pod_group("job", 3).members("job", 3, cpu="3")

    reported = changes(cluster.gang("job"))

    assert "tolerate gpu:NoSchedule, on every member" in reported
    assert "lower the cpu request from 3 to at most 2, on every member" in reported
    assert "lower spec.minMember of default/job from 3 to 2: 2 members would start" in reported
    assert "free 2 cores on n-0" in reported
    assert "add a node like n-0: empty, it takes the member" in reported


def test_members_that_hold_places_count_among_those_that_a_lower_minimum_starts() -> None:
    async def story(world_: World) -> None:
        world_.nodes(2, cpu="4")
        world_.api.put("PodGroup", pod_group("job", 3, mode="NonStrict"))
        for number in range(3):
            world_.api.put("Pod", in_group(f"job-{number}", "job", cpu="4"))
        await world_.settle(2)
        answer = await explain_gang_live(world_.scheduler, "default/job")
        assert answer is not None
        assert answer.state == "holding places"
        assert "lower spec.minMember of default/job from 3 to 2: 2 members would start" in changes(answer)

    play(story)


def test_cordoned_nodes_and_pods_that_leave_are_counted_on() -> None:
    cluster = bench(1).node("cordoned", unschedulable=True)
    leaving = world.pod("leaving", cpu="2")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.engine.table.assign(cluster.of(leaving), "n-0")
    cluster.pod_group("job", 2).members("job", 2, cpu="2")

    reported = changes(cluster.gang("job"))

    assert "uncordon cordoned" in reported
    assert "wait until 1 pods that are being deleted have left" in reported


def test_less_important_pods_are_named_when_their_eviction_is_enough() -> None:
    cluster = bench(2)
    for number in range(2):
        cluster.running(f"batch-{number}", f"n-{number}", cpu="4", priority=1)
    cluster.pod_group("job", 2).members("job", 2, cpu="4", priority=10)

    answer = cluster.gang("job")

    assert answer.verdict is PodVerdict.PREEMPTION
    assert answer.preemption is not None
    assert sorted(pod for way in answer.preemption.nodes for pod in way.pods) == [
        "default/batch-0",
        "default/batch-1",
    ]
    assert "evicting 2 pods from n-" in answer.sentence


def test_a_gang_that_may_evict_for_all_its_members_names_everybody_at_once() -> None:
    shipped = default_plugins.shipped_profile()
    others = [each for each in shipped.plugin_config if each.name != "Coscheduling"]
    args = PluginConfig(name="Coscheduling", args={"enablePreemption": True})
    profile = msgspec.structs.replace(shipped, plugin_config=[*others, args])
    cluster = Bench(SchedulerConfig(profiles=[profile])).node("n-0").node("n-1")
    for number in range(2):
        cluster.running(f"batch-{number}", f"n-{number}", cpu="4", priority=1)
    cluster.pod_group("job", 2).members("job", 2, cpu="4", priority=10)

    answer = cluster.gang("job")

    assert answer.verdict is PodVerdict.PREEMPTION
    assert answer.preemption is not None
    assert sorted((way.node, *way.pods) for way in answer.preemption.nodes) == [
        ("n-0", "default/batch-0"),
        ("n-1", "default/batch-1"),
    ]


def test_one_that_cannot_be_freed_for_all_names_nobody() -> None:
    cluster = bench(1)
    cluster.running("batch", "n-0", cpu="4", priority=1)
    cluster.pod_group("job", 2).members("job", 2, cpu="4", priority=10)

    answer = cluster.gang("job")

    assert (answer.verdict, answer.preemption) == (PodVerdict.UNSCHEDULABLE, None)


def spines(gpus: dict[str, str]) -> Bench:
    """Nodes `<spine>-<n>` with GPUs, in a network of spines that the scheduler looks at."""
    labelled = {name: {"spine": name.partition("/")[0]} for name in gpus}
    layers = [
        NetworkTopologySpec(topology_layer="SpineLayer", label_key=["spine"]),
        NetworkTopologySpec(topology_layer="NodeTopologyLayer", parent_topology_layer="SpineLayer"),
    ]
    tree = build(layers, [(name.replace("/", "-"), own) for name, own in labelled.items()])
    shipped = default_plugins.shipped_profile()
    others = [each for each in shipped.plugin_config if each.name != "Coscheduling"]
    args = PluginConfig(name="Coscheduling", args={"awareNetworkTopology": True})
    profile = msgspec.structs.replace(shipped, plugin_config=[*others, args])
    made = Bench(SchedulerConfig(profiles=[profile]), network=lambda: tree)
    for name, count in gpus.items():
        made.node(name.replace("/", "-"), cpu="64", extra={GPU: count}, labels=labelled[name])
    return made


TOGETHER = {
    f"{GANG}/network-topology-spec": '{"gatherStrategy":[{"layer":"SpineLayer","strategy":"MustGather"}]}'
}


def test_a_gang_that_must_be_together_is_short_where_it_comes_nearest() -> None:
    cluster = spines({"spine-1/a": "8", "spine-3/a": "16", "spine-3/b": "14"})
    cluster.pod_group("train", 8, **TOGETHER).members("train", 8, requests={GPU: "4"})

    answer = cluster.gang("train")

    assert answer.verdict is PodVerdict.UNSCHEDULABLE
    assert answer.sentence == (
        "Gang default/train is pending: 7 of 8 members fit in SpineLayer spine-3; the 8th (default/train-7) lacks "
        "at least 2 nvidia.com/gpu on every node in SpineLayer spine-3."
    )
    assert [(each.name, each.fitting) for each in answer.domains] == [("spine-3", 7), ("spine-1", 2)]
    assert changes(answer) == [
        "lower spec.minMember of default/train from 8 to 7: 7 members would start",
        "let the members be outside of SpineLayer spine-3, too (MustGather)",
        f"free 2 {GPU} on spine-3-b",
        f"free 4 {GPU} on spine-3-a",
        "add a node like spine-3-a to SpineLayer spine-3: empty, it takes the member",
    ]
    less = spines({"spine-1/a": "8", "spine-3/a": "16", "spine-3/b": "14"})
    less.pod_group("train", 7, **TOGETHER).members("train", 8, requests={GPU: "4"})
    assert less.gang("train").verdict is PodVerdict.SCHEDULABLE


def test_a_layer_that_the_network_does_not_have_holds_no_gang() -> None:
    cluster = spines({"spine-1/a": "8"})
    rules = TOGETHER[f"{GANG}/network-topology-spec"].replace("Spine", "Rack")
    cluster.pod_group("train", 1, **{f"{GANG}/network-topology-spec": rules}).members("train", 1)

    answer = cluster.gang("train")

    assert answer.verdict is PodVerdict.UNSCHEDULABLE
    assert answer.sentence == (
        "Gang default/train is pending: ClusterNetworkTopology default has no RackLayer, of which it must have one "
        "place."
    )


def test_a_gang_that_finds_its_place_in_the_network_says_which() -> None:
    cluster = spines({"spine-1/a": "8", "spine-3/a": "16", "spine-3/b": "16"})
    cluster.pod_group("train", 8, **TOGETHER).members("train", 8, requests={GPU: "4"})

    answer = cluster.gang("train")

    assert answer.verdict is PodVerdict.SCHEDULABLE
    assert "all 8 members find a place on 2 nodes of SpineLayer spine-3" in answer.sentence


def test_a_gang_that_nodes_and_quota_refuse_is_told_of_both() -> None:
    cluster = bench(2, cpu="5")
    meta = {"namespace": "default", "name": "ads"}
    quota = {"metadata": meta, "spec": {"min": {"cpu": "4"}, "max": {"cpu": "9"}}}
    cluster.seen(from_builtins(quota, ElasticQuota))
    cluster.pod_group("job", 4)
    for number in range(4):
        body = world.pod(f"job-{number}", cpu="3")
        own = {"pod-group.scheduling.sigs.k8s.io": "job", "quota.scheduling.koordinator.sh/name": "ads"}
        body["metadata"]["labels"] = own
        cluster.seen(cluster.of(body).pod)

    answer = cluster.gang("job")

    assert "2 of 4 members fit; the 3rd (default/job-2) lacks 1 core on every node" in answer.sentence
    [note] = answer.notes
    assert note.startswith("nodes are not all: their quota has no room for them either: queue at root/ads: ")
    assert "4 members ask 12" in note
    assert changes(answer) == ["lower spec.minMember of default/job from 4 to 2: 2 members would start"]


def test_a_network_that_nobody_looks_at_is_reported() -> None:
    cluster = bench(1)
    cluster.pod_group("job", 1, **TOGETHER).members("job", 1)

    assert "awareNetworkTopology of Coscheduling is off" in cluster.gang("job").notes[0]


def test_a_member_is_explained_with_its_gang() -> None:
    cluster = bench(1)
    cluster.pod_group("job", 2)
    first, second = cluster.members("job", 2, cpu="3")

    answer = cluster.ask(second)

    assert answer.verdict is PodVerdict.UNSCHEDULABLE
    assert answer.sentence.startswith("Pod default/job-1 goes with its gang. Gang default/job is pending")
    assert answer.gang is not None and answer.gang.fit is not None
    assert answer.message == "0/1 nodes are available: 1 Insufficient cpu."
    assert cluster.ask(first).feasible_count == 1


def test_a_member_of_an_incomplete_gang_is_gated_with_what_is_missing() -> None:
    cluster = bench(1)
    cluster.pod_group("job", 2)
    [only] = cluster.members("job", 1)

    answer = cluster.ask(only)

    assert (answer.verdict, answer.rejected_by) == (PodVerdict.GATED, ["Coscheduling"])
    assert "default/job has 1 of at least 2 members" in answer.sentence


def test_a_gang_that_has_started_is_placed_one_by_one() -> None:
    cluster = bench(1)
    cluster.pod_group("job", 1)
    cluster.member("job-a", "job", cpu="1", nodeName="n-0")
    cluster.member("job-b", "job", cpu="9")

    answer = cluster.gang("job")

    assert answer.state == "started"
    assert "0 of 1 that wait find a place; default/job-b lacks 5 cores" in answer.sentence


def test_nobody_knows_a_gang_that_nobody_names() -> None:
    assert group_of(Bench().engine, "default/nothing") is None


def test_ordinals_are_those_of_english() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 112, 123)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th", "123rd",
    ]  # fmt: skip


gang_shapes = st.fixed_dictionaries(
    {
        "cpus": st.lists(st.sampled_from(["1", "2", "4"]), min_size=1, max_size=4),
        "members": st.lists(st.sampled_from(["500m", "1", "2"]), min_size=1, max_size=6),
        "minimum": st.integers(1, 6),
        "seed": st.integers(0, 3),
    }
)


@settings(max_examples=40, deadline=None)
@given(gang_shapes)
def test_the_scheduler_does_with_a_gang_what_the_explanation_says(shape: dict[str, Any]) -> None:
    minimum = min(shape["minimum"], len(shape["members"]))
    cluster = Bench(seed=shape["seed"])
    for number, cpu in enumerate(shape["cpus"]):
        cluster.node(f"node-{number}", cpu=cpu)
    cluster.pod_group("job", minimum)
    bodies = []
    for number, cpu in enumerate(shape["members"]):
        cluster.member(f"job-{number}", "job", cpu=cpu)
        body = world.pod(f"job-{number}", cpu=cpu)
        body["metadata"]["labels"] = {"pod-group.scheduling.sigs.k8s.io": "job"}
        body["metadata"]["uid"] = f"default/job-{number}"  # by it chance chooses among equal nodes
        bodies.append(body)
    answer = cluster.gang("job")
    bound: list[str] = []

    async def story(world_: World) -> None:
        for number, cpu in enumerate(shape["cpus"]):
            world_.api.put("Node", world.node(f"node-{number}", cpu=cpu))
        world_.api.put(
            "PodGroup",
            {"metadata": {"namespace": "default", "name": "job"}, "spec": {"minMember": minimum}},
        )
        for body in bodies:
            world_.api.put("Pod", body)
        await world_.settle(30)
        bound.extend(name for name, node in world_.api.placements().items() if node)

    play(story, seed=shape["seed"])
    assert bool(bound) == (answer.verdict is PodVerdict.SCHEDULABLE), (answer.sentence, bound)
    if bound:
        assert len(bound) >= minimum


@pytest.mark.parametrize("singly_max", [2, 128], ids=["members are counted", "members are tried"])
def test_a_scheduler_that_is_asked_all_the_time_does_the_same(
    singly_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_group, "SINGLY_MAX", singly_max)

    def placements(*, is_asked: bool) -> dict[str, str]:
        found: dict[str, str] = {}

        async def story(world_: World) -> None:
            async def ask() -> None:
                for name in ("big", "small") if is_asked else ():
                    await explain_gang_live(world_.scheduler, f"default/{name}")
                for each in world_.scheduler.caches.pods.list() if is_asked else ():
                    await explain_live(world_.scheduler, each, PodQuestion())

            world_.nodes(2, cpu="4")
            for gang, count, cpu in (("big", 3, "3"), ("small", 4, "1")):
                meta = {"namespace": "default", "name": gang}
                world_.api.put("PodGroup", {"metadata": meta, "spec": {"minMember": count}})
                for number in range(count):
                    body = world.pod(f"{gang}-{number}", cpu=cpu)
                    body["metadata"]["labels"] = {"pod-group.scheduling.sigs.k8s.io": gang}
                    world_.api.put("Pod", body)
                    await ask()
                    await world_.settle(0.001)
                    await ask()
            for _ in range(20):
                await world_.settle(1)
                await ask()
            found.update(world_.api.placements())
            assert world_.scheduler.table.assumed_count == 0

        play(story, seed=1)
        return found

    undisturbed = placements(is_asked=False)

    assert placements(is_asked=True) == undisturbed
    assert [name for name, node in sorted(undisturbed.items()) if node] == [f"small-{n}" for n in range(4)]
