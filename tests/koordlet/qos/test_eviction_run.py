"""Evicting, from measurements to the API: only who may be, no more than needed, at rest between, quiet in outages."""

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.core import Pod
from koordinator.cluster import errors
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.audit import decode
from koordinator.koordlet.qos import eviction
from koordinator.koordlet.qos.cpu_evict import CPUEvict
from koordinator.koordlet.qos.eviction import EVENT_FAIL, EVENT_SUCCESS
from koordinator.koordlet.qos.evictor import EVICTED, VERSION_S_MAX, Evictor
from koordinator.koordlet.qos.memory_evict import MemoryEvict
from koordinator.koordlet.qos.threshold_eviction import WITHDRAWN_S
from tests.cluster import virtual_loop
from tests.koordlet.qos.acting_node import ActingNode, make_pod, threshold

GIB = 2**30
MEMORY_GATE = "BEMemoryEvict=true"
CPU_COOL_S, MEMORY_COOL_S = 20, 4


def on_virtual_time(scenario: Coroutine[Any, Any, None]) -> None:
    virtual_loop.run(scenario)


def full_memory(node: ActingNode, pods: dict[str, float], used: float = 75 * GIB) -> None:
    """Marks at 70 % and 68 % of 100 GiB: 7 GiB must go."""
    node.view.slo = threshold()
    node.measure(kinds.NODE_MEMORY, used)
    node.measure_pods(kinds.POD_MEMORY, pods)


def test_the_largest_go_until_enough_is_released(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=MEMORY_GATE)
        node.set_pods([make_pod(name) for name in "abcd"] + [make_pod("ls", qos="LS")])
        full_memory(node, {"a": 1 * GIB, "b": 5 * GIB, "c": 3 * GIB, "d": 2 * GIB, "ls": 50 * GIB})

        await MemoryEvict(node.shared, Evictor(node.shared)).run()

        assert node.api.evicted == [("b", "b"), ("c", "c")]
        assert node.events.reasons() == [("b", EVENT_SUCCESS), ("c", EVENT_SUCCESS)]
        assert node.events.recorded[0][2] == "trigger by koordlet feature BEMemoryEvict, kill pod: b"
        lines = [decode(line) for line in node.audit.newest_first()]
        assert [(line.level, line.name, line.reason) for line in lines] == [
            (0, "c", EVICTED),
            (0, "b", EVICTED),
        ]
        assert node.shared.metrics.eviction.values == {("node", EVICTED): 2}
        assert ("node", "n", "b", EVICTED) in node.shared.metrics.eviction_detail.values

    on_virtual_time(scenario())


def test_it_rests_after_a_round_and_counts_who_is_leaving(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=MEMORY_GATE)
        node.set_pods([make_pod(name) for name in "abc"])
        strategy = MemoryEvict(node.shared, Evictor(node.shared))
        evicted = []
        for _ in range(20):
            # The victim takes its time: its memory is still in use, round after round.
            full_memory(node, {"a": 8 * GIB, "b": 8 * GIB, "c": 8 * GIB})
            await strategy.run()
            evicted.append(len(node.api.evicted))
            await asyncio.sleep(1)

        assert evicted == [1] * 20

        # It goes, but others have grown.
        node.set_pods([make_pod(name) for name in "bc"])
        full_memory(node, {"b": 8 * GIB, "c": 8 * GIB})
        await strategy.run()
        full_memory(node, {"b": 8 * GIB, "c": 8 * GIB}, used=95 * GIB)
        await strategy.run()
        assert len(node.api.evicted) == 2
        await asyncio.sleep(MEMORY_COOL_S)
        full_memory(node, {"b": 8 * GIB, "c": 8 * GIB}, used=95 * GIB)
        await strategy.run()
        assert node.api.names == ["a", "b", "c"]

    on_virtual_time(scenario())


def test_a_pod_that_does_not_leave_keeps_nobody_else_for_ever(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=MEMORY_GATE)
        node.set_pods([make_pod("stuck", deleted=True), make_pod("other")])
        strategy = MemoryEvict(node.shared, Evictor(node.shared))
        full_memory(node, {"stuck": 8 * GIB, "other": 8 * GIB})
        await strategy.run()
        assert node.api.evicted == []

        await asyncio.sleep(eviction.LEAVING_S_MAX)
        full_memory(node, {"stuck": 8 * GIB, "other": 8 * GIB})
        await strategy.run()
        assert node.api.names == ["other"]

    on_virtual_time(scenario())


