"""A node for strategies that act: a tree of files, pods, measurements, and an API server that says what it is told."""

import asyncio
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from koordinator.api.core import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    Node,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from koordinator.api.meta import ObjectMeta
from koordinator.api.slo import NodeSLOSpec, ResourceThresholdStrategy
from koordinator.clock import LoopClock
from koordinator.cluster import errors
from koordinator.host.cgroup_layout import Driver
from koordinator.host.host import Host, TreeFiles, tree_host
from koordinator.koordlet import gates as koordlet_gates
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet import node_pods
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.config import AgentConfig, QoSConfig
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.parts import Shared, Strategy
from koordinator.koordlet.qos import all as qos
from koordinator.koordlet.qos.shadow import ShadowMode
from koordinator.koordlet.series import Readings, SeriesStore
from koordinator.koordlet.states.node import with_defaults
from koordinator.koordlet.view import NodeView
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.file_writer import PlannedWrite
from koordinator.koordlet.writing.restore_log import RestoreLog
from tests.host import host_tree

EPOCH_S = 1_700_000_000.0
BOOT = "boot-1"
DISCOVERY = {"resources": [{"name": "pods/eviction", "kind": "Eviction", "group": "policy", "version": "v1"}]}


class FakeApi:
    """Takes evictions, or answers with the error that `answers` has for a pod (or for all, under the empty name)."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.evicted: list[tuple[str, str]] = []
        self.answers: dict[str, errors.ApiError] = {}
        self.discovery: dict[str, Any] = DISCOVERY
        self.discovery_count = 0
        self.delay_s = 0.0

    async def request(self, method: str, path: str, *_: Any) -> dict[str, Any]:
        assert (method, path) == ("GET", "/api/v1")
        if "" in self.answers:
            raise self.answers[""]
        self.discovery_count += 1
        return self.discovery

    async def evict(
        self, namespace: str, pod: str, *, uid: str = "", grace_period_s: int | None = None
    ) -> None:
        assert grace_period_s is None
        self.asked.append(pod)
        await asyncio.sleep(self.delay_s)
        error = self.answers.get(pod, self.answers.get(""))
        if error is not None:
            raise error
        self.evicted.append((pod, uid))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.evicted]


class RecordedEvents:
    """Events as (pod, reason, message)."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, str, str]] = []

    def warning(self, obj: Pod, reason: str, message: str) -> None:
        self.recorded.append((obj.metadata.name, reason, message))

    def reasons(self) -> list[tuple[str, str]]:
        return [(name, reason) for name, reason, _ in self.recorded]


def acting(shared: Shared, mode: ShadowMode) -> list[Strategy]:
    """All strategies with the evictor that the agent gives them."""
    return qos.strategies(shared, mode, qos.live_evictor(shared, mode))


def threshold(**fields: Any) -> NodeSLOSpec:
    """A NodeSLO whose protection is on."""
    strategy = ResourceThresholdStrategy(enable=True, **fields)
    return with_defaults(NodeSLOSpec(resource_used_threshold_with_be=strategy))


def make_pod(
    name: str,
    *,
    qos: str = "BE",
    priority: int | None = 5500,
    phase: str = "Running",
    requests: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    deleted: bool = False,
    containers: Iterable[tuple[str, bool]] = (("main", True),),
    born: str = "2024-01-01T00:00:00Z",
) -> Pod:
    """A pod whose uid is its name; `containers` by name and whether they run."""
    own = {"koordinator.sh/eviction-enabled": "true"} | ({"koordinator.sh/qosClass": qos} if qos else {})
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="n",
            uid=name,
            labels=own | dict(labels or {}),
            annotations=dict(annotations or {}),
            creation_timestamp=born,
            deletion_timestamp="2024-01-02T00:00:00Z" if deleted else None,
        ),
        spec=PodSpec(
            priority=priority,
            containers=[
                Container(name="main", resources=ResourceRequirements(requests=dict(requests or {})))
            ],
        ),
        status=PodStatus(
            phase=phase,
            qos_class="BestEffort" if qos == "BE" else "Burstable",
            container_statuses=[
                ContainerStatus(
                    name=each,
                    container_id=f"containerd://{name}-{each}",
                    state=ContainerState(running=ContainerStateRunning() if runs else None),
                )
                for each, runs in containers
            ],
        ),
    )


