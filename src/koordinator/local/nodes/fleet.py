"""All simulated nodes and their pods as arrays: one `step` moves thousands of nodes.

A pod has a slot for its life; a node has a row. The fleet knows nothing of the API: `hollow` tells it which
pods come and go, and carries out what a step says (who finished, who must be evicted).
"""

import bisect
import random
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import QoSClass
from koordinator.api.slo import (
    DEFAULT_CPU_BURST_STRATEGY,
    DEFAULT_THRESHOLD_STRATEGY,
    CPUBurstStrategy,
    ResourceThresholdStrategy,
)
from koordinator.koordlet import series
from koordinator.koordlet.config import PredictConfig, QoSConfig
from koordinator.koordlet.hooks import batch_resource
from koordinator.koordlet.hooks.batch_resource import BatchRule
from koordinator.koordlet.interference.control import ControlConfig
from koordinator.koordlet.predict.hour_trainer import LENT_TO
from koordinator.koordlet.qos.cpu_burst import BurstNodeState
from koordinator.koordlet.qos.memory_evict import BE_MEMORY
from koordinator.koordlet.series import Aggregation
from koordinator.local.nodes import closed_loop, contention, cpu_qos, pod_shape, prediction, samples, usage
from koordinator.local.nodes.closed_loop import StepLoad
from koordinator.local.nodes.contention import Protection
from koordinator.local.nodes.cpu_qos import BurstablePod, Suppression
from koordinator.local.nodes.pod_shape import HollowPodShape
from koordinator.local.nodes.prediction import Peaks, SlotUsage
from koordinator.local.nodes.samples import NodeSample, PodSample, Samples
from koordinator.local.nodes.usage import F64, Index, Mask, Noise, Trace, per_node

DAY_S = usage.DAY_S


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """A node's size. `reserved_*` is what the kubelet keeps from pods: capacity − allocatable. Without `gpu_model`,
    GPUs are of a usual one."""

    name: str
    cpu_milli: int = 32_000
    memory_bytes: int = 128 * 2**30
    reserved_milli: int = 500
    reserved_bytes: int = 2 * 2**30
    pods: int = 110
    zone: str = "zone-a"
    arch: str = "amd64"
    instance_type: str = "hollow"
    gpus: int = 0
    gpu_model: str = ""
    rdma_cards: int = 0
    has_partitions: bool = False
    """Whether NVSwitches join the GPUs, which are then given out in partitions only."""

    @property
    def has_devices(self) -> bool:
        """Return whether the node has any cards."""
        return bool(self.gpus or self.rdma_cards)


