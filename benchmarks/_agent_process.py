"""Run a whole node agent as a process of its own, beside services and batch in groups of a benchmark.

The benchmark writes what the agent shall know of its node as one line to standard input; the agent reports by lines on
standard output.
"""

import asyncio
import contextlib
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from koordinator.api import crd
from koordinator.api.core import Node, Pod
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.slo import NodeSLO
from koordinator.clock import SystemClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.host.files import Files, HostRoots
from koordinator.host.host import Host
from koordinator.host.syscalls import LinuxSyscalls
from koordinator.koordlet import gates as koordlet_gates
from koordinator.koordlet.agent import Agent
from koordinator.koordlet.config import AgentConfig, AuditConfig, PredictConfig
from koordinator.local import registry

NODE = "bench"
HOT_FILES_MAX = 1_024


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is told of its node."""

    group: str
    """Stands for the kubelet's root."""
    pods: list[dict[str, Any]]


S = TypeVar("S", bound=AgentSpec)


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


@contextlib.asynccontextmanager
async def running(
    spec: AgentSpec,
    directory: str,
    *,
    node: Mapping[str, Any],
    slo: Mapping[str, Any] | None = None,
    gates: str = "",
    files: Files,
) -> AsyncIterator[Agent]:
    """Run an agent that has started, on `node` (metadata and status but for the name) with the policy `slo`."""
    clock = SystemClock()
    api = MemoryCluster(registry.in_memory(clock, checks=False))
    for manifest in crd.manifests():
        await api.create(CustomResourceDefinition, manifest)
    await api.create(Node, {**node, "metadata": {**node.get("metadata", {}), "name": NODE}})
    if slo is not None:
        await api.create(NodeSLO, {"metadata": {"name": NODE}, "spec": slo})
    roots = msgspec.structs.replace(HostRoots.below(""), kubepods_below=spec.group, run=directory)
    kubelet = ListedPods(msgspec.convert(spec.pods, list[Pod]))
    agent = Agent(
        AgentConfig(
            node_name=NODE,
            audit=AuditConfig(directory=f"{directory}/audit"),
            predict=PredictConfig(checkpoints=f"{directory}/checkpoints"),
        ),
        gates=koordlet_gates.of(gates),
        host=Host(roots, files, LinuxSyscalls()),
        cluster=api,
        clock=clock,
        rng=random.Random(0),
        kubelet=lambda view, metrics: kubelet,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.run())
        await agent.is_started.wait()
        yield agent


def serve(kind: type[S], run: Callable[[S, str], Awaitable[None]]) -> None:
    """Read the spec from standard input and `run` with it, in a directory that only this process uses, until killed."""
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)

    async def until_killed(directory: str) -> None:
        await run(spec, directory)

    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o700)
        asyncio.run(until_killed(directory))


def listed_pod(name: str, qos: str) -> dict[str, Any]:
    """Return a running pod of one container, `c0`, as the kubelet lists it; `qos` is LS or BE."""
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "labels": {"koordinator.sh/qosClass": qos},
        },
        "spec": {
            "nodeName": NODE,
            "priority": 9500 if qos == "LS" else 5500,
            "containers": [{"name": "c0"}],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable" if qos == "LS" else "BestEffort",
            "podIP": "127.0.0.1",
            "containerStatuses": [
                {
                    "name": "c0",
                    "containerID": f"containerd://{name}-c0",
                    "ready": True,
                    "state": {"running": {"startedAt": "2024-01-01T00:00:00Z"}},
                }
            ],
        },
    }
