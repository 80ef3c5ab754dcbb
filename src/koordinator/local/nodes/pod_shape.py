"""The numbers that a simulated node needs of a pod, read once from the object."""

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from koordinator import clock
from koordinator.api import pod_resources, priority, qos, quantity, resources
from koordinator.api.annotations.koordlet import CPU_BURST
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.node_metric import ResourceMap
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import QoSClass
from koordinator.api.quantity import Family
from koordinator.api.resource_list import Amounts
from koordinator.api.slo import DEFAULT_CPU_BURST_STRATEGY, CPUBurstStrategy
from koordinator.host import cgroup_knobs
from koordinator.koordlet import gpu_shares
from koordinator.koordlet.gpu_shares import GPUShare
from koordinator.koordlet.hooks import batch_resource, contexts
from koordinator.koordlet.hooks.batch_resource import BatchRule
from koordinator.koordlet.hooks.contexts import GroupResources
from koordinator.koordlet.qos import cpu_burst, cpu_suppress
from koordinator.koordlet.report import node_metric
from koordinator.local.nodes import behaviour
from koordinator.local.nodes.behaviour import Behaviour, Defaults

UNLIMITED_MILLI = float("inf")
NO_RULE = BatchRule()


class CardUse(msgspec.Struct, frozen=True):
    """The part of a GPU that a pod would use if it was alone there."""

    core_percent: float
    memory_bytes: float


class HollowPodShape(msgspec.Struct, frozen=True, kw_only=True):
    """One pod as the fleet sees it; CPU in milli-cores, memory in bytes.

    `is_batch` marks work that disturbs services. Its `group` gets what the kubelet writes and the node agent after
    it.
    """

    namespace: str
    name: str
    uid: str
    entry: dict[str, str]
    """Its entry in reports as JSON, but for the usage."""
    qos: QoSClass
    """QoS class of the label."""
    priority: PriorityClass
    is_best_effort: bool
    is_batch: bool
    created_s: float
    """Unix seconds; 0 where that is not known."""
    group: GroupResources
    burst: CPUBurstStrategy
    request_milli: float
    request_bytes: float
    batch_milli: float
    """Batch CPU that it asks for."""
    cpu_milli: float
    memory_bytes: float
    memory_text: str
    """`memory_bytes` as reports say it: what a pod uses of memory does not change."""
    cards: Mapping[int, CardUse]
    """By minor of the GPU."""
    gpu_shares: tuple[GPUShare, ...]
    seed: int
    behaviour: Behaviour

    @property
    def is_prod(self) -> bool:
        """Return whether it counts for the prediction of what prod pods leave."""
        return self.priority in (PriorityClass.PROD, PriorityClass.NONE)

    @property
    def weight(self) -> float:
        """Its `cpu.shares`."""
        assert self.group.shares is not None, self.name
        return float(self.group.shares)

    @property
    def limit_milli(self) -> float:
        """Its CPU limit; `UNLIMITED_MILLI` without one."""
        return milli_of_quota(self.group.quota_us)


def milli_of_quota(quota_us: int | None) -> float:
    """Return the milli-cores that a quota stands for."""
    if quota_us is None or quota_us == cgroup_knobs.UNLIMITED:
        return UNLIMITED_MILLI
    return quota_us * 1000 / cgroup_knobs.CFS_PERIOD_US


def read(
    pod: Pod, rule: BatchRule = NO_RULE, burst: CPUBurstStrategy = DEFAULT_CPU_BURST_STRATEGY
) -> tuple[HollowPodShape, ProtocolError | None]:
    """Return the shape, and what is wrong with the behaviour annotation (then the defaults count).

    `rule` and `burst` are policies of its node.
    """
    text = pod.metadata.annotations.get(behaviour.ANNOTATION)
    error: ProtocolError | None = None
    if text is None:
        wanted = behaviour.of_pod(pod)
    else:
        wanted = Behaviour()
        try:
            wanted = behaviour.decode(text)
        except ProtocolError as caught:
            error = caught.of(f"Pod {pod.key}")
    return _shape(pod, wanted, rule, burst), error


