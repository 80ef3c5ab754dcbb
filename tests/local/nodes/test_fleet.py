"""The arrays of all nodes: what a step gives out, measures and brings to an end."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordinator.api.core import Pod
from koordinator.api.node_metric import NodeMetricStatus, ResourceMap
from koordinator.koordlet.report.node_metric import CollectPolicy
from koordinator.local.nodes import behaviour, pod_shape, reports
from koordinator.local.nodes.behaviour import Behaviour
from koordinator.local.nodes.contention import Protection
from koordinator.local.nodes.fleet import FleetPolicy, HollowFleet, NodeShape, alike
from koordinator.local.nodes.service_latency import service_latency
from koordinator.local.nodes.usage import Trace

GIB = 2**30
ROWS = np.array([0])


def fleet(nodes: int = 1, trace: Trace | None = None, **policy: object) -> HollowFleet:
    shapes = [NodeShape(name=f"n{i}", cpu_milli=10_000, memory_bytes=40 * GIB) for i in range(nodes)]
    calm = {"system_base_milli": 0.0, "system_share_of_use": 0.0, "system_memory_bytes": 0.0}
    return HollowFleet(shapes, msgspec.convert(calm | policy, FleetPolicy), trace)


def add(
    fleet: HollowFleet, row: int = 0, *, batch: bool = False, cpu: str = "1", name: str = "p", **does: object
) -> int:
    """Start a service pod, or a best-effort one."""
    requests = {"cpu": cpu, "memory": "1Gi"}
    labels: dict[str, str] = {}
    if batch:
        labels = {"koordinator.sh/qosClass": "BE"}
        requests = {"kubernetes.io/batch-cpu": f"{int(cpu) * 1000}", "kubernetes.io/batch-memory": "1Gi"}
    body = {
        "metadata": {
            "name": name,
            "namespace": "x",
            "labels": labels,
            "annotations": behaviour.annotations(msgspec.convert(does, Behaviour) if does else Behaviour()),
        },
        "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]},
    }
    shape, error = pod_shape.read(msgspec.convert(body, Pod))
    assert error is None
    slot = fleet.add(shape, row)
    fleet.start(slot)
    return slot


def test_a_pod_that_requests_nothing_uses_little() -> None:
    body = {"metadata": {"name": "p", "namespace": "x"}, "spec": {"containers": [{"name": "c"}]}}
    shape, _ = pod_shape.read(msgspec.convert(body, Pod))
    assert (shape.cpu_milli, shape.memory_bytes) == (20, 32 * 2**20)


def test_suppression_holds_batch_below_the_threshold() -> None:
    f = fleet()
    add(f, cpuMilli=2_000)
    hog = add(f, batch=True, cpu="9", cpuMilli=9_000)
    f.step(30, 30)
    # 65 % of ten cores, less the service, less what the kubelet reserves: four CPUs.
    assert f.granted[hog] == pytest.approx(6_500 - 2_000 - 500)
    assert f.used[0] == pytest.approx(6_000)


def test_batch_gives_way_when_services_wake_up() -> None:
    f = fleet(protection="shares")
    service = add(f, cpu="8", cpuMilli=9_000)
    hog = add(f, batch=True, cpu="9", cpuMilli=9_000)
    f.step(30, 30)
    assert f.granted[service] == pytest.approx(9_000, rel=0.001)
    assert f.granted[hog] == pytest.approx(1_000, rel=0.01)


def test_slots_are_reused_without_memory_of_who_was_there() -> None:
    f = fleet()
    for i in range(1_000):  # more than fit at first
        add(f, name=f"p{i}", cpuMilli=1)
    f.step(30, 30)
    for slot in list(f.shape_of):
        f.remove(slot)
    slot = add(f, cpuMilli=500)
    f.step(60, 30)
    assert f.granted[slot] == pytest.approx(500)
    assert np.isnan(f.samples.of_pods(60_000, 300, np.array([slot]))[0, 0])
    assert f.used[0] == pytest.approx(500)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans(), st.booleans()), max_size=20))
def test_pods_of_a_node_stay_in_order_as_they_come_and_go(steps: list[tuple[str, bool, bool]]) -> None:
    f = fleet()
    for name, comes, is_looked_at in steps:
        if comes:
            add(f, name=name)
        elif f.shape_of:
            f.remove(next(iter(f.shape_of)))
        if is_looked_at:
            f.sorted_pods(0)
    there = sorted((f.shape_of[slot].name, slot) for slot in f.pods_on[0])
    assert f.sorted_pods(0) == [slot for _, slot in there]


def test_nodes_without_agents_use_as_much_and_note_nothing() -> None:
    with_agents, plain = fleet(), fleet()
    plain.has_agents = False
    for f in (with_agents, plain):
        add(f, cpuMilli=2_000)
        for at_s in (30, 60, 90):
            f.step(at_s, 30)
    assert plain.used.tolist() == with_agents.used.tolist()
    assert with_agents.samples.nodes and with_agents.peaks.knows(ROWS).all()
    assert not plain.samples.nodes and not plain.peaks.knows(ROWS).any()


def test_without_an_agent_nobody_suppresses_batch() -> None:
    f = fleet()
    f.has_agents = False
    add(f, cpuMilli=2_000)
    hog = add(f, batch=True, cpu="9", cpuMilli=8_000)
    f.step(30, 30)
    assert f.granted[hog] == pytest.approx(8_000)


def test_lost_work_is_counted_once_and_only_if_unfinished() -> None:
    f = fleet()
    evicted = add(f, cpuMilli=1_000, cpuWorkCoreSeconds=100)
    done = add(f, cpuMilli=1_000, cpuWorkCoreSeconds=30)
    assert f.step(30, 30).finished == [done]
    f.remove(evicted)
    f.remove(done)
    assert f.lost_milli_s == pytest.approx(30_000)


def test_a_pod_ends_when_it_had_its_cpu_and_its_time() -> None:
    f = fleet()
    slot = add(f, cpuMilli=1_000, cpuWorkCoreSeconds=30, runSeconds=90)
    assert [bool(f.step(t, 30).finished) for t in (30, 60, 90)] == [False, False, True]
    assert f.consumed[slot] == pytest.approx(90_000)


def test_followers_of_a_trace_share_what_their_machine_used() -> None:
    f = fleet(nodes=2, trace=Trace(("a", "b"), np.array([[0.5], [0.1]])))
    small = add(f, 0, cpuMilli=100, followsTrace=True)
    large = add(f, 0, cpuMilli=300, followsTrace=True)
    other = add(f, 1, cpuMilli=700, followsTrace=True)
    f.step(30, 30)
    assert f.granted[[small, large, other]] == pytest.approx([1_250, 3_750, 1_000])


def test_latency_alone_ignores_batch_and_the_figure_with_it_does_not() -> None:
    alone, beside = fleet(protection="none"), fleet(protection="none")
    for f in (alone, beside):
        add(f, cpu="6", cpuMilli=6_000, serviceTimeMs=10)
    add(beside, batch=True, cpu="9", cpuMilli=9_000)
    for f in (alone, beside):
        f.step(30, 30)
    quiet, noisy = service_latency(alone), service_latency(beside)
    assert noisy.p99_alone_ms[0] == pytest.approx(quiet.p99_ms[0])
    assert noisy.p99_ms[0] > 1.5 * quiet.p99_ms[0]


def test_better_protection_never_makes_services_slower() -> None:
    p99 = {}
    for protection in Protection:
        f = fleet(protection=protection)
        add(f, cpu="5", cpuMilli=5_500, serviceTimeMs=10)
        add(f, batch=True, cpu="9", cpuMilli=9_000)
        f.step(30, 30)
        p99[protection] = float(service_latency(f).p99_ms[0])
    assert (
        max(p99[Protection.SUPPRESS], p99[Protection.IDLE]) <= p99[Protection.SHARES] < p99[Protection.NONE]
    )


def test_percentile_windows_stay_empty_until_half_of_them_was_seen() -> None:
    f = fleet(sample_s=30.0)
    add(f, cpuMilli=1_000)
    policy = CollectPolicy(60, 300, ("5m",), "usageWithoutPageCache")

    def window(now_s: float) -> ResourceMap:
        [status] = msgspec.convert(reports.statuses(f, ROWS, policy, now_s), list[NodeMetricStatus])
        assert status.node_metric is not None
        return status.node_metric.aggregated_node_usages[0].usage["p95"]

    for step in range(1, 6):
        f.step(step * 30, 30)
    assert window(150) == ResourceMap()
    f.step(180, 30)
    assert window(180) == ResourceMap(resources={"cpu": "1", "memory": str(int(0.45 * GIB))})


def test_nodes_of_one_size_are_named_by_number_and_spread_over_three_zones() -> None:
    shapes = alike(11, 4, 64, gpus=1, gpu_model="x", rdma_cards=2)
    assert [(each.name, each.zone) for each in shapes[:4]] == [
        ("node-00", "zone-a"),
        ("node-01", "zone-b"),
        ("node-02", "zone-c"),
        ("node-03", "zone-a"),
    ]
    first = shapes[0]
    assert (len(shapes), shapes[10].name) == (11, "node-10")
    assert (first.cpu_milli, first.memory_bytes, first.reserved_bytes) == (4_000, 64 << 30, 2 << 30)
    assert (first.gpus, first.gpu_model, first.rdma_cards) == (1, "x", 2)
    assert alike(10, 1, 16)[9].name == "node-9"
    assert alike(1, 1, 16)[0].reserved_bytes == 1 << 30
    assert alike(0, 1, 1) == ()