class SteppedClock(LoopClock):
    """Follows the loop, and is set forth or back by `shift_s`."""

    shift_s = 0.0

    def now(self) -> float:
        return super().now() + self.shift_s


class ActingNode:
    """Everything a strategy is given. Needs a running loop, whose time the clock follows."""

    def __init__(
        self,
        root: Path,
        *,
        gates: str = "",
        dry_run: bool = False,
        version: int = 1,
        capacity: Mapping[str, str] | None = None,
        allocatable: Mapping[str, str] | None = None,
        host: Host | None = None,
        api: FakeApi | None = None,
        **config: Any,
    ) -> None:
        self.root, self.version = root, version
        if host is None:
            if not (root / "sys").exists():
                self._make_tree(root, version)
            host = tree_host(str(root))
        self.host = host
        self.clock = SteppedClock(asyncio.get_running_loop(), EPOCH_S)
        self.store = SeriesStore()
        self.view = NodeView(Driver.CGROUPFS)
        self.view.has_pods = True
        node = NodeStatus(
            capacity=dict(capacity or {"cpu": "10", "memory": "100Gi"}), allocatable=dict(allocatable or {})
        )
        self.view.node = Node(metadata=ObjectMeta(name="node"), status=node)
        self.api = api if api is not None else FakeApi()
        self.events = RecordedEvents()
        self.recorded: list[PlannedWrite] = []
        self.audit = AuditLog(self.clock)
        self.records = RestoreLog(str(root / "run/koordlet/restore.jsonl"), BOOT)
        settings = AgentConfig(node_name="node", qos=QoSConfig(**{"only_evict_by_api": True} | config))
        fakes: dict[str, Any] = {"cluster": self.api, "events": self.events}
        self.shared = Shared(
            config=settings,
            gates=koordlet_gates.of(gates),
            clock=self.clock,
            rng=random.Random(1),
            host=host,
            view=self.view,
            store=self.store,
            readings=Readings(self.store, self.clock, settings.collect.used_interval_s),
            executor=Executor(
                host.cgroups,
                self.clock,
                self.audit,
                self.records,
                on_dry_run=self.recorded.append if dry_run else None,
            ),
            audit=self.audit,
            metrics=AgentMetrics("node", self.clock),
            **fakes,
        )

    @staticmethod
    def _make_tree(root: Path, version: int) -> None:
        if version == host_tree.V2:
            host_tree.group(root, version, "")
        for each in ("kubepods", "kubepods/besteffort", "kubepods/burstable"):
            host_tree.group(root, version, each, vendor=True)

    @property
    def files(self) -> TreeFiles:
        assert isinstance(self.host.files, TreeFiles)
        return self.host.files

    def set_pods(self, pods: Iterable[Pod]) -> None:
        self.view.pods = {pod.metadata.uid: node_pods.record(pod, Driver.CGROUPFS) for pod in pods}

    def measure(self, kind: str, value: float, **properties: str) -> None:
        self.store.ring(kind, properties).append(int(self.clock.now() * 1000), value)

    def measure_pods(self, kind: str, used: Mapping[str, float]) -> None:
        for uid, value in used.items():
            self.measure(kind, value, pod_uid=uid)

    def measure_best_effort(self, usage: float, request: float, limit: float) -> None:
        for allocation, value in (
            (kinds.BE_USAGE, usage),
            (kinds.BE_REQUEST, request),
            (kinds.BE_REAL_LIMIT, limit),
        ):
            self.measure(kinds.NODE_BE, value, be_resource="cpu", be_allocation=allocation)
