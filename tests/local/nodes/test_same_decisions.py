"""What a fleet does with a node is what the node's agent would do: for each policy, over random nodes.

Usage is in multiples of 1/8 core, which floats hold exactly, so that the order of sums does not matter. Each property
compares a row with the function, strategy or reporter that the agent itself calls, fed with raw numbers of that row.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from koordinator import clock as clocks
from koordinator.api import quantity, resources
from koordinator.api.annotations.node import NodeReservation
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetricSpec, NodeMetricStatus
from koordinator.api.slo import CPUBurstStrategy, ResourceThresholdStrategy
from koordinator.clock import FixedClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.host.cgroup_knobs import UNLIMITED
from koordinator.host.cgroup_layout import Driver
from koordinator.host.sysfs import Processor
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet import node_pods
from koordinator.koordlet.config import PredictConfig
from koordinator.koordlet.hooks import batch_resource, contexts
from koordinator.koordlet.hooks.batch_resource import BatchRule
from koordinator.koordlet.predict import hours
from koordinator.koordlet.predict.hour_trainer import HourTrainer
from koordinator.koordlet.predict.trainer import Trainer
from koordinator.koordlet.qos import cpu_burst, cpu_evict, cpu_suppress, eviction, memory_evict
from koordinator.koordlet.qos.cpu_burst import ContainerQuota, PoolPod
from koordinator.koordlet.qos.cpu_evict import BESample, CPUState
from koordinator.koordlet.qos.cpu_suppress import CPUUsage, SuppressPodClass, UsableCPUs
from koordinator.koordlet.qos.eviction import Arbitration, EvictionTask, EvictionVictim
from koordinator.koordlet.qos.memory_evict import MemoryState
from koordinator.koordlet.qos.shadow import ShadowMode
from koordinator.koordlet.report import node_metric
from koordinator.koordlet.report.node_metric_reporter import NodeMetricReporter
from koordinator.local import registry
from koordinator.local.nodes import behaviour, pod_shape, reports
from koordinator.local.nodes.behaviour import Behaviour
from koordinator.local.nodes.cpu_qos import Suppression
from koordinator.local.nodes.evictions import Evictions
from koordinator.local.nodes.fleet import INSTALLED_STRATEGY, FleetPolicy, HollowFleet, NodeShape
from koordinator.local.nodes.lent_gpus import LentGPUs
from tests.koordlet.report.agent_node import NAME, NOW_S, AgentNode

GIB = 2**30
SEEDS = range(12)
NODES = 3
SYSTEM_MILLI = 125.0
MODES = ("cpuset", "cfsQuota")
CALM: dict[str, Any] = {"system_base_milli": SYSTEM_MILLI, "system_share_of_use": 0.0}


class Ground:
    """A fleet of random pods, and the same pods as objects, by row."""

    def __init__(self, seed: int, policy: FleetPolicy, *, pods: int = 6, cpu_most: int = 12) -> None:
        self.rng = random.Random(seed)
        self.cpu_most = cpu_most
        shapes = [
            NodeShape(
                name=f"n{row}",
                cpu_milli=self.rng.choice((4_000, 16_000, 33_000, 64_000)),
                memory_bytes=self.rng.choice((16, 32)) * GIB,
                reserved_milli=self.rng.choice((0, 500, 2_000)),
            )
            for row in range(NODES)
        ]
        self.fleet = HollowFleet(shapes, policy)
        self.pods: list[dict[int, Pod]] = [{} for _ in shapes]
        for row in range(NODES):
            for _ in range(self.rng.randrange(pods + 1)):
                self.add(row)

    def add(self, row: int) -> int:
        pod = self.random_pod(f"p{row}-{len(self.pods[row])}-{self.rng.randrange(1_000)}")
        shape, error = self.fleet.read(pod)
        assert error is None
        slot = self.fleet.add(shape, row)
        self.fleet.start(slot)
        self.pods[row][slot] = pod
        return slot

    def random_pod(self, name: str) -> Pod:
        rng = self.rng
        is_batch = rng.random() < 0.5
        cpu = rng.randrange(1, 9)
        if is_batch:
            amounts = {"kubernetes.io/batch-cpu": str(cpu * 250), "kubernetes.io/batch-memory": "1Gi"}
            labels, priority = {"koordinator.sh/qosClass": "BE"}, rng.choice((5_000, 5_500, None))
        else:
            amounts = {"cpu": f"{cpu * 250}m", "memory": "1Gi"}
            labels = rng.choice(({}, {"koordinator.sh/qosClass": rng.choice(("LS", "LSR"))}))
            priority = rng.choice((9_500, 7_500, None))
        if rng.random() < 0.3:
            labels = {**labels, "koordinator.sh/eviction-enabled": "true"}
        does = Behaviour(cpu_milli=rng.randrange(self.cpu_most) * 125, memory_bytes=rng.randrange(1, 9) * GIB)
        body = {
            "metadata": {
                "name": name,
                "namespace": rng.choice(("a", "b")),
                "uid": name,
                "labels": labels,
                "annotations": behaviour.annotations(does),
                "creationTimestamp": clocks.rfc3339(NOW_S - rng.randrange(600)),
            },
            "spec": {
                "priority": priority,
                "containers": [
                    {
                        "name": "main",
                        "resources": {"requests": amounts, "limits": rng.choice(({}, amounts))},
                    }
                ],
            },
            "status": {"phase": "Running", "qosClass": "BestEffort" if is_batch else "Burstable"},
        }
        return from_builtins(body, Pod)

    def on(self, row: int) -> list[Pod]:
        return list(self.pods[row].values())

    def cores(self, row: int) -> dict[str, float]:
        fleet = self.fleet
        return {pod.metadata.uid: float(fleet.granted[slot]) / 1000 for slot, pod in self.pods[row].items()}

    def memory(self, row: int) -> dict[str, float]:
        return {
            pod.metadata.uid: behaviour.decode(pod.metadata.annotations[behaviour.ANNOTATION]).memory_bytes
            or 0.0
            for pod in self.on(row)
        }

    def node_cores(self, row: int) -> float:
        return sum(self.cores(row).values()) + SYSTEM_MILLI / 1000


def strategy(**said: Any) -> ResourceThresholdStrategy:
    return msgspec.structs.replace(INSTALLED_STRATEGY, **said)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_suppression_of_a_row_is_the_agents(seed: int, mode: str) -> None:
    percent = random.Random(seed).choice((None, 10))
    policy = FleetPolicy(
        strategy=strategy(cpu_suppress_policy=mode, cpu_suppress_min_percent=percent), **CALM
    )
    ground = Ground(seed, policy)
    fleet = ground.fleet
    for step in range(1, 5):
        old_cpus, old_us = fleet.suppression.cpus.copy(), fleet.suppression.quota_us.copy()
        fleet.step(NOW_S + step, 1.0)
        for row, shape in enumerate(fleet.shapes):
            be_milli = cpu_suppress.suppress_amount(
                cpu_suppress.node_cpu(
                    shape.cpu_milli, shape.cpu_milli - shape.reserved_milli, NodeReservation()
                ),
                CPUUsage(ground.node_cores(row), ground.cores(row), {}),
                {pod.metadata.uid: classed(pod) for pod in ground.on(row)},
                [],
                65,
                percent,
            ).be_milli
            count = shape.cpu_milli // 1000
            machine = tuple(Processor(node=0, socket=0, core=cpu, cpu=cpu) for cpu in range(count))
            if mode == "cpuset":
                old = frozenset(range(int(old_cpus[row])))
                wanted = cpu_suppress.decide_cpuset(be_milli, old, count, UsableCPUs((), machine))
                assert fleet.suppression.cpus[row] == len(wanted)
            else:
                quota = cpu_suppress.decide_quota(be_milli, shape.cpu_milli, int(old_us[row]))
                assert fleet.suppression.quota_us[row] == quota.quota_us
        ground.add(step % NODES)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_holds_a_row_back_where_the_closed_loop_allows_the_whole_node(mode: str) -> None:
    capacity = np.array([8_000, 8_000])
    held = Suppression(strategy(cpu_suppress_policy=mode), capacity, np.zeros(2, np.int64))
    services, system = np.array([4_000.0, 4_000.0]), np.zeros(2)
    held.run(services, system, 1, np.array([60, 60]))
    assert (held.limit_milli() < 8_000).all()

    held.run(services, system, 1, np.array([99, 100]))

    by_agent = [bool(cpu_suppress.holds_back(percent)) for percent in (99, 100)]
    assert by_agent == [True, False]
    assert held.limit_milli()[0] < 8_000
    assert (held.cpus[1], held.quota_us[1]) == (8, UNLIMITED)


def classed(pod: Pod) -> SuppressPodClass:
    record = node_pods.record(pod, Driver.CGROUPFS)
    return SuppressPodClass(record.qos, record.kube_qos)


@pytest.mark.parametrize("seed", SEEDS)
def test_burst_of_a_row_is_the_agents(seed: int) -> None:
    settings = CPUBurstStrategy(
        policy="cfsQuotaBurstOnly",
        cfs_quota_burst_percent=random.Random(seed).choice((150, 300)),
        cfs_quota_burst_period_seconds=-1,
        share_pool_threshold_percent=random.Random(seed).choice((10, 50)),
    )
    ground = Ground(seed, FleetPolicy(burst=settings, **CALM), pods=10, cpu_most=30)
    fleet = ground.fleet
    raised = 0
    for step in range(1, 6):
        before = fleet.limit.copy()
        fleet.step(NOW_S + step, 1.0)
        for row, shape in enumerate(fleet.shapes):
            cores = ground.cores(row)
            pool = [
                PoolPod(
                    node_pods.record(pod, Driver.CGROUPFS).qos, request_milli(pod), cores[pod.metadata.uid]
                )
                for pod in ground.on(row)
            ]
            state = cpu_burst.node_state(
                ground.node_cores(row),
                shape.cpu_milli // 1000,
                pool,
                settings.share_pool_threshold_percent or 0,
            )
            for slot, pod in ground.pods[row].items():
                limit = quantity.milli(pod.spec.containers[0].resources.limits.get("cpu", 0))
                managed = cpu_burst.is_managed(node_pods.record(pod, Driver.CGROUPFS).qos, "Running")
                if limit <= 0 or not managed:
                    assert fleet.limit[slot] == before[slot]
                    continue
                wants = behaviour.decode(pod.metadata.annotations[behaviour.ANNOTATION]).cpu_milli or 0.0
                throttled = float(wants > before[slot])
                measured = ContainerQuota("main", limit, round(before[slot] * 100), throttled, None)
                plan = cpu_burst.plan_pod(settings, state, [measured], -1)
                assert fleet.limit[slot] * 100 == pytest.approx(plan.containers_us["main"])
                raised += plan.containers_us["main"] > limit * 100
    assert raised or seed != 0


def request_milli(pod: Pod) -> int:
    return quantity.milli(pod.spec.containers[0].resources.requests.get("cpu", 0))


async def evicted(tasks: list[EvictionTask]) -> list[tuple[str, str]]:
    """Victims of a round in which the API refuses nobody, as `Evictor` has them."""
    arbitration, found = Arbitration(eviction.narrowed(tasks)), []
    while (victim := arbitration.next_victim()) is not None:
        found.append((victim.uid, victim.feature))
        arbitration.settle(victim, True)
    return found


async def evicted_by_fleet(ground: Ground, now_s: float) -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = [[] for _ in ground.pods]

    async def evict(row: int, victim: EvictionVictim) -> bool:
        found[row].append((victim.uid, victim.feature))
        return True

    evictions = Evictions(ground.fleet, ground.on, LentGPUs(ground.fleet))
    await evictions.run(now_s - 60, refuse)  # CPU rests after the start
    await evictions.run(now_s, evict)
    return found


async def refuse(row: int, victim: EvictionVictim) -> bool:
    raise AssertionError("nobody is evicted for CPU right after the start")


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_eviction_of_a_row_takes_the_agents_victims_in_its_order(seed: int) -> None:
    features = frozenset((memory_evict.BE_MEMORY, memory_evict.MEMORY))
    said = strategy(memory_evict_threshold_percent=60, evict_enabled_priority_threshold=7_999)
    policy = FleetPolicy(strategy=said, evictions=features, system_memory_bytes=2.0 * GIB, **CALM)
    ground = Ground(seed, policy, pods=12)
    fleet = ground.fleet
    fleet.step(NOW_S, 1.0)

    async def found() -> list[list[tuple[str, str]]]:
        of_rows: list[list[tuple[str, str]]] = [[] for _ in ground.pods]

        async def evict(row: int, victim: EvictionVictim) -> bool:
            of_rows[row].append((victim.uid, victim.feature))
            return True

        await Evictions(fleet, ground.on, LentGPUs(fleet)).run(NOW_S, evict)
        return of_rows

    victims = asyncio.run(found())
    for row, shape in enumerate(fleet.shapes):
        used = min(sum(ground.memory(row).values()) + 2 * GIB, shape.memory_bytes)
        state = MemoryState(shape.memory_bytes, used, ground.memory(row))
        wanted = memory_evict.tasks(features, said, state, {}, ground.on(row))
        assert victims[row] == asyncio.run(evicted(wanted))
    assert any(victims)


@pytest.mark.parametrize("seed", SEEDS)
def test_cpu_eviction_of_a_row_takes_the_agents_victims_in_its_order(seed: int) -> None:
    features = frozenset((cpu_evict.BE_CPU, cpu_evict.CPU))
    said = strategy(
        cpu_evict_threshold_percent=40,
        cpu_evict_lower_percent=20,
        evict_enabled_priority_threshold=7_999,
        cpu_evict_be_satisfaction_lower_percent=60,
        cpu_evict_be_satisfaction_upper_percent=90,
        cpu_evict_be_usage_threshold_percent=50,
        cpu_evict_time_window_seconds=3,
    )
    ground = Ground(seed, FleetPolicy(strategy=said, evictions=features, sample_s=1.0, **CALM), pods=12)
    fleet = ground.fleet
    history: list[list[tuple[float, BESample]]] = [[] for _ in ground.pods]
    for step in range(5):
        fleet.step(NOW_S + step, 1.0)
        for row in range(NODES):
            cores = ground.cores(row)
            batch = [pod for pod in ground.on(row) if pod.status.qos_class == "BestEffort"]
            usage = sum(cores[pod.metadata.uid] for pod in batch) * 1000
            asked = sum(
                quantity.value(pod.spec.containers[0].resources.requests[resources.BATCH_CPU])
                for pod in batch
            )
            sample = BESample(1, usage, asked, float(fleet.suppression.cpus[row] * 1000))
            history[row].append((ground.node_cores(row), sample))
    now_s = NOW_S + 4

    victims = asyncio.run(evicted_by_fleet(ground, now_s))

    for row, shape in enumerate(fleet.shapes):
        window = history[row][-4:]  # both ends of three seconds
        averages = [
            float(np.mean([getattr(sample, name) for _, sample in window]))
            for name in ("usage", "request", "limit")
        ]
        state = CPUState(
            capacity_milli=shape.cpu_milli,
            node_cores=float(np.mean([cores for cores, _ in window])),
            pods_cores=ground.cores(row),
            be_average=BESample(len(window), *averages),
            be_latest=window[-1][1],
            collect_interval_s=1.0,
        )
        wanted = cpu_evict.tasks(features, said, state, {}, ground.on(row))
        assert victims[row] == asyncio.run(evicted(wanted))
    assert any(victims) or seed != 10


@pytest.mark.parametrize("uses_quota", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_batch_limits_of_a_pod_are_the_agents(seed: int, uses_quota: bool) -> None:
    mode = "cpuset" if uses_quota else "cfsQuota"
    ground = Ground(seed, FleetPolicy(strategy=strategy(cpu_suppress_policy=mode)))
    for row in range(NODES):
        for slot, pod in ground.pods[row].items():
            context = contexts.of_pod(node_pods.record(pod, Driver.CGROUPFS))
            wanted = batch_resource.pod_limits(
                node_pods.record(pod, Driver.CGROUPFS).qos,
                context.extended,
                BatchRule(uses_quota),
                context.container_names,
            )
            shares = wanted.shares if wanted.shares is not None else context.current.shares
            quota_us = wanted.quota_us if wanted.quota_us is not None else context.current.quota_us
            assert ground.fleet.weight[slot] == shares
            assert ground.fleet.limit[slot] == pod_shape.milli_of_quota(quota_us)
            assert ground.fleet.shape_of[slot].group.memory_bytes == wanted.memory_bytes


def test_prediction_and_report_of_a_row_are_the_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hours, "HOUR_SAMPLES_MIN", 3)
    lent = [_lent_like_agents(seed, tmp_path / str(seed)) for seed in SEEDS[:6]]
    assert any(lent)


def _lent_like_agents(seed: int, root: Path) -> int:
    """Agents are fed with what the fleet gave out, sample by sample, and asked by their own reporters."""
    # Pods of the ground are 0 to 10 minutes old: half of them have learnt enough by the end.
    predict = PredictConfig(cold_start_s=600.0, checkpoints="")
    ground = Ground(seed, FleetPolicy(predict=predict, sample_s=30.0, reports_hours=True, **CALM))
    fleet, cluster = ground.fleet, MemoryCluster(registry.in_memory(FixedClock(NOW_S)))
    durations = ["2m", "5m", "30m"]
    spec = from_builtins(
        {"metricCollectPolicy": {"nodeAggregatePolicy": {"durations": durations}}}, NodeMetricSpec
    )
    agents = []
    for row, shape in enumerate(fleet.shapes):
        agent = AgentNode(root / str(row), cluster, predict=predict)
        agent.view.node = node_of(shape)
        agent.view.metric_spec = spec
        trainer, by_hour = Trainer(agent.shared), HourTrainer(agent.shared)
        reporter = NodeMetricReporter(agent.shared, ShadowMode(agent.shared), trainer, hour_trainer=by_hour)
        agents.append((agent, (trainer, by_hour), reporter))
    for step in range(14):
        now_s = NOW_S + 30 * step
        if step == 5:
            ground.add(0)
        for row in range(NODES):
            if ground.pods[row] and ground.rng.random() < 0.1:
                slot, _ = ground.pods[row].popitem()
                fleet.remove(slot)
        fleet.step(now_s, 30.0)
        for row, (agent, trainers, _) in enumerate(agents):
            agent.fixed.now_s = now_s
            agent.pods(*ground.on(row))
            cores, memory = ground.cores(row), ground.memory(row)
            in_use = min(sum(memory.values()) + 2.5 * GIB, fleet.shapes[row].memory_bytes)
            agent.use(ground.node_cores(row), in_use)
            agent.sample(kinds.SYS_CPU, SYSTEM_MILLI / 1000)
            agent.sample(kinds.SYS_MEMORY, 2.5 * GIB)
            for pod in ground.on(row):
                agent.pod_uses(pod.metadata.uid, cores[pod.metadata.uid], memory[pod.metadata.uid])
            if step % 2 == 0:
                for each in trainers:
                    each.run()
    policy, _ = node_metric.readable_windows(node_metric.collect_policy(spec))
    found = msgspec.convert(reports.statuses(fleet, np.arange(NODES), policy, now_s), list[NodeMetricStatus])
    for (_, _, reporter), status in zip(agents, found, strict=True):
        assert status == reporter.status()
        assert len(status.yielded_by_hour) == 24
    amounts = [each.prod_reclaimable_metric for each in found]
    return sum(
        quantity.milli(each.resource.resources["cpu"]) for each in amounts if each and each.resource.resources
    )


def node_of(shape: NodeShape) -> Node:
    allocatable = {
        "cpu": f"{shape.cpu_milli - shape.reserved_milli}m",
        "memory": str(shape.memory_bytes - shape.reserved_bytes),
    }
    return from_builtins({"metadata": {"name": NAME}, "status": {"allocatable": allocatable}}, Node)
