"""What pods and containers use is told rightly, or not at all."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.node_metric import MetricCollectPolicy, NodeMetricSpec
from koordinator.clock import Clock
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect.group_usage import (
    BATCH_MEMORY_ROUNDS,
    MEMORY_ROUNDS,
    SERVICE_MEMORY_ROUNDS,
    GroupRings,
    MeasuredGroup,
)
from koordinator.koordlet.collect.pod_usage import PodUsage
from koordinator.koordlet.config import CollectConfig
from koordinator.koordlet.series import CONTAINER_ROUNDS
from tests.host import host_tree
from tests.koordlet.collect.collecting_node import (
    BEST_EFFORT,
    CPUS,
    NS,
    CollectingNode,
    life,
    make_pod,
    rounds,
)

POD, CONTAINER = "kubepods/podweb", "kubepods/podweb/web-0"
versions = pytest.mark.parametrize("version", host_tree.VERSIONS)


def collector_of(node: CollectingNode) -> PodUsage:
    return PodUsage(node.shared, node.known, node.scan)


@versions
@pytest.mark.parametrize("qos", ["BE", "LS"])
def test_pods_and_containers_show_cpu_memory_and_throttling(tmp_path: Path, version: int, qos: str) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        node.pods(make_pod("web", qos=qos))

        def at(second: int) -> None:
            node.counters(
                POD, usage_ns=2 * NS * second, anon=1000 * second, periods=10 * second, throttled=second
            )
            node.counters(CONTAINER, usage_ns=NS * second, anon=500 * second, periods=10 * second)

        await rounds(collector_of(node), lambda: at(1), lambda: at(2), lambda: at(3))

        assert node.values(kinds.POD_CPU, pod_uid="web") == pytest.approx([2.0, 2.0])
        of_pod = node.values(kinds.POD_MEMORY, pod_uid="web")
        assert len(of_pod) == 2
        assert set(of_pod) <= {1000, 2000, 3000}
        assert node.values(kinds.POD_THROTTLED, pod_uid="web") == pytest.approx([0.1, 0.1])
        assert node.known.pods is not None
        assert node.known.pods.cores == pytest.approx(2.0)
        assert node.known.pods.memory_bytes == of_pod[-1]
        assert node.values(kinds.POD_MEMORY_PAGE_CACHE) == []
        if qos == "BE":
            return  # its containers are looked at each few rounds
        container = "containerd://web-0"
        assert node.values(kinds.CONTAINER_CPU, container_id=container) == pytest.approx([1.0, 1.0])
        assert node.values(kinds.CONTAINER_THROTTLED, container_id=container) == [0.0, 0.0]

    life(main)


@versions
@pytest.mark.parametrize("stops_at", [100, 2 * CONTAINER_ROUNDS - 2], ids=["running", "at rest later"])
def test_containers_of_batch_pods_are_looked_at_each_few_rounds(
    tmp_path: Path, version: int, stops_at: int
) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        node.pods(make_pod("web", qos="BE"))

        def at(second: int) -> None:
            for group in (POD, CONTAINER):
                node.counters(group, usage_ns=NS * min(second, stops_at), periods=10 * second)

        seconds = 3 * CONTAINER_ROUNDS + 1
        await rounds(collector_of(node), *[lambda second=second: at(second) for second in range(seconds)])

        of_pod, of_container = node.values(kinds.POD_CPU), node.values(kinds.CONTAINER_CPU)
        assert len(of_pod) == seconds - 1
        assert len(of_container) == 3
        assert sum(of_container) * CONTAINER_ROUNDS == pytest.approx(sum(of_pod))

    life(main)


@versions
def test_a_counter_that_went_backwards_gives_no_sample_and_the_next_one_is_right(
    tmp_path: Path, version: int
) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        node.pods(make_pod("web"))
        steps = [
            lambda usage=usage: node.counters(POD, usage_ns=usage * NS, periods=usage, throttled=usage)
            for usage in (100, 101, 3, 4)
        ]

        await rounds(collector_of(node), *steps)

        assert node.values(kinds.POD_CPU) == pytest.approx([1.0, 1.0])
        assert node.values(kinds.POD_THROTTLED) == pytest.approx([1.0, 1.0])

    life(main)


@versions
def test_a_group_made_anew_below_the_same_path_starts_anew(tmp_path: Path, version: int) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        node.pods(make_pod("web"))

        def replaced() -> None:
            held = [
                (path, path.open()) for path in node.cgroups.rglob("*") if path.is_file()
            ]  # inodes stay taken
            node.end(CONTAINER)
            node.end(POD)
            host_tree.group(tmp_path, version, POD)
            node.counters(POD, usage_ns=3 * NS)
            for _, file in held:
                file.close()

        await rounds(
            collector_of(node),
            lambda: node.counters(POD, usage_ns=1 * NS),
            replaced,
            lambda: node.counters(POD, usage_ns=4 * NS),
        )

        assert node.values(kinds.POD_CPU) == pytest.approx([1.0])

    life(main)


def test_a_step_of_the_clock_does_not_falsify_rates(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        node.pods(make_pod("web"))

        def at(second: int, shift_s: float) -> None:
            node.clock.shift_s = shift_s
            node.counters(POD, usage_ns=second * NS)

        await rounds(
            collector_of(node),
            lambda: at(1, 0),
            lambda: at(2, 3600),
            lambda: at(3, -3600),
            lambda: at(4, -3600),
        )

        assert node.values(kinds.POD_CPU) == pytest.approx([1.0, 1.0])  # that of the future is forgotten
        assert node.shared.readings.pods() == {"web": pytest.approx(1.0)}

    life(main)


def test_two_rounds_at_the_same_time_give_no_rate(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        node.pods(make_pod("web"))

        await rounds(
            collector_of(node),
            lambda: node.counters(POD, usage_ns=0),
            lambda: node.counters(POD, usage_ns=NS),
            every_s=0.0,
        )

        assert node.values(kinds.POD_CPU) == []

    life(main)


@versions
def test_a_pod_that_vanishes_costs_only_itself(tmp_path: Path, version: int) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        node.pods(make_pod("web"), make_pod("batch", qos_class="BestEffort", containers=2))
        other = f"{BEST_EFFORT}/podbatch"

        def at(second: int) -> None:
            node.counters(other, usage_ns=second * NS)
            if second == 2:
                node.end(CONTAINER)
                node.end(POD)

        found = await rounds(collector_of(node), lambda: at(1), lambda: at(2), lambda: at(3))

        assert found == [True] * 3
        assert node.values(kinds.POD_CPU, pod_uid="web") == []
        assert node.values(kinds.POD_CPU, pod_uid="batch") == pytest.approx([1.0, 1.0])
        assert node.known.pods is not None
        assert node.known.pods.cores == pytest.approx(1.0)

    life(main)


@versions
def test_files_that_say_nonsense_give_no_sample(tmp_path: Path, version: int) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        node.pods(make_pod("web"))

        def nonsense() -> None:
            for path in (node.cgroups).rglob(f"{POD}/*"):
                if path.is_file():
                    path.write_text("-1 x\n")

        found = await rounds(
            collector_of(node),
            lambda: node.counters(POD, usage_ns=NS, anon=5),
            nonsense,
            lambda: node.counters(POD, usage_ns=2 * NS, anon=5),
            lambda: node.counters(POD, usage_ns=3 * NS, anon=5),
        )

        assert found == [True] * 4
        assert node.values(kinds.POD_CPU) == pytest.approx([1.0])

    life(main)


@versions
@pytest.mark.parametrize("step_ns", [NS // 2, 0], ids=["running", "resting"])
@pytest.mark.parametrize("qos", ["BE", "LS"])
def test_memory_that_shifts_within_its_whole_is_seen_after_some_rounds(
    tmp_path: Path, version: int, step_ns: int, qos: str
) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        node.pods(make_pod("web", qos=qos))
        collector = collector_of(node)

        def at(second: int, anon: int, cache: int) -> None:
            node.counters(POD, usage_ns=step_ns * second, anon=anon, cache=cache)
            node.counters(CONTAINER, usage_ns=step_ns * second, anon=anon, cache=cache)

        seconds = range(2, 2 + MEMORY_ROUNDS + SERVICE_MEMORY_ROUNDS)
        await rounds(collector, *[lambda second=second: at(second, 500, 500) for second in (0, 1)])
        await rounds(collector, *[lambda second=second: at(second, 700, 300) for second in seconds])

        values = node.values(kinds.POD_MEMORY)
        assert values == sorted(values)
        assert (values[0], values[-1]) == (500, 700)
        assert len(values) == len(seconds) + 1

    life(main)


@versions
@pytest.mark.parametrize(
    ("qos", "every"), [("BE", BATCH_MEMORY_ROUNDS), ("LS", SERVICE_MEMORY_ROUNDS)], ids=["batch", "service"]
)
def test_memory_is_stored_each_second_and_some_rounds_old(
    tmp_path: Path, version: int, qos: str, every: int
) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        node.pods(make_pod("web", qos=qos))

        def at(second: int) -> None:
            for group in (POD, CONTAINER):
                node.counters(group, usage_ns=NS * second, anon=1000 * (1 + second))

        await rounds(collector_of(node), *[lambda second=second: at(second) for second in range(30)])

        now = [1000 * (1 + second) for second in range(1, 30)]
        late = [a - b for a, b in zip(now, node.values(kinds.POD_MEMORY), strict=True)]
        assert 0 == min(late) < max(late) < 1000 * every

    life(main)


def test_a_group_without_any_memory_is_looked_at_as_seldom_as_one_that_has_some(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        ring = node.shared.store.ring(kinds.POD_CPU, {"pod_uid": "web"})
        rings = GroupRings(ring, ring, None, None)

        def reads(memory: bytes, every: int) -> tuple[list[int], list[int]]:
            """Rounds in which the whole memory is looked at, and those in which what it consists of is."""
            group = MeasuredGroup(node.shared.host.cgroups, POD, rings, memory_every=every)
            looked, asked = [], []
            for second in range(3 * MEMORY_ROUNDS):
                if group.wants_memory():
                    looked.append(second)
                    asked += [second] if group.take_memory(memory) else []
            return looked, asked

        for every in (1, SERVICE_MEMORY_ROUNDS):
            assert reads(b"0", every) == reads(b"4096", every)
            assert len(reads(b"0", every)[0]) <= 3 * MEMORY_ROUNDS // every + 1

    life(main)


@versions
def test_a_container_that_rests_and_runs_again_shows_the_right_rate(tmp_path: Path, version: int) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        node.pods(make_pod("web"))

        def at(usage: int) -> None:
            for group in (POD, CONTAINER):
                node.counters(group, usage_ns=usage * NS, periods=10 * usage, throttled=5 * usage)

        await rounds(
            collector_of(node), *[lambda usage=usage: at(usage) for usage in (0, 1, 1, 1, 1, 2, 2, 3)]
        )

        expected = [1, 0, 0, 0, 1, 0, 1]
        assert node.values(kinds.CONTAINER_CPU) == pytest.approx(expected)
        assert node.values(kinds.CONTAINER_THROTTLED) == pytest.approx([each / 2 for each in expected])

    life(main)


@versions
def test_containers_without_a_quota_are_looked_at_each_few_rounds_until_they_get_one(
    tmp_path: Path, version: int
) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, version)
        node.pods(make_pod("web"))
        gets_one_at, last = 8 * CONTAINER_ROUNDS, 12 * CONTAINER_ROUNDS

        def at(second: int) -> None:
            limited = max(second - gets_one_at, 0)
            for group in (POD, CONTAINER):
                node.counters(group, usage_ns=NS * second, periods=10 * limited, throttled=5 * limited)

        await rounds(collector_of(node), *[lambda second=second: at(second) for second in range(last + 1)])

        at_s = node.shared.store.query(kinds.CONTAINER_CPU, 0, 2**50).at_ms // 1000
        gaps = [int(gap) for gap in at_s[1:] - at_s[:-1]]
        assert node.values(kinds.CONTAINER_CPU) == pytest.approx([1.0] * len(at_s))
        assert set(gaps[2:8]) == {CONTAINER_ROUNDS}
        assert set(gaps[-2 * CONTAINER_ROUNDS :]) == {1}
        assert node.values(kinds.CONTAINER_THROTTLED)[-CONTAINER_ROUNDS:] == pytest.approx(
            [0.5] * CONTAINER_ROUNDS
        )

    life(main)


def test_a_group_that_gets_a_quota_shows_its_throttling_within_some_rounds(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        node.pods(make_pod("web"))

        def at(second: int) -> None:
            limited = max(second - 10, 0)
            node.counters(POD, usage_ns=NS * second, periods=10 * limited, throttled=5 * limited)

        await rounds(collector_of(node), *[lambda second=second: at(second) for second in range(20)])

        values = node.values(kinds.POD_THROTTLED, pod_uid="web")
        assert len(values) == 19
        assert set(values[:10]) == {0.0}
        assert values[-3:] == pytest.approx([0.5] * 3)

    life(main)


def test_page_cache_is_kept_when_the_report_asks_for_it(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        node.pods(make_pod("web"))
        collector = collector_of(node)
        node.counters(POD, anon=10, cache=5)

        await rounds(collector, lambda: None, lambda: None)
        assert node.values(kinds.POD_MEMORY_PAGE_CACHE) == []
        policy = MetricCollectPolicy(node_memory_collect_policy="usageWithPageCache")
        node.shared.view.metric_spec = NodeMetricSpec(metric_collect_policy=policy)
        await rounds(collector, lambda: None, lambda: None)

        assert node.values(kinds.POD_MEMORY_PAGE_CACHE, pod_uid="web") == [15]

    life(main)


def test_readings_survive_a_new_list_and_those_of_ended_pods_do_not(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        collector = collector_of(node)

        def listed(second: int, *names: str) -> None:
            node.pods(*map(make_pod, names))
            for name in names:
                node.counters(f"kubepods/pod{name}", usage_ns=second * NS)

        await rounds(
            collector, lambda: listed(1, "a", "b"), lambda: listed(2, "a"), lambda: listed(3, "a", "b")
        )

        assert node.values(kinds.POD_CPU, pod_uid="a") == pytest.approx([1.0, 1.0])
        assert node.values(kinds.POD_CPU, pod_uid="b") == []

    life(main)


def test_nothing_is_measured_before_the_kubelet_has_answered(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)

        assert not await collector_of(node).collect()
        node.pods()
        assert await collector_of(node).collect()

        assert node.known.pods is not None
        assert (node.known.pods.cores, node.known.pods.memory_bytes) == (0, 0)

    life(main)


def test_memory_by_numa_node_comes_from_the_groups_where_there_are_several(tmp_path: Path) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock)
        node.pods(make_pod("web", containers=0))
        node.shared.view.numa_meminfo_kib = {0: {}, 1: {}}
        text = (
            "total=9 N0=9 N1=0\nfile=9 N0=9 N1=0\nanon=0 N0=0 N1=0\nunevictable=0 N0=0 N1=0\n"
            "hierarchical_total=12 N0=10 N1=2\nhierarchical_file=9 N0=9 N1=0\n"
            "hierarchical_anon=3 N0=1 N1=2\nhierarchical_unevictable=1 N0=0 N1=1"
        )
        node.knob("memory", POD, "memory.numa_stat", text)

        await rounds(collector_of(node), *[lambda: None] * 6)

        assert node.known.pods_numa_bytes is not None
        assert node.known.pods_numa_bytes.values == {0: 4096, 1: 3 * 4096}

    life(main)


@pytest.mark.parametrize("every_s", [1.0, 3.0, 8.0])
def test_memory_by_numa_node_is_never_outdated_however_far_apart_rounds_are(
    tmp_path: Path, every_s: float
) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path, clock, collect=CollectConfig(used_interval_s=every_s))
        node.pods()
        node.shared.view.numa_meminfo_kib = {0: {}, 1: {}}
        ages_s = []

        def note() -> None:
            if node.known.pods_numa_bytes is not None:
                ages_s.append(asyncio.get_running_loop().time() - node.known.pods_numa_bytes.at_s)

        await rounds(collector_of(node), *[note] * 12, every_s=every_s)

        assert max(ages_s) <= CollectConfig().system_outdated_s

    life(main)


READINGS = st.lists(
    st.tuples(st.integers(0, 20 * NS), st.integers(0, 2**40), st.integers(0, 50), st.integers(0, 50)),
    min_size=2,
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(
    readings=READINGS,
    version=st.sampled_from(host_tree.VERSIONS),
    pauses=st.lists(st.floats(0, 3), min_size=20),
)
def test_whatever_counters_say_no_sample_is_wild(
    tmp_path_factory: pytest.TempPathFactory,
    readings: list[tuple[int, int, int, int]],
    version: int,
    pauses: list[float],
) -> None:
    async def main(clock: Clock) -> None:
        node = CollectingNode(tmp_path_factory.mktemp("node"), clock, version)
        node.pods(make_pod("web", containers=0))
        collector = collector_of(node)
        for (usage, anon, periods, throttled), pause_s in zip(readings, pauses, strict=False):
            node.counters(POD, usage_ns=usage, anon=anon, periods=periods, throttled=throttled)
            await collector.collect()
            await asyncio.sleep(pause_s)

        assert all(0 <= value <= CPUS * 1.25 for value in node.values(kinds.POD_CPU))
        assert all(value in {anon for _, anon, _, _ in readings} for value in node.values(kinds.POD_MEMORY))
        assert all(0 <= value <= 1 for value in node.values(kinds.POD_THROTTLED))

    life(main)
