"""ScheduleExplanation objects: asked by somebody, answered by the scheduler."""

import asyncio
from typing import Any

import msgspec
import pytest

from koordinator.api import labels
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.schedule_explanation import ScheduleExplanation
from koordinator.clock import rfc3339
from koordinator.scheduler.explain import objects
from tests.scheduler import world
from tests.scheduler.explain.builders import Bench, stock_config
from tests.scheduler.world import World, node, play, pod

Json = dict[str, Any]
KIND = "ScheduleExplanation"
ZONE = "topology.kubernetes.io/zone"


def question(key: str, *, ttl: str | None = None, own_labels: Json | None = None) -> Json:
    spec: Json = {"questionObjectKey": key}
    if ttl is not None:
        spec["ttl"] = ttl
    created = rfc3339(world.EPOCH_S)
    meta = {"name": "why", "namespace": "default", "creationTimestamp": created, "labels": own_labels or {}}
    return {"metadata": meta, "spec": spec}


async def answered(story: World, seconds: float = 0.1) -> Json:
    await asyncio.sleep(seconds)
    found: ScheduleExplanation = await story.api.get(ScheduleExplanation, "why", "default")
    status: Json = msgspec.to_builtins(found.status)
    return status


def test_a_pod_that_does_not_fit_is_answered_with_nodes_by_reason() -> None:
    async def story(world_: World) -> None:
        world_.api.put("Node", node("n-0", cpu="1"))
        world_.api.put("Node", node("n-1", cpu="8", unschedulable=True))
        world_.api.put("Pod", pod("web", cpu="2"))
        world_.api.put(KIND, question("default/web"))

        status = await answered(world_)

        assert "schedulable" not in status
        [whole] = status["detailedExplanation"]
        assert whole["scheduleExplanation"]["nodeFailedDetails"] == [
            {"failedPlugin": "NodeResourcesFit", "reason": "Insufficient cpu", "failedNodes": ["n-0"]},
            {
                "failedPlugin": "NodeUnschedulable",
                "reason": "node(s) were unschedulable",
                "failedNodes": ["n-1"],
            },
        ]
        assert status["failedMessage"].startswith("0/2 nodes are available: ")

    play(story)


def test_a_changed_cluster_changes_the_answer_and_stale_members_go() -> None:
    async def story(world_: World) -> None:
        world_.api.put("Node", node("n-0", cpu="1"))
        world_.api.put("Pod", pod("web", cpu="2", schedulingGates=[{"name": "held"}]))
        world_.api.put(KIND, question("default/web"))
        assert "failedMessage" in await answered(world_)

        world_.api.put("Node", node("n-1", cpu="4"))
        status = await answered(world_, objects.CHECK_S + 1)

        assert status["schedulable"] is True
        assert "failedMessage" not in status
        [placed] = status["detailedExplanation"][0]["scheduleExplanation"]["feasibleSchedulingResult"]
        assert placed["nodeName"] == "n-1"

    play(story)


def test_an_answer_that_stays_the_same_is_dated_anew_each_minute() -> None:
    async def story(world_: World) -> None:
        world_.api.put("Node", node("n-0"))
        world_.api.put("Pod", pod("web"))
        world_.api.put(KIND, question("default/web"))
        first = (await answered(world_))["lastUpdateTime"]

        assert (await answered(world_, objects.REFRESH_S / 2))["lastUpdateTime"] == first
        assert (await answered(world_, objects.REFRESH_S))["lastUpdateTime"] > first

    play(story)


@pytest.mark.parametrize(
    ("ttl", "lives"),
    [
        pytest.param("30s", False, id="its time is over"),
        pytest.param("0", True, id="0 keeps it"),
        pytest.param("soon", True, id="what is not understood is not deleted"),
        pytest.param(None, True, id="a day by default"),
    ],
)
def test_questions_live_as_long_as_they_say(ttl: str | None, lives: bool) -> None:
    async def story(world_: World) -> None:
        world_.api.put("Node", node("n-0"))
        world_.api.put("Pod", pod("web"))
        world_.api.put(KIND, question("default/web", ttl=ttl))
        await asyncio.sleep(45)

        found = (await world_.api.list(ScheduleExplanation)).items
        assert bool(found) is lives

    play(story)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        pytest.param(
            question("default/nobody"), "no pod, job or gang is called 'default/nobody'", id="no such pod"
        ),
        pytest.param(
            {
                "metadata": {"name": "why", "namespace": "default"},
                "spec": {"questionObjectTemplate": {"spec": {}}},
            },
            "questionObjectTemplate is not supported: name an existing pod in questionObjectKey",
            id="a template",
        ),
    ],
)
def test_a_question_that_nobody_can_answer_says_why(asked: Json, message: str) -> None:
    async def story(world_: World) -> None:
        world_.api.put("Node", node("n-0"))
        world_.api.put(KIND, asked)

        assert (await answered(world_))["failedMessage"] == message

    play(story)


