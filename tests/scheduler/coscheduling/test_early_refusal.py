"""Gangs that cannot start as things are take no place at all, and start whenever they could have without that."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from koordinator.api.core import Pod
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.scheduler.plugins.coscheduling.early_refusal import EarlyRefusals, GangShortage
from koordinator.scheduler.plugins.coscheduling.events import EndReason, Permit
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.plugins.coscheduling.running import RunningGangs
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.coscheduling.gang_builders import condition, in_group, pod_group
from tests.scheduler.coscheduling.test_backoff import Attempts, put_gang
from tests.scheduler.coscheduling.test_plugin import Json, member, placed
from tests.scheduler.world import World, node, play, pod


class Places:
    """Counts the places that are taken, by the part of the pod's name before the dash."""

    def __init__(self, world: World) -> None:
        self.taken: list[str] = []
        assign = world.scheduler.table.assign

        def noted(info: Any, node_name: str, *, assumed: bool = False) -> None:
            if assumed and not world.scheduler.table.is_trial:
                self.taken.append(info.pod.metadata.name.split("-")[0])
            assign(info, node_name, assumed=assumed)

        world.scheduler.table.assign = noted  # type: ignore[method-assign]


def roles(*names: str) -> str:
    return json.dumps([f"default/{name}" for name in names])


def labelled(name: str, pool: str, cpu: str) -> Json:
    return node(name, cpu=cpu, labels={"pool": pool})


def in_pool(body: Json, pool: str) -> Json:
    body["spec"]["nodeSelector"] = {"pool": pool}
    return body


def test_a_gang_that_does_not_fit_takes_no_place_and_says_how_far_it_would_get() -> None:
    async def story(world: World) -> None:
        places = Places(world)
        world.nodes(3, cpu="4")
        put_gang(world, "job", 8, cpu="2")
        await world.settle(1)
        assert places.taken == []
        texts = [condition(world, f"job-{number}") for number in range(8)]
        own = [text for text in texts if "due to member" not in text]
        assert own == [
            "0/3 nodes are available: 3 Insufficient cpu, gang default/job needs 8 members, at most 6 fit now. "
            "preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
        ]
        assert all("at most 6 fit now" in text for text in texts)
        world.api.put("Node", node("node-3", cpu="4"))
        await world.settle(12)
        assert len(placed(world)) == 8

    play(story)


def test_members_that_are_gone_are_not_remembered() -> None:
    async def story(world: World) -> None:
        world.nodes(3, cpu="4")
        put_gang(world, "job", 8, cpu="2")
        await world.settle(1)
        early = early_of(world)
        assert len(early._keys) == 8
        for number in range(8):
            world.api.remove("Pod", f"job-{number}", "default")
        await world.settle(1)
        assert not early._keys

    play(story)


def test_the_role_that_lacks_room_is_reported_and_only_what_helps_it_wakes_the_group() -> None:
    async def story(world: World) -> None:
        attempts, places = Attempts(world), Places(world)
        world.api.put("Node", labelled("small", "servers", "2"))
        world.api.put("Node", labelled("large", "workers", "2"))
        for number in range(3):
            body = member(f"worker-{number}", "worker", 3, groups=roles("ps", "worker"))
            world.api.put("Pod", in_pool(body, "workers"))
        world.api.put("Pod", in_pool(member("ps-0", "ps", 1, groups=roles("ps", "worker")), "servers"))
        await world.settle(1)
        assert places.taken == []
        assert "gang default/worker needs 3 members, at most 2 fit now" in condition(world, "ps-0")
        world.api.put("Node", labelled("small-2", "servers", "8"))
        await world.settle(30)
        assert attempts.total("ps") == 1
        world.api.put("Node", labelled("large-2", "workers", "1"))
        await world.settle(15)
        assert len(placed(world)) == 4

    play(story)


def test_roles_that_fit_each_alone_and_not_together_are_refused() -> None:
    async def story(world: World) -> None:
        places = Places(world)
        world.nodes(3, cpu="8")
        for number in range(3):
            world.api.put("Pod", member(f"worker-{number}", "worker", 3, "6", groups=roles("ps", "worker")))
        world.api.put("Pod", member("ps-0", "ps", 1, "5", groups=roles("ps", "worker")))
        await world.settle(1)
        assert places.taken == []
        assert "gangs default/ps, default/worker need 4 members, at most 3 fit now" in condition(
            world, "ps-0"
        )
        world.api.put("Node", node("node-3", cpu="8"))
        await world.settle(15)
        assert len(placed(world)) == 4

    play(story)


