"""Reports that are missing, old or absurd, wrong clocks, a failing API.

Nothing is lent that nobody vouches for, nothing oscillates, and people see why.
"""

import asyncio
from typing import Any

import pytest

from koordinator import clock as clocks
from koordinator.api import defaults, labels
from koordinator.api.core import ConfigMap, Node
from koordinator.api.node_metric import NodeMetric
from koordinator.cluster import errors
from koordinator.manager.noderesource.writer import CONCURRENT_WRITES_MAX
from tests.manager.noderesource.world import (
    BATCH_CPU,
    MID_CPU,
    World,
    create_pod,
    node_body,
    pod_usage,
    run,
)

NEGATIVE = {"podsMetric": [pod_usage("web", "-5", "1G")]}


def system(cpu: str) -> dict[str, Any]:
    return {"nodeMetric": {"systemUsage": {"resources": {"cpu": cpu, "memory": "12G"}}}}


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        pytest.param(NEGATIVE, "status.podsMetric of default/web: cpu -5 is negative", id="a negative pod"),
        pytest.param(
            system("-1"), "status.nodeMetric.systemUsage: cpu -1 is negative", id="a negative system"
        ),
        pytest.param(system("5M"), "cpu 5e+06 is above 1000000 cores", id="more cores than exist"),
        pytest.param(system("NaN"), "'NaN' is not a quantity", id="no number"),
        pytest.param(
            {
                "hostApplicationMetric": [
                    {"name": "x", "priority": "koord-prod", "usage": {"resources": {"cpu": "-1"}}}
                ]
            },
            "usage of host application x: cpu -1 is negative",
            id="a negative application that the system's usage would hide",
        ),
    ],
)
def test_a_report_that_cannot_be_true_withdraws_what_its_node_lends(
    changes: dict[str, Any], reported: str
) -> None:
    async def scenario(world: World) -> None:
        await world.report()
        await world.report("n2")
        assert (await world.node()).status.allocatable[BATCH_CPU] == "53k"

        await world.report(**changes)

        found = (await world.node()).status.allocatable
        assert BATCH_CPU not in found and MID_CPU not in found
        assert (await world.node("n2")).status.allocatable[BATCH_CPU] == "53k"
        ((reason, message),) = await world.events()
        assert reason == "NodeMetricRejected" and reported in message
        await world.report(**changes)
        assert len(await world.events()) == 1

        await world.report()
        assert (await world.node()).status.allocatable[BATCH_CPU] == "53k"
        assert [reason for reason, _ in await world.events()] == [
            "NodeMetricRejected",
            "NodeResourceRestored",
        ]

    run(scenario, nodes=[node_body("n1"), node_body("n2")])


def test_a_report_without_anything_of_the_node_is_none() -> None:
    async def scenario(world: World) -> None:
        await world.report()
        await world.report(nodeMetric=None)
        assert BATCH_CPU not in (await world.node()).status.allocatable
        assert [reason for reason, _ in await world.events()] == ["NodeMetricEmpty"]

    run(scenario)


def test_a_silent_agent_loses_its_batch_once_and_for_a_reason() -> None:
    async def scenario(world: World) -> None:
        await world.report()
        await asyncio.sleep(16 * 60)

        assert BATCH_CPU not in (await world.node()).status.allocatable
        ((reason, message),) = await world.events()
        assert reason == "NodeMetricExpired"
        assert "degradedByBatchResource" in message and "allows 15m0s" in message
        writes = len(world.cluster.writes)
        await asyncio.sleep(60 * 60)
        assert len(world.cluster.writes) == writes and len(await world.events()) == 1

    run(scenario)


def test_a_node_that_never_reports_is_told_after_some_minutes() -> None:
    async def scenario(world: World) -> None:
        await asyncio.sleep(240)
        assert await world.events() == []
        await asyncio.sleep(120)
        ((reason, message),) = await world.events()
        assert reason == "NodeMetricMissing" and "does koordlet run" in message

    run(scenario)


