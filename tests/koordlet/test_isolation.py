"""What the isolation probe makes of what it measured: verdicts, what the Node says, who is told."""

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordinator.api import isolation
from koordinator.api.core import Node
from koordinator.clock import FixedClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.koordlet import gates as koordlet_gates
from koordinator.koordlet.isolation import measure, probe, verdicts
from koordinator.koordlet.isolation.probe import IsolationProbe
from koordinator.koordlet.isolation.verdicts import Mechanism, MechanismVerdict, Spun, Works
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.restore_log import RestoreLog
from koordinator.local import registry
from tests.koordlet.qos.qos_node import BE, QoSNode

MEBI = 1 << 20
cores = st.floats(0, 2)


def state(verdict: MechanismVerdict) -> Works:
    return verdict.works


def test_a_quota_is_judged_by_what_a_process_had() -> None:
    assert state(verdicts.quota(0.9, 0.21, 0)) is Works.YES
    assert state(verdicts.quota(0.9, 0.85, 0)) is Works.NO
    assert state(verdicts.quota(0.1, 0.1, 0)) is Works.UNKNOWN
    assert state(verdicts.quota(0.1, 0.1, 3)) is Works.NO


@given(cores, cores, st.integers(0, 5))
def test_a_process_that_was_not_held_back_never_proves_a_quota(
    free: float, limited: float, above: int
) -> None:
    found = verdicts.quota(free, limited, above)

    if limited > verdicts.QUOTA_RATIO * verdicts.QUOTA_SLACK:
        assert found.works is Works.NO
    assert (found.works is Works.YES) <= (free > limited)


@given(cores, cores)
def test_with_too_little_cpu_nothing_is_claimed(one: float, other: float) -> None:
    for judge in (verdicts.weight, verdicts.idle):
        found = judge(one, other)
        assert (found.works is Works.UNKNOWN) == (one + other < verdicts.CPU_S_MIN)


def sliced(
    *, usual_ms: float, long_ms: float, alone_ms: float, others: float = 0.0, cpu_s: float = 0.07
) -> MechanismVerdict:
    """The verdict on time slices, where one process of two had so much CPU with usual ones."""
    usual, long = ([Spun(cpu_s, 0.001), Spun(0.07, most / 1000)] for most in (usual_ms, long_ms))
    return verdicts.time_slice(usual, long, Spun(0.1, alone_ms / 1000), others)


@pytest.mark.parametrize(
    ("verdict", "works"),
    [
        (verdicts.weight(0.2, 0.05), Works.YES),
        (verdicts.weight(0.12, 0.12), Works.NO),
        (verdicts.idle(0.24, 0.01), Works.YES),
        (verdicts.idle(0.12, 0.12), Works.NO),
        (sliced(usual_ms=4, long_ms=100, alone_ms=100), Works.YES),
        (sliced(usual_ms=4, long_ms=26, alone_ms=20, others=0.9), Works.YES),
        (sliced(usual_ms=20, long_ms=35, alone_ms=100), Works.NO),
        (sliced(usual_ms=4, long_ms=4, alone_ms=100), Works.NO),
        (sliced(usual_ms=4, long_ms=4, alone_ms=33), Works.NO),
        (sliced(usual_ms=4, long_ms=20, alone_ms=33), Works.UNKNOWN),
        (sliced(usual_ms=4, long_ms=4, alone_ms=20), Works.UNKNOWN),
        (sliced(usual_ms=4, long_ms=4, alone_ms=100, others=0.3), Works.UNKNOWN),
        (sliced(usual_ms=4, long_ms=100, alone_ms=100, cpu_s=0.01), Works.UNKNOWN),
        (verdicts.confined([1], [1]), Works.YES),
        (verdicts.confined([1], [0, 1]), Works.NO),
        (verdicts.memory_limit(32 * MEBI, None), Works.YES),
        (verdicts.memory_limit(32 * MEBI, 70 * MEBI), Works.NO),
        (verdicts.memory_limit(32 * MEBI, 30 * MEBI), Works.YES),
        (verdicts.memory_high(12 * MEBI, 12 * MEBI, 9), Works.YES),
        (verdicts.memory_high(12 * MEBI, 24 * MEBI, 0), Works.NO),
        (verdicts.memory_high(12 * MEBI, 2 * MEBI, 0), Works.UNKNOWN),
        (verdicts.io_limit(MEBI, MEBI, 0.05, 1.0), Works.YES),
        (verdicts.io_limit(MEBI, MEBI, 0.05, 0.06), Works.NO),
        (verdicts.io_limit(MEBI, MEBI, 0.8, 0.9), Works.UNKNOWN),
    ],
)
def test_each_mechanism_is_judged_by_its_effect(verdict: MechanismVerdict, works: Works) -> None:
    assert verdict.works is works and verdict.why


