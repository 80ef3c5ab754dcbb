"""The operator beside the real koord-manager and a ResourceManager in this process, on virtual time."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from koordinator.api import labels
from koordinator.api.annotations.node import THIRD_PARTY_ALLOCATIONS, ThirdPartyAllocations
from koordinator.api.core import Node, Pod
from koordinator.clock import LoopClock
from koordinator.simulate import virtual_time
from koordinator.yarn import amounts
from koordinator.yarn.amounts import DEFAULT_CLUSTER, BatchAmount, YarnResource
from koordinator.yarn.cluster_loop import SyncRules
from koordinator.yarn.node_sync import NodeId, Policy
from tests.yarn.model_rm import ModelRM
from tests.yarn.world import SITE, World, kubernetes

POOL = 11
"""vcores of a node that services leave, of 20: without the margin of 40 % and one core in use."""
SPLIT = SyncRules(policy=Policy(yarn_percent=50, lends_once=True))
Scenario = Callable[[World, ModelRM, NodeId], Awaitable[None]]


def run(folder: Path, scenario: Scenario, rules: SyncRules | None = None, site: str = SITE) -> None:
    """One node with a NodeManager, and an operator, beside a scenario."""
    (folder / "yarn-site.xml").write_text(site)

    async def main(clock: LoopClock) -> None:
        rm = ModelRM()
        node = rm.register("nm-1")
        async with kubernetes(clock, folder, lambda cluster, observe: rm, rules) as world:
            await world.add_node("n1")
            await world.node_manager("nm-1:8041", "n1")
            async with world.operating():
                await asyncio.sleep(20)
                await scenario(world, rm, node)

    virtual_time.run_virtual(main)


def total(rm: ModelRM, node: NodeId) -> int:
    found = rm.reports[node].total
    assert found is not None
    return found.vcores


async def recorded(world: World) -> int:
    found = (await world.view()).recorded
    assert found is not None
    return found.cpu_milli // 1_000


def test_each_side_gets_what_the_other_leaves(tmp_path: Path) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        assert total(rm, node) == POOL
        rm.allocate(node, 4)
        await world.batch_pod("batch", 5_500)
        await asyncio.sleep(5)

        assert total(rm, node) == 5  # 5.5 cores are left, YARN's are whole
        view = await world.view()
        assert view.recorded == BatchAmount(4_000, 4 * 64 * amounts.MEBIBYTE)
        assert view.kube_total.cpu_milli == view.origin.cpu_milli - 4_000

        await world.delete_pod("batch")
        rm.allocate(node, -4)
        await asyncio.sleep(5)
        assert total(rm, node) == POOL
        assert await recorded(world) == 0

    run(tmp_path, scenario)


def test_a_little_that_yarn_takes_is_taken_off_pods_at_once(tmp_path: Path) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        rm.allocate(node, 1)  # less than the tenth by which amounts of nodes have to differ
        await asyncio.sleep(3)

        assert (await world.view()).kube_total.cpu_milli == (POOL - 1) * 1_000

    run(tmp_path, scenario)


@pytest.mark.parametrize("priorities", [("koord-batch", "koord-batch"), ("koord-mid",)])
def test_an_entry_that_hands_have_doubled_or_classed_otherwise_is_put_right(
    tmp_path: Path, priorities: Sequence[str]
) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        rm.allocate(node, 4)
        await asyncio.sleep(5)
        own = amounts.entry(BatchAmount(4_000, 4 * 64 * amounts.MEBIBYTE))
        made = ThirdPartyAllocations(
            allocations=[msgspec.structs.replace(own, priority=each) for each in priorities]
        )
        text = THIRD_PARTY_ALLOCATIONS.encode(made)
        key = labels.NODE_THIRD_PARTY_ALLOCATIONS
        await world.api.patch(Node, "n1", {"metadata": {"annotations": {key: text}}})
        await asyncio.sleep(5)

        found = (await world.api.get(Node, "n1")).metadata.annotations[key]
        assert amounts.read(found) == [own]
        assert (await world.view()).kube_total.cpu_milli == (POOL - 4) * 1_000

    run(tmp_path, scenario)


def test_a_lost_node_manager_counts_as_it_did_until_the_hold_ends(tmp_path: Path) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        rm.allocate(node, 4)
        await asyncio.sleep(5)

        del rm.reports[node]
        await asyncio.sleep(550)
        assert await recorded(world) == 4
        await asyncio.sleep(100)
        assert await recorded(world) == 0

    run(tmp_path, scenario)


def test_a_node_manager_whose_pod_goes_is_offered_nothing_and_its_containers_count(tmp_path: Path) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        rm.allocate(node, 4)
        await asyncio.sleep(5)

        await world.delete_pod("nm-n1")
        await asyncio.sleep(5)
        assert total(rm, node) == 0
        assert await recorded(world) == 4
        rm.allocate(node, -4)
        await asyncio.sleep(5)
        assert await recorded(world) == 0

    run(tmp_path, scenario)


def test_a_node_manager_that_leaves_is_offered_no_more_than_it_has(tmp_path: Path) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        await world.batch_pod("batch", 6_000)
        await asyncio.sleep(5)
        assert total(rm, node) == POOL - 6

        rm.change(node, state="DECOMMISSIONING")
        await asyncio.sleep(5)
        await world.delete_pod("batch")
        await asyncio.sleep(70)
        assert total(rm, node) == POOL - 6

    run(tmp_path, scenario)


def test_a_lent_node_gives_yarn_the_machine_until_services_want_it_back(tmp_path: Path) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        await world.delete_pod("nm-n1")
        await world.node_manager("nm-1:8041", "n1", {"cpu": "16", "memory": "32Gi"})
        await world.tidal_phase("batch")
        await asyncio.sleep(5)
        assert total(rm, node) == 16
        rm.allocate(node, 12)

        await world.tidal_phase("to-online", returns_in_s=300)
        await asyncio.sleep(5)
        last = rm.updates[-1]
        assert (last.node, last.total) == (node, YarnResource())
        assert last.over_commit_timeout_ms == pytest.approx(300_000, abs=5_000)  # containers end by then

        rm.allocate(node, -12)
        await world.delete_pod("nm-n1")
        await world.node_manager("nm-1:8041", "n1")
        await world.tidal_phase("online")
        await asyncio.sleep(30)
        assert total(rm, node) == POOL

    run(tmp_path, scenario)


def test_a_new_leader_that_knows_no_containers_yet_frees_nothing(tmp_path: Path) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        rm.allocate(node, 4)
        await asyncio.sleep(5)

        rm.fail_over()
        await asyncio.sleep(10)
        assert await recorded(world) == 4
        assert total(rm, node) == POOL  # told again: it had begun with what NodeManagers register
        rm.allocate(node, 4)
        await asyncio.sleep(20)
        assert await recorded(world) == 4

    run(tmp_path, scenario)


def test_an_operator_that_starts_anew_gives_nothing_back_before_it_knows(tmp_path: Path) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        rm.allocate(node, 4)
        await asyncio.sleep(5)

        rm.is_away = True
        async with world.operating():
            await asyncio.sleep(60)
            assert await recorded(world) == 4

    run(tmp_path, scenario)


def test_a_refused_operator_records_what_yarn_takes_and_tells_people(tmp_path: Path) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        rm.is_denied = True
        await world.batch_pod("batch", 5_000)
        rm.allocate(node, 6)
        await asyncio.sleep(20)

        assert total(rm, node) == POOL
        assert await recorded(world) == 6
        assert "doesn't have permission" in (await world.events())["YarnAccessDenied"]

        rm.is_denied = False
        await asyncio.sleep(40)
        assert total(rm, node) == POOL - 5

    run(tmp_path, scenario)


def test_a_node_manager_that_another_replaced_is_withdrawn_once_the_operator_may(tmp_path: Path) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        rm.is_denied = True
        await world.delete_pod("nm-n1")
        rm.register("nm-2")
        await world.node_manager("nm-2:8041", "n1")
        await asyncio.sleep(20)
        assert total(rm, node) == POOL

        rm.is_denied = False
        await asyncio.sleep(40)
        assert total(rm, node) == 0
        assert total(rm, NodeId("nm-2", 8041)) == POOL

    run(tmp_path, scenario)


@pytest.mark.parametrize(("joins", "offered"), [("second", POOL), ("unknown", 0)])
def test_a_node_manager_that_goes_to_another_cluster_is_withdrawn_from_its_first(
    tmp_path: Path, joins: str, offered: int
) -> None:
    """Else both would be offered the whole pool."""
    (tmp_path / "yarn-site.xml").write_text(SITE)
    (tmp_path / "second.yarn-site.xml").write_text(SITE)
    first, second = ModelRM(), ModelRM()

    async def main(clock: LoopClock) -> None:
        was, now = first.register("nm-1"), second.register("nm-1", YarnResource())
        async with kubernetes(clock, tmp_path, lambda c, _: second if c.id == "second" else first) as world:
            await world.add_node("n1")
            await world.node_manager("nm-1:8041", "n1")
            async with world.operating():
                await asyncio.sleep(20)
                assert (total(first, was), total(second, now)) == (POOL, 0)

                annotations = {amounts.CLUSTER_ID_ANNOTATION: joins}
                await world.api.patch(Pod, "nm-n1", {"metadata": {"annotations": annotations}}, "default")
                await asyncio.sleep(10)
                assert (total(first, was), total(second, now)) == (0, offered)

    virtual_time.run_virtual(main)


@pytest.mark.parametrize("node_id", [None, "nm", "nm:port"])
def test_a_node_manager_that_cannot_be_named_is_told_once_and_nothing_else_stops(
    tmp_path: Path, node_id: str | None
) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        await world.add_node("n2")
        await world.node_manager(node_id, "n2")
        await world.batch_pod("batch", 5_000)
        await asyncio.sleep(10)

        assert amounts.NODE_ID_ANNOTATION in (await world.events())["YarnNodeIdInvalid"]
        assert total(rm, node) == POOL - 5

    run(tmp_path, scenario)


def test_two_pods_that_announce_one_node_manager_do_not_both_speak_for_it(tmp_path: Path) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        await world.add_node("n2", cpu=100)
        await world.node_manager("nm-1:8041", "n2")
        await asyncio.sleep(10)
        rm.updates.clear()
        await asyncio.sleep(120)

        assert len(rm.updates) == 0, "they take turns"
        assert "announces the same" in (await world.events())["YarnNodeIdInvalid"]
        assert await world.told_of("YarnNodeIdInvalid") == {"nm-n1", "nm-n2"}

    run(tmp_path, scenario)


def test_a_configuration_that_breaks_leaves_the_cluster_as_it_was_and_a_new_cluster_is_served(
    tmp_path: Path,
) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        (tmp_path / "yarn-site.xml").write_text("<configuration>")
        (tmp_path / "second.yarn-site.xml").write_text(SITE)
        await world.add_node("n2")
        other = rm.register("nm-2")
        await world.node_manager("nm-2:8041", "n2", annotations=_of_second("nm-2:8041"))
        await world.batch_pod("batch", 5_000)
        await asyncio.sleep(20)

        assert total(rm, node) == POOL - 5
        assert total(rm, other) == POOL
        assert "not XML" in (await world.events())["YarnConfigurationInvalid"]

    run(tmp_path, scenario)


def test_a_cluster_whose_files_are_bad_from_the_start_is_told_until_it_goes(tmp_path: Path) -> None:
    second = tmp_path / "second.yarn-site.xml"
    second.write_text("<configuration>")

    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        found = await world.events()
        told = world.operator.metrics
        assert "second: second.yarn-site.xml: not XML" in found["YarnConfigurationInvalid"]
        assert told.config_errors.values == {(DEFAULT_CLUSTER,): 0, ("second",): 1}

        second.write_text(SITE)
        await world.add_node("n2")
        rm.register("nm-2")
        await world.node_manager("nm-2:8041", "n2", annotations=_of_second("nm-2:8041"))
        await asyncio.sleep(20)
        assert set(told.active_rm.values) == {(DEFAULT_CLUSTER, "rm1"), ("second", "rm1")}
        second.unlink()
        await asyncio.sleep(20)
        assert told.config_errors.values == {(DEFAULT_CLUSTER,): 0}
        assert await world.told_of("YarnClusterUnknown") == {"nm-n2"}
        assert set(told.active_rm.values) == {(DEFAULT_CLUSTER, "rm1")}

    run(tmp_path, scenario)


def _of_second(node_id: str) -> dict[str, str]:
    return {amounts.NODE_ID_ANNOTATION: node_id, amounts.CLUSTER_ID_ANNOTATION: "second"}


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_ever_offered_to_both(tmp_path: Path, seed: int) -> None:
    """Half of the pool is YARN's, and everything that may go wrong does, while somebody looks each second."""

    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        rng = random.Random(seed)
        pods: list[str] = []

        async def start_pod() -> None:
            free = (await world.view()).kube_total.cpu_milli - await world.batch_milli()
            if free >= 1_000:
                pods.append(f"batch-{rng.random()}")
                await world.batch_pod(pods[-1], rng.randrange(1_000, free + 1))

        async def end_pod() -> None:
            if pods:
                await world.delete_pod(pods.pop())

        async def services() -> None:
            await world.report(cpu=str(rng.randrange(1, 9)))

        async def containers() -> None:
            if node in rm.reports:
                rm.allocate(node, rng.randrange(-4, 8))

        async def away() -> None:
            rm.is_away = not rm.is_away

        async def fail_over() -> None:
            before = rm.reports.get(node)
            rm.fail_over()
            if before is not None and rng.random() < 0.5:  # it registers late, with what it had
                del rm.reports[node]
                asyncio.get_running_loop().call_later(7, lambda: rm.reports.update({node: before}))

        kinds = [start_pod, start_pod, end_pod, services, containers, containers, away, fail_over]
        for _ in range(120):
            await rng.choice(kinds)()
            for _ in range(rng.randrange(1, 12)):
                await asyncio.sleep(1)
                view = await world.view()
                offered = total(rm, node) * 1_000 if node in rm.reports else 0
                is_shrunk = view.kube_total.cpu_milli == 0 or offered <= 1_000
                assert is_shrunk or view.kube_total.cpu_milli + offered <= view.origin.cpu_milli, (
                    view,
                    offered,
                )

    run(tmp_path, scenario, SPLIT)


