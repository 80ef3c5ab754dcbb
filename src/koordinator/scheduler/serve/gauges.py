"""Metrics that are read from the scheduler's state when somebody asks, at no cost in between."""

from collections import Counter
from collections.abc import Iterable, Mapping

from koordinator.api import pod_resize, pod_resources, quantity, resources
from koordinator.api.core import Pod
from koordinator.prometheus import Gauge, GaugeReading
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.scheduler import Scheduler

_RESOURCE_LABELS = ("namespace", "pod", "node", "scheduler", "priority", "resource", "unit")


def add_gauges(scheduler: Scheduler) -> None:
    """Register them with the scheduler's metrics."""
    queue, table, metrics = scheduler.queue, scheduler.table, scheduler.metrics
    if "scheduler_pending_pods" in metrics.registry:
        return  # a secure and an insecure port tell the same

    def cache_size() -> Mapping[str, float]:
        places = len(scheduler.caches.pods)
        return {"nodes": table.node_count, "pods": places, "assumed_pods": table.assumed_count}

    metrics.read(
        "scheduler_pending_pods",
        "[STABLE] Number of pending pods, by the queue type. 'active' means number of pods in activeQ; "
        "'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in "
        "unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the number of "
        "unschedulable pods that the scheduler never attempted to schedule because they are gated.",
        "queue",
        queue.counts,
    )
    metrics.read(
        "scheduler_cache_size",
        "[ALPHA] Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
        "type",
        cache_size,
    )
    metrics.read(
        "scheduler_inflight_events",
        "[ALPHA] Number of events currently tracked in the scheduling queue.",
        "event",
        queue.events_in_flight,
    )
    metrics.read(
        "scheduler_goroutines",
        "[ALPHA] Number of running goroutines (here: asyncio tasks) split by the work they do such as binding.",
        "operation",
        lambda: {"binding": scheduler.bindings_in_progress},
    )
    metrics.registry.add(
        GaugeReading(
            "scheduler_plugin_evaluation_total",
            "[ALPHA] Number of attempts to schedule pods by each plugin and the extension point (available "
            "only in PreFilter, Filter, PreScore, and Score).",
            ("plugin", "extension_point", "profile"),
            lambda: evaluations(scheduler.profiles.values()),
            kind="counter",
        ),
        GaugeReading(
            "scheduler_queue_incoming_pods_total",
            "[STABLE] Number of pods added to scheduling queues by event and queue type.",
            ("queue", "event"),
            lambda: queue.incoming,
            kind="counter",
        ),
        GaugeReading(
            "scheduler_unschedulable_pods",
            "[ALPHA] The number of unschedulable pods broken down by plugin name.",
            ("plugin", "profile"),
            queue.rejections,
        ),
    )


def evaluations(profiles: Iterable[Profile]) -> dict[tuple[str, str, str], int]:
    """(plugin, extension point, profile) → cycles in which the plugin took part."""
    found: Counter[tuple[str, str, str]] = Counter()
    for profile in profiles:
        for each in profile.participations.values():
            for plugin, point in each.pairs():
                found[plugin, point, profile.name] += each.cycle_count
    return dict(found)


class ResourceMetrics:
    """`/metrics/resources`: what each pod that has not ended requests and is limited to.

    Pods are added one by one, so that a large cluster can be told in pieces.
    """

    def __init__(self) -> None:
        self._requests = Gauge(
            "kube_pod_resource_request",
            "[STABLE] Resources requested by workloads on the cluster, broken down by pod. This shows the "
            "resource usage the scheduler and kubelet expect per pod for resources along with the unit for "
            "the resource if any.",
            _RESOURCE_LABELS,
        )
        self._limits = Gauge(
            "kube_pod_resource_limit",
            "[STABLE] Resources limit for workloads on the cluster, broken down by pod. This shows the "
            "resource usage the scheduler and kubelet expect per pod for resources along with the unit for "
            "the resource if any.",
            _RESOURCE_LABELS,
        )
        self._lines: dict[str, list[str]] = {gauge.name: [] for gauge in (self._requests, self._limits)}

    def add(self, pod: Pod) -> None:
        """Raises: QuantityError when an amount is none."""
        if pod.status.phase in ("Succeeded", "Failed"):
            return
        spec = pod.spec
        priority = "" if spec.priority is None else str(spec.priority)
        of_pod = (pod.metadata.namespace, pod.metadata.name, spec.node_name, spec.scheduler_name, priority)
        for name, raw in pod_resources.wire_requests(pod).items():
            unit, amount = _in_unit(name, raw)
            self._lines[self._requests.name].append(self._requests.line(amount, *of_pod, name, unit))
        for name, amount in _limits(pod).items():
            self._lines[self._limits.name].append(self._limits.line(amount, *of_pod, name, _unit(name)))

    def families(self) -> tuple[Gauge, Gauge]:
        """Requests and limits, without their samples."""
        return self._requests, self._limits

    def text(self) -> str:
        """In the Prometheus text format."""
        return "".join("\n".join([*gauge.head(), *self._lines[gauge.name], ""]) for gauge in self.families())


def _limits(pod: Pod) -> dict[str, float]:
    """Sum over containers and sidecars, at least the largest init container."""
    total: dict[str, float] = {}
    for container in (*pod.spec.containers, *filter(pod_resize.is_sidecar, pod.spec.init_containers)):
        for name, raw in container.resources.limits.items():
            total[name] = total.get(name, 0.0) + _in_unit(name, raw)[1]
    for container in pod.spec.init_containers:
        for name, raw in container.resources.limits.items():
            total[name] = max(total.get(name, 0.0), _in_unit(name, raw)[1])
    return total


def _in_unit(name: str, raw: quantity.RawQuantity) -> tuple[str, float]:
    if name == resources.CPU:
        return "cores", quantity.milli(raw) / 1000
    return _unit(name), float(quantity.value(raw))


def _unit(name: str) -> str:
    if name == resources.CPU:
        return "cores"
    if name in ("memory", "storage", "ephemeral-storage") or name.startswith("hugepages-"):
        return "bytes"
    return "integer"