@pytest.mark.parametrize("used", [-1.0, 111 * GIB, 2.0**80], ids=["negative", "more than there is", "absurd"])
def test_numbers_that_no_machine_has_evict_nobody(tmp_path: Path, used: float) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates="BEMemoryEvict=true,CPUEvict=true")
        node.set_pods([make_pod("a")])
        full_memory(node, {"a": 8 * GIB}, used=used)
        node.view.slo = threshold(cpu_evict_threshold_percent=50, evict_enabled_priority_threshold=9999)
        node.measure(kinds.NODE_CPU, used)
        node.measure(kinds.POD_CPU, 5.0, pod_uid="a")
        evictor = Evictor(node.shared)
        cpu = CPUEvict(node.shared, evictor)
        await MemoryEvict(node.shared, evictor).run()
        await cpu.run()
        await asyncio.sleep(CPU_COOL_S)
        node.measure(kinds.NODE_CPU, used)
        await cpu.run()

        assert node.api.asked == []

    on_virtual_time(scenario())


def test_pods_with_absurd_samples_are_no_victims_and_release_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=MEMORY_GATE)
        node.set_pods([make_pod("negative"), make_pod("huge"), make_pod("none"), make_pod("true")])
        full_memory(node, {"negative": -50 * GIB, "huge": 2.0**70, "true": 8 * GIB})

        await MemoryEvict(node.shared, Evictor(node.shared)).run()

        assert node.api.names == ["true"]

    on_virtual_time(scenario())


def test_old_measurements_evict_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates="BEMemoryEvict=true,CPUEvict=true")
        node.set_pods([make_pod("a")])
        full_memory(node, {"a": 8 * GIB})
        node.view.slo = threshold(
            cpu_evict_threshold_percent=50,
            evict_enabled_priority_threshold=9999,
            cpu_evict_time_window_seconds=60,
        )
        node.measure(kinds.NODE_CPU, 9.9)
        await asyncio.sleep(CPU_COOL_S + 3)
        evictor = Evictor(node.shared)
        cpu = CPUEvict(node.shared, evictor)
        for _ in range(30):
            node.measure(kinds.POD_CPU, 5.0, pod_uid="a")
            await MemoryEvict(node.shared, evictor).run()
            await cpu.run()
            await asyncio.sleep(1)

        assert node.api.asked == []

    on_virtual_time(scenario())


def test_an_outage_of_the_api_costs_few_calls_and_nothing_piles_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=MEMORY_GATE)
        node.set_pods([make_pod(f"p{number}") for number in range(50)])
        used = {f"p{number}": 1.0 * GIB for number in range(50)}
        node.api.answers[""] = errors.ConnectionFailed("no route")
        strategy = MemoryEvict(node.shared, Evictor(node.shared))
        for _ in range(600):
            full_memory(node, used)
            await strategy.run()
            await asyncio.sleep(1)

        assert node.api.evicted == []
        attempts = len(node.events.recorded)
        assert 18 < attempts < 25  # after 2, 4, 8 and 16 s every 30 s, each pause longer by a fifth at most
        assert {reason for _, reason in node.events.reasons()} == {EVENT_FAIL}

        node.api.answers.clear()
        for _ in range(40):
            full_memory(node, used)
            await strategy.run()
            await asyncio.sleep(1)
        assert len(node.api.evicted) == 7

    on_virtual_time(scenario())


def test_a_slow_api_ends_the_round_before_its_measurements_are_old(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=MEMORY_GATE)
        node.set_pods([make_pod(f"p{number}") for number in range(9)])
        full_memory(node, {f"p{number}": 1.0 * GIB for number in range(9)})
        node.api.delay_s = 4
        loop = asyncio.get_running_loop()

        await MemoryEvict(node.shared, Evictor(node.shared)).run()

        assert len(node.api.evicted) == 3
        assert loop.time() == pytest.approx(12)

    on_virtual_time(scenario())


def test_a_budget_spares_its_pod_for_a_while_and_the_next_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=MEMORY_GATE)
        node.set_pods([make_pod("a"), make_pod("b")])
        cause = errors.StatusCause(reason="DisruptionBudget")
        details = errors.StatusDetails(causes=[cause])
        node.api.answers["a"] = errors.TooManyRequests("budget", details=details)
        strategy = MemoryEvict(node.shared, Evictor(node.shared))
        for _ in range(20):
            full_memory(node, {"a": 9 * GIB, "b": 8 * GIB})
            await strategy.run()
            await asyncio.sleep(1)

        assert node.api.asked == ["a", "b"]
        assert node.events.reasons() == [("a", EVENT_FAIL), ("b", EVENT_SUCCESS)]
        assert "budget" in node.events.recorded[0][2]

    on_virtual_time(scenario())


