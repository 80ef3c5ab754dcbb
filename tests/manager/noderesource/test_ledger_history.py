"""What a node lent at any minute of the last day sums to what stood on it then."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api import labels, quantity, resources
from koordinator.api.core import Node, Pod
from koordinator.clock import FixedClock
from koordinator.manager import http
from koordinator.manager.metrics import ManagerMetrics
from koordinator.manager.noderesource.decide import Withdrawal
from koordinator.manager.noderesource.ledger import KINDS, LentLedger, ledgers
from koordinator.manager.noderesource.ledger_answers import LentAnswers
from koordinator.manager.noderesource.ledger_history import LedgerHistory, LentMinute, read
from koordinator.manager.noderesource.ledger_pages import packed, unpacked
from koordinator.manager.noderesource.rows import NO_READING
from koordinator.manager.options import ManagerOptions
from tests.manager.noderesource import world as worlds
from tests.manager.noderesource.test_properties import NOW_S, Body, decided, nodes, row_of
from tests.manager.noderesource.world import World, node_body, pod_body, pod_usage

ON = '{"enable": true}'
int64 = st.integers(-(2**62), 2**62)


def history(hours: int = 24, bytes_max: int = 2**26) -> LedgerHistory:
    return LedgerHistory(hours=hours, bytes_max=bytes_max)


def at(kept: LedgerHistory, minute: int, node: str = "n1") -> LentMinute | None:
    found = [each for page in kept.minutes(minute, node) for each in read(page, {node})]
    return found[0] if found else None


def sums(ledger: LentLedger) -> tuple[int, int]:
    """All terms, and what is not written yet."""
    every = [*ledger.terms, ledger.unwritten]
    return sum(term.cpu_milli for term in every), sum(term.memory_bytes for term in every)


@given(st.lists(st.lists(int64, min_size=3, max_size=3), min_size=1, max_size=5))
def test_differences_come_back_as_they_were(rows: list[list[int]]) -> None:
    table = np.array(rows, np.int64)

    assert (unpacked(packed(table), table.shape) == table).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(nodes, min_size=1, max_size=4), st.integers(0, 150))
def test_a_past_minute_is_told_as_that_moment_was(bodies: list[Body], start: int) -> None:
    kept, told = history(), []
    for number, body in enumerate(bodies):
        row = row_of(body)
        (target,) = decided([row])
        kept.take([row], [target])
        list(kept.keep({"n1": row}, start + number))
        told.append((ledgers(row, target), row.withdrawal, row.reported_s))

    for number, (found, withdrawal, reported_s) in enumerate(told):
        past = at(kept, start + number)
        assert past is not None
        assert (past.ledgers, past.withdrawal, past.reported_s) == (found, withdrawal, reported_s)


policies = st.fixed_dictionaries(
    {
        "enable": st.sampled_from([True, True, True, False]),
        "cpuCalculatePolicy": st.sampled_from(["usage", "maxUsageRequest"]),
        "memoryCalculatePolicy": st.sampled_from(["usage", "request", "maxUsageRequest"]),
        "cpuReclaimThresholdPercent": st.integers(30, 110),
        "batchCPUThresholdPercent": st.sampled_from([5, 40, 100]),
        "batchMemoryThresholdPercent": st.sampled_from([5, 40, 100]),
        "midUnallocatedPercent": st.sampled_from([0, 30]),
        "resourceDiffThreshold": st.sampled_from([0.1, 0.5]),
        "updateTimeThresholdSeconds": st.sampled_from([120, 600]),
        "degradeTimeMinutes": st.sampled_from([2, 15]),
    }
)
steps = st.lists(
    st.fixed_dictionaries(
        {
            "system": st.none() | st.tuples(st.integers(0, 60_000), st.integers(0, 100 * 10**9)),
            "policy": st.none() | st.none() | policies,
            "taken": st.none() | st.none() | st.integers(0, 30_000),
            "ratio": st.none() | st.none() | st.sampled_from(["1.25", "1.00"]),
            "minutes": st.integers(1, 6),
        }
    ),
    min_size=2,
    max_size=6,
)


@settings(max_examples=12, deadline=None)
@given(steps, policies)
def test_every_minute_of_a_day_sums_to_what_is_on_the_node(plan: list[dict[str, Any]], first: Body) -> None:
    async def scenario(world: World) -> None:
        await world.user.create(Pod, pod_body("web"), "default")
        await world.configure(colocation_config=json.dumps(first))
        for step in plan:
            await _act(world, step)
            for _ in range(step["minutes"]):
                await _to_next_minute(world)
                await _holds_now(world)

    worlds.run(scenario)


async def _act(world: World, step: dict[str, Any]) -> None:
    if step["policy"] is not None:
        await world.configure(colocation_config=json.dumps(step["policy"]))
    annotations = {}
    if step["taken"] is not None:
        taken = {
            "name": "yarn",
            "priority": "koord-batch",
            "resources": {worlds.BATCH_CPU: str(step["taken"])},
        }
        annotations[labels.NODE_THIRD_PARTY_ALLOCATIONS] = json.dumps({"allocations": [taken]})
    if step["ratio"] is not None:
        annotations["node.koordinator.sh/cpu-normalization-ratio"] = step["ratio"]
    if annotations:
        await world.user.patch(Node, "n1", {"metadata": {"annotations": annotations}})
    if step["system"] is not None:
        cpu, memory = step["system"]
        used = {"resources": {"cpu": f"{cpu}m", "memory": str(memory)}}
        await world.report(
            nodeMetric={"nodeUsage": used, "systemUsage": used},
            podsMetric=[pod_usage("web", "3", "1111111111")],
            prodReclaimableMetric={"resource": {"resources": {"cpu": "9", "memory": "9123456789"}}},
        )


async def _to_next_minute(world: World) -> None:
    await asyncio.sleep(60 - world.cluster.clock.now() % 60 + 0.001)


async def _holds_now(world: World) -> None:
    """The newest minute of the ledger against the Node as the API has it."""
    allocatable = (await world.node()).status.allocatable
    past = at(world.controller.history, int(world.cluster.clock.now()) // 60)
    assert past is not None and past.at_s == world.cluster.clock.now() // 60 * 60
    found = {ledger.kind: ledger for ledger in past.ledgers}
    for kind, names in KINDS.items():
        have = tuple(quantity.value(allocatable[name]) if name in allocatable else None for name in names)
        if kind not in found:
            assert have == (None, None)
            continue
        assert found[kind].on_node == have
        assert sums(found[kind]) == tuple(amount or 0 for amount in have)
        if past.withdrawal is Withdrawal.NONE and past.at_s == past.written_s:
            assert not found[kind].unwritten.cpu_milli, "what was just written is what was decided"


def test_what_comes_after_a_decision_changes_nothing_that_is_told_of_it() -> None:
    row = row_of(_plain())
    (target,) = decided([row])
    told, services = ledgers(row, target), [pod for _, _, pod in row.top_services()]
    kept = history()
    kept.take([row], [target])

    row.pods.clear()
    row.see_reading(NO_READING, NOW_S)
    row.strategy, row.withdrawal = None, Withdrawal.MISSING
    list(kept.keep({"n1": row}, 5))

    past = at(kept, 5)
    assert past is not None and past.ledgers == told
    assert services and [each.pod for each in past.services] == services


def test_the_oldest_hours_go_first_when_memory_is_used_up() -> None:
    row = row_of(_plain())
    (target,) = decided([row])
    kept = history(bytes_max=60_000)
    for minute in range(10 * 60):
        kept.take([row], [target])
        list(kept.keep({"n1": row}, minute))

    assert kept.byte_count < 120_000
    assert kept.first_minute is not None and kept.first_minute % 60 == 0 and kept.first_minute > 0
    assert at(kept, 599) is not None and at(kept, 1) is None


@pytest.mark.parametrize("last", [4 * 60, 4 * 60 + 20, 5 * 60 - 1])
def test_every_minute_of_the_hours_asked_for_is_kept_and_little_more(last: int) -> None:
    row = row_of(_plain())
    kept = history(hours=2)
    kept.take([row], decided([row]))
    for minute in range(last + 1):
        list(kept.keep({"n1": row}, minute))

    assert at(kept, last - 2 * 60) is not None
    assert kept.first_minute == 2 * 60


@pytest.mark.parametrize("back", [10, 80])
def test_a_clock_that_is_set_back_takes_only_what_was_after_it(back: int) -> None:
    row = row_of(_plain())
    (target,) = decided([row])
    kept, now = history(), 2 * 10**6 * 60 + 30
    kept.take([row], [target])
    for minute in (now - back - 90, now - 1, now, now - back, now - back + 1):
        list(kept.keep({"n1": row}, minute))

    for minute in (now - back, now - back + 1):
        past = at(kept, minute)
        assert past is not None and past.at_s == minute * 60
        assert past.ledgers == ledgers(row, target)
    assert at(kept, now) is None
    assert at(kept, now - back - 90) is not None


def test_a_node_that_went_keeps_its_past_and_lends_its_place_only_later() -> None:
    old, new = row_of(_plain()), row_of(_plain(), "n2")
    kept = history()
    kept.take([old], decided([old]))
    list(kept.keep({"n1": old}, 1))
    kept.forget("n1")
    kept.take([new], decided([new]))
    for minute in (2, 3, 61, 121):
        list(kept.keep({"n2": new}, minute))

    assert at(kept, 1, "n1") is not None and at(kept, 2, "n1") is None
    assert at(kept, 3, "n2") is not None and at(kept, 1, "n2") is None
    assert at(kept, 61, "n2") is not None


def test_nothing_is_made_up_for_minutes_that_nobody_kept() -> None:
    row = row_of(_plain())
    kept = history()
    kept.take([row], decided([row]))
    list(kept.keep({"n1": row}, 10))

    assert at(kept, 9) is None
    assert at(kept, 12) is not None
    assert at(kept, 13) is None


def _plain() -> Body:
    return {
        "capacity": {"cpu": "64", "memory": "128Gi"},
        "system": {"cpu": "2", "memory": "1G"},
        "pods": [({"cpu": "8", "memory": "8G"}, {"cpu": "3", "memory": "2G"}, "LS", 0)],
        "gone": [],
        "age_s": 0,
        "model": "",
        "cards": 0,
        "taken": None,
        "strategy": {"enable": True},
    }


def test_the_manager_answers_for_a_node_a_pool_and_the_cluster() -> None:
    async def scenario(world: World) -> None:
        for name in ("n1", "n2"):
            await world.report(name)
        await world.configure(colocation_config=ON)
        await _to_next_minute(world)
        answers = world.manager.lent
        assert answers is not None
        now = world.cluster.clock.now()

        one = await answers.answer("n1")
        pool = await answers.answer(pool="pool=db")
        every = await answers.answer()

        assert one["state"] == "Lending" and one["ageSeconds"] is not None
        (batch,) = (each for each in one["lent"] if each["kind"] == "batch")
        assert sum(term["cpuMilli"] for term in batch["terms"]) == batch["cpuMilli"]
        assert batch["onNode"]["cpuMilli"] == quantity.value(
            (await world.node()).status.allocatable[worlds.BATCH_CPU]
        )
        assert [each["node"] for each in pool["nodes"]] == ["n2"]
        assert len(every["nodes"]) == 2 and every["states"] == {"Lending": 2}
        (total,) = (each for each in every["lent"] if each["kind"] == "batch")
        assert total["cpuMilli"] == 2 * batch["cpuMilli"] and now > 0

    worlds.run(scenario, nodes=[node_body("n1"), node_body("n2", labels={"pool": "db"})])


def test_the_endpoint_says_why_it_has_no_answer() -> None:
    row = row_of(_plain())
    kept = history()
    kept.take([row], decided([row]))
    list(kept.keep({"n1": row}, int(NOW_S) // 60))

    async def ask(path: str) -> tuple[int, Any]:
        answers = LentAnswers(kept, {"n1": row}, lambda: NOW_S)
        app = http.metrics_application(ManagerMetrics(FixedClock(NOW_S)), answers)
        async with TestClient(TestServer(app)) as client:
            answer = await client.get(path)
            return answer.status, await answer.json()

    root = "/apis/v1/explain/lent"
    for path, status, words in (
        (f"{root}/n1", 200, ""),
        (root, 200, ""),
        (f"{root}/n9", 404, "nothing is kept of node n9"),
        (f"{root}/n1?at=2020-01-01T00:00:00Z", 404, "minutes since"),
        (f"{root}/n1?at=quarter", 400, "is no time"),
        (f"{root}?pool=,,", 400, "pool"),
    ):
        found = asyncio.run(ask(path))
        assert found[0] == status and words in str(found[1]), (path, found)


def test_a_manager_that_is_told_so_keeps_no_ledger() -> None:
    async def scenario(world: World) -> None:
        await world.report()
        await _to_next_minute(world)
        assert world.controller.history.first_minute is None

    worlds.run(scenario, options=ManagerOptions(lent_ledger_hours=0))


def test_terms_of_many_nodes_at_once_are_those_of_each() -> None:
    bodies: Sequence[Body] = [_plain(), {**_plain(), "taken": 900}, {**_plain(), "age_s": 901}]
    rows = [row_of(body, f"n{number}") for number, body in enumerate(bodies)]
    targets = decided(rows)
    kept = history()
    kept.take(rows, targets)
    list(kept.keep({row.name: row for row in rows}, 5))

    for row, target in zip(rows, targets, strict=True):
        past = at(kept, 5, row.name)
        assert past is not None and past.ledgers == ledgers(row, target)
    assert resources.BATCH_CPU in targets[0].amounts