def test_a_job_is_found_by_its_label_and_its_pods_are_placed_beside_each_other() -> None:
    bench = Bench(stock_config()).node("n-0", cpu="4").node("n-1", cpu="2")
    members = [bench.info(f"m-{number}", cpu="2") for number in range(4)]

    found = objects.explain_domain(bench.engine, members)

    assert found.schedule_explanation is not None
    placed = found.schedule_explanation.feasible_scheduling_result
    assert sorted(each.node_name for each in placed) == ["n-0", "n-0", "n-1"]
    assert not found.schedulable
    assert "2 Insufficient cpu" in found.failed_message
    assert bench.engine.table.pod_count.sum() == 0


def test_evictions_that_would_help_are_listed() -> None:
    bench = Bench(stock_config()).node("n-0", cpu="4")
    bench.running("batch", "n-0", cpu="4", priority=1)

    found = objects.explain_domain(bench.engine, [bench.info("urgent", cpu="2", priority=9)])

    assert (found.schedulable, found.schedulable_after_preemption) == (False, True)
    [victims] = found.node_possible_victims
    assert (victims.node_name, [each.name for each in victims.possible_victims]) == ("n-0", ["batch"])
    assert found.preempt_explanation is not None
    assert found.preempt_explanation.feasible_scheduling_result[0].node_name == "n-0"


def test_domains_are_answered_one_by_one_when_a_topology_key_asks_for_it() -> None:
    async def story(world_: World) -> None:
        world_.api.put("Node", node("n-0", cpu="1", labels={ZONE: "a"}))
        world_.api.put("Node", node("n-1", cpu="8", labels={ZONE: "b"}))
        held = {"schedulingGates": [{"name": "held"}]}
        world_.api.put("Pod", pod("web", cpu="2", **held))
        world_.api.put(KIND, question("default/web", own_labels={labels.TOPOLOGY_KEY_TO_EXPLAIN: "zone"}))

        status = await answered(world_)

        by_domain = {
            each.get("topologyDomain", ""): each.get("schedulable", False)
            for each in status["detailedExplanation"]
        }
        assert by_domain == {"": True, "a": False, "b": True}

    play(story)


def test_a_pod_is_asked_about_by_its_job_and_its_gang() -> None:
    body = pod("m")
    body["metadata"]["labels"] = {labels.QUESTIONED_OBJECT_KEY: "train", labels.POD_GROUP: "gang"}

    assert list(objects.questions_of(from_builtins(body, Pod))) == ["train", "default/train", "default/gang"]


def test_a_gang_that_lacks_members_is_not_schedulable_however_much_room_there_is() -> None:
    async def story(world_: World) -> None:
        world_.api.put("Node", node("n-0", cpu="8"))
        member = pod("job-0", cpu="1")
        member["metadata"]["labels"] = {labels.POD_GROUP: "job"}
        meta = {"namespace": "default", "name": "job"}
        world_.api.put("PodGroup", {"metadata": meta, "spec": {"minMember": 2}})
        world_.api.put("Pod", member)
        world_.api.put(KIND, question("default/job"))

        status = await answered(world_)

        assert "schedulable" not in status
        assert status["failedMessage"] == (
            "Gang default/job waits for members: default/job has 1 of at least 2 members."
        )

    play(story)


def test_a_quota_without_room_is_named_in_front() -> None:
    async def story(world_: World) -> None:
        world_.api.put("Node", node("n-0", cpu="8"))
        quota = {"metadata": {"namespace": "default", "name": "ads"}, "spec": {"max": {"cpu": "1"}}}
        world_.api.put("ElasticQuota", quota)
        waiting = pod("web", cpu="2", memory=None)
        waiting["metadata"]["labels"] = {labels.QUOTA_NAME: "ads"}
        world_.api.put("Pod", waiting)
        world_.api.put(KIND, question("default/web"))

        status = await answered(world_)

        assert status["failedMessage"].startswith("queue at root/ads: runtime 1 core, used 0, you ask 2")

    play(story)