def test_a_server_with_other_evictions_is_told_of_and_not_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=MEMORY_GATE)
        node.set_pods([make_pod("a"), make_pod("b")])
        old = {"name": "pods/eviction", "group": "policy", "version": "v1beta1"}
        node.api.discovery = {"resources": [old]}
        full_memory(node, {"a": 9 * GIB, "b": 8 * GIB})

        await MemoryEvict(node.shared, Evictor(node.shared)).run()

        assert node.api.asked == []
        assert node.events.reasons() == [("a", EVENT_FAIL)]
        assert "v1beta1" in node.events.recorded[0][2]

    on_virtual_time(scenario())


def test_the_version_of_evictions_is_asked_for_again_after_ten_minutes_and_no_earlier(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=MEMORY_GATE)
        evictor = Evictor(node.shared)
        asked = []
        for number, pause_s in enumerate((0, VERSION_S_MAX - 1, 1)):
            await asyncio.sleep(pause_s)
            node.set_pods([make_pod(f"p{number}")])
            full_memory(node, {f"p{number}": 9 * GIB})
            await MemoryEvict(node.shared, evictor).run()
            asked.append(node.api.discovery_count)

        assert node.api.asked == ["p0", "p1", "p2"]
        assert asked == [1, 1, 2]

    on_virtual_time(scenario())


def test_a_dry_run_tells_once_and_evicts_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates=MEMORY_GATE, dry_run=True)
        node.set_pods([make_pod("a"), make_pod("b")])
        strategy = MemoryEvict(node.shared, Evictor(node.shared))
        for _ in range(20):
            full_memory(node, {"a": 8 * GIB, "b": 1 * GIB})
            await strategy.run()
            await asyncio.sleep(1)

        assert node.api.asked == []
        assert [(write.path, write.text) for write in node.recorded] == [("pod n/a", EVICTED)]
        assert node.shared.metrics.eviction.values == {}

    on_virtual_time(scenario())


def test_what_is_lent_must_be_gone_for_a_while_before_all_are_evicted(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates="CPUAllocatableEvict=true")
        node.view.slo = threshold(
            cpu_allocatable_evict_threshold_percent=110,
            cpu_allocatable_evict_lower_percent=100,
            allocatable_evict_priority_threshold=5999,
        )
        pods = [make_pod(name, requests={"kubernetes.io/batch-cpu": "1000"}) for name in "ab"]
        node.set_pods([*pods, make_pod("plain", requests={"cpu": "50"}, priority=100)])
        strategy = CPUEvict(node.shared, Evictor(node.shared))
        for _ in range(int(WITHDRAWN_S) - 1):
            node.measure_pods(kinds.POD_CPU, {"a": 1, "b": 1, "plain": 1})
            await strategy.run()
            await asyncio.sleep(1)
        assert node.api.asked == []

        await asyncio.sleep(1)
        node.measure_pods(kinds.POD_CPU, {"a": 1, "b": 1, "plain": 1})
        await strategy.run()
        assert node.api.names == ["a", "b"]

    on_virtual_time(scenario())


