"""The numbers that a simulated node needs of a pod, read once from the object."""

import hashlib

import msgspec
import numpy as np

from koordinator.api import pod_resources, priority, qos, quantity, resources
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.resource_list import Amounts
from koordinator.local.nodes import behaviour
from koordinator.local.nodes.behaviour import Behaviour

UNLIMITED_MILLI = float("inf")
CPU_SHARES_MIN = 2.0  # of the kernel


class PodShape(msgspec.Struct, frozen=True, kw_only=True):
    """One pod as the fleet sees it; CPU in milli-cores, memory in bytes.

    `is_batch` marks work that disturbs services; `is_prod` counts for the prod peak prediction.
    """

    namespace: str
    name: str
    uid: str
    qos: str
    priority: str
    is_best_effort: bool
    is_batch: bool
    is_prod: bool
    weight: float
    limit_milli: float
    request_milli: float
    request_bytes: float
    cpu_milli: float
    memory_bytes: float
    seed: int
    behaviour: Behaviour


def read(pod: Pod) -> tuple[PodShape, ProtocolError | None]:
    """The shape, and what is wrong with the behaviour annotation (then the defaults count)."""
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
    return _shape(pod, wanted), error


def _shape(pod: Pod, wanted: Behaviour) -> PodShape:
    native = pod_resources.requests(pod)
    batch = pod_resources.batch(pod)
    request_milli = float(_amount(native, resources.CPU).milli)
    request_bytes = float(_amount(native, resources.MEMORY).value)
    is_best_effort = (qos.raw(pod) is qos.QoSClass.BE) or (qos.kube(pod) is qos.KubeQoS.BEST_EFFORT)
    is_batch = is_best_effort or wanted.is_finite
    asked_milli = request_milli or float(max(batch.request_cpu_milli, 0))
    asked_bytes = request_bytes or float(max(batch.request_memory_bytes, 0))
    limit_milli = batch.limit_cpu_milli if batch.request_cpu_milli > 0 else pod_resources.cpu_limit_milli(pod)
    ratios = behaviour.BATCH if is_batch else behaviour.SERVICE
    priority_class = priority.default(pod)
    return PodShape(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        qos=qos.default(pod).value,
        priority=priority_class.value,
        is_best_effort=is_best_effort,
        is_batch=is_batch,
        is_prod=priority_class in (priority.PriorityClass.PROD, priority.PriorityClass.NONE),
        weight=max(asked_milli * 1024 / 1000, CPU_SHARES_MIN),
        limit_milli=float(limit_milli) if limit_milli > 0 else UNLIMITED_MILLI,
        request_milli=request_milli,
        request_bytes=request_bytes,
        cpu_milli=_first(wanted.cpu_milli, asked_milli * ratios.cpu_ratio, behaviour.CPU_MILLI_DEFAULT),
        memory_bytes=_first(
            wanted.memory_bytes, asked_bytes * ratios.memory_ratio, behaviour.MEMORY_BYTES_DEFAULT
        ),
        seed=seed_of(pod.key),
        behaviour=wanted,
    )


def seed_of(key: str) -> int:
    """A 64-bit seed that depends on the name only, so that a pod's load is the same in every run."""
    return int(np.frombuffer(hashlib.blake2b(key.encode(), digest_size=8).digest(), np.uint64)[0])


def _first(given: float | None, of_request: float, default: float) -> float:
    """What the annotation says, else what follows from the request, else the default."""
    return (of_request or default) if given is None else given


def _amount(amounts: Amounts, name: str) -> quantity.Quantity:
    return amounts.get(name, quantity.ZERO)
