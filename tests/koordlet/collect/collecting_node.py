"""A node for collectors: a tree of files whose counters are set by hand, pods, and a clock that can be stepped."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from koordinator.api.core import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from koordinator.api.meta import ObjectMeta
from koordinator.api.slo import NodeSLOSpec
from koordinator.clock import Clock
from koordinator.host.cgroup_knobs import V1
from koordinator.host.cgroup_layout import Driver
from koordinator.host.host import tree_host
from koordinator.koordlet import gates as koordlet_gates
from koordinator.koordlet import node_pods
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.collect.group_usage import GroupScan
from koordinator.koordlet.collect.rates import LatestSamples
from koordinator.koordlet.config import AgentConfig, CollectConfig
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.parts import Collector, Shared
from koordinator.koordlet.series import Readings, SeriesStore
from koordinator.koordlet.view import NodeView
from koordinator.koordlet.writing.executor import Executor
from koordinator.koordlet.writing.restore_log import RestoreLog
from koordinator.simulate.virtual_time import run_virtual
from tests.host import host_tree

T = TypeVar("T")
CPUS = 4
GUARANTEED, BEST_EFFORT = "kubepods", "kubepods/besteffort"
NS = 1_000_000_000
EVERYTHING = (-(2**40), 2**50)


class SteppedClock:
    """The loop's time, and what somebody did to the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.shift_s = 0.0

    def now(self) -> float:
        return self._clock.now() + self.shift_s


LIFE_S_MAX = 24 * 3600
"""No test lives longer."""


class CollectingNode:
    """Files below `root`, as a kernel with that cgroup version has them."""

    def __init__(
        self,
        root: Path,
        clock: Clock,
        version: int = V1,
        *,
        gates: str = "",
        collect: CollectConfig | None = None,
    ) -> None:
        self.root = root
        self.version = version
        self.clock = SteppedClock(clock)
        self.cgroups = root / "sys/fs/cgroup"
        if version != V1:
            host_tree.write(self.cgroups, {"cgroup.controllers": "cpu memory"})
        for group in ("", GUARANTEED, BEST_EFFORT, "kubepods/burstable"):
            host_tree.group(root, version, group)
        host_tree.cpus(root, [(0, 0, core) for core in range(CPUS)])
        self.machine(busy_ticks=0)
        host = tree_host(str(root))
        audit = AuditLog(self.clock)
        store = SeriesStore()
        nobody = cast(Any, None)
        self.shared = Shared(
            config=AgentConfig(node_name="n1", collect=collect or CollectConfig()),
            gates=koordlet_gates.of(gates),
            clock=self.clock,
            rng=random.Random(0),
            host=host,
            view=NodeView(Driver.CGROUPFS),
            store=store,
            readings=Readings(store, self.clock, 1.0),
            executor=Executor(host.cgroups, self.clock, audit, RestoreLog()),
            audit=audit,
            metrics=AgentMetrics("n1", self.clock),
            cluster=nobody,
            events=nobody,
        )
        self.known = LatestSamples()
        self.scan = GroupScan(host.cgroups, lambda: CPUS)

    def machine(
        self, busy_ticks: int, *, stolen_ticks: int = 0, total_kib: int = 1000, available_kib: int = 600
    ) -> None:
        """What `/proc` says; the ticks are spread over the CPUs."""
        per_cpu = busy_ticks // CPUS
        lines = [f"cpu  {per_cpu * CPUS} 0 0 0 0 0 0 {stolen_ticks} 0 0"]
        lines += [f"cpu{cpu} {per_cpu} 0 0 0 0 0 0 0 0 0" for cpu in range(CPUS)]
        meminfo = (
            f"MemTotal: {total_kib} kB\nMemFree: {available_kib - 100} kB\nMemAvailable: {available_kib} kB"
        )
        host_tree.write(self.root, {"proc/stat": "\n".join([*lines, "intr 5 6 7"]), "proc/meminfo": meminfo})

    def counters(
        self,
        group: str,
        *,
        usage_ns: int = 0,
        anon: int = 0,
        cache: int = 0,
        periods: int = 0,
        throttled: int = 0,
        memory: int | None = None,
    ) -> None:
        """What the files of a group say; `memory` is the whole of it, if not their sum."""
        whole = anon + cache if memory is None else memory
        if self.version == V1:
            self._set("cpuacct", group, "cpuacct.usage", str(usage_ns))
            stat = f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 0"
            self._set("cpu", group, "cpu.stat", stat)
            self._set("memory", group, "memory.usage_in_bytes", str(whole))
            self._set("memory", group, "memory.stat", _memory_stat("total_", anon, cache))
            return
        stat = (
            f"usage_usec {usage_ns // 1000}\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 0"
        )
        self._set("", group, "cpu.stat", stat)
        self._set("", group, "memory.current", str(whole))
        self._set("", group, "memory.stat", _memory_stat("", anon, cache))

    def knob(self, subsystem: str, group: str, name: str, text: str) -> None:
        """One file; the subsystem counts on v1 only."""
        self._set(subsystem if self.version == V1 else "", group, name, text)

    def pods(self, *pods: Pod) -> None:
        """The kubelet's answer."""
        view = self.shared.view
        view.pods = {pod.metadata.uid: node_pods.record(pod, view.driver) for pod in pods}
        view.has_pods = True
        for pod in view.pods.values():
            for group in (pod.group, *(each.group for each in pod.containers)):
                if not (self.cgroups / ("cpu" if self.version == V1 else "") / group).is_dir():
                    host_tree.group(self.root, self.version, group)

    def slo(self, spec: NodeSLOSpec) -> None:
        self.shared.view.slo = spec

    def end(self, group: str) -> None:
        """The group goes."""
        host_tree.remove_group(self.root, self.version, group)

    def values(self, kind: str, **properties: str) -> list[float]:
        """All points of a series, which are dated in milliseconds of about now."""
        points = self.shared.store.query(kind, *EVERYTHING, properties)
        age_s = self.clock.now() - points.at_ms / 1000
        assert (abs(age_s) < LIFE_S_MAX).all(), f"{kind} is dated {age_s[0]} s ago"
        return [float(value) for value in points.values]

    def _set(self, subsystem: str, group: str, name: str, text: str) -> None:
        (self.cgroups / subsystem / group / name).write_text(text + "\n")


