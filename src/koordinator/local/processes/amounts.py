"""Work out what the groups of classes, pods and containers get, as the kubelet and its runtime write it. Pure.

Values are those of cgroup v1 (`host.cgroup_knobs` turns them into those of v2). Source: `ResourceConfigForPod`,
`qosContainerManagerImpl.setCPUCgroupConfig`, `calculateLinuxResources` and `GetContainerOOMScoreAdjust` of the kubelet.
"""

from collections.abc import Iterable

import msgspec

from koordinator.api import pod_resize, pod_resources, quantity, resources
from koordinator.api.core import Container, Pod
from koordinator.api.qos import KubeQoS, kube
from koordinator.host import cgroup_knobs

UNSET = 0
"""A quota or limit that is not written."""
SANDBOX_SHARES = cgroup_knobs.SHARES_MIN
SANDBOX_OOM_SCORE = -998
_GUARANTEED_OOM_SCORE, _BEST_EFFORT_OOM_SCORE = -997, 1000
_NODE_CRITICAL_PRIORITY = 2_000_001_000


class GroupAmounts(msgspec.Struct, frozen=True):
    """CPU shares, CFS quota in µs per 100 ms and memory limit in bytes; 0 leaves one as it is."""

    shares: int = UNSET
    quota_us: int = UNSET
    memory_bytes: int = UNSET


def of_pod(pod: Pod) -> GroupAmounts:
    """Return the group of a pod."""
    match kube(pod):
        case KubeQoS.BEST_EFFORT:
            return GroupAmounts(cgroup_knobs.SHARES_MIN)
        case KubeQoS.BURSTABLE | KubeQoS.GUARANTEED:
            request_milli = cpu_request_milli(pod)
            return GroupAmounts(
                cgroup_knobs.shares_of_milli(request_milli),
                _quota_us(max(pod_resources.cpu_limit_milli(pod), 0)),
                _memory_limit_bytes(pod),
            )


def of_container(container: Container) -> GroupAmounts:
    """Return the group of a container. Without a CPU request its limit stands for one."""
    wanted = container.resources
    limit_milli = quantity.milli(wanted.limits.get(resources.CPU, 0))
    request_milli = quantity.milli(wanted.requests.get(resources.CPU, 0))
    if resources.CPU not in wanted.requests:
        request_milli = limit_milli
    return GroupAmounts(
        cgroup_knobs.shares_of_milli(request_milli),
        _quota_us(limit_milli),
        quantity.value(wanted.limits.get(resources.MEMORY, 0)),
    )


def of_class(kube_qos: KubeQoS, pods: Iterable[Pod]) -> GroupAmounts:
    """Return the group of burstable or best-effort pods; `pods` are all that run on the node."""
    if kube_qos is KubeQoS.BEST_EFFORT:
        return GroupAmounts(cgroup_knobs.SHARES_MIN)
    requested_milli = sum(cpu_request_milli(pod) for pod in pods if kube(pod) is kube_qos)
    return GroupAmounts(cgroup_knobs.shares_of_milli(requested_milli))


def of_all_pods(allocatable_milli: int, allocatable_bytes: int) -> GroupAmounts:
    """Return the group of all pods."""
    return GroupAmounts(
        cgroup_knobs.shares_of_milli(allocatable_milli), memory_bytes=max(allocatable_bytes, 0)
    )


def cpu_request_milli(pod: Pod) -> int:
    """Return the CPU that the pod requests."""
    amount = pod_resources.requests(pod).get(resources.CPU)
    return 0 if amount is None else amount.milli


def oom_score_adj(pod: Pod, container: Container, memory_capacity_bytes: int) -> int:
    """Return the score by which the kernel kills a container's processes when memory ends; the larger, the sooner."""
    if (pod.spec.priority or 0) >= _NODE_CRITICAL_PRIORITY:
        return _GUARANTEED_OOM_SCORE
    match kube(pod):
        case KubeQoS.GUARANTEED:
            return _GUARANTEED_OOM_SCORE
        case KubeQoS.BEST_EFFORT:
            return _BEST_EFFORT_OOM_SCORE
        case KubeQoS.BURSTABLE:
            request = quantity.value(container.resources.requests.get(resources.MEMORY, 0))
            score = 1000 - 1000 * request // max(memory_capacity_bytes, 1)
            return min(max(score, 1000 + _GUARANTEED_OOM_SCORE), _BEST_EFFORT_OOM_SCORE - 1)


def _memory_limit_bytes(pod: Pod) -> int:
    """Return the sum of memory limits, with init containers in their order; unset where any has none."""
    whole = pod.spec.resources
    if whole is not None and resources.MEMORY in whole.limits:
        return quantity.value(whole.limits[resources.MEMORY])
    total = sidecars = 0
    for container in pod.spec.containers:
        if (limit := _limit_bytes(container)) <= 0:
            return UNSET
        total += limit
    largest_step = 0
    for container in pod.spec.init_containers:
        if (limit := _limit_bytes(container)) <= 0:
            return UNSET
        if pod_resize.is_sidecar(container):
            sidecars += limit
            largest_step = max(largest_step, sidecars)
        else:
            largest_step = max(largest_step, sidecars + limit)
    return max(total + sidecars, largest_step)


def _limit_bytes(container: Container) -> int:
    return quantity.value(container.resources.limits.get(resources.MEMORY, 0))


def _quota_us(limit_milli: int) -> int:
    return cgroup_knobs.quota_of_milli(limit_milli) if limit_milli > 0 else UNSET
