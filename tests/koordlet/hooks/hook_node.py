"""A node for hooks: a tree of groups, pods with batch and other resources, policies, and the hooks over it."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.meta import Object
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.slo import NodeSLOSpec
from koordinator.clock import FixedClock
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.memory import MemoryCluster
from koordinator.host.cgroup_knobs import V1, V2, Knob
from koordinator.host.cgroup_layout import Driver
from koordinator.host.host import Host, TreeFiles, tree_host
from koordinator.host.syscalls import Syscalls
from koordinator.koordlet import gates as koordlet_gates
from koordinator.koordlet import node_pods
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.config import AgentConfig, HookConfig
from koordinator.koordlet.hooks.all import RuntimeHooks
from koordinator.koordlet.hooks.hook import Runner
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.series import Readings, SeriesStore
from koordinator.koordlet.states.node import with_defaults
from koordinator.koordlet.view import NodeView, Topic
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.file_writer import PlannedWrite
from koordinator.koordlet.writing.restore_log import RestoreLog
from koordinator.local import registry
from tests.host import host_tree

T = TypeVar("T", bound=Object)

ROOT, BURSTABLE, BEST_EFFORT = "kubepods", "kubepods/burstable", "kubepods/besteffort"
IDLE = {"cpu": {"cpu.idle": "0"}, "memory": {}, "blkio": {}}


def pod(
    name: str,
    qos: str = "LS",
    *,
    kube: str | None = None,
    resources: Sequence[Mapping[str, Any]] = ({},),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    phase: str = "Running",
    ip: str = "",
    **spec: Any,
) -> Pod:
    """A pod whose UID is its name, with one container (`c0`, `c1`, …) per item of `resources`."""
    kube = kube or {"BE": "BestEffort", "LSE": "Guaranteed", "LSR": "Guaranteed"}.get(qos, "Burstable")
    own = {"koordinator.sh/qosClass": qos} if qos else {}
    raw = {
        "metadata": {
            "name": name,
            "namespace": "shop",
            "uid": name,
            "labels": own | dict(labels or {}),
            "annotations": dict(annotations or {}),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "containers": [{"name": f"c{i}", "resources": each} for i, each in enumerate(resources)],
            **spec,
        },
        "status": {
            "phase": phase,
            "qosClass": kube,
            "podIP": ip,
            "containerStatuses": [
                {
                    "name": f"c{i}",
                    "containerID": f"containerd://{name}-c{i}",
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                }
                for i in range(len(resources))
            ],
        },
    }
    return from_builtins(raw, Pod)


def batch(cpu: int, memory: str = "1Gi") -> dict[str, Any]:
    """Batch resources of a container, CPU in milli-cores."""
    amounts = {"kubernetes.io/batch-cpu": str(cpu), "kubernetes.io/batch-memory": memory}
    return {"requests": amounts, "limits": amounts}


def native(cpu: str, memory: str = "1Gi") -> dict[str, Any]:
    """CPU and memory, request and limit."""
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def slo(**sections: Any) -> NodeSLOSpec:
    """A NodeSLO by its JSON, with the defaults."""
    return with_defaults(from_builtins(sections, NodeSLOSpec))


def classes(policy: str = "groupIdentity", **of_class: Mapping[str, Any]) -> NodeSLOSpec:
    """A NodeSLO with `cpuQOS` of classes: `be={"enable": True}`."""
    sections = {f"{name}Class": {"cpuQOS": dict(value)} for name, value in of_class.items()}
    return slo(resourceQOSStrategy={"policies": {"cpuPolicy": policy}, **sections})


BE_ON = {"enable": True, "groupIdentity": -1}
LS_ON = {"enable": True, "groupIdentity": 2}


class HookNode:
    """The tree, the view and the hooks."""

    def __init__(
        self,
        root: Path,
        *,
        gates: str = "",
        version: int = V1,
        vendor: bool = True,
        dry_run: bool = False,
        syscalls: Syscalls | None = None,
        hooks: HookConfig | None = None,
        host: Host | None = None,
        runner: Runner | None = None,
    ) -> None:
        self.root, self.version, self.vendor = root, version, vendor
        if host is None:
            if not (root / "sys/fs/cgroup").exists():
                if version == V2:
                    self.group("")
                for each in (ROOT, BURSTABLE, BEST_EFFORT):
                    self.group(each)
            host = tree_host(str(root), syscalls)
        self.host = host
        self.clock = FixedClock()
        self.view = NodeView(Driver.CGROUPFS)
        self.dry_run_writes: list[PlannedWrite] = []
        audit, store, rng = AuditLog(self.clock), SeriesStore(), random.Random(1)
        cluster = MemoryCluster(registry.in_memory(self.clock))
        self.records = RestoreLog(str(root / "run/koordlet/restore.jsonl"), "boot")
        self.executor = Executor(
            self.host.cgroups,
            self.clock,
            audit,
            self.records,
            on_dry_run=self.dry_run_writes.append if dry_run else None,
        )
        self.events = EventRecorder(cluster, "koordlet-runtimehook", host="n1", rng=rng)
        self.shared = Shared(
            config=AgentConfig(node_name="n1", hooks=hooks or HookConfig()),
            gates=koordlet_gates.of(gates),
            clock=self.clock,
            rng=rng,
            host=self.host,
            view=self.view,
            store=store,
            readings=Readings(store, self.clock, 1.0),
            executor=self.executor,
            audit=audit,
            metrics=AgentMetrics("n1", self.clock),
            cluster=cluster,
            events=self.events,
        )
        self.hooks = RuntimeHooks(self.shared, runner)

    @property
    def files(self) -> TreeFiles:
        assert isinstance(self.host.files, TreeFiles)
        return self.host.files

    def group(self, name: str) -> None:
        """Make a group."""
        host_tree.group(self.root, self.version, name, vendor=self.vendor)
        if self.version == V2 and not self.vendor and name:
            host_tree.write(self.root / "sys/fs/cgroup" / name, {"cpu.idle": "0"})
        elif self.version == V1 and not self.vendor:
            host_tree.write(self.root / "sys/fs/cgroup/cpu" / name, {"cpu.idle": "0"})

    def run_pods(self, *pods: Pod, sandboxes: bool = True) -> None:
        """The kubelet has started these pods, and ended all others."""
        records = [node_pods.record(each, self.view.driver) for each in pods]
        for record in records:
            groups = [record.group, *(each.group for each in record.containers)]
            groups += [f"{record.group}/sandbox"] if sandboxes else []
            for group in groups:
                if not self.host.cgroups.exists(group):
                    self.group(group)
        self.view.pods = {record.uid: record for record in records}
        self.view.has_pods = True
        self.view.changed(Topic.PODS)

    def policy(self, spec: NodeSLOSpec) -> None:
        """A NodeSLO arrives."""
        self.view.slo = spec
        self.view.changed(Topic.NODE_SLO)

    def node(self, **annotations: str) -> None:
        """The Node changes."""
        self.view.node = _about_n1(Node, annotations)
        self.view.changed(Topic.NODE)

    def topology(self, **annotations: str) -> None:
        """A topology is known: `cpu_shared_pools=…`."""
        self.view.topology = _about_n1(NodeResourceTopology, annotations)
        self.view.changed(Topic.TOPOLOGY)

    def says(self, knob: Knob, group: str) -> str:
        """Content of a file."""
        text = self.host.files.read(self.host.cgroups.path(knob, group))
        return "gone" if text is None else text.strip()

    def refresh(self) -> None:
        """The kubelet tells the same pods again."""
        self.view.changed(Topic.PODS)

    def restarted(self, **changes: Any) -> "HookNode":
        """The agent after a kill, over the same tree."""
        again = HookNode(self.root, version=self.version, vendor=self.vendor, **changes)
        again.clock.now_s = self.clock.now_s + 1
        again.view.pods, again.view.has_pods = self.view.pods, self.view.has_pods
        again.view.slo, again.view.node, again.view.topology = (
            self.view.slo,
            self.view.node,
            self.view.topology,
        )
        return again


def _about_n1(view: type[T], annotations: dict[str, str]) -> T:
    """An object called as the node, with annotations of the prefix for nodes."""
    named = {f"node.koordinator.sh/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return from_builtins({"metadata": {"name": "n1", "annotations": named}}, view)
