"""A node for tests of parts that predict and report: a tree for a host, an API in memory, a clock that stands."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from koordinator import clock as clocks
from koordinator.api import crd
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.groups import CustomResourceDefinition
from koordinator.clock import FixedClock
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.protocol import Cluster
from koordinator.host.cgroup_layout import Driver
from koordinator.host.gpu import GPUDevice, GPUs, XidEvent
from koordinator.host.host import Host, tree_host
from koordinator.koordlet import gates as koordlet_gates
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet import node_pods
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.config import AgentConfig, CollectConfig, KubeletClientConfig, PredictConfig
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.parts import Kubelet, Shared
from koordinator.koordlet.series import Readings, SeriesStore
from koordinator.koordlet.view import NodeView
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.restore_log import RestoreLog
from koordinator.local import registry
from tests.koordlet.report.faulty_cluster import FaultyCluster

NAME = "n1"
NOW_S = 1_700_006_400.0
GIB = 2**30
DAY_S = 86_400.0


async def api(clock: clocks.Clock) -> FaultyCluster:
    """An API with our kinds in it."""
    cluster = FaultyCluster(registry.in_memory(clock))
    for manifest in crd.manifests():
        await cluster.create(CustomResourceDefinition, manifest)
    cluster.writes.clear()
    return cluster


def node_object(**annotations: str) -> Node:
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    raw = {
        "metadata": {"name": NAME, "uid": "node-uid", "annotations": annotations},
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    return from_builtins(raw, Node)


def pod_object(
    name: str,
    cpu: str = "1",
    memory: str = "1Gi",
    *,
    qos: str = "LS",
    age_s: float = 2 * DAY_S,
    phase: str = "Running",
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Pod:
    """A pod whose UID is its name, and whose class is that of its QoS."""
    raw = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "labels": {"koordinator.sh/qosClass": qos},
            "annotations": annotations or {},
            "creationTimestamp": clocks.rfc3339(NOW_S - age_s),
        },
        "spec": {
            "nodeName": NAME,
            "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}}],
            **spec,
        },
        "status": {"phase": phase, "qosClass": "Burstable"},
    }
    return from_builtins(raw, Pod)


class AgentNode:
    """What parts share, with hands to change it."""

    def __init__(
        self,
        root: Path,
        cluster: Cluster,
        *,
        clock: clocks.Clock | None = None,
        gates: str = "",
        predict: PredictConfig | None = None,
        kubelet_config: KubeletClientConfig | None = None,
        kubelet: Kubelet | None = None,
        collect: CollectConfig | None = None,
        gpus: GPUs | None = None,
        seed: int = 0,
    ) -> None:
        self.fixed = FixedClock(NOW_S)
        self.clock = clock or self.fixed
        self.root = root
        self.cluster = cluster
        self.host: Host = tree_host(str(root))
        self.view = NodeView(Driver.CGROUPFS)
        self.store = SeriesStore()
        self.metrics = AgentMetrics(NAME, self.clock)
        audit = AuditLog(self.clock)
        rng = random.Random(seed)
        self.shared = Shared(
            config=AgentConfig(
                node_name=NAME,
                predict=predict or PredictConfig(checkpoints=str(root / "checkpoints")),
                kubelet=kubelet_config or KubeletClientConfig(),
                collect=collect or CollectConfig(),
            ),
            gates=koordlet_gates.of(gates),
            clock=self.clock,
            rng=rng,
            host=self.host,
            view=self.view,
            store=self.store,
            readings=Readings(self.store, self.clock, 1.0),
            executor=Executor(self.host.cgroups, self.clock, audit, RestoreLog()),
            audit=audit,
            metrics=self.metrics,
            cluster=cluster,
            events=EventRecorder(cluster, "koordlet", host=NAME, rng=rng),
            kubelet=kubelet,
            gpus=gpus,
        )

    def pods(self, *pods: Pod) -> None:
        """The kubelet's answer."""
        self.view.pods = {pod.metadata.uid: node_pods.record(pod, self.view.driver) for pod in pods}
        self.view.has_pods = True

    def sample(self, kind: str, value: float, ago_s: float = 0.0, **properties: str) -> None:
        at_ms = int((self.clock.now() - ago_s) * 1000)
        self.store.ring(kind, properties).append(at_ms, value)

    def use(self, cores: float, memory_bytes: float, ago_s: float = 0.0) -> None:
        """The node was measured."""
        self.sample(kinds.NODE_CPU, cores, ago_s)
        self.sample(kinds.NODE_MEMORY, memory_bytes, ago_s)

    def pod_uses(self, uid: str, cores: float, memory_bytes: float, ago_s: float = 0.0) -> None:
        """A pod was measured."""
        self.sample(kinds.POD_CPU, cores, ago_s, pod_uid=uid)
        self.sample(kinds.POD_MEMORY, memory_bytes, ago_s, pod_uid=uid)

    def says(self, metric: str) -> dict[tuple[str, ...], float]:
        """Series of a family of metrics, by their labels without the node."""
        family = getattr(self.metrics, metric)
        return {labels[1:]: value for labels, value in family.values.items()}


class Cards(GPUs):
    """Two cards that tell of the errors that they are told to have."""

    def __init__(self) -> None:
        found = [
            (
                None,
                GPUDevice(
                    f"GPU-{minor}",
                    minor,
                    "NVIDIA A100 80GB",
                    80 * GIB,
                    f"0000:0{minor}:00.0",
                    0,
                    "pci0000:00",
                ),
            )
            for minor in (0, 1)
        ]
        super().__init__(SimpleNamespace(NVMLError=OSError, nvmlEventSetCreate=_unsupported), found, "550.54")
        self.without_health = frozenset()
        self.pending: list[XidEvent] = []

    def errors(self) -> list[XidEvent]:
        pending, self.pending = self.pending, []
        return pending


def _unsupported() -> None:
    raise OSError


def cards() -> Cards:
    """Cards of 80 GiB each."""
    return Cards()


class Reporting:
    """A node with a reporter whose cache runs."""

    def __init__(self, node: AgentNode, cluster: FaultyCluster, reporter: Any) -> None:
        self.node, self.cluster, self.reporter = node, cluster, reporter

    async def round(self, seconds: float = 3.0) -> None:
        """Some seconds later, when the cache has caught up, one round."""
        self.node.fixed.now_s += seconds
        await settle()
        await self.reporter.run()
        await settle()


R = TypeVar("R", bound=Reporting)


@asynccontextmanager
async def running(found: R) -> AsyncIterator[R]:
    """With the informers of the reporter at work."""
    tasks = [asyncio.create_task(each.run()) for each in found.reporter.informers]
    try:
        await settle()
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def settle() -> None:
    """All that is ready to run has run."""
    for _ in range(20):
        await asyncio.sleep(0)
