"""The services of a simulated cluster: sized generously, loaded lightly, as in real ones (docs/models.md)."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from koordinator.local.nodes import behaviour
from koordinator.local.nodes.behaviour import Behaviour
from koordinator.local.nodes.fleet import FleetPolicy, NodeShape
from koordinator.local.nodes.usage import F64, Index

NAMESPACE = "services"
MEMORY_STEP = 2**28  # people write multiples of 256 MiB


class ServiceMix(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes and loads of services, relative to the cluster's capacity. Sources: docs/models.md."""

    cpu_requested_ratio: float = 0.80
    memory_requested_ratio: float = 0.86
    cpu_used_ratio: float = 0.13
    memory_used_of_request: float = 0.34
    # Spread of utilisation over services (lognormal): most are nearly idle, a few are busy.
    utilisation_sigma: float = 0.9
    # No service asks for less than it needs at its peak.
    utilisation_max: float = 0.6
    service_time_ms: float = 8.0
    service_time_sigma: float = 0.8
    # Objective of every service, relative to its p99 while nothing waits; teams set such bounds from calm days.
    p99_target_ratio: float = 1.25
    # Share of nodes with a service that is made for them and uses 60 to 80 % of them at its peak.
    pressed_node_ratio: float = 0.10
    pressed_use: tuple[float, float] = (0.60, 0.80)


LN_100 = math.log(100)
"""p99 ÷ mean of service times, which are exponential in the model (docs/models.md)."""


class _Pressed(msgspec.Struct, frozen=True):
    """A service that is most of its node; it is placed before all others."""

    instance_type: str
    milli: int
    memory_bytes: int
    mean_milli: float
    amplitude: float
    peak_hour: float
    service_time_ms: float

    def pod(self, number: int, mix: ServiceMix) -> dict[str, Any]:
        """Return the pod object."""
        does = Behaviour(
            cpu_milli=round(self.mean_milli, 1),
            daily_amplitude_ratio=round(self.amplitude, 3),
            peak_hour=round(self.peak_hour, 2) % 24,
            noise_sigma=0.1,
            memory_bytes=round(self.memory_bytes * mix.memory_used_of_request),
            service_time_ms=round(self.service_time_ms, 2),
            p99_target_ms=round(self.service_time_ms * LN_100 * mix.p99_target_ratio, 2),
        )
        pod = _pod(f"pressed-{number:03d}", 0, self.milli, self.memory_bytes, does)
        pod["spec"]["nodeSelector"] = {"node.kubernetes.io/instance-type": self.instance_type}
        return pod


