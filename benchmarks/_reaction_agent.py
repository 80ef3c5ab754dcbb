"""The agent of `koordlet_reaction`, as a process of its own: tells each write to the best-effort tree with its time."""

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from koordinator.api import crd
from koordinator.api.core import Node, Pod
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.slo import NodeSLO
from koordinator.clock import SystemClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.host.files import FileProblem, Files, HostRoots
from koordinator.host.host import Host
from koordinator.host.syscalls import LinuxSyscalls
from koordinator.koordlet import gates as koordlet_gates
from koordinator.koordlet.agent import Agent
from koordinator.koordlet.config import AgentConfig, AuditConfig, PredictConfig
from koordinator.koordlet.qos.cpu_suppress_run import CPUSuppress, CPUSurge
from koordinator.local import registry

NODE = "bench"
TOLD = ("cpu.cfs_quota_us", "cpu.max", "cpuset.cpus")


class ReactionSpec(msgspec.Struct, frozen=True):
    """What the agent is told of its node."""

    group: str
    """Stands for the kubelet's root."""
    policy: str
    capacity_milli: int
    reserved_milli: int
    pods: list[dict[str, Any]]
    is_plain: bool = False
    """As the reference: rounds by a clock of their own, and nothing between them."""


class TellingFiles(Files):
    """Tells of writes by which CPU is taken or given, once the kernel has them."""

    def write(self, path: str, text: str) -> FileProblem | None:
        problem = super().write(path, text)
        if problem is None and path.endswith(TOLD) and "/besteffort/" in path and "/pod" not in path:
            print(f"{time.monotonic():.6f} {text.strip()}", flush=True)
        return problem


class ListedPods:
    """A kubelet whose pods never change."""

    def __init__(self, pods: list[Pod]) -> None:
        self._pods = pods

    async def pods(self) -> list[Pod]:
        return list(self._pods)

    async def config(self) -> dict[str, Any]:
        return {"cgroupDriver": "cgroupfs", "cpuManagerPolicy": "none"}

    async def close(self) -> None:
        pass


async def run(spec: ReactionSpec, directory: str) -> None:
    """Until killed."""
    clock = SystemClock()
    api = MemoryCluster(registry.in_memory(clock, checks=False))
    for manifest in crd.manifests():
        await api.create(CustomResourceDefinition, manifest)
    await api.create(Node, _node(spec))
    threshold = {"enable": True, "cpuSuppressPolicy": spec.policy, "cpuSuppressThresholdPercent": 100}
    slo = {"metadata": {"name": NODE}, "spec": {"resourceUsedThresholdWithBE": threshold}}
    await api.create(NodeSLO, slo)
    roots = msgspec.structs.replace(HostRoots.below(""), kubepods_below=spec.group, run=directory)
    kubelet = ListedPods(msgspec.convert(spec.pods, list[Pod]))
    agent = Agent(
        AgentConfig(
            node_name=NODE,
            audit=AuditConfig(directory=f"{directory}/audit"),
            predict=PredictConfig(checkpoints=f"{directory}/checkpoints"),
        ),
        gates=koordlet_gates.of(),
        host=Host(roots, TellingFiles(1_024), LinuxSyscalls()),
        cluster=api,
        clock=clock,
        rng=random.Random(0),
        kubelet=lambda view, metrics: kubelet,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.run())
        await agent.is_started.wait()
        print("started", flush=True)


def _node(spec: ReactionSpec) -> dict[str, Any]:
    amounts = {"cpu": f"{spec.capacity_milli}m", "memory": "8Gi", "pods": "110"}
    reserved = f'{{"resources":{{"cpu":"{spec.reserved_milli}m"}}}}'
    return {
        "metadata": {"name": NODE, "annotations": {"node.koordinator.sh/reservation": reserved}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def _be_plain() -> None:
    """Take away what makes this agent react sooner than rounds by the clock do."""
    del CPUSuppress.after
    CPUSurge.gates = ("BECPUManager",)


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=ReactionSpec)
    if spec.is_plain:
        _be_plain()
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o700)
        asyncio.run(run(spec, directory))


if __name__ == "__main__":
    main()