def test_a_target_out_of_reach_evicts_nobody_who_cannot_help(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(
            tmp_path,
            gates="CPUAllocatableEvict=true",
            allocatable={"kubernetes.io/mid-cpu": "1000", "kubernetes.io/batch-cpu": "100000"},
        )
        node.view.slo = threshold(
            cpu_allocatable_evict_threshold_percent=110,
            cpu_allocatable_evict_lower_percent=100,
            allocatable_evict_priority_threshold=7999,
        )
        batch = make_pod("batch", requests={"kubernetes.io/batch-cpu": "1000"})
        free = make_pod("free", requests={"cpu": "4"}, priority=3500)
        mid = make_pod("mid", qos="LS", priority=7500, requests={"kubernetes.io/mid-cpu": "5000"})
        pinned = make_pod("pinned", qos="LSR", priority=7500, requests={"kubernetes.io/mid-cpu": "5000"})
        node.set_pods([batch, free, mid, pinned])
        strategy = CPUEvict(node.shared, Evictor(node.shared))
        await strategy.run()
        await asyncio.sleep(CPU_COOL_S)
        node.measure_pods(kinds.POD_CPU, {"batch": 1, "free": 1, "mid": 1, "pinned": 1})
        await strategy.run()

        assert node.api.names == ["mid"]

    on_virtual_time(scenario())


async def starved(node: ActingNode, strategy: CPUEvict, seconds: int, limit: float = 2_000) -> None:
    """Batch asked for 10 cores, may use `limit` and uses all of it."""
    for _ in range(seconds):
        node.measure_best_effort(limit, 10_000, limit)
        node.measure_pods(kinds.POD_CPU, {"a": 1.5, "b": 0.5, "c": 0.0})
        await strategy.run()
        await asyncio.sleep(1)


def test_starved_batch_makes_room_for_the_rest_of_batch(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates="BECPUEvict=true")
        node.view.slo = threshold(
            cpu_evict_be_satisfaction_lower_percent=30,
            cpu_evict_be_satisfaction_upper_percent=40,
            cpu_evict_time_window_seconds=60,
        )
        requests = {"kubernetes.io/batch-cpu": "3000"}
        node.set_pods([make_pod(name, requests=requests) for name in "abc"] + [make_pod("ls", qos="LS")])
        strategy = CPUEvict(node.shared, Evictor(node.shared))

        await starved(node, strategy, CPU_COOL_S)
        assert node.api.names == []  # it rests first, and a third of the window must be covered
        await starved(node, strategy, 1)
        # 40 % of 10 cores less 2: 2 cores of requests, which the pod gives that uses most of what it asked for.
        assert node.api.names == ["a"]
        await starved(node, strategy, CPU_COOL_S)
        assert node.api.names == ["a"]

    on_virtual_time(scenario())


def test_batch_that_is_starved_but_idle_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates="BECPUEvict=true")
        node.view.slo = threshold(
            cpu_evict_be_satisfaction_lower_percent=30, cpu_evict_be_satisfaction_upper_percent=40
        )
        node.set_pods([make_pod("a", requests={"kubernetes.io/batch-cpu": "3000"})])
        strategy = CPUEvict(node.shared, Evictor(node.shared))
        for _ in range(60):
            node.measure_best_effort(500, 10_000, 2_000)
            await strategy.run()
            await asyncio.sleep(1)

        assert node.api.asked == []

    on_virtual_time(scenario())


@pytest.mark.parametrize(("usage", "limit"), [(2.0**70, 2_000.0), (2_000.0, 2.0**70)], ids=["use", "limit"])
def test_what_cannot_be_true_of_batch_evicts_nobody(tmp_path: Path, usage: float, limit: float) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates="BECPUEvict=true")
        node.view.slo = threshold(
            cpu_evict_be_satisfaction_lower_percent=30, cpu_evict_be_satisfaction_upper_percent=40
        )
        node.set_pods([make_pod("a", requests={"kubernetes.io/batch-cpu": "3000"})])
        strategy = CPUEvict(node.shared, Evictor(node.shared))
        for _ in range(60):
            node.measure_best_effort(usage, 2.0**72, limit)
            await strategy.run()
            await asyncio.sleep(1)

        assert node.api.asked == []

    on_virtual_time(scenario())


