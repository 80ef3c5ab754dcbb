"""CPU burst of all nodes: quotas of pods that are throttled or raised, as `koordlet.qos.cpu_burst` decides them.

A pod counts as one container. Pods that are neither throttled nor above their limit cost nothing, as in the agent.
"""

import random
from collections.abc import Iterable

import msgspec

from koordinator.api.slo import CPUBurstStrategy
from koordinator.host.cgroup_units import UNLIMITED
from koordinator.koordlet.qos import cpu_burst, token_bucket
from koordinator.koordlet.qos.cpu_burst import QUOTA_POLICIES, ContainerQuota, NodeState, PoolPod
from koordinator.koordlet.qos.token_bucket import TokenBucket
from koordinator.local.nodes.pod_shape import PodShape

RUNNING = "Running"


class BurstablePod(msgspec.Struct):
    """A pod with a CPU limit that its settings may exceed."""

    shape: PodShape
    base_us: int
    quota_us: int
    bucket: TokenBucket | None = None


def limited(shape: PodShape) -> BurstablePod | None:
    """Return the state of a pod whose quota may be raised; None for any other."""
    quota_us = shape.group.quota_us
    is_raisable = shape.burst.policy in QUOTA_POLICIES and cpu_burst.is_managed(shape.qos, RUNNING)
    if quota_us is None or quota_us == UNLIMITED or not is_raisable:
        return None
    return BurstablePod(shape, quota_us, quota_us)


def state_of(
    used_cores: float, cpu_count: int, pods: Iterable[tuple[PodShape, float]], node: CPUBurstStrategy
) -> NodeState:
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


def run(
    pod: BurstablePod,
    state: NodeState,
    is_throttled: bool,
    used_cores: float,
    elapsed_s: float,
    rng: random.Random,
) -> None:
    """Carry out the rounds of `elapsed_s` seconds, one per second, until they change nothing any more."""
    settings = pod.shape.burst
    capacity = token_bucket.capacity_of(settings)
    limit_milli = pod.base_us // 100  # milli-cores: µs per 100 ms
    if capacity is not None:
        percent = token_bucket.usage_percent(used_cores, limit_milli)
        pod.bucket = token_bucket.bucket_for(capacity, pod.bucket, rng).step(elapsed_s, percent)
    for _ in range(max(int(elapsed_s), 1)):
        measured = ContainerQuota("", limit_milli, pod.quota_us, float(is_throttled), pod.bucket)
        plan = cpu_burst.plan_pod(settings, state, [measured], UNLIMITED)
        if plan.containers_us[""] == pod.quota_us:
            return
        pod.quota_us = plan.containers_us[""]
