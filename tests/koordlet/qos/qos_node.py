"""A node for tests of strategies: a tree for a host with pods in it, samples, and kills at any write."""

import functools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from koordinator.api import cpuset
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.meta import Object, ObjectReference
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.slo import NodeSLOSpec
from koordinator.clock import FixedClock
from koordinator.cluster.events import EventRecorder, EventSeverity
from koordinator.cluster.memory import MemoryCluster
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.cgroup_layout import Driver
from koordinator.host.files import FileProblem
from koordinator.host.host import Host, TreeFiles, tree_host
from koordinator.host.sysfs import Processor, topology_of
from koordinator.koordlet import gates as koordlet_gates
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet import node_pods
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.config import AgentConfig
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.parts import Shared, Strategy
from koordinator.koordlet.qos.cpu_suppress_run import CPUSuppress, ServiceUsage
from koordinator.koordlet.series import Readings, SeriesStore
from koordinator.koordlet.states.node import with_defaults
from koordinator.koordlet.view import NodeView
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.restore_log import RestoreLog
from koordinator.local import registry
from tests.host import host_tree
from tests.koordlet.qos.pods import BE as BE
from tests.koordlet.qos.pods import CLASS_DIRS, LS, PODS

NAME = "n1"


class Killed(BaseException):
    """The process is no more: nothing catches this."""


