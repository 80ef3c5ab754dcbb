"""All simulated nodes and their pods as arrays: one `step` moves thousands of nodes.

A pod has a slot for its life; a node has a row. The fleet knows nothing of the API: `hollow` tells it which
pods come and go, and carries out what a step says (who finished, who must be evicted).
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.local.nodes import contention, usage
from koordinator.local.nodes.contention import Protection
from koordinator.local.nodes.history import PeakHistogram, Ring
from koordinator.local.nodes.pod_shape import PodShape
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


def alike(
    count: int,
    cpu_cores: int,
    memory_gib: int,
    *,
    gpus: int = 0,
    gpu_model: str = "",
    rdma_cards: int = 0,
) -> tuple[NodeShape, ...]:
    """Nodes of one size in three zones, named so that their names sort by number."""
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
        )
        for number in range(count)
    )


class FleetPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the node agents do. The thresholds are the defaults of NodeSLO (behaviour/crds 2)."""

    protection: Protection = Protection.SUPPRESS
    suppress_threshold_percent: float = 65.0
    memory_evict_threshold_percent: float = 70.0
    memory_evict_lower_percent: float = 68.0
    # System processes: a base and something for every core in use; measured shares differ per distribution.
    system_base_milli: float = 100.0
    system_share_of_use: float = 0.01
    system_memory_bytes: float = 2.5 * 2**30
    # Distance of samples for means and percentiles; the longest reported window is 30 minutes.
    sample_s: float = 15.0
    history_s: float = 1_800.0
    pod_history_s: float = 300.0


class StepResult(msgspec.Struct, frozen=True):
    """What a step brought to an end; slots."""

    finished: list[int]
    killed: list[int]
    evicted: list[int]


# Predicted peaks: models and half-lives of the node agent (behaviour/koordlet-observe 11.2).
CPU_PEAK_FIRST, CPU_PEAK_MAX, CPU_HALF_LIFE_S = 25.0, 1_024_000.0, 12 * 3_600.0
MEMORY_PEAK_FIRST, MEMORY_PEAK_MAX, MEMORY_HALF_LIFE_S = 5.0 * 2**20, 2.0**41, 24 * 3_600.0
PEAK_SAMPLE_S = 60.0
SLOTS_AT_FIRST = 256