def group_of(pod: Pod, rule: BatchRule) -> GroupResources:
    """Return what the pod's group holds: what the kubelet writes, and over it what the hook `BatchResource` does."""
    running = pod_resources.running_together(pod.spec)
    extended = contexts.batch_resources_of(pod, running)
    found = batch_resource.pod_limits(qos.raw(pod), extended, rule, [each.name for each in running])
    request_milli = _amount(pod_resources.requests(pod), resources.CPU).milli
    by_kubelet = GroupResources(
        shares=cgroup_knobs.shares_of_milli(request_milli),
        quota_us=cgroup_knobs.quota_of_milli(pod_resources.cpu_limit_milli(pod)),
    )
    told = {name: value for name in found.__struct_fields__ if (value := getattr(found, name)) is not None}
    return msgspec.structs.replace(by_kubelet, **told)


def _shape(pod: Pod, wanted: Behaviour, rule: BatchRule, burst: CPUBurstStrategy) -> HollowPodShape:
    native = pod_resources.requests(pod)
    batch = pod_resources.batch(pod)
    request_milli = float(_amount(native, resources.CPU).milli)
    request_bytes = float(_amount(native, resources.MEMORY).value)
    annotations = pod.metadata.annotations
    is_best_effort = cpu_suppress.SuppressPodClass(qos.raw(pod), qos.kube(pod)).is_best_effort
    is_batch = is_best_effort or wanted.is_finite
    asked_milli = request_milli or float(max(batch.request_cpu_milli, 0))
    asked_bytes = request_bytes or float(max(batch.request_memory_bytes, 0))
    ratios = behaviour.BATCH if is_batch else behaviour.SERVICE
    shares = gpu_shares.shares_of(pod)
    used_bytes = _first(
        wanted.memory_bytes, asked_bytes * ratios.memory_ratio, behaviour.MEMORY_BYTES_DEFAULT
    )
    return HollowPodShape(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        entry=msgspec.to_builtins(node_metric.pod_info(pod, ResourceMap())),
        qos=qos.raw(pod),
        priority=priority.default(pod),
        is_best_effort=is_best_effort,
        is_batch=is_batch,
        created_s=clock.parse_rfc3339_or(pod.metadata.creation_timestamp, 0.0),
        group=group_of(pod, rule),
        burst=cpu_burst.settings_of(burst, annotations) if CPU_BURST.key in annotations else burst,
        request_milli=request_milli,
        request_bytes=request_bytes,
        batch_milli=float(max(batch.request_cpu_milli, 0)),
        cpu_milli=_first(wanted.cpu_milli, asked_milli * ratios.cpu_ratio, behaviour.CPU_MILLI_DEFAULT),
        memory_bytes=used_bytes,
        memory_text=quantity.text_of_value(int(used_bytes), Family.BINARY),
        cards=_cards(shares, wanted, ratios),
        gpu_shares=shares,
        seed=seed_of(pod.key),
        behaviour=wanted,
    )


def _cards(shares: Sequence[GPUShare], wanted: Behaviour, ratios: Defaults) -> dict[int, CardUse]:
    """Return what a pod uses of its GPUs."""
    core = ratios.gpu_core_ratio if wanted.gpu_core_ratio is None else wanted.gpu_core_ratio
    memory = ratios.gpu_memory_ratio if wanted.gpu_memory_ratio is None else wanted.gpu_memory_ratio
    return {share.minor: CardUse(core * share.core_percent, memory * share.memory_bytes) for share in shares}


def seed_of(key: str) -> int:
    """Return a 64-bit seed that depends on the name only, so that a pod's load is the same in every run."""
    return int(np.frombuffer(hashlib.blake2b(key.encode(), digest_size=8).digest(), np.uint64)[0])


def _first(given: float | None, of_request: float, default: float) -> float:
    """Return what the annotation says, else what follows from the request, else the default."""
    return (of_request or default) if given is None else given


def _amount(amounts: Amounts, name: str) -> quantity.Quantity:
    return amounts.get(name, quantity.ZERO)
