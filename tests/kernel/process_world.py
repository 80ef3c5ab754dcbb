"""A process node on an API in this process, below a group of the test's own."""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from koordinator.api import kinds
from koordinator.api.core import Pod
from koordinator.clock import SystemClock
from koordinator.cluster import errors
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.supervise import strictly
from koordinator.host.files import HostRoots
from koordinator.host.host import Host, open_host
from koordinator.local import registry
from koordinator.local.processes.process_node import ProcessNode, ProcessNodeConfig
from koordinator.local.schema.catalog import Catalog

NODE = "here"
NAMESPACE = "default"
WAIT_S = 60.0
"""Much, since a machine that is emulated takes its time; only what fails waits so long."""


def sh(script: str, name: str = "main", **more: Any) -> dict[str, Any]:
    """A container that runs a shell script."""
    return {"name": name, "image": "any", "command": ["sh", "-c", script]} | more


async def eventually(holds: Callable[[], Any]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - kernel and node do not tell us
            await asyncio.sleep(0.02)


class ProcessWorld:
    """What a scenario may touch."""

    def __init__(self, host: Host, cluster: MemoryCluster, node: ProcessNode) -> None:
        self.host, self.cluster, self.node = host, cluster, node

    async def create(
        self, name: str, *containers: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any
    ) -> Pod:
        """A pod that is bound to the node already."""
        body = {
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels or {}},
            "spec": {"nodeName": NODE, "containers": list(containers)} | spec,
        }
        return await self.cluster.create(Pod, body, NAMESPACE)

    async def get(self, name: str) -> Pod:
        return await self.cluster.get(Pod, name, NAMESPACE)

    async def until(self, name: str, holds: Callable[[Pod], Any]) -> Pod:
        """The pod once something holds of it."""
        pod: Pod | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while True:
                    pod = await self.get(name)
                    if holds(pod):
                        return pod
                    await asyncio.sleep(0.02)
        raise AssertionError(f"not within {WAIT_S} s: {pod.status if pod else None}")

    async def phase(self, name: str, *wanted: str) -> Pod:
        """The pod once it is in one of these phases."""
        return await self.until(name, lambda pod: pod.status.phase in wanted)

    async def delete(self, name: str, grace_s: int | None = None) -> None:
        """Delete a pod and wait until it is gone."""
        await self.cluster.delete(Pod, name, NAMESPACE, grace_period_s=grace_s)
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(errors.NotFound):
                while True:
                    await self.get(name)
                    await asyncio.sleep(0.02)


def new_cluster(kind: type[MemoryCluster] = MemoryCluster) -> MemoryCluster:
    """An empty cluster in this process, with all that the API server checks and fills in."""
    catalog = Catalog(kinds.BUILT_IN)
    return kind(registry.in_memory(SystemClock(), catalog=catalog))


@contextlib.asynccontextmanager
async def process_world(
    parent: str, folder: Path, cluster: MemoryCluster | None = None, **config: Any
) -> AsyncIterator[ProcessWorld]:
    """A running process node whose kubepods stands below `parent`, on a cluster of its own unless given."""
    host = open_host(HostRoots.below(""), 64)
    if cluster is None:
        cluster = new_cluster()
    settings = ProcessNodeConfig(
        name=NODE, folder=folder / "pods", run=str(folder / "run"), parent=parent, **config
    )
    node = ProcessNode(cluster, host, settings, rng=random.Random(1))
    with strictly():
        await node.prepare()
        running = asyncio.create_task(node.run())
        try:
            await asyncio.wait(
                (running, asyncio.create_task(node.registered.wait())), return_when="FIRST_COMPLETED"
            )
            assert not running.done(), running.exception()
            yield ProcessWorld(host, cluster, node)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            host.close()
    assert not node.groups.exists()
    assert os.path.isdir(folder)