def test_a_busy_node_evicts_by_priority_and_rests_between(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = ActingNode(tmp_path, gates="CPUEvict=true")
        node.view.slo = threshold(
            cpu_evict_threshold_percent=90, cpu_evict_lower_percent=80, evict_enabled_priority_threshold=5999
        )
        low = make_pod("low", priority=5100)
        spared = make_pod("spared", priority=5000, annotations={"koordinator.sh/eviction-policy": "[]"})
        first = make_pod("first", priority=5900, annotations={"koordinator.sh/eviction-priority": "-5"})
        plain = make_pod("plain", priority=5000, labels={"koordinator.sh/eviction-enabled": "false"})
        node.set_pods([low, spared, first, plain, make_pod("mid", priority=7500, qos="LS")])
        strategy = CPUEvict(node.shared, Evictor(node.shared))
        evicted_at = []
        for second in range(3 * CPU_COOL_S + 2):
            node.measure(kinds.NODE_CPU, 9.5)
            node.measure_pods(kinds.POD_CPU, dict.fromkeys(("low", "spared", "first", "plain", "mid"), 1.6))
            before = len(node.api.names)
            await strategy.run()
            evicted_at += [second] * (len(node.api.names) - before)
            node.set_pods(record.pod for uid, record in node.view.pods.items() if uid not in node.api.names)
            await asyncio.sleep(1)

        assert node.api.names == ["first", "low"]
        assert evicted_at == [CPU_COOL_S, 2 * CPU_COOL_S]

    on_virtual_time(scenario())


POLICIES = st.sampled_from([None, '["BEMemoryEvict","CPUEvict"]', '["BECPUEvict"]', "[]", "broken"])
PODS = st.lists(
    st.tuples(
        st.sampled_from(["LSE", "LSR", "LS", "BE", "SYSTEM", ""]),
        st.none() | st.integers(0, 10_000),
        st.sampled_from(["Running", "Pending", "Succeeded", "Failed"]),
        st.sampled_from(["true", "false", "True", ""]),
        POLICIES,
        st.integers(0, 4_000),
        st.none() | st.floats(-1, 12),
        st.booleans(),
    ),
    max_size=12,
)
READING = st.none() | st.floats(-5, 15)
ALL_GATES = ",".join(f"{gate}=true" for gate in (*CPUEvict.gates, *MemoryEvict.gates))


def drawn_pod(index: int, drawn: tuple[Any, ...]) -> Pod:
    qos, priority, phase, enabled, policy, batch, _, deleted = drawn
    return make_pod(
        f"p{index:02}",
        qos=qos,
        priority=priority,
        phase=phase,
        requests={"kubernetes.io/batch-cpu": str(batch)},
        labels={"koordinator.sh/eviction-enabled": enabled},
        annotations={"koordinator.sh/eviction-policy": policy} if policy is not None else {},
        deleted=deleted,
    )


@settings(max_examples=60, deadline=None)
@given(
    PODS, READING, READING, st.tuples(READING, READING, READING), st.integers(0, 100), st.integers(0, 9_999)
)
def test_whatever_is_measured_nobody_goes_who_may_not_and_nobody_too_many(
    drawn: list[tuple[Any, ...]],
    node_cores: float | None,
    node_gib: float | None,
    be: tuple[float | None, ...],
    percent: int,
    priority_max: int,
) -> None:
    async def scenario() -> None:
        with tempfile.TemporaryDirectory() as directory:
            await check(Path(directory))

    async def check(root: Path) -> None:
        node = ActingNode(root, gates=ALL_GATES, capacity={"cpu": "10", "memory": "10Gi"})
        node.view.slo = threshold(
            memory_evict_threshold_percent=percent,
            cpu_evict_threshold_percent=percent,
            evict_enabled_priority_threshold=priority_max,
            cpu_evict_be_satisfaction_lower_percent=50,
            cpu_evict_be_satisfaction_upper_percent=90,
        )
        pods = [drawn_pod(index, each) for index, each in enumerate(drawn)]
        node.set_pods(pods)
        usage = {f"p{index:02}": each[6] for index, each in enumerate(drawn) if each[6] is not None}
        evictor = Evictor(node.shared)
        cpu, memory = CPUEvict(node.shared, evictor), MemoryEvict(node.shared, evictor)
        await cpu.run()
        await asyncio.sleep(CPU_COOL_S)
        if node_cores is not None:
            node.measure(kinds.NODE_CPU, node_cores)
        if node_gib is not None:
            node.measure(kinds.NODE_MEMORY, node_gib * GIB)
        if None not in be:
            node.measure_best_effort(*(1_000 * (value or 0) for value in be))
        node.measure_pods(kinds.POD_CPU, usage)
        node.measure_pods(kinds.POD_MEMORY, {uid: value * GIB for uid, value in usage.items()})

        await memory.run()
        by_memory = list(node.api.names)
        await cpu.run()

        by_uid = {pod.metadata.uid: each for pod, each in zip(pods, drawn, strict=True)}
        for uid in node.api.names:
            qos, priority, phase, enabled, policy, batch, used, deleted = by_uid[uid]
            assert qos not in ("LSE", "LSR")
            assert phase in ("Running", "Pending")
            assert not deleted
            assert qos == "BE" or (enabled == "true" and (priority or 0) <= priority_max)
            assert policy is None or policy.startswith('["BE')
            assert used is not None or batch > 0
        assert len(set(node.api.names)) == len(node.api.names)
        if by_memory:
            assert node_gib is not None and 0 <= node_gib <= 11
            wanted_gib = 10 * (int(node_gib * 10) - (percent - 2)) / 100
            assert sum(usage[uid] for uid in by_memory[:-1]) < wanted_gib

        before = list(node.api.names)
        if by_memory:
            await memory.run()
        if by_memory != before:
            await cpu.run()
        assert node.api.names == before  # who evicted rests

    on_virtual_time(scenario())
