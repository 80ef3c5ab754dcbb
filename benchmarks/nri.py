"""How long a container runtime waits for koordlet as its NRI plugin: sandboxes, new containers, updates.

koordlet is the process that users run, on real groups; the runtime is a double on its socket and waits for each answer.
CPU is what koordlet's thread ran meanwhile, which a busy machine does not change. Goal: less than 5 ms at the 99th
percentile. Needs root and cgroup v1 hierarchies.
"""

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.koordlet.nri.double import Connection, Runtime
from tests.runtime.agent import RunningAgent
from tests.runtime.node import RuntimeNode, make_group
from tests.runtime.pods import batch_pod, listed, manifest

from koordinator.host import protobuf
from koordinator.koordlet.nri import messages
from koordinator.koordlet.nri.messages import Container, Event, PodSandbox

PODS = 200
"""As many as run on a large node; the kubelet lists them all the time."""
CALLS_PER_S = 50
VARIABLES = 40
"""In the environment of each container, as Services bring them."""


def pod(number: int) -> PodSandbox:
    shape = batch_pod(f"job-{number}")
    return PodSandbox(
        f"sandbox-{number}",
        shape.name,
        shape.uid,
        "default",
        shape.labels,
        shape.annotations,
        linux=messages.LinuxPodSandbox(cgroup_parent=shape.parent),
    )


def container(number: int) -> Container:
    resources = messages.LinuxResources(messages.LinuxMemory(0), messages.LinuxCPU(2, 0, 100_000))
    environment = (f"SERVICE_{each}_PORT=tcp://10.0.0.{each}:80" for each in range(VARIABLES))
    return Container(
        f"container-{number}",
        f"sandbox-{number}",
        "main",
        linux=messages.LinuxContainer(resources),
        unknown=b"".join(protobuf.field(8, each) for each in environment),  # `env`, which no hook reads
    )


class Took(NamedTuple):
    """Milliseconds until the answer was there, and of koordlet's CPU time, call by call."""

    until_ms: list[float]
    cpu_ms: list[float]


async def measured(connection: Connection, node: RuntimeNode, pid: int) -> dict[str, Took]:
    """Answer times of each kind of call."""
    took = {kind: Took([], []) for kind in ("RunPodSandbox", "CreateContainer", "UpdateContainer")}

    async def timed(kind: str, call: Awaitable[Any]) -> None:
        start_s, start_ms = time.perf_counter(), ran_ms(pid)
        await call
        took[kind].until_ms.append((time.perf_counter() - start_s) * 1000)
        took[kind].cpu_ms.append(ran_ms(pid) - start_ms)
        await asyncio.sleep(1 / CALLS_PER_S)

    for number in range(PODS):
        of_pod, own = pod(number), container(number)
        await timed("RunPodSandbox", connection.state_change(Event.RUN_POD_SANDBOX, of_pod))
        request = messages.CreateContainerRequest(of_pod, own)
        await timed(
            "CreateContainer", connection.call("CreateContainer", request, messages.CreateContainerResponse)
        )
        update = messages.UpdateContainerRequest(of_pod, own, messages.LinuxResources())
        await timed(
            "UpdateContainer", connection.call("UpdateContainer", update, messages.UpdateContainerResponse)
        )
    return took


def ran_ms(pid: int) -> float:
    """How long the main thread of a process has run so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


async def run(node: RuntimeNode) -> dict[str, Took]:
    (node.run / "nri").mkdir(exist_ok=True)
    for number in range(PODS):
        for controller in ("cpu", "cpuacct", "cpuset", "memory"):
            group = node.group(controller, batch_pod(f"job-{number}").parent)
            make_group(group)
            make_group(group / f"container-{number}")
    listed(node, lambda _: [manifest(batch_pod(f"job-{each}"), f"container-{each}") for each in range(PODS)])
    runtime = Runtime(node.run / "nri/nri.sock")
    await runtime.start()
    agent = RunningAgent(node, ("-kubelet-sync-interval=10s",))  # the default
    try:
        agent.start_unjoined()
        connection = await runtime.plugin()
        await connection.register()
        return await measured(connection, node, agent.pid)
    finally:
        agent.close()
        await runtime.stop()


def main() -> None:
    node = RuntimeNode()
    try:
        took = asyncio.run(run(node))
    finally:
        node.close()
    print(
        f"{PODS} pods, {CALLS_PER_S} calls a second; milliseconds until the answer is there, and of CPU time"
    )
    for kind, each in took.items():
        print(f"{kind:16} {told(each.until_ms)}   CPU {told(each.cpu_ms)}")


def told(values: list[float]) -> str:
    p50, p99 = np.percentile(values, (50, 99))
    return f"p50 {p50:5.2f}  p99 {p99:6.2f}  longest {max(values):6.2f}"


if __name__ == "__main__":
    main()