def test_ten_minutes_without_resource_manager_lend_nothing_twice(tmp_path: Path) -> None:
    """Services come and go, pods take what is theirs, while nobody can be told; looked at each second."""

    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        rm.allocate(node, 4)
        await asyncio.sleep(5)
        offered = total(rm, node) * 1_000
        rm.is_away = True
        for second in range(600):
            if second % 60 == 0:
                await world.report(cpu=str(second // 60 % 4 + 1))
            free = (await world.view()).kube_total.cpu_milli - await world.batch_milli()
            if second % 97 == 0 and free >= 1_000:
                await world.batch_pod(f"batch-{second}", 1_000)
            await asyncio.sleep(1)
            view = await world.view()
            assert view.recorded is not None and view.recorded.cpu_milli >= 4_000
            assert view.kube_total.cpu_milli in range(max(view.origin.cpu_milli - offered, 0) + 1), view

        await world.report(cpu="3")
        await asyncio.sleep(650)  # nothing changes for longer than a lost NodeManager is remembered
        before = rm.reports.pop(node)  # a ResourceManager that has just started knows no NodeManager
        rm.is_away = False
        for _ in range(20):
            await asyncio.sleep(1)
            view = await world.view()
            assert view.kube_total.cpu_milli + offered <= view.origin.cpu_milli, view
        rm.reports[node] = before  # which registers with the total that it had
        await world.report(cpu="1")
        await asyncio.sleep(30)
        view = await world.view()
        assert view.kube_total.cpu_milli + total(rm, node) * 1_000 <= view.origin.cpu_milli
        assert total(rm, node) == POOL // 2

    run(tmp_path, scenario, SPLIT)


def test_by_what_was_known_long_ago_yarn_gets_less_and_not_more(tmp_path: Path) -> None:
    """The API server is away, for an operator without election, and the ResourceManager forgets totals."""

    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        async def after(minutes: int, forgotten: int) -> int:
            for _ in range(minutes):
                await asyncio.sleep(60)
                await world.report()
            rm.change(node, total=YarnResource(forgotten, 1 << 20))
            await asyncio.sleep(10)
            return total(rm, node)

        world.operators_api.is_away = True
        await world.batch_pod("unseen", 1_000)
        assert await after(2, 1) == POOL
        assert await after(4, 1) == 1, "what is known is five minutes old"
        assert await after(1, POOL + 5) == POOL

        world.operators_api.is_away = False
        assert await after(2, 1) == POOL - 1

    run(tmp_path, scenario)


def test_what_is_split_comes_back_to_yarn_when_pods_leave(tmp_path: Path) -> None:
    async def scenario(world: World, rm: ModelRM, node: NodeId) -> None:
        assert total(rm, node) == POOL // 2
        assert (await world.view()).kube_total.cpu_milli == POOL * 1_000 - POOL // 2 * 1_000

        await world.report(cpu="8")
        await asyncio.sleep(10)
        assert total(rm, node) == 2
        await world.report(cpu="1")
        await asyncio.sleep(15)
        assert total(rm, node) == POOL // 2
        assert rm.reports[node].used == YarnResource()

    run(tmp_path, scenario, SPLIT)