class Fleet:
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
        self.pods_on: list[dict[int, None]] = [{} for _ in shapes]
        self.shape_of: dict[int, PodShape] = {}
        self._make_columns(SLOTS_AT_FIRST)
        self._free: list[int] = list(range(SLOTS_AT_FIRST - 1, -1, -1))
        self._active: Index | None = None
        self._noise = Noise(np.zeros(0, dtype=np.uint64))
        self._make_node_state(len(shapes))

    def _make_node_state(self, nodes: int) -> None:
        samples = int(self.policy.history_s / self.policy.sample_s) + 1
        self.used = np.zeros(nodes)  # CPU, all pods and system
        self.used_bytes = np.zeros(nodes)
        self.system = np.zeros(nodes)
        self.services_used = np.zeros(nodes)
        self.batch_used = np.zeros(nodes)
        self.lost_milli_s = 0.0  # CPU spent on work that was thrown away
        self.used_ring, self.used_bytes_ring = Ring(nodes, samples), Ring(nodes, samples)
        self.system_ring = Ring(nodes, samples)
        self.prod_peak = PeakHistogram(nodes, CPU_PEAK_FIRST, CPU_PEAK_MAX, CPU_HALF_LIFE_S)
        self.prod_peak_bytes = PeakHistogram(nodes, MEMORY_PEAK_FIRST, MEMORY_PEAK_MAX, MEMORY_HALF_LIFE_S)
        self._unsampled_s = self.policy.sample_s  # the first step is a sample
        self._unpeaked_s = PEAK_SAMPLE_S

    def _make_columns(self, slots: int) -> None:
        self.node: Index = np.zeros(slots, dtype=np.int64)
        self.running: Mask = np.zeros(slots, dtype=np.bool_)
        self.is_best_effort: Mask = np.zeros(slots, dtype=np.bool_)
        self.is_batch: Mask = np.zeros(slots, dtype=np.bool_)
        self.is_prod: Mask = np.zeros(slots, dtype=np.bool_)
        self.is_finite: Mask = np.zeros(slots, dtype=np.bool_)
        self.is_service: Mask = np.zeros(slots, dtype=np.bool_)
        self.follows_trace: Mask = np.zeros(slots, dtype=np.bool_)
        self.seed: npt.NDArray[np.uint64] = np.zeros(slots, dtype=np.uint64)
        for column in _FLOAT_COLUMNS:
            setattr(self, column, np.zeros(slots))
        # Every pod's running totals at the last samples, (samples, slots): differences give means.
        samples = int(self.policy.pod_history_s / self.policy.sample_s)
        self._consumed_log: F64 = np.zeros((samples, slots))
        self._ran_log: F64 = np.zeros((samples, slots))
        self._log_at = 0

    weight: F64
    limit: F64
    request: F64
    request_bytes: F64
    mean_milli: F64
    amplitude: F64
    peak_s: F64
    sigma: F64
    memory: F64
    service_time_ms: F64
    work_left: F64  # milli-core-seconds
    run_left_s: F64
    oom_in_s: F64
    demand: F64
    granted: F64
    consumed: F64  # milli-core-seconds since the start
    ran_s: F64

    # Pods

    def add(self, shape: PodShape, row: int) -> int:
        """A slot for a pod on a node; it uses nothing before `start`."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.shape_of[slot] = shape
        self.pods_on[row][slot] = None
        wanted = shape.behaviour
        self.node[slot], self.running[slot] = row, False
        self.is_best_effort[slot], self.is_batch[slot] = shape.is_best_effort, shape.is_batch
        self.is_prod[slot], self.is_finite[slot] = shape.is_prod, wanted.is_finite
        self.is_service[slot] = wanted.service_time_ms is not None
        self.follows_trace[slot] = wanted.follows_trace and (self.trace is not None)
        self.seed[slot] = shape.seed
        self.weight[slot], self.limit[slot] = shape.weight, shape.limit_milli
        self.request[slot], self.request_bytes[slot] = shape.request_milli, shape.request_bytes
        self.mean_milli[slot], self.memory[slot] = shape.cpu_milli, shape.memory_bytes
        self.amplitude[slot], self.peak_s[slot] = wanted.daily_amplitude_ratio, wanted.peak_hour * 3_600
        self.sigma[slot] = wanted.noise_sigma
        self.service_time_ms[slot] = wanted.service_time_ms or 0.0
        self.consumed[slot] = self.ran_s[slot] = self.demand[slot] = self.granted[slot] = 0.0
        self._consumed_log[:, slot] = self._ran_log[:, slot] = 0.0
        self.oom_in_s[slot] = wanted.oom_after_seconds or np.inf
        return slot

    def resize(self, slot: int, shape: PodShape) -> None:
        """The pod's requests and limits are now those of `shape`; what it wants to use stays as it is."""
        self.shape_of[slot] = shape
        self.weight[slot], self.limit[slot] = shape.weight, shape.limit_milli
        self.request[slot], self.request_bytes[slot] = shape.request_milli, shape.request_bytes

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
        self.demand[slot] = self.granted[slot] = 0.0
        self._active = None

    def remove(self, slot: int) -> None:
        """The pod is gone; CPU that unfinished work had is lost."""
        if self.is_finite[slot] and self.work_left[slot] > 0:
            self.lost_milli_s += float(self.consumed[slot])
        self.halt(slot)
        del self.shape_of[slot]
        del self.pods_on[self.node[slot]][slot]
        self._free.append(slot)

    def _grow(self) -> None:
        before = self.node.size
        for name, column in list(vars(self).items()):
            if isinstance(column, np.ndarray) and name in _COLUMNS:
                setattr(self, name, np.concatenate([column, np.zeros_like(column)], axis=-1))
        self._free = list(range(2 * before - 1, before - 1, -1))

    # Time

    def step(self, time_s: float, elapsed_s: float) -> StepResult:
        """Give CPU and memory to all running pods for the `elapsed_s` that end at `time_s`."""
        pods = self.active()
        node = self.node[pods]
        demand = np.minimum(self._demand(pods, node, time_s), self.limit[pods])
        granted = self._share(pods, node, demand)
        self.demand[pods], self.granted[pods] = demand, granted
        self.consumed[pods] += granted * elapsed_s
        self.ran_s[pods] += elapsed_s
        self._sum_up(pods, node, granted)
        self._sample(pods, node, elapsed_s)
        finished, killed = self._progress(pods, node, granted, elapsed_s)
        return StepResult(finished, killed, self._memory_victims(pods))

    def active(self) -> Index:
        """Slots of running pods."""
        if self._active is None:
            self._active = np.flatnonzero(self.running)
        return self._active

    def pod_mean_milli(self, pods: Index) -> F64:
        """CPU use of pods averaged over the last `pod_history_s`, or since their start."""
        oldest = (self._log_at + 1) % len(self._ran_log)
        ran_s = self.ran_s[pods] - self._ran_log[oldest, pods]
        consumed = self.consumed[pods] - self._consumed_log[oldest, pods]
        mean: F64 = np.divide(consumed, ran_s, out=np.zeros_like(consumed), where=ran_s > 0)
        return mean

    def prod_requests(self) -> tuple[F64, F64]:
        """CPU and memory that prod pods request on each node."""
        pods = np.flatnonzero(self.is_prod & self.running)
        node, nodes = self.node[pods], self.capacity.size
        return per_node(node, self.request[pods], nodes), per_node(node, self.request_bytes[pods], nodes)

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

    def _share(self, pods: Index, node: Index, demand: F64) -> F64:
        nodes = self.capacity.size
        best_effort = self.is_best_effort[pods]
        wanted = per_node(node, demand, nodes)
        policy = self.policy
        self.system = policy.system_base_milli + policy.system_share_of_use * np.minimum(
            wanted, self.capacity
        )
        available = self.capacity - self.system
        services = np.minimum(per_node(node, demand * ~best_effort, nodes), available)
        allowed = contention.suppress_milli(
            self.capacity, services, self.system, self.reserved, policy.suppress_threshold_percent
        )
        return contention.share_cpu(
            demand, self.weight[pods], best_effort, node, available, allowed, policy.protection
        )

    def _sum_up(self, pods: Index, node: Index, granted: F64) -> None:
        nodes = self.capacity.size
        batch = self.is_batch[pods]
        self.batch_used = per_node(node, granted * batch, nodes)
        self.services_used = per_node(node, granted * ~batch, nodes)
        self.used = self.batch_used + self.services_used + self.system
        in_pods = per_node(node, self.memory[pods], nodes)
        self.used_bytes = np.minimum(in_pods + self.policy.system_memory_bytes, self.capacity_bytes)

    def _sample(self, pods: Index, node: Index, elapsed_s: float) -> None:
        self._unsampled_s += elapsed_s
        self._unpeaked_s += elapsed_s
        if self._unsampled_s >= self.policy.sample_s:
            self._unsampled_s = 0.0
            self.used_ring.append(self.used)
            self.used_bytes_ring.append(self.used_bytes)
            self.system_ring.append(self.system)
            self._log_at = (self._log_at + 1) % len(self._ran_log)
            self._consumed_log[self._log_at], self._ran_log[self._log_at] = self.consumed, self.ran_s
        if self._unpeaked_s >= PEAK_SAMPLE_S:
            is_prod = self.is_prod[pods]
            nodes = self.capacity.size
            prod = per_node(node, self.granted[pods] * is_prod, nodes)
            prod_bytes = per_node(node, self.memory[pods] * is_prod, nodes)
            self.prod_peak.add(prod + self.system, self._unpeaked_s)
            self.prod_peak_bytes.add(prod_bytes + self.policy.system_memory_bytes, self._unpeaked_s)
            self._unpeaked_s = 0.0

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

    def _memory_victims(self, pods: Index) -> list[int]:
        """Best-effort pods to evict so that memory falls below the lower mark; the largest go first.

        Source: BEMemoryEvict (behaviour/koordlet-act 7), for pods of one priority.
        """
        used_percent = np.floor(self.used_bytes * 100 / self.capacity_bytes)
        victims: list[int] = []
        for row in np.flatnonzero(used_percent >= self.policy.memory_evict_threshold_percent).tolist():
            over_percent = used_percent[row] - self.policy.memory_evict_lower_percent
            excess = self.capacity_bytes[row] * over_percent / 100
            candidates = [s for s in self.pods_on[row] if self.running[s] and self.is_best_effort[s]]
            for slot in sorted(candidates, key=lambda s: (-self.memory[s], self.shape_of[s].name)):
                if excess <= 0:
                    break
                victims.append(slot)
                excess -= self.memory[slot]
        return victims


_FLOAT_COLUMNS = (
    "weight", "limit", "request", "request_bytes", "mean_milli", "amplitude", "peak_s", "sigma", "memory",
    "service_time_ms", "work_left", "run_left_s", "oom_in_s", "demand", "granted", "consumed", "ran_s",
)  # fmt: skip
_COLUMNS = frozenset(_FLOAT_COLUMNS) | {
    "node", "running", "is_best_effort", "is_batch", "is_prod", "is_finite", "is_service", "follows_trace",
    "seed", "_consumed_log", "_ran_log",
}  # fmt: skip
