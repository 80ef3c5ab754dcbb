"""The agent of `culprit`, as a process of its own: tells each second how the service is, and whom it names."""

import asyncio
import random
import sys
import tempfile
import time
from typing import Any

import msgspec

from benchmarks._reaction_agent import ListedPods
from koordinator.api import crd
from koordinator.api.core import Node, Pod
from koordinator.api.groups import CustomResourceDefinition
from koordinator.clock import SystemClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.host.files import HostRoots
from koordinator.host.host import open_host
from koordinator.koordlet import gates as koordlet_gates
from koordinator.koordlet.agent import Agent
from koordinator.koordlet.config import AgentConfig, AuditConfig, PredictConfig
from koordinator.local import registry

NODE = "bench"
OWN_GATES = "Interference=true,BECPUSuppress=false,GroupIdentity=false,CPUBurst=false"
"""Nothing protects the service: it is to suffer."""


class CulpritSpec(msgspec.Struct, frozen=True):
    """What the agent is told of its node."""

    group: str
    """Stands for the kubelet's root."""
    pods: list[dict[str, Any]]


class Told(msgspec.Struct, frozen=True):
    """One second: the service's suffering, and the verdict about it."""

    at_s: float
    level: float
    senses: dict[str, float]
    since_s: float | None
    culprit: str = ""
    resource: str = ""
    confidence: float = 0.0
    named_s: float = 0.0
    use: dict[str, list[float]] = {}


async def run(spec: CulpritSpec, directory: str) -> None:
    """Until killed."""
    clock = SystemClock()
    api = MemoryCluster(registry.in_memory(clock, checks=False))
    for manifest in crd.manifests():
        await api.create(CustomResourceDefinition, manifest)
    amounts = {"cpu": "2", "memory": "8Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts}
    await api.create(Node, {"metadata": {"name": NODE}, "status": status})
    roots = msgspec.structs.replace(HostRoots.below(""), kubepods_below=spec.group, run=directory)
    kubelet = ListedPods(msgspec.convert(spec.pods, list[Pod]))
    agent = Agent(
        AgentConfig(
            node_name=NODE,
            audit=AuditConfig(directory=f"{directory}/audit"),
            predict=PredictConfig(checkpoints=f"{directory}/checkpoints"),
        ),
        gates=koordlet_gates.of(OWN_GATES),
        host=open_host(roots, 1_024),
        cluster=api,
        clock=clock,
        rng=random.Random(0),
        kubelet=lambda view, metrics: kubelet,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.run())
        await agent.is_started.wait()
        await _tell(agent)


async def _tell(agent: Agent) -> None:
    loop, view, last_s = asyncio.get_running_loop(), agent.shared.view, 0.0
    skew_s = time.monotonic() - loop.time()
    while True:
        await asyncio.sleep(0.02)
        found = view.interference
        if found is None or found.at_s == last_s:
            continue
        last_s = found.at_s
        for uid, each in found.services.items():
            verdict = found.verdicts.get(uid)
            told = Told(
                at_s=found.at_s + skew_s,
                level=each.level,
                senses={sense.value: level for sense, level in each.senses.items()},
                since_s=None if each.since_s is None else each.since_s + skew_s,
                culprit="" if verdict is None else verdict.culprit,
                resource="" if verdict is None else verdict.resource,
                confidence=0.0 if verdict is None else verdict.confidence,
                named_s=0.0 if verdict is None else verdict.at_s + skew_s,
            )
            print(msgspec.json.encode(told).decode(), flush=True)


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=CulpritSpec)
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(spec, directory))


if __name__ == "__main__":
    main()