def alike(
    count: int,
    cpu_cores: int,
    memory_gib: int,
    *,
    gpus: int = 0,
    gpu_model: str = "",
    rdma_cards: int = 0,
    has_partitions: bool = False,
) -> tuple[NodeShape, ...]:
    """Return nodes of one size in three zones, named so that their names sort by number."""
    width = len(str(max(count - 1, 0)))
    memory_bytes = memory_gib * 2**30
    return tuple(
        NodeShape(
            name=f"node-{number:0{width}d}",
            cpu_milli=cpu_cores * 1000,
            memory_bytes=memory_bytes,
            reserved_bytes=min(2 * 2**30, memory_bytes // 16),
            zone=f"zone-{'abc'[number % 3]}",
            gpus=gpus,
            gpu_model=gpu_model,
            rdma_cards=rdma_cards,
            has_partitions=has_partitions,
        )
        for number in range(count)
    )


INSTALLED_STRATEGY = msgspec.structs.replace(DEFAULT_THRESHOLD_STRATEGY, enable=True)
"""Strategy of the node agents of an installation that nobody has configured (`api.defaults.slo_config`)."""


class FleetPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the node agents: sections of a NodeSLO, feature gates, flags."""

    protection: Protection = Protection.SUPPRESS
    strategy: ResourceThresholdStrategy = INSTALLED_STRATEGY
    burst: CPUBurstStrategy = DEFAULT_CPU_BURST_STRATEGY
    closed_loop: ControlConfig | None = None  # off, as in the shipped agent
    evictions: frozenset[str] = frozenset((BE_MEMORY,))
    """Feature gates that are on. Agents have none on unless asked; hollow nodes have one, as full nodes need somebody
    to go."""
    predict: PredictConfig = PredictConfig()
    reports_hours: bool = False
    """The gate PeaksByHour is on."""
    qos: QoSConfig = QoSConfig()
    # System processes: a base and something for every core in use; measured shares differ per distribution.
    system_base_milli: float = 100.0
    system_share_of_use: float = 0.01
    system_memory_bytes: float = 2.5 * 2**30
    # Distance of samples for means and percentiles; the longest reported window is 30 minutes.
    sample_s: float = 15.0
    history_s: float = 1_800.0
    pod_history_s: float = 300.0

    @property
    def batch_rule(self) -> BatchRule:
        """Return the rule by which best-effort pods get their limits."""
        return BatchRule(batch_resource.uses_quota(self.strategy))


class StepResult(msgspec.Struct, frozen=True):
    """The slots whose pods a step brought to an end."""

    finished: list[int]
    killed: list[int]


SLOTS_AT_FIRST = 256


class HollowFleet:
    """The state of all nodes. `trace` has one row per node."""

    def __init__(self, shapes: Sequence[NodeShape], policy: FleetPolicy, trace: Trace | None = None) -> None:
        assert trace is None or len(trace.names) == len(shapes), "a trace needs a row per node"
        self.shapes = list(shapes)
        self.policy = policy
        self.trace = trace
        self.row_of = {shape.name: row for row, shape in enumerate(self.shapes)}
        self.capacity = np.array([shape.cpu_milli for shape in shapes], dtype=np.float64)
        self.capacity_bytes = np.array([shape.memory_bytes for shape in shapes], dtype=np.float64)
        self.reserved = np.array([shape.reserved_milli for shape in shapes], dtype=np.float64)
        self.reserved_bytes = np.array([shape.reserved_bytes for shape in shapes], dtype=np.float64)
        self.speed = np.ones(len(shapes))  # a slow node does less work with the same CPU
        self.has_agents = True  # without: no strategies, samples or models
        self.pods_on: list[dict[int, None]] = [{} for _ in shapes]
        self._sorted_on: dict[int, list[int]] = {}
        self._batch_rule = policy.batch_rule
        self.shape_of: dict[int, HollowPodShape] = {}
        self._make_columns(SLOTS_AT_FIRST)
        self._free: list[int] = list(range(SLOTS_AT_FIRST - 1, -1, -1))
        self._active: Index | None = None
        self._noise = Noise(np.zeros(0, dtype=np.uint64))
        self._make_node_state(len(shapes))

    def _make_node_state(self, nodes: int) -> None:
        policy = self.policy
        self.used = np.zeros(nodes)  # CPU, all pods and system
        self.used_bytes = np.zeros(nodes)
        self.system = np.zeros(nodes)
        self.services_used = np.zeros(nodes)
        self.batch_used = np.zeros(nodes)
        self.lost_milli_s = 0.0  # CPU spent on work that was thrown away
        self.allocatable: Index = np.stack(
            (self.capacity - self.reserved, self.capacity_bytes - self.reserved_bytes), axis=-1
        ).astype(np.int64)
        self.suppression = Suppression(
            policy.strategy, self.capacity.astype(np.int64), self.reserved.astype(np.int64)
        )
        self.closed_loop = closed_loop.loop_of(self.capacity, policy.closed_loop, policy.protection)
        self.samples = Samples(policy.history_s, policy.pod_history_s)
        self.peaks = Peaks(nodes, policy.predict, learns_hours=policy.reports_hours)
        self.peaks.grow(SLOTS_AT_FIRST)
        self._limited: dict[int, BurstablePod] = {}
        self._rng = random.Random(0)
        self._unsampled_s = policy.sample_s  # the first step is a sample
        self._unlearnt_s = policy.predict.training_interval_s

    def _make_columns(self, slots: int) -> None:
        self.node: Index = np.zeros(slots, dtype=np.int64)
        self.running: Mask = np.zeros(slots, dtype=np.bool_)
        self.is_best_effort: Mask = np.zeros(slots, dtype=np.bool_)
        self.is_batch: Mask = np.zeros(slots, dtype=np.bool_)
        self.is_prod: Mask = np.zeros(slots, dtype=np.bool_)
        self.is_lent_to: Mask = np.zeros(slots, dtype=np.bool_)
        self.has_class: Mask = np.zeros(slots, dtype=np.bool_)
        self.is_terminating: Mask = np.zeros(slots, dtype=np.bool_)
        self.is_finished: Mask = np.zeros(slots, dtype=np.bool_)
        self.is_finite: Mask = np.zeros(slots, dtype=np.bool_)
        self.is_service: Mask = np.zeros(slots, dtype=np.bool_)
        self.follows_trace: Mask = np.zeros(slots, dtype=np.bool_)
        self.seed: npt.NDArray[np.uint64] = np.zeros(slots, dtype=np.uint64)
        for column in _FLOAT_COLUMNS:
            setattr(self, column, np.zeros(slots))

    weight: F64
    limit: F64
    request: F64
    request_bytes: F64
    batch_milli: F64
    created_s: F64
    mean_milli: F64
    amplitude: F64
    peak_s: F64
    sigma: F64
    memory: F64
    service_time_ms: F64
    p99_target_ms: F64
    work_left: F64  # milli-core-seconds
    run_left_s: F64
    oom_in_s: F64
    wanted: F64  # demand without the pod's limit
    demand: F64
    granted: F64
    consumed: F64  # milli-core-seconds since the start

    # Pods

    def add(self, shape: HollowPodShape, row: int) -> int:
        """Return a slot for a pod on a node; it uses nothing before `start`."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.shape_of[slot] = shape
        self.pods_on[row][slot] = None
        in_order = self._sorted_on.get(row)
        if in_order is not None:
            bisect.insort(in_order, slot, key=self._sort_key)
        wanted = shape.behaviour
        self.node[slot], self.running[slot] = row, False
        self.is_best_effort[slot], self.is_batch[slot] = shape.is_best_effort, shape.is_batch
        self.is_prod[slot], self.is_finite[slot] = shape.is_prod, wanted.is_finite
        self.has_class[slot] = shape.priority is prediction.CLASSES[0]
        self.is_lent_to[slot] = shape.priority in LENT_TO
        self.is_terminating[slot] = self.is_finished[slot] = False
        self.created_s[slot] = shape.created_s
        self.is_service[slot] = wanted.service_time_ms is not None
        self.follows_trace[slot] = wanted.follows_trace and (self.trace is not None)
        self.seed[slot] = shape.seed
        self._take_amounts(slot, shape)
        self.mean_milli[slot], self.memory[slot] = shape.cpu_milli, shape.memory_bytes
        self.amplitude[slot], self.peak_s[slot] = wanted.daily_amplitude_ratio, wanted.peak_hour * 3_600
        self.sigma[slot], self.oom_in_s[slot] = wanted.noise_sigma, wanted.oom_after_seconds or np.inf
        self.service_time_ms[slot] = wanted.service_time_ms or 0.0
        self.p99_target_ms[slot] = wanted.p99_target_ms or 0.0
        self.consumed[slot] = self.wanted[slot] = self.demand[slot] = self.granted[slot] = 0.0
        return slot

    def resize(self, slot: int, shape: HollowPodShape) -> None:
        """The pod's requests and limits are now those of `shape`; what it wants to use stays as it is."""
        self.shape_of[slot] = shape
        self._take_amounts(slot, shape)

    def use_cards(self, slot: int, pod: Pod) -> None:
        """The pod now uses of its GPUs what its behaviour says; all else that it does stays as it began."""
        cards = self.read(pod)[0].cards
        self.shape_of[slot] = msgspec.structs.replace(self.shape_of[slot], cards=cards)

    def _take_amounts(self, slot: int, shape: HollowPodShape) -> None:
        self.weight[slot], self.limit[slot] = shape.weight, shape.limit_milli
        self.request[slot], self.request_bytes[slot] = shape.request_milli, shape.request_bytes
        self.batch_milli[slot] = shape.batch_milli if shape.qos is QoSClass.BE else 0.0
        self._limited.pop(slot, None)
        limited = cpu_qos.burstable(shape)
        if limited is not None:
            self._limited[slot] = limited

    def read(self, pod: Pod) -> tuple[HollowPodShape, ProtocolError | None]:
        """Return the shape of a pod under this fleet's policies; see `pod_shape.read`."""
        return pod_shape.read(pod, self._batch_rule, self.policy.burst)

    def stands(self, slot: int, *, is_terminating: bool, is_finished: bool) -> None:
        """Note how the pod stands in the API."""
        self.is_terminating[slot], self.is_finished[slot] = is_terminating, is_finished

    def sorted_pods(self, row: int) -> list[int]:
        """Return the slots of a node's pods by namespace and name."""
        found = self._sorted_on.get(row)
        if found is None:
            found = self._sorted_on[row] = sorted(self.pods_on[row], key=self._sort_key)
        return found

    def _sort_key(self, slot: int) -> tuple[str, str, int]:
        shape = self.shape_of[slot]
        return shape.namespace, shape.name, slot

    def start(self, slot: int) -> None:
        """The pod's container begins, or begins again: all work is still to be done."""
        wanted = self.shape_of[slot].behaviour
        self.work_left[slot] = (wanted.cpu_work_core_seconds or 0.0) * 1000
        self.run_left_s[slot] = wanted.run_seconds or 0.0
        self.running[slot] = True
        self._active = None

    def halt(self, slot: int) -> None:
        """The pod's container ended; the pod keeps its slot."""
        self.running[slot] = False
        self.wanted[slot] = self.demand[slot] = self.granted[slot] = 0.0
        self._active = None

    def remove(self, slot: int) -> None:
        """The pod is gone; CPU that unfinished work had is lost."""
        if self.is_finite[slot] and self.work_left[slot] > 0:
            self.lost_milli_s += float(self.consumed[slot])
        self.halt(slot)
        del self.shape_of[slot]
        row = int(self.node[slot])
        del self.pods_on[row][slot]
        if row in self._sorted_on:
            self._sorted_on[row].remove(slot)
        self._limited.pop(slot, None)
        self.samples.forget(slot)
        self.peaks.forget(slot)
        self._free.append(slot)

    def _grow(self) -> None:
        before = self.node.size
        for name, column in list(vars(self).items()):
            if isinstance(column, np.ndarray) and name in _COLUMNS:
                setattr(self, name, np.concatenate([column, np.zeros_like(column)], axis=-1))
        self._free = list(range(2 * before - 1, before - 1, -1))
        self.samples.grow(2 * before)
        self.peaks.grow(2 * before)

    # Time

    def step(self, time_s: float, elapsed_s: float) -> StepResult:
        """Give CPU and memory to all running pods for the `elapsed_s` that end at `time_s`."""
        pods = self.active()
        node = self.node[pods]
        self.wanted[pods] = self._demand(pods, node, time_s)
        demand = np.minimum(self.wanted[pods], self.limit[pods])
        granted = self._share(pods, node, demand, elapsed_s)
        self.demand[pods], self.granted[pods] = demand, granted
        self.consumed[pods] += granted * elapsed_s
        self._sum_up(pods, node, granted)
        if self.has_agents:
            self._burst(elapsed_s)
            self._sample(pods, node, time_s, elapsed_s)
        return StepResult(*self._progress(pods, node, granted, elapsed_s))

    def active(self) -> Index:
        """Slots of running pods."""
        if self._active is None:
            self._active = np.flatnonzero(self.running)
        return self._active

    def _demand(self, pods: Index, node: Index, time_s: float) -> F64:
        mean = self.mean_milli[pods]
        demand = mean.copy()
        varying = np.flatnonzero((self.sigma[pods] > 0) | (self.amplitude[pods] > 0))
        slots = pods[varying]
        seed = self.seed[slots]
        if not np.array_equal(seed, self._noise.seed):
            self._noise = Noise(seed)
        demand[varying] = usage.demand_milli(
            mean[varying],
            self.amplitude[slots],
            self.peak_s[slots],
            self.sigma[slots],
            self._noise.at(time_s),
            time_s,
        )
        if self.trace is not None:
            follows = self.follows_trace[pods]
            share_of = per_node(node, mean * follows, self.capacity.size)
            wanted = np.maximum(self.trace.at(time_s) * self.capacity - self.policy.system_base_milli, 0.0)
            per_mean = np.divide(wanted, share_of, out=np.zeros_like(wanted), where=share_of > 0)
            demand = np.where(follows, mean * per_mean[node], demand)
        return demand

    def _share(self, pods: Index, node: Index, demand: F64, elapsed_s: float) -> F64:
        nodes, best_effort, policy = self.capacity.size, self.is_best_effort[pods], self.policy
        wanted = np.minimum(per_node(node, demand, nodes), self.capacity)
        self.system = policy.system_base_milli + policy.system_share_of_use * wanted
        available, allowed = self.capacity - self.system, np.full(nodes, np.inf)
        if self.has_agents and policy.protection.has_agent and self.closed_loop is not None:
            columns = self.weight, self.limit, self.service_time_ms, self.p99_target_ms
            load = StepLoad(demand, node, best_effort, available, self.system, *(of[pods] for of in columns))
            allowed = self.closed_loop.react(self.suppression, load, elapsed_s)
        elif self.has_agents and policy.protection.has_agent:
            services = np.minimum(per_node(node, demand * ~best_effort, nodes), available)
            rounds = max(int(elapsed_s / policy.qos.suppress_interval_s), 1)
            self.suppression.run(services, self.system, rounds)
            allowed = self.suppression.limit_milli()
        return contention.share_cpu(
            demand, self.weight[pods], best_effort, node, available, allowed, policy.protection
        )

    def _burst(self, elapsed_s: float) -> None:
        """Raise and lower the quotas of pods that need more than their limit, or had more."""
        states: dict[int, BurstNodeState] = {}
        for slot, pod in self._limited.items():
            is_throttled = bool(self.wanted[slot] > self.limit[slot])
            if not self.running[slot] or (not is_throttled and pod.quota_us == pod.base_us):
                continue
            row = int(self.node[slot])
            if row not in states:
                states[row] = self._burst_state(row)
            used_cores = float(self.granted[slot]) / 1000
            cpu_qos.burst(pod, states[row], is_throttled, used_cores, elapsed_s, self._rng)
            self.limit[slot] = pod_shape.milli_of_quota(pod.quota_us)

    def _burst_state(self, row: int) -> BurstNodeState:
        pods = [(self.shape_of[slot], self.granted[slot] / 1000) for slot in self.pods_on[row]]
        cpus = int(self.suppression.machine_cpus[row])
        return cpu_qos.shared_pool_state(self.used[row] / 1000, cpus, pods, self.policy.burst)

    def _sum_up(self, pods: Index, node: Index, granted: F64) -> None:
        nodes = self.capacity.size
        batch = self.is_batch[pods]
        self.batch_used = per_node(node, granted * batch, nodes)
        self.services_used = per_node(node, granted * ~batch, nodes)
        self.used = self.batch_used + self.services_used + self.system
        in_pods = per_node(node, self.memory[pods], nodes)
        self.used_bytes = np.minimum(in_pods + self.policy.system_memory_bytes, self.capacity_bytes)

    def _sample(self, pods: Index, node: Index, time_s: float, elapsed_s: float) -> None:
        self._unsampled_s += elapsed_s
        self._unlearnt_s += elapsed_s
        if self._unsampled_s >= self.policy.sample_s:
            self._unsampled_s = 0.0
            cores = np.full(self.node.size, np.nan)
            cores[pods] = self.granted[pods] / 1000
            self.samples.append(self._node_sample(pods, node, time_s), PodSample(int(time_s * 1000), cores))
        if self._unlearnt_s >= self.policy.predict.training_interval_s:
            self._unlearnt_s = 0.0
            self._learn(time_s)

    def _node_sample(self, pods: Index, node: Index, time_s: float) -> NodeSample:
        nodes, best_effort = self.capacity.size, self.is_best_effort[pods]
        return NodeSample(
            at_ms=int(time_s * 1000),
            usage=np.stack((self.used / 1000, self.used_bytes, self.system / 1000)),
            system_bytes=self.policy.system_memory_bytes,
            best_effort_cores=per_node(node, self.granted[pods] * best_effort, nodes) / 1000,
            best_effort_limit_cores=self.suppression.limit_milli() / 1000,
            best_effort_request_cores=per_node(node, self.batch_milli[pods], nodes) / 1000,
        )

    def _learn(self, time_s: float) -> None:
        """Teach the models what was used since they learnt last: its 90th percentile, as the node agents do."""
        now_ms, nodes = int(time_s * 1000), self.capacity.size
        window_s = self.policy.predict.training_interval_s
        points = self.samples.of_nodes(now_ms, window_s)
        if not points:
            return
        slots = np.array(list(self.shape_of), np.int64)
        cores = samples.aggregated(self.samples.of_pods(now_ms, window_s, slots), Aggregation.P90)
        has_class = [self.is_prod & self.has_class, self.is_prod & ~self.has_class]
        stays = slots[~self.is_finished[slots]]
        has_pods = [np.bincount(self.node[stays[mask[stays]]], minlength=nodes) > 0 for mask in has_class]
        measured = slots[~np.isnan(cores)]
        used = SlotUsage(
            slots=measured,
            node=self.node[measured],
            cores=cores[~np.isnan(cores)],
            memory_bytes=self.memory[measured],
            is_class=tuple(mask[measured] for mask in has_class),
            is_lent_to=self.is_lent_to[measured],
        )
        node_cores, node_bytes = series.aggregated(
            np.stack([point.usage[:2] for point in points]), Aggregation.P90
        )
        runs = np.bincount(self.node[self.active()], minlength=nodes) > 0
        self.peaks.learn(used, node_cores, node_bytes, tuple(has_pods), runs, time_s)

    def _progress(
        self, pods: Index, node: Index, granted: F64, elapsed_s: float
    ) -> tuple[list[int], list[int]]:
        self.work_left[pods] -= granted * (elapsed_s * self.speed[node])
        self.run_left_s[pods] -= elapsed_s
        self.oom_in_s[pods] -= elapsed_s
        is_done = self.is_finite[pods] & (self.work_left[pods] <= 0) & (self.run_left_s[pods] <= 0)
        is_killed = (self.oom_in_s[pods] <= 0) & ~is_done
        killed = pods[is_killed]
        self.oom_in_s[killed] = np.inf  # once
        return pods[is_done].tolist(), killed.tolist()


_FLOAT_COLUMNS = (
    "weight", "limit", "request", "request_bytes", "batch_milli", "created_s", "mean_milli", "amplitude", "peak_s",
    "sigma", "memory", "service_time_ms", "p99_target_ms", "work_left", "run_left_s", "oom_in_s", "wanted", "demand",
    "granted", "consumed",
)  # fmt: skip
_COLUMNS = frozenset(_FLOAT_COLUMNS) | {
    "node", "running", "is_best_effort", "is_batch", "is_prod", "is_lent_to", "has_class", "is_terminating",
    "is_finished", "is_finite", "is_service", "follows_trace", "seed",
}  # fmt: skip