def test_a_refusal_of_roles_together_is_about_the_one_that_nodes_take_most_of() -> None:
    async def story(world: World) -> None:
        world.nodes(2, cpu="8")
        for role, count, cpu in (("worker", 2, "7"), ("ps", 3, "2")):
            for number in range(count):
                body = member(f"{role}-{number}", role, count, cpu, groups=roles("ps", "worker"))
                world.api.put("Pod", body)
        await world.settle(1)

        for name in ("worker-0", "ps-0"):
            begins = early_of(world)._gangs.info(f"default/{name}")
            assert begins is not None
            found = early_of(world).shortage(begins)
            assert found is not None
            assert found.text == "gangs default/ps, default/worker need 5 members, at most 4 fit now"
            assert {each.pod.metadata.name for each in found.about.members} == {"ps-0", "ps-1", "ps-2"}
            assert found.slots_of(world.scheduler.table.row_of("node-0")) > 1

    play(story)


def test_members_that_have_a_place_count() -> None:
    async def story(world: World) -> None:
        places = Places(world)
        world.nodes(2, cpu="2")
        for number in range(2):
            body = member(f"run-{number}", "job", 5, match_policy="waiting-and-running")
            body["spec"]["nodeName"] = "node-0"
            world.api.put("Pod", body)
        for number in range(3):
            world.api.put("Pod", member(f"job-{number}", "job", 5, match_policy="waiting-and-running"))
        await world.settle(1)
        assert places.taken == []
        assert any(
            "gang default/job needs 3 more members, at most 2 fit now" in condition(world, f"job-{number}")
            for number in range(3)
        )
        world.api.put("Node", node("node-2", cpu="1"))
        await world.settle(15)
        assert len(placed(world)) == 5

    play(story)


def early_of(world: World) -> EarlyRefusals:
    (profile,) = world.scheduler.engine.profiles.values()
    (early,) = [each.early for each in profile.plugins if isinstance(each, Coscheduling)]
    return early


def test_who_begins_a_round_needs_a_place_even_where_its_own_gang_lacks_nobody() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="2")
        more = {"match_policy": "waiting-and-running", "groups": roles("full", "short")}
        running = member("full-0", "full", 1, **more)
        running["spec"]["nodeName"] = "node-0"
        for body in (running, *(member(f"short-{number}", "short", 2, **more) for number in range(2))):
            world.api.put("Pod", body)
        world.api.put("Pod", member("full-1", "full", 1, **more))
        await world.settle(1)
        assert placed(world) == ["full-0"]

        texts = {}
        for name in ("full-1", "short-0"):
            begins = early_of(world)._gangs.info(f"default/{name}")
            assert begins is not None
            found = early_of(world).shortage(begins)
            texts[name] = found and found.text
        assert texts == {
            "full-1": "gangs default/full, default/short need 3 more members, at most 1 fits now",
            "short-0": "gang default/short needs 2 members, at most 1 fits now",
        }

    play(story)


def test_lenient_gangs_keep_the_places_that_they_find() -> None:
    async def story(world: World) -> None:
        places = Places(world)
        world.nodes(1, cpu="4")
        put_gang(world, "job", 6, mode="NonStrict")
        await world.settle(1)
        assert len(places.taken) == 4

    play(story)


def test_members_that_attract_each_other_are_tried() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "job"}}, "topologyKey": "zone"}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}

    async def story(world: World) -> None:
        for number in range(2):
            world.api.put("Node", node(f"node-{number}", cpu="4", labels={"zone": "here"}))
        for number in range(4):
            # Those with the label let the others in, which no node would take now.
            body = member(f"job-{number}", "job", 4, cpu="2")
            body["spec"]["affinity"] = affinity
            body["metadata"]["labels"] = {"app": "job" if number == 3 else "guest"}
            world.api.put("Pod", body)
        await world.settle(15)
        assert len(placed(world)) == 4

    play(story)