def test_a_clock_that_is_ahead_does_not_keep_a_dead_agent_fresh() -> None:
    async def scenario(world: World) -> None:
        await world.report(age_s=-24 * 3600)
        assert (await world.node()).status.allocatable[BATCH_CPU] == "53k"
        ((reason, message),) = await world.events()
        assert reason == "NodeClockSkewed" and "24h0m0s ahead" in message

        await asyncio.sleep(16 * 60)

        assert BATCH_CPU not in (await world.node()).status.allocatable

    run(scenario)


def test_a_clock_that_is_behind_lends_nothing_and_says_how_old_the_report_seems() -> None:
    async def scenario(world: World) -> None:
        await world.report()
        for _ in range(3):
            await world.report(age_s=3600)
        assert BATCH_CPU not in (await world.node()).status.allocatable
        ((reason, message),) = await world.events()
        assert reason == "NodeMetricExpired" and "1h0m" in message

    run(scenario)


def test_a_deleted_configuration_withdraws_everything() -> None:
    async def scenario(world: World) -> None:
        await world.report()
        await world.user.delete(ConfigMap, defaults.SLO_CONFIG_NAME, defaults.NAMESPACE)
        await asyncio.sleep(1)
        found = (await world.node()).status
        assert not {BATCH_CPU, MID_CPU} & (found.allocatable.keys() | found.capacity.keys())
        assert [reason for reason, _ in await world.events()] == ["ColocationDisabled"]

    run(scenario)


def lent_beside_a_pod_that_requests(cpu: str) -> Any:
    lent = []

    async def scenario(world: World) -> None:
        await create_pod(world, "odd", cpu=cpu)
        await world.report(podsMetric=[pod_usage("odd", "10", "1G")])
        lent.append((await world.node()).status.allocatable[BATCH_CPU])

    run(scenario)
    return lent[0]


def test_the_use_of_a_pod_counts_although_its_request_cannot_be_read() -> None:
    assert lent_beside_a_pod_that_requests("many") == lent_beside_a_pod_that_requests("20")


def test_a_deleted_report_withdraws_and_the_next_one_restores() -> None:
    async def scenario(world: World) -> None:
        await world.report()
        await world.user.delete(NodeMetric, "n1")
        await asyncio.sleep(1)
        assert BATCH_CPU not in (await world.node()).status.allocatable
        await world.report()
        assert (await world.node()).status.allocatable[BATCH_CPU] == "53k"

    run(scenario)


def test_a_node_that_a_tidal_pool_lends_as_a_whole_lends_its_cores_once() -> None:
    async def scenario(world: World) -> None:
        await world.report()
        assert (await world.node()).status.allocatable[BATCH_CPU] == "53k"

        for phase, lends in (("to-batch", True), ("batch", False), ("to-online", True)):
            await world.user.patch(Node, "n1", {"metadata": {"labels": {labels.TIDAL_PHASE: phase}}})
            await asyncio.sleep(2)
            assert (BATCH_CPU in (await world.node()).status.allocatable) is lends, phase
        assert [reason for reason, _ in await world.events()] == ["NodeLentWhole"]

    run(scenario)


def test_equal_reports_and_refreshes_write_nothing() -> None:
    async def scenario(world: World) -> None:
        await create_pod(world, "web")
        usage = [pod_usage("web", "10", "10G")]
        await world.report(podsMetric=usage)
        writes = len(world.cluster.writes)
        for _ in range(12):
            await asyncio.sleep(60)
            await world.report(podsMetric=usage)
        assert len(world.cluster.writes) == writes

    run(scenario)


def test_small_changes_wait_for_the_update_threshold() -> None:
    async def scenario(world: World) -> None:
        await world.report(**system("7"))
        await world.report(**system("8"))
        assert (await world.node()).status.allocatable[BATCH_CPU] == "53k"
        await asyncio.sleep(301)
        await world.report(**system("8"))
        assert (await world.node()).status.allocatable[BATCH_CPU] == "52k"

    run(scenario)