def all_of(works: Works, **others: Works) -> dict[Mechanism, MechanismVerdict]:
    named = {name.replace("_", "-"): each for name, each in others.items()}
    return {each: MechanismVerdict(named.get(each.value, works), "measured") for each in Mechanism}


def test_a_kind_of_isolation_is_there_when_all_its_parts_are() -> None:
    proven = dict.fromkeys(Mechanism, Works.YES)
    assert verdicts.provided(proven) == dict.fromkeys(isolation.KINDS, Works.YES)
    found = verdicts.provided(proven | {Mechanism.CPUSET: Works.NO, Mechanism.IO_LIMIT: Works.UNKNOWN})
    assert (found["cpu"], found["io"], found["memory"]) == (Works.NO, Works.UNKNOWN, Works.YES)


def test_strategies_that_rest_on_what_is_broken_are_named_if_they_are_on() -> None:
    found = all_of(Works.YES, cpu_quota=Works.NO, io_limit=Works.NO)

    told = list(probe.resting_on_broken(found, koordlet_gates.of("BECPUSuppress=true,BlkIOReconcile=false")))

    assert next(each.split()[0] for each in told if "cpu-quota" in each) == "CPUSuppress"
    assert not any(each.startswith("BlkIOReconcile") for each in told)


def test_long_slices_without_effect_are_told_while_the_hook_that_gives_them_is_on() -> None:
    found = all_of(Works.YES, time_slice=Works.NO)

    (told,) = probe.resting_on_broken(found, koordlet_gates.of())
    assert told.startswith("TimeSlice has no effect here as far as it rests on time-slice")
    assert not list(probe.resting_on_broken(found, koordlet_gates.of("GroupIdentity=false")))


def test_hooks_and_the_closed_loop_say_that_they_rest_on_what_is_broken() -> None:
    gates = koordlet_gates.of("InterferenceControl=true,CPUNormalization=true")
    quota = " ".join(probe.resting_on_broken(all_of(Works.YES, cpu_quota=Works.NO), gates))
    others = " ".join(
        probe.resting_on_broken(all_of(Works.YES, cpuset=Works.NO, memory_high=Works.NO), gates)
    )

    assert all(
        f"{each} has no effect" in quota
        for each in ("CPUNormalization", "BatchResource", "InterferenceControl")
    )
    assert all(f"{each} has no effect" in others for each in ("CPUSetAllocator", "InterferenceControl"))


async def test_the_next_start_removes_what_a_killed_run_left_and_a_dry_run_nothing(tmp_path: Path) -> None:
    node = QoSNode(tmp_path)
    kubelet = Path(node.shared.host.roots.kubelet)
    kubelet.mkdir(parents=True, exist_ok=True)
    left, other = kubelet / f"{measure.GROUP}.123", kubelet / "pods.1"
    for each in (left, other):
        each.touch()
    group = node.shared.host.cgroups.directory(f"{BE}/{measure.GROUP}")
    os.makedirs(group)
    handed_out = Path(node.shared.host.cgroups.directory(BE)) / "cgroup.subtree_control"
    handed_out.write_text("cpu memory\n")
    node.shared.executor.note(str(handed_out), "cpu", owner=measure.OWNER)

    dry = Executor(
        node.shared.host.cgroups, node.clock, node.shared.audit, RestoreLog(), on_dry_run=lambda _: None
    )
    await probe.clean_left_overs(msgspec.structs.replace(node.shared, executor=dry))
    assert left.exists() and os.path.isdir(group) and handed_out.read_text() == "cpu memory\n"

    await probe.clean_left_overs(node.shared)
    assert not left.exists() and not os.path.isdir(group) and other.exists()
    assert handed_out.read_text() == "-cpu\n", "what the kernel is told"
    assert not node.shared.executor.changed_by(measure.OWNER)