@pytest.mark.parametrize("inline", ["false", "true"])
def test_members_with_a_host_port_take_a_node_each(inline: str) -> None:
    async def story(world: World) -> None:
        places = Places(world)
        world.nodes(2, cpu="8")
        for number in range(3):
            body = member(f"job-{number}", "job", 3)
            body["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
            world.api.put("Pod", body)
        await world.settle(1)
        assert places.taken == []
        assert any(
            "2 node(s) didn't have free ports for the requested pod ports, gang default/job needs 3 members, "
            "at most 2 fit now" in condition(world, f"job-{number}")
            for number in range(3)
        )
        world.api.put("Node", node("node-2", cpu="1"))
        await world.settle(15)
        assert len(placed(world)) == 3

    play(story, gates=FeatureGates.of(Component.SCHEDULER, f"EnableInlineBatchSchedule={inline}"))


def gpu_node(name: str, count: int) -> Json:
    amounts = {
        "koordinator.sh/gpu-core": str(100 * count),
        "koordinator.sh/gpu-memory-ratio": str(100 * count),
    }
    return node(name, cpu="32", memory="64Gi", extra=amounts)


def gpus(name: str, count: int) -> Json:
    whole = ("koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio")
    full = {**dict.fromkeys(whole, "100"), "koordinator.sh/gpu-memory": "16Gi"}
    devices = [
        {"type": "gpu", "id": f"{name}-{minor}", "minor": minor, "health": True, "resources": full}
        for minor in range(count)
    ]
    return {"metadata": {"name": name}, "spec": {"devices": devices}}


def test_members_that_want_devices_are_counted_by_what_nodes_offer() -> None:
    async def story(world: World) -> None:
        places = Places(world)
        for name, count in (("large", 4), ("small", 1)):
            world.api.put("Device", gpus(name, count))
            world.api.put("Node", gpu_node(name, count))
        for number in range(6):
            requests = {
                "cpu": "1",
                "koordinator.sh/gpu-core": "100",
                "koordinator.sh/gpu-memory-ratio": "100",
            }
            body = member(f"job-{number}", "job", 6)
            body["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": requests}
            world.api.put("Pod", body)
        await world.settle(1)
        assert places.taken == []
        assert all("needs 6 members, at most 5 fit now" in condition(world, f"job-{n}") for n in range(6))
        world.api.put("Device", gpus("other", 1))
        world.api.put("Node", gpu_node("other", 1))
        await world.settle(15)
        assert len(placed(world)) == 6

    play(story)


def test_nobody_is_evicted_for_a_gang_that_would_not_fit_even_then() -> None:
    async def story(world: World) -> None:
        places = Places(world)
        world.nodes(2, cpu="4")
        for number in range(2):
            world.api.put("Pod", pod(f"low-{number}", cpu="2", priority=1))
        await world.settle(1)
        for number in range(5):
            body = member(f"job-{number}", "job", 5, cpu="2")
            body["spec"]["priority"] = 9
            world.api.put("Pod", body)
        await world.settle(60)
        assert placed(world) == ["low-0", "low-1"]
        assert "job" not in places.taken
        texts = [condition(world, f"job-{number}") for number in range(5)]
        assert any("preemption: evictions do not make room for all members" in text for text in texts)
        world.api.put("Node", node("node-2", cpu="2"))
        await world.settle(120)
        assert {f"job-{number}" for number in range(5)} <= set(placed(world))

    play(story)


def test_a_gang_is_refused_while_its_pods_would_evict_nobody_at_all() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="4")
        world.api.put("Pod", pod("low", cpu="1", priority=1))
        await world.settle(1)
        for number in range(4):
            body = member(f"job-{number}", "job", 4)
            body["spec"] |= {"priority": 9, "preemptionPolicy": "Never"}
            world.api.put("Pod", body)
        await world.settle(1)
        assert placed(world) == ["low"]
        texts = [condition(world, f"job-{number}") for number in range(4)]
        assert any(
            "at most 3 fit now. preemption: not eligible due to preemptionPolicy=Never." in t for t in texts
        )
        world.api.remove("Pod", "low", "default")
        await world.settle(15)
        assert len(placed(world)) == 4

    play(story)


CPUS = st.sampled_from(("500m", "1", "2", "3"))
POOLS = st.sampled_from(("left", "right"))
GANGS = st.tuples(
    st.lists(CPUS, min_size=1, max_size=5), st.integers(0, 2), st.sampled_from(("", "left", "right"))
)
"""What members ask for, how many of them are beyond the minimum, and where they have to go."""
WISHES = st.sampled_from(("none", "ports", "apart", "beside"))


def dressed(body: Json, wish: str, pool: str) -> Json:
    """The member with what it wants beside room."""
    if pool:
        in_pool(body, pool)
    if wish == "ports":
        body["spec"]["containers"][0]["ports"] = [{"hostPort": 80, "containerPort": 80}]
    if wish in ("apart", "beside"):
        body["metadata"]["labels"] = {"app": "gang"}
        term = {"labelSelector": {"matchLabels": {"app": "gang"}}, "topologyKey": "pool"}
        kind = "podAntiAffinity" if wish == "apart" else "podAffinity"
        body["spec"]["affinity"] = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return body