def _pressed(shapes: Sequence[NodeShape], mix: ServiceMix, rng: np.random.Generator) -> list[_Pressed]:
    """One service for each of some nodes, so large that only one of them fits."""
    count = round(len(shapes) * mix.pressed_node_ratio)
    found = []
    for row in rng.choice(len(shapes), count, replace=False).tolist():
        shape, amplitude = shapes[row], float(rng.uniform(0.5, 0.7))
        peak_milli = float(rng.uniform(*mix.pressed_use)) * shape.cpu_milli
        found.append(
            _Pressed(
                instance_type=shape.instance_type,
                milli=int(shape.cpu_milli * 0.85),
                memory_bytes=int(shape.memory_bytes * 0.7 // MEMORY_STEP * MEMORY_STEP),
                mean_milli=peak_milli / (1 + amplitude),
                amplitude=amplitude,
                peak_hour=float(rng.normal(15.0, 2.5)) % 24,
                service_time_ms=mix.service_time_ms * float(rng.lognormal(0, mix.service_time_sigma)),
            )
        )
    return sorted(found, key=lambda each: -each.milli)


CPU_SIZES_MILLI = np.array([500.0, 1_000.0, 2_000.0, 4_000.0])
CPU_SIZE_SHARES = np.array([0.2, 0.3, 0.35, 0.15])
REPLICAS_MIN, REPLICAS_MAX = 2, 12


def pods(
    shapes: Sequence[NodeShape],
    policy: FleetPolicy,
    rng: np.random.Generator,
    mix: ServiceMix,
    *,
    follows_trace: bool = False,
) -> list[dict[str, Any]]:
    """Pod objects of all services, the largest first; with `follows_trace` nodes decide what they use."""
    cpu_total = float(sum(shape.cpu_milli for shape in shapes))
    memory_total = float(sum(shape.memory_bytes for shape in shapes))
    pressed = [] if follows_trace else _pressed(shapes, mix, rng.spawn(1)[0])
    size, replicas = _sizes(cpu_total * mix.cpu_requested_ratio - sum(each.milli for each in pressed), rng)
    service = np.repeat(np.arange(size.size), replicas)  # of each pod
    request = size[service]
    memory_left = memory_total * mix.memory_requested_ratio - sum(each.memory_bytes for each in pressed)
    memory = _memory(request, service, memory_left, rng)
    system = policy.system_base_milli * len(shapes)
    wanted = max(cpu_total * mix.cpu_used_ratio - system - sum(each.mean_milli for each in pressed), 0.0)
    mean = _means(request, service, wanted, mix, rng)
    amplitude = rng.uniform(0.3, 0.75, size.size)
    peak_hour = rng.normal(15.0, 2.5, size.size) % 24
    service_time = mix.service_time_ms * rng.lognormal(0, mix.service_time_sigma, size.size)
    memory_used = np.clip(rng.normal(mix.memory_used_of_request, 0.12, size.size), 0.1, 0.9)
    result = [each.pod(number, mix) for number, each in enumerate(pressed)]
    ordinal = np.arange(request.size) - np.repeat(np.cumsum(replicas) - replicas, replicas)
    for i in np.argsort(-request, kind="stable").tolist():
        row = int(service[i])
        does = Behaviour(
            cpu_milli=round(float(mean[i]), 1),
            daily_amplitude_ratio=round(float(amplitude[row]), 3),
            peak_hour=round(float(peak_hour[row]), 2) % 24,
            noise_sigma=0.25,
            follows_trace=follows_trace,
            memory_bytes=round(float(memory[i] * memory_used[row])),
            service_time_ms=round(float(service_time[row]), 2),
            p99_target_ms=round(float(service_time[row]) * LN_100 * mix.p99_target_ratio, 2),
        )
        result.append(_pod(f"service-{row:04d}", int(ordinal[i]), request[i], memory[i], does))
    return result


def _sizes(cpu_milli: float, rng: np.random.Generator) -> tuple[F64, Index]:
    """CPU request per replica and number of replicas of services that together request `cpu_milli`."""
    sizes: list[float] = []
    replicas: list[int] = []
    left = cpu_milli
    while left > 0:
        size = float(rng.choice(CPU_SIZES_MILLI, p=CPU_SIZE_SHARES))
        count = min(int(rng.integers(REPLICAS_MIN, REPLICAS_MAX + 1)), max(round(left / size), 1))
        sizes.append(size)
        replicas.append(count)
        left -= size * count
    return np.array(sizes), np.array(replicas, dtype=np.int64)


def _memory(request: F64, service: Index, total: float, rng: np.random.Generator) -> F64:
    """Memory request of each pod: proportional to its CPU with a spread per service, `total` together."""
    per_core = np.clip(rng.lognormal(0, 0.3, int(service.max()) + 1), 0.6, 1.6)[service]
    memory = request * per_core
    memory *= total / memory.sum()
    rounded: F64 = np.maximum(np.round(memory / MEMORY_STEP), 1) * MEMORY_STEP
    return rounded


def _means(request: F64, service: Index, wanted: float, mix: ServiceMix, rng: np.random.Generator) -> F64:
    """CPU that each pod uses on average: a heavy-tailed utilisation per service, `wanted` together."""
    utilisation = rng.lognormal(0, mix.utilisation_sigma, int(service.max()) + 1)[service]
    imbalance = rng.lognormal(0, 0.1, request.size)  # balancers do not spread perfectly
    for _ in range(20):  # the cap takes from the busiest what the others must then add
        utilisation *= wanted / max(float((utilisation * request).sum()), 1.0)
        utilisation = np.minimum(utilisation, mix.utilisation_max)
    mean: F64 = utilisation * request * imbalance
    mean *= wanted / max(float(mean.sum()), 1.0)
    return mean


def _pod(service: str, ordinal: int, cpu_milli: float, memory: float, does: Behaviour) -> dict[str, Any]:
    requests = {"cpu": f"{int(cpu_milli)}m", "memory": f"{int(memory) // 2**20}Mi"}
    meta = {
        "name": f"{service}-{ordinal}",
        "namespace": NAMESPACE,
        "labels": {"app": service, "koordinator.sh/qosClass": "LS"},
        "annotations": behaviour.annotations(does),
    }
    spec = {
        "schedulerName": "koord-scheduler",
        "priorityClassName": "koord-prod",
        "priority": 9000,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "containers": [{"name": "main", "image": service, "resources": {"requests": requests}}],
    }
    return {"metadata": meta, "spec": spec}
