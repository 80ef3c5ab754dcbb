"""Telling the cluster each minute what the node and its pods use. Source: behaviour/koordlet-observe 8.

A report that cannot be written is dropped: the next one is made of fresh samples, so nothing piles up while the API is
away. The status is ours alone and is replaced as a whole, in one patch that cannot conflict with writers of the spec.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordinator import clock
from koordinator.api import quantity, resources, slo
from koordinator.api.core import Pod
from koordinator.api.node_metric import NodeMetric, NodeMetricSpec, NodeMetricStatus, ResourceMap
from koordinator.api.priority import PriorityClass
from koordinator.cluster import errors
from koordinator.cluster.backoff import retry_on_conflict
from koordinator.cluster.protocol import PatchType
from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.metrics import NodeGauge
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.predict.gpu_trainer import GPUTrainer
from koordinator.koordlet.predict.hour_trainer import HourTrainer
from koordinator.koordlet.predict.trainer import Trainer
from koordinator.koordlet.qos import shadow_bill
from koordinator.koordlet.qos.shadow import PREDICTION, ShadowMode
from koordinator.koordlet.qos.shadow_bill import RoundCost
from koordinator.koordlet.report import node_metric
from koordinator.koordlet.report.node_metric import CollectPolicy, ReportSubjects
from koordinator.koordlet.report.outage import Outage

log = logging.getLogger(__name__)

GATE = "NodeMetricPromMetrics"
JITTER_RATIO = 0.05
"""Pauses differ by so much, or all agents that were started together would report together for ever."""
RETRY_S = 10.0
"""After a report that could not be written; the reference writes at most so often, too."""
UNKNOWN_S = 1.0
"""Until the object is known, which says how often to report."""
WRITE_S_MAX = 20.0

_UNITS = ((resources.CPU, "core"), (resources.MEMORY, "byte"))


class NodeMetricReporter:
    """Writes the status of the NodeMetric of this node; the manager makes the object and its spec."""

    name = "nodemetric"
    informers = ()

    def __init__(
        self,
        shared: Shared,
        mode: ShadowMode,
        trainer: Trainer,
        gpu_trainer: GPUTrainer | None = None,
        hour_trainer: HourTrainer | None = None,
    ) -> None:
        """`gpu_trainer` is None where nothing of GPUs is lent, `hour_trainer` where hours are not told apart."""
        self._shared = shared
        self._mode = mode
        self._reported_s: float | None = None
        self._trainer = trainer
        self._gpu_trainer = gpu_trainer
        self._hour_trainer = hour_trainer
        self._outage = Outage(f"report of NodeMetric {shared.config.node_name}")
        self._prediction_outage = Outage("prediction of what prod pods leave")
        self._has_begun = False
        self._read_spec: NodeMetricSpec | None = None
        self._policy = node_metric.collect_policy(NodeMetricSpec())

    @property
    def interval_s(self) -> float:
        """Seconds until the next report, to be read after each round."""
        if self._outage.failure_count:
            return RETRY_S
        if self._shared.view.metric_spec is None:
            return UNKNOWN_S
        jitter = self._shared.rng.uniform(-JITTER_RATIO, JITTER_RATIO)
        return self._policy_in_force().report_interval_s * (1 + jitter)

    async def run(self) -> None:
        """One report. The first round that knows how often to report only starts the clock: there is nothing yet."""
        if self._shared.view.metric_spec is None:
            return  # the manager has not made the object yet, or nobody has told us of it
        if not self._has_begun:
            self._has_begun = True
            return
        status = msgspec.structs.replace(self.status(), extensions=dict(self._shared.view.extensions))
        status = self._in_shadow(status)
        self._show(status)
        await self._write(status)

    def _in_shadow(self, status: NodeMetricStatus) -> NodeMetricStatus:
        """Bill what is predicted free, leave it out while prediction only decides, and add the bills of the node."""
        now_s = self._shared.clock.now()
        is_shadow = PREDICTION in self._mode.strategies
        seconds = now_s - self._reported_s if self._reported_s is not None else 0.0
        self._reported_s = now_s
        free = status.prod_reclaimable_metric
        if free is not None:
            raw = free.resource.resources.get(resources.CPU, 0)
            cost = RoundCost(lent_cores=max(quantity.milli(raw) / 1000, 0.0))
            seconds = min(max(seconds, 0.0), shadow_bill.HOUR_S)  # whatever happens to the clock
            self._mode.bill.charge(PREDICTION, now_s, seconds, cost, is_shadow=is_shadow)
        if is_shadow:
            status = msgspec.structs.replace(status, prod_reclaimable_metric=None)
        body = self._mode.body()
        if not body["strategies"] and not body["wouldHave"]:
            return status
        return msgspec.structs.replace(status, extensions={**status.extensions, slo.SHADOW: body})

    def status(self) -> NodeMetricStatus:
        """Return what would be reported now."""
        view, now_s = self._shared.view, self._shared.clock.now()
        pods = [record.pod for record in view.pods.values()]
        gpus = self._shared.gpus.devices if self._shared.gpus is not None else ()
        known = ReportSubjects(
            pods=pods,
            host_applications=view.host_applications,
            gpus=gpus,
            numa_nodes=sorted(view.numa_meminfo_kib),
            has_cold_pages=view.has_cold_pages,
        )
        policy = self._policy_in_force()
        status = self._with_interference(
            self._with_prediction(
                node_metric.status_of(
                    self._shared.store, known, policy, int(now_s * 1000), clock.rfc3339(now_s)
                ),
                pods,
            )
        )
        if self._hour_trainer is not None:
            status = node_metric.with_hours(status, self._hour_trainer.peaks())
        if self._gpu_trainer is None:
            return status
        found = self._gpu_trainer.predictions()
        return node_metric.with_gpu_predictions(
            status, [(gpu, found[gpu.minor]) for gpu in known.gpus if gpu.minor in found]
        )

    def _with_interference(self, status: NodeMetricStatus) -> NodeMetricStatus:
        """Return a report with how degraded services are, where that is measured."""
        view = self._shared.view
        if view.interference is None:
            return status
        found = node_metric.interference_of(view.interference, view.pods, view.learnt)
        return node_metric.with_interference(status, found)

    def _with_prediction(self, status: NodeMetricStatus, pods: Sequence[Pod]) -> NodeMetricStatus:
        """Return a report with what prod pods leave, if that can be told."""
        measured = {(each.namespace, each.name) for each in status.pods_metric}
        try:
            prediction = self._trainer.prod(
                [pod for pod in pods if (pod.metadata.namespace, pod.metadata.name) in measured]
            )
        except ModelError as error:
            self._prediction_outage.failed(error)
            return status
        self._prediction_outage.ended()
        return node_metric.with_prediction(status, prediction)

    def _policy_in_force(self) -> CollectPolicy:
        """Return what the NodeMetric asks for, without windows that cannot be read."""
        spec = self._shared.view.metric_spec
        if spec is self._read_spec:
            return self._policy
        self._read_spec = spec
        self._policy, problems = node_metric.readable_windows(
            node_metric.collect_policy(spec or NodeMetricSpec())
        )
        for error in problems.values():
            field = "spec.metricCollectPolicy.nodeAggregatePolicy.durations"
            log.warning("NodeMetric %s: %s: window skipped: %s", self._shared.config.node_name, field, error)
        return self._policy

    async def _write(self, status: NodeMetricStatus) -> None:
        """Replace the status. An object that is gone comes back through the manager, with the next reports."""
        body: Any = msgspec.to_builtins(status)

        async def attempt() -> None:
            # Not a merge patch: it would leave amounts that are unknown now as they were.
            patch = [{"op": "add", "path": "/status", "value": body}]
            await self._shared.cluster.patch(
                NodeMetric,
                self._shared.config.node_name,
                patch,
                patch_type=PatchType.JSON,
                subresource="status",
            )

        try:
            async with asyncio.timeout(WRITE_S_MAX):
                await retry_on_conflict(attempt, self._shared.rng, on=(errors.Conflict,))
        except errors.NotFound:
            log.debug("NodeMetric %s was deleted, report dropped", self._shared.config.node_name)
        except (errors.ApiError, TimeoutError) as error:
            self._outage.failed(error)
            return
        self._outage.ended()

    def _show(self, status: NodeMetricStatus) -> None:
        """Gauges of what is reported."""
        metrics = self._shared.metrics
        if self._shared.view.node is None:
            return
        self._show_reclaimable(status)
        if not self._shared.gates.is_on(GATE):
            return
        families = (metrics.node_usage, metrics.system_usage, metrics.numa_usage, metrics.numa_system_usage)
        for family in families:
            family.reset()
        info = status.node_metric
        if info is None:
            return
        _set(metrics.node_usage, info.node_usage)
        _set(metrics.system_usage, info.system_usage)
        for numa in info.numa_usages:
            _set(metrics.numa_usage, numa.node_usage, str(numa.numa_node_id))
            _set(metrics.numa_system_usage, numa.system_usage, str(numa.numa_node_id))

    def _show_reclaimable(self, status: NodeMetricStatus) -> None:
        metrics = self._shared.metrics
        is_predicted = status.prod_peak_metric is not None
        metrics.reclaimable_status.set(0 if is_predicted else 1, PriorityClass.PROD.value)
        metrics.reclaimable.reset()
        if status.prod_reclaimable_metric is not None:
            _set(metrics.reclaimable, status.prod_reclaimable_metric.resource, PriorityClass.PROD.value)


def _set(family: NodeGauge, amounts: ResourceMap, *labels: str) -> None:
    """CPU in cores, memory in bytes; nothing where it is unknown."""
    said: Mapping[str, quantity.RawQuantity] = amounts.resources
    for resource, unit in _UNITS:
        if resource in said:
            family.set(quantity.milli(said[resource]) / 1000, *labels, resource, unit)


EXTENSIONS_INTERVAL_S = 1.0
EXTENSIONS_WRITE_S_MAX = 10.0


class ExtensionReporter:
    """Writes what parts of the agent say of the node (`view.extensions`) to its NodeMetric as soon as it changes.

    Nothing is sent while nothing changes. A write that failed is tried again, later and later, and the next report of
    usage carries it anyway.
    """

    name = "nodemetric extensions"
    informers = ()
    interval_s = EXTENSIONS_INTERVAL_S

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._written: Mapping[str, Any] = {}
        self._outage = Outage(f"extensions of NodeMetric {shared.config.node_name}")

    async def run(self) -> None:
        """Write what is new."""
        view, now_s = self._shared.view, self._shared.clock.now()
        wanted = view.extensions
        if wanted is self._written or view.metric_spec is None or not self._outage.is_due(now_s):
            return
        gone = dict.fromkeys(self._written.keys() - wanted.keys())
        patch = {"status": {"extensions": {**gone, **wanted}}}  # other extensions stay
        try:
            async with asyncio.timeout(EXTENSIONS_WRITE_S_MAX):
                await self._shared.cluster.patch(
                    NodeMetric,
                    self._shared.config.node_name,
                    patch,
                    subresource="status",
                )
        except (errors.ApiError, TimeoutError) as error:
            self._outage.failed(error, now_s)
            return
        self._written = wanted
        self._outage.ended()