def test_heartbeats_of_kubelets_make_no_work() -> None:
    async def scenario(world: World) -> None:
        await world.report()
        await asyncio.sleep(5)
        before = world.controller.calculate_count
        for number in range(5):
            condition = {"type": "Ready", "status": "True", "reason": f"r{number}"}
            await world.user.patch(Node, "n1", {"status": {"conditions": [condition]}}, subresource="status")
            await asyncio.sleep(1)
        assert world.controller.calculate_count == before

        allocatable = {"status": {"allocatable": {"cpu": "80"}}}
        await world.user.patch(Node, "n1", allocatable, subresource="status")
        await asyncio.sleep(1)
        assert (await world.node()).status.allocatable[BATCH_CPU] == "40k"

    run(scenario)


def test_somebody_who_takes_our_resource_away_gets_it_back() -> None:
    async def scenario(world: World) -> None:
        await world.report()
        patch: dict[str, Any] = {"status": {"allocatable": {BATCH_CPU: None}}}
        await world.user.patch(Node, "n1", patch, subresource="status")
        await asyncio.sleep(1)
        assert (await world.node()).status.allocatable[BATCH_CPU] == "53k"

    run(scenario)


@pytest.mark.parametrize(
    "error",
    [
        errors.Conflict("changed meanwhile"),
        errors.TooManyRequests("slow down"),
        errors.ServiceUnavailable("no API"),
        errors.InternalError("broken"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_refused_writes_are_tried_again_until_they_pass(error: errors.ApiError) -> None:
    async def scenario(world: World) -> None:
        world.cluster.failures = [error] * 5
        await world.report()
        await asyncio.sleep(10)
        assert (await world.node()).status.allocatable[BATCH_CPU] == "53k"
        counts = world.manager.shared.metrics.noderesource_reconciles.values
        assert counts[("failed", "updateNodeStatus")] == 5

    run(scenario)


def test_a_change_of_the_whole_cluster_is_written_bit_by_bit_and_newest_wins() -> None:
    names = [f"n{number}" for number in range(60)]

    async def scenario(world: World) -> None:
        for name in names:
            await world.report(name)
        world.cluster.writes.clear()
        world.cluster.write_s = 1.0

        await world.configure(colocation_config='{"enable": true, "cpuReclaimThresholdPercent": 90}')
        await world.configure(colocation_config='{"enable": true, "cpuReclaimThresholdPercent": 50}')
        await asyncio.sleep(20)

        assert world.cluster.under_way_max <= CONCURRENT_WRITES_MAX
        for name in names:
            assert (await world.node(name)).status.allocatable[BATCH_CPU] == "43k"
        # Those on their way when the second change came were written twice, the others once.
        assert len(world.cluster.writes) <= len(names) + 3 * CONCURRENT_WRITES_MAX

    run(scenario, nodes=[node_body(name) for name in names])


def test_what_takes_away_does_not_wait_for_what_gives() -> None:
    names = [f"n{number}" for number in range(80)]

    async def scenario(world: World) -> None:
        for name in names:
            await world.report(name)
        world.cluster.writes.clear()
        world.cluster.write_s = 2.0
        await world.configure(colocation_config='{"enable": true, "cpuReclaimThresholdPercent": 90}')

        await world.report("n79", **NEGATIVE)
        await asyncio.sleep(4)

        assert BATCH_CPU not in (await world.node("n79")).status.allocatable
        assert len(world.cluster.writes) < len(names)

    run(scenario, nodes=[node_body(name) for name in names])


def test_a_new_leader_spreads_small_differences_over_a_period() -> None:
    names = [f"n{number}" for number in range(40)]

    async def scenario(world: World) -> None:
        for name in names:
            await world.report(name)
        await world.stop()
        for name in names:
            status = {"status": {**system("8"), "updateTime": clocks.rfc3339(world.cluster.clock.now())}}
            await world.user.patch(NodeMetric, name, status, subresource="status")
        world.cluster.writes.clear()

        world.start()
        await asyncio.sleep(20)
        assert len(world.cluster.writes) < len(names) / 4

        await asyncio.sleep(300)
        for name in names:
            await world.report(name, **system("8"))
        await asyncio.sleep(5)
        assert len(world.cluster.writes) == len(names)

    run(scenario, nodes=[node_body(name) for name in names])