def make_pod(
    name: str, *, qos_class: str = "Guaranteed", containers: int = 1, qos: str = "", batch_cpu: str = ""
) -> Pod:
    """A pod whose uid is its name, with containers `<name>-0`, `<name>-1`…"""
    requests = {"kubernetes.io/batch-cpu": batch_cpu} if batch_cpu else {}
    running = ContainerState(running=ContainerStateRunning())
    return Pod(
        metadata=ObjectMeta(
            name=name, namespace="d", uid=name, labels={"koordinator.sh/qosClass": qos} if qos else {}
        ),
        spec=PodSpec(
            containers=[Container(name="main", resources=ResourceRequirements(requests=dict(requests)))]
        ),
        status=PodStatus(
            phase="Running",
            qos_class=qos_class,
            container_statuses=[
                ContainerStatus(name=f"c{index}", container_id=f"containerd://{name}-{index}", state=running)
                for index in range(containers)
            ],
        ),
    )


async def rounds(collector: Collector, *steps: Callable[[], None], every_s: float = 1.0) -> list[bool]:
    """A round after each step, one interval apart; whether each was good."""
    found = []
    for step in steps:
        step()
        good = collector.collect()
        found.append(await good if isinstance(good, Awaitable) else good)
        await asyncio.sleep(every_s)
    return found


def life(main: Callable[[Clock], Awaitable[T]]) -> T:
    """Runs on virtual time."""
    return run_virtual(main)


def _memory_stat(prefix: str, anon: int, cache: int) -> str:
    values = {
        "active_anon": anon,
        "inactive_anon": 0,
        "inactive_file": cache,
        "active_file": 0,
        "unevictable": 0,
    }
    values |= {"cache": cache, "rss": anon, "file": cache, "anon": anon}
    return "first 0\n" + "\n".join(f"{prefix}{name} {value}" for name, value in values.items())
