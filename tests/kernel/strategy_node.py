"""A node for strategies on this kernel: the kubelet's groups below a group of ours, with real processes in them.

The clock stands and samples are given, so no test waits for one; what the kernel does with what is written is real.
"""

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import msgspec

from koordinator.api import cpuset
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.slo import NodeSLOSpec
from koordinator.clock import FixedClock
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.protocol import Cluster
from koordinator.host.cgroup_knobs import V2, Knob
from koordinator.host.cgroup_layout import Driver
from koordinator.host.files import HostRoots
from koordinator.host.host import Host, open_host
from koordinator.koordlet import gates as koordlet_gates
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet import node_pods
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.config import AgentConfig
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.qos.cpu_suppress_run import CPUSuppress, ServiceUsage
from koordinator.koordlet.series import Readings, SeriesStore
from koordinator.koordlet.states.node import with_defaults
from koordinator.koordlet.view import NodeView
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.restore_log import RestoreLog
from tests.koordlet.qos.pods import BE, CLASS_DIRS, LS, PODS
from tests.koordlet.qos.pods import pod_object as pod_object

CLASSES = (PODS, LS, BE)
NAME = "kernel-node"


class Nobody:
    """In place of an API server: strategies ask it nothing, and a real one takes long to import on a small machine."""

    def __init__(self, clock: FixedClock) -> None:
        self.clock = clock


def host_below(group: str) -> Host:
    """This machine, its groups named from a group of ours."""
    return open_host(msgspec.structs.replace(HostRoots.below(""), kubepods_below=group), hot_files_max=64)


class StrategyNode:
    """`group` is there already; groups below it are made by `add` (or were, by another process)."""

    def __init__(self, group: str, journal: Path, gates: str = "", host: Host | None = None) -> None:
        self.group = group
        self.host = host if host is not None else host_below(group)
        self.clock = FixedClock(time.time())
        self.view = NodeView(Driver.CGROUPFS)
        self.store = SeriesStore()
        self.metrics = AgentMetrics(NAME, self.clock)
        audit = AuditLog(self.clock)
        rng = random.Random(0)
        cluster = cast(Cluster, Nobody(self.clock))
        self.records = RestoreLog(str(journal), self.host.machine.boot_id())
        self.shared = Shared(
            config=AgentConfig(node_name=NAME),
            gates=koordlet_gates.of(gates),
            clock=self.clock,
            rng=rng,
            host=self.host,
            view=self.view,
            store=self.store,
            readings=Readings(self.store, self.clock, 1.0),
            executor=Executor(self.host.cgroups, self.clock, audit, self.records),
            audit=audit,
            metrics=self.metrics,
            cluster=cluster,
            events=EventRecorder(cluster, "koordlet", host=NAME, rng=rng),
        )
        self.view.cpu = self.host.machine.cpu_topology()
        assert self.view.cpu is not None
        self.cpu_count = len(self.view.cpu.processors)
        amounts = {"cpu": str(self.cpu_count), "memory": "2Gi"}
        self.view.node = from_builtins(
            {"metadata": {"name": NAME}, "status": {"capacity": amounts, "allocatable": amounts}}, Node
        )
        self.view.topology = from_builtins({"metadata": {"name": NAME}}, NodeResourceTopology)
        self._pods: list[Pod] = []

    def know(self, *pods: Pod) -> None:
        """The kubelet's answer."""
        self._pods = list(pods)
        records = (node_pods.record(pod, self.view.driver) for pod in pods)
        self.view.pods = {record.uid: record for record in records}
        self.view.has_pods = True

    def make_classes(self) -> None:
        for each in CLASSES:
            self.make(each)

    def make_pod(self, pod: Pod) -> str:
        """The groups of a pod; that of its first container."""
        group = f"{CLASS_DIRS[pod.status.qos_class]}/pod{pod.metadata.uid}"
        self.make(group)
        ids = [status.container_id.rpartition("/")[2] for status in pod.status.container_statuses]
        for each in ids:
            self.make(f"{group}/{each}")
        return f"{group}/{ids[0]}"

    def make(self, group: str) -> None:
        """A group with the CPUs of its parent, as container runtimes make them."""
        found, files = self.host.cgroups, self.host.files
        assert found.create(group) is None
        parent = group.rpartition("/")[0]
        if found.version == V2:
            for controller in ("cpu", "cpuset", "memory", "io"):
                files.write(f"{found.directory(parent)}/cgroup.subtree_control", f"+{controller}")
        elif files.exists(found.directory(group, "cpuset")):
            for file in ("cpuset.cpus", "cpuset.mems"):
                text = files.read(f"{found.directory(parent, 'cpuset')}/{file}") or ""
                files.write(f"{found.directory(group, 'cpuset')}/{file}", text.strip())

    def patch_slo(self, **spec: Any) -> None:
        """What the NodeSLO says."""
        self.view.slo = with_defaults(from_builtins(spec, NodeSLOSpec))

    def suppress_by(self, policy: str, *, enable: bool = True, percent: int = 100) -> None:
        self.patch_slo(
            resourceUsedThresholdWithBE={
                "enable": enable,
                "cpuSuppressPolicy": policy,
                "cpuSuppressThresholdPercent": percent,
            }
        )

    def suppress(self) -> CPUSuppress:
        return CPUSuppress(self.shared, ServiceUsage(self.host, self.view, self.clock))

    def second(self, node_cores: float, **pods_cores: float) -> None:
        """A second passes, and everything is measured."""
        self.clock.now_s += 1
        at_ms = int(self.clock.now_s * 1000)
        self.store.ring(kinds.NODE_CPU).append(at_ms, node_cores)
        for uid, cores in pods_cores.items():
            self.store.ring(kinds.POD_CPU, {kinds.POD_UID: uid}).append(at_ms, cores)

    def values(self, *knobs: Knob) -> dict[tuple[str, str], str | None]:
        """What all groups say."""
        found = self.host.cgroups
        subsystem = "cpu"
        return {
            (group, knob): found.files.read(found.path(knob, group))
            for group in found.walk(PODS, 4, subsystem)
            for knob in knobs
        }

    def cpus(self, group: str = BE) -> frozenset[int]:
        return self.host.cgroups.cpus(group) or cpuset.parse("")

    def used_cores(self, group: str, seconds: float) -> float:
        """What a group uses of the CPU, by the kernel's counter."""
        begun_ns, begun_s = self.host.cgroups.cpu_usage_ns(group) or 0, time.monotonic()
        time.sleep(seconds)
        used_ns = (self.host.cgroups.cpu_usage_ns(group) or 0) - begun_ns
        return used_ns / 1e9 / (time.monotonic() - begun_s)


def kill_soon(module: str, *arguments: str, rng: random.Random) -> None:
    """Run a worker, and end it by SIGKILL within 50 ms of its being ready."""
    worker = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0, 0.05))
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