class Probed(IsolationProbe):
    """A probe whose measurements are given."""

    found: Mapping[Mechanism, MechanismVerdict] = {}
    runs = 0

    async def _measure(self) -> Mapping[Mechanism, MechanismVerdict]:
        self.runs += 1
        return self.found


async def node_with(root: Any) -> tuple[QoSNode, MemoryCluster, Probed]:
    node = QoSNode(root, gates="IsolationProbe=true,BECPUSuppress=true")
    cluster = MemoryCluster(registry.in_memory(FixedClock(), checks=False))
    info = {"kernelVersion": "6.18", "containerRuntimeVersion": "containerd://2"}
    body = {"metadata": {"name": "n1"}, "status": {"nodeInfo": info}}
    node.view.node = await cluster.create(Node, body)
    shared = node.shared
    return node, cluster, Probed(msgspec.structs.replace(shared, cluster=cluster, rng=random.Random(0)))


async def test_results_are_on_the_node_and_whoever_rests_on_nothing_says_so(tmp_path: Any) -> None:
    node, cluster, part = await node_with(tmp_path)
    part.found = all_of(Works.YES, cpu_quota=Works.NO, resctrl=Works.UNKNOWN)
    await part.run()

    found = await cluster.get(Node, "n1")
    told = isolation.NODE_ISOLATION.read(found.metadata.annotations)
    assert told is not None and told.mechanisms["cpu-quota"].state == isolation.BROKEN
    assert found.metadata.labels[isolation.label_of("cpu")] == isolation.BROKEN
    assert found.metadata.labels[isolation.label_of("memory")] == isolation.WORKS
    (condition,) = (each for each in found.status.conditions if each.type == isolation.CONDITION)
    assert condition.status == "False" and "cpu-quota" in condition.message
    assert node.events.recorded.count(probe.BROKEN) >= 1
    assert node.says("isolation_works")[("cpu-quota",)] == 0.0


async def test_it_measures_again_after_a_new_runtime_and_what_is_not_settled(tmp_path: Any) -> None:
    node, cluster, part = await node_with(tmp_path)
    part.found = all_of(Works.YES)
    for _ in range(3):
        node.clock.now_s += probe.AGAIN_S
        await part.run()
    assert part.runs == 1, "proven, and nothing has changed"

    changed = {"status": {"nodeInfo": {"containerRuntimeVersion": "containerd://3"}}}
    node.view.node = await cluster.patch(Node, "n1", changed, subresource="status")
    part.found = all_of(Works.UNKNOWN)
    await part.run()
    await part.run()
    assert part.runs == 2
    node.clock.now_s += probe.AGAIN_S
    await part.run()
    assert part.runs == 3


async def test_a_condition_keeps_its_time_and_with_the_gate_off_the_node_says_nothing(tmp_path: Path) -> None:
    node, cluster, part = await node_with(tmp_path)

    async def since(works: Works, boot: str) -> str | None:
        part.found = all_of(works)
        node.clock.now_s += probe.AGAIN_S
        body = {"status": {"nodeInfo": {"kernelVersion": boot}}}
        node.view.node = await cluster.patch(Node, "n1", body, subresource="status")
        await part.run()
        node.view.node = found = await cluster.get(Node, "n1")
        (condition,) = (each for each in found.status.conditions if each.type == isolation.CONDITION)
        return condition.last_transition_time

    first = await since(Works.YES, "1")
    assert await since(Works.UNKNOWN, "2") == first
    assert await since(Works.NO, "3") != first

    off = koordlet_gates.of("IsolationProbe=false")
    await IsolationProbe(msgspec.structs.replace(node.shared, cluster=cluster, gates=off)).run()
    found = await cluster.get(Node, "n1")
    assert not any("isolation" in key for key in (*found.metadata.labels, *found.metadata.annotations))
    assert not [each for each in found.status.conditions if each.type == isolation.CONDITION]


def test_the_gate_is_off_unless_asked_for() -> None:
    assert not koordlet_gates.of().is_on(probe.GATE)
    assert koordlet_gates.of(f"{probe.GATE}=true").is_on(probe.GATE)
