"""CPU suppression and CPU burst of all nodes: what `koordlet.qos` decides for each, round by round.

For burst, a pod counts as one container. Pods that are neither throttled nor above their limit cost nothing, as in
the agent.
"""

import random
from collections.abc import Iterable

import msgspec
import numpy as np

from koordinator.api.slo import CPUBurstStrategy, ResourceThresholdStrategy
from koordinator.host.cgroup_knobs import CFS_PERIOD_US, UNLIMITED
from koordinator.koordlet.qos import cpu_burst, cpu_suppress
from koordinator.koordlet.qos.cpu_burst import (
    QUOTA_POLICIES,
    BurstNodeState,
    BurstTokenBucket,
    ContainerQuota,
    PoolPod,
)
from koordinator.koordlet.qos.cpu_suppress import Integers, SuppressMode
from koordinator.local.nodes.pod_shape import HollowPodShape
from koordinator.local.nodes.usage import F64


class Suppression:
    """The CPUs of best-effort pods on each node, (nodes,): CPUs, and a quota per 100 ms.

    Pods of the fleet own no CPUs, so all of a machine are usable.
    """

    def __init__(
        self, strategy: ResourceThresholdStrategy, capacity_milli: Integers, reserved_milli: Integers
    ) -> None:
        self.mode = cpu_suppress.mode_of(strategy, has_be_manager=False)
        self.machine_cpus = np.maximum(capacity_milli // 1000, 1)
        self.cpus = self.machine_cpus.copy()
        self.quota_us = np.full(capacity_milli.size, UNLIMITED, np.int64)
        self._strategy = strategy
        self._capacity_milli = capacity_milli
        self._reserved_milli = reserved_milli

    def run(
        self,
        services_milli: F64,
        system_milli: F64,
        rounds: int,
        threshold_percent: Integers | None = None,
    ) -> None:
        """Carry out so many rounds, in which services and the system of each node use so much, both (nodes,).

        Best-effort pods lose CPU at once and gain it slowly; rounds that change nothing any more are left out.
        `threshold_percent` (nodes,) stands for the strategy's.
        """
        if self.mode not in (SuppressMode.CPUSET, SuppressMode.QUOTA):
            return
        be_milli = self.be_milli(services_milli, system_milli, threshold_percent)
        held = True if threshold_percent is None else cpu_suppress.holds_back(threshold_percent)
        for _ in range(rounds):
            if self.mode is SuppressMode.CPUSET:
                before = self.cpus
                after = cpu_suppress.cpu_counts(be_milli, before, self.machine_cpus, self.machine_cpus)
                self.cpus = after = np.where(held, after, self.machine_cpus)
            else:
                before = self.quota_us
                after = cpu_suppress.decide_quotas(be_milli, self._capacity_milli, before).quota_us
                self.quota_us = after = np.where(held, after, UNLIMITED)
            if not np.count_nonzero(after != before):
                return

    def be_milli(
        self, services_milli: F64, system_milli: F64, threshold_percent: Integers | None = None
    ) -> Integers:
        """Return what services leave best-effort pods, (nodes,)."""
        strategy = self._strategy
        threshold = (
            strategy.cpu_suppress_threshold_percent if threshold_percent is None else threshold_percent
        )
        assert threshold is not None, "defaults are laid under every strategy"
        return cpu_suppress.left_milli(
            self._capacity_milli,
            services_milli.astype(np.int64),
            system_milli.astype(np.int64),
            self._reserved_milli,
            threshold,
            strategy.cpu_suppress_min_percent,
        )

    def limit_milli(self) -> F64:
        """Return how much best-effort pods together can get at most, (nodes,): by their CPUs and by their quota."""
        by_cpus = self.cpus * 1000.0
        by_quota = np.where(self.quota_us == UNLIMITED, np.inf, self.quota_us * (1000 / CFS_PERIOD_US))
        return np.minimum(by_cpus, by_quota)


RUNNING = "Running"


class BurstablePod(msgspec.Struct):
    """A pod with a CPU limit that its settings may exceed."""

    shape: HollowPodShape
    base_us: int
    quota_us: int
    bucket: BurstTokenBucket | None = None


def burstable(shape: HollowPodShape) -> BurstablePod | None:
    """Return the state of a pod whose quota may be raised; None for any other."""
    quota_us = shape.group.quota_us
    is_raisable = shape.burst.policy in QUOTA_POLICIES and cpu_burst.is_managed(shape.qos, RUNNING)
    if quota_us is None or quota_us == UNLIMITED or not is_raisable:
        return None
    return BurstablePod(shape, quota_us, quota_us)


def shared_pool_state(
    used_cores: float, cpu_count: int, pods: Iterable[tuple[HollowPodShape, float]], node: CPUBurstStrategy
) -> BurstNodeState:
    """Return how busy a node's shared CPUs are; `pods` are all that run there, with the cores that each uses."""
    threshold = node.share_pool_threshold_percent
    return cpu_burst.node_state(
        used_cores,
        cpu_count,
        (
            PoolPod(shape.qos, int(shape.request_milli), cores)
            for shape, cores in pods
            if shape.qos in cpu_burst.NOT_IN_POOL
        ),
        cpu_burst.SHARE_POOL_PERCENT if threshold is None else threshold,
    )


def burst(
    pod: BurstablePod,
    state: BurstNodeState,
    is_throttled: bool,
    used_cores: float,
    elapsed_s: float,
    rng: random.Random,
) -> None:
    """Carry out the rounds of `elapsed_s` seconds, one per second, until they change nothing any more."""
    settings = pod.shape.burst
    capacity = cpu_burst.capacity_of(settings)
    limit_milli = pod.base_us // 100  # milli-cores: µs per 100 ms
    if capacity is not None:
        percent = cpu_burst.usage_percent(used_cores, limit_milli)
        pod.bucket = cpu_burst.bucket_for(capacity, pod.bucket, rng).step(elapsed_s, percent)
    for _ in range(max(int(elapsed_s), 1)):
        measured = ContainerQuota("", limit_milli, pod.quota_us, float(is_throttled), pod.bucket)
        plan = cpu_burst.plan_pod(settings, state, [measured], UNLIMITED)
        if plan.containers_us[""] == pod.quota_us:
            return
        pod.quota_us = plan.containers_us[""]