class Case(msgspec.Struct):
    """A cluster, its group of gangs, and a node that comes later."""

    nodes: list[tuple[int, str]]
    later: tuple[int, str]
    residents: list[tuple[str, bool]]
    """What pods ask for that are there before, and whether the gangs are more important than these."""
    gangs: list[tuple[list[str], int, str]]
    wish: str = "none"

    def play(self, **options: Any) -> list[list[str]]:
        """The members that are bound before and after the last node came."""
        found: list[list[str]] = []

        async def story(world: World) -> None:
            for number, (cpu, pool) in enumerate(self.nodes):
                world.api.put("Node", labelled(f"node-{number}", pool, str(cpu)))
            for number, (cpu, is_lesser) in enumerate(self.residents):
                world.api.put("Pod", pod(f"other-{number}", cpu=cpu, priority=0 if is_lesser else 9))
            await world.settle(1)
            for body in self.members():
                world.api.put("Pod", body)
            for _ in range(2):
                await world.settle(60)
                found.append([name for name in placed(world) if name.startswith("gang")])
                world.api.put("Node", labelled("later", self.later[1], str(self.later[0])))

        play(story, **options)
        return found

    def members(self) -> Iterator[Json]:
        names = roles(*(f"gang{number}" for number in range(len(self.gangs))))
        for number, (cpus, surplus, pool) in enumerate(self.gangs):
            least = max(1, len(cpus) - surplus)
            for index, cpu in enumerate(cpus):
                body = member(f"gang{number}-{index}", f"gang{number}", least, cpu, groups=names)
                body["spec"]["priority"] = 9
                yield dressed(body, self.wish, pool)


CASES = st.builds(
    Case,
    nodes=st.lists(st.tuples(st.integers(1, 6), POOLS), min_size=1, max_size=4),
    later=st.tuples(st.integers(1, 6), POOLS),
    residents=st.lists(st.tuples(CPUS, st.booleans()), max_size=3),
    gangs=st.lists(GANGS, min_size=1, max_size=2),
    wish=WISHES,
)


@settings(max_examples=25, deadline=None)
@given(CASES)
@example(Case([(3, "left"), (3, "left")], (1, "right"), [], [(["2", "1", "2", "1"], 0, "")]))
@example(
    Case([(2, "left"), (2, "left")], (1, "left"), [("1", True)], [(["1", "1", "2"], 1, ""), (["1"], 0, "")])
)
def test_no_round_succeeds_that_would_have_been_refused(case: Case) -> None:
    refused: list[GangShortage | None] = []
    wrong: list[GangShortage] = []
    ask, permit = EarlyRefusals.shortage, RunningGangs.permit

    def asking(self: EarlyRefusals, pod: PodInfo) -> None:
        refused.append(ask(self, pod))

    def permitting(self: RunningGangs, pod: Pod) -> Permit:
        answer = permit(self, pod)
        if answer.ended is EndReason.SUCCEEDED and (found := refused[-1]) is not None:
            wrong.append(found)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EarlyRefusals, "shortage", asking)
        patch.setattr(RunningGangs, "permit", permitting)
        case.play()
    assert not wrong


@settings(max_examples=12, deadline=None)
@given(CASES, st.integers(1, 6), CPUS, st.booleans())
def test_gangs_of_equal_members_start_when_they_would_if_they_were_tried(
    case: Case, count: int, cpu: str, inline: bool
) -> None:
    [(_, surplus, pool), *_] = case.gangs
    case.gangs = [([cpu] * count, surplus, pool)]
    gates = FeatureGates.of(Component.SCHEDULER, f"EnableInlineBatchSchedule={str(inline).lower()}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EarlyRefusals, "shortage", lambda self, pod: None)
        tried = case.play(gates=gates)
    assert case.play(gates=gates) == tried


def test_a_pod_group_shows_the_same_phase_as_when_its_members_were_tried() -> None:
    async def story(world: World) -> None:
        world.nodes(1, cpu="2")
        world.api.put("PodGroup", pod_group("job", 3))
        for number in range(3):
            world.api.put("Pod", in_group(f"job-{number}", "job"))
        await world.settle(10)
        [found] = world.api.objects["PodGroup"].values()
        assert found["status"]["phase"] == "Scheduling"

    play(story)


def test_members_that_know_why_are_not_told_again_and_those_that_do_not_are() -> None:
    async def story(world: World) -> None:
        attempts = Attempts(world)
        world.nodes(1, cpu="4")
        put_gang(world, "job", 6)

        async def another_round() -> int:
            before = attempts.total("job")
            world.api.put("Node", node("node-0", cpu="4", pods=109 + attempts.total("job") % 2))
            await world.settle(12)
            return attempts.total("job") - before

        await world.settle(12)
        assert attempts.total("job") == 6
        assert await another_round() == 1
        world.api.put("Pod", member("job-late", "job", 6))
        assert await another_round() == 2
        assert "at most 4 fit now" in condition(world, "job-late")
        world.api.put("Node", node("node-1", cpu="1"))
        await world.settle(12)
        assert all("at most 5 fit now" in condition(world, name) for name in world.api.placements())
        # Whoever's condition got lost is told anyhow some day.
        await world.settle(250)
        assert await another_round() == 7

    play(story)