class MortalFiles(TreeFiles):
    """A host on which the agent is killed at the write that `kill_at` counts down to, before or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.kill_at: int | None = None
        self.is_killed_after = False

    def write(self, path: str, text: str) -> FileProblem | None:
        if self.kill_at is not None:
            self.kill_at -= 1
            if self.kill_at < 0 and not self.is_killed_after:
                raise Killed
        problem = super().write(path, text)
        if self.kill_at is not None and self.kill_at < 0:
            raise Killed
        return problem


class RecordedEvents(EventRecorder):
    """Keeps what was told, by reason."""

    recorded: list[str]

    def event(
        self,
        obj: Object | ObjectReference,
        severity: EventSeverity,
        reason: str,
        message: str,
        *,
        action: str = "",
        related: Object | None = None,
    ) -> None:
        self.recorded = [*getattr(self, "recorded", []), reason]


@functools.cache
def _cluster() -> MemoryCluster:
    """Strategies ask nothing of it."""
    return MemoryCluster(registry.in_memory(FixedClock()))


class QoSNode:
    """The tree stays when the agent on it is started anew (`start`)."""

    def __init__(self, root: Path, version: int = V1, *, cpu_count: int = 8, gates: str = "") -> None:
        self.root, self.version, self.gates = root, version, gates
        self.clock = FixedClock()
        self.cpu_count = cpu_count
        self.all_cpus = cpuset.text_of(range(cpu_count))
        self.topology_annotations: dict[str, str] = {}
        self.node_annotations: dict[str, str] = {}
        self.pods: list[Pod] = []
        self.slo: dict[str, Any] = {}
        if version == V2:
            self.make_group("")
        for group in (PODS, LS, BE):
            self.make_group(group)
        self.start()

    # The host

    def make_group(self, group: str, **values: str) -> None:
        """A group as the kernel makes it: on v1 with the CPUs of its parent."""
        files = {name.replace("__", "."): text for name, text in values.items()}
        if self.version == V1:
            parent = self.root / "sys/fs/cgroup/cpuset" / group.rpartition("/")[0] / "cpuset.cpus"
            cpus = parent.read_text().strip() if parent.exists() else self.all_cpus
            host_tree.group(self.root, self.version, group, {"cpuset.cpus": cpus, **files}, vendor=True)
        else:
            host_tree.group(self.root, self.version, group, {"cpuset.cpus.effective": self.all_cpus, **files})

    def add(self, pod: Pod, *, quotas_us: Mapping[str, int] | None = None, pod_us: int = -1) -> None:
        """A pod with its groups; the kubelet's next list has it."""
        group = f"{CLASS_DIRS[pod.status.qos_class]}/pod{pod.metadata.uid}"
        self.make_group(group)
        self.set_quota(group, pod_us)
        for status in pod.status.container_statuses:
            container = f"{group}/{status.container_id.rpartition('/')[2]}"
            self.make_group(container)
            self.set_quota(container, (quotas_us or {}).get(status.name, -1))
        self.pods.append(pod)
        self.list_pods()

    def set_quota(self, group: str, quota_us: int) -> None:
        if quota_us != -1:
            assert self.host.cgroups.write(Knob.CPU_QUOTA, group, str(quota_us)) is None

    def cpus(self, group: str = BE) -> str:
        return (self.host.cgroups.read(Knob.CPUSET, group) or "").strip()

    def quota_us(self, group: str = BE) -> int | None:
        return self.host.cgroups.quota_us(group)

    def tree(self) -> dict[str, str]:
        """All files of all groups."""
        base = self.root / "sys/fs/cgroup"
        return {str(path.relative_to(base)): path.read_text() for path in base.rglob("*") if path.is_file()}

    # The agent

    def start(self) -> None:
        """A new process on the same host: it knows what is in the host's files and in its journal."""
        self.host: Host = tree_host(str(self.root))
        self.files = MortalFiles()
        self.host.files = self.files
        self.host.cgroups.files = self.files
        self.view = NodeView(Driver.CGROUPFS)
        self.store = SeriesStore()
        self.metrics = AgentMetrics(NAME, self.clock)
        self.audit = AuditLog(self.clock)
        self.records = RestoreLog(str(self.root / "run/koordlet/restore.jsonl"), "boot-1")
        rng = random.Random(0)
        cluster = _cluster()
        self.events = RecordedEvents(cluster, "koordlet", host=NAME, rng=rng)
        self.shared = Shared(
            config=AgentConfig(node_name=NAME),
            gates=koordlet_gates.of(self.gates),
            clock=self.clock,
            rng=rng,
            host=self.host,
            view=self.view,
            store=self.store,
            readings=Readings(self.store, self.clock, 1.0),
            executor=Executor(self.host.cgroups, self.clock, self.audit, self.records),
            audit=self.audit,
            metrics=self.metrics,
            cluster=cluster,
            events=self.events,
        )
        self.see()

    def see(self) -> None:
        """Everything is known."""
        amounts = {"cpu": str(self.cpu_count), "memory": "16Gi"}
        self.view.node = from_builtins(
            {
                "metadata": {"name": NAME, "uid": "node-uid", "annotations": self.node_annotations},
                "status": {"capacity": amounts, "allocatable": amounts},
            },
            Node,
        )
        self.view.topology = from_builtins(
            {"metadata": {"name": NAME, "annotations": self.topology_annotations}}, NodeResourceTopology
        )
        self.view.cpu = topology_of(
            Processor(node=0, socket=0, core=cpu, cpu=cpu) for cpu in range(self.cpu_count)
        )
        self.say(**self.slo)
        self.list_pods()

    def say(self, **spec: Any) -> None:
        """What the NodeSLO says, by the names of the API."""
        self.slo = spec
        self.view.slo = with_defaults(from_builtins(spec, NodeSLOSpec))

    def list_pods(self) -> None:
        """The kubelet's answer."""
        records = (node_pods.record(pod, self.view.driver) for pod in self.pods)
        self.view.pods = {record.uid: record for record in records}
        self.view.has_pods = True

    def remove(self, uid: str) -> None:
        self.pods = [pod for pod in self.pods if pod.metadata.uid != uid]
        self.list_pods()

    def sample(self, kind: str, value: float, **properties: str) -> None:
        self.store.ring(kind, properties).append(int(self.clock.now() * 1000), value)

    def use(self, node_cores: float, **pods_cores: float) -> None:
        """The node and its pods were measured now."""
        self.sample(kinds.NODE_CPU, node_cores)
        for uid, cores in pods_cores.items():
            self.sample(kinds.POD_CPU, cores, pod_uid=uid)

    def suppress(self) -> CPUSuppress:
        return CPUSuppress(self.shared, ServiceUsage(self.host, self.view, self.clock))

    def says(self, metric: str) -> dict[tuple[str, ...], float]:
        """Series of a family of metrics, by their labels without the node."""
        return {labels[1:]: value for labels, value in getattr(self.metrics, metric).values.items()}


def killed_everywhere(
    make: Callable[[Path], QoSNode],
    start: Callable[[QoSNode], Strategy],
    live: Callable[[QoSNode, Strategy], None],
    root: Path,
    *,
    after: bool,
    writes_max: int = 400,
) -> tuple[list[tuple[QoSNode, dict[str, str]]], QoSNode]:
    """A node for each write of a life, on which the agent was killed there (or right after), with what its tree said
    at first; and the node on which it lived on.
    """
    killed = []
    for kill_at in range(writes_max):
        node = make(root / str(kill_at))
        original = node.tree()
        strategy = start(node)
        node.files.kill_at, node.files.is_killed_after = kill_at, after
        try:
            live(node, strategy)
        except Killed:
            node.start()
            killed.append((node, original))
        else:
            return killed, node
    raise AssertionError(f"more than {writes_max} writes")
