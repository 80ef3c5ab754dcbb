"""The interfaces of the agent's loops, and what all of them share."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from koordinator.api.core import Node, Pod
from koordinator.api.feature_gates import FeatureGates
from koordinator.clock import Clock
from koordinator.cluster import errors
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import Informer
from koordinator.cluster.protocol import Cluster, PatchType
from koordinator.host.cgroup_layout import Runtime
from koordinator.host.cri import ContainerRuntimes
from koordinator.host.gpu import GPUs
from koordinator.host.host import Host
from koordinator.koordlet.audit import AuditLog
from koordinator.koordlet.config import AgentConfig
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.koordlet.series import Readings, SeriesStore
from koordinator.koordlet.view import NodeView, Topic
from koordinator.koordlet.writing.executor import Executor

log = logging.getLogger(__name__)

WRITE_S_MAX = 20.0


class Kubelet(Protocol):
    """The kubelet of this node, wherever the Node object says that it is. Raises: KubeletError."""

    async def pods(self) -> list[Pod]:
        """Return all pods of the node."""
        ...

    async def config(self) -> dict[str, Any]:
        """Return its configuration in use (`/configz`)."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """The state that collectors, strategies, hooks and reporters are given."""

    config: AgentConfig
    gates: FeatureGates
    clock: Clock
    rng: random.Random
    host: Host
    view: NodeView
    store: SeriesStore
    readings: Readings
    executor: Executor
    audit: AuditLog
    metrics: AgentMetrics
    cluster: Cluster
    events: EventRecorder
    kubelet: Kubelet | None = None
    """None where there is none to ask (tests of parts that ask nothing)."""
    gpus: GPUs | None = None
    """NVIDIA cards, opened at start with the gate Accelerators (`host.gpu.open_gpus`); None without."""


def container_runtimes(shared: Shared) -> ContainerRuntimes:
    """Return the runtimes of this node, at the sockets that flags name or in their usual places."""
    config = shared.config.qos
    endpoints = {
        Runtime.CONTAINERD: config.containerd_endpoint,
        Runtime.DOCKER: config.docker_endpoint,
        Runtime.POUCH: config.pouch_endpoint,
    }
    return ContainerRuntimes(shared.host.files, shared.host.roots, endpoints)


async def patch_node(shared: Shared, what: str, patch: Mapping[str, object]) -> bool:
    """Write a strategic merge patch of our Node and its status; False where it failed, which is said in the log."""
    name = shared.config.node_name
    try:
        async with asyncio.timeout(WRITE_S_MAX):
            await shared.cluster.patch(
                Node, name, patch, patch_type=PatchType.STRATEGIC, subresource="status"
            )
    except (errors.ApiError, TimeoutError) as error:
        log.warning("%s not written on Node %s: %s", what, name, error)
        return False
    return True


class Collector(Protocol):
    """Measures something now and then; the next round starts one interval after the end of the last."""

    name: str
    interval_s: float

    def collect(self) -> bool | Awaitable[bool]:
        """One round; True when it was a good one. Failures of single pods are skipped, not raised."""
        ...


class Strategy(Protocol):
    """Acts on the node now and then. `name` is the owner of its writes in the executor.

    Runs when one of its feature `gates` is on (without any: always) and its interval is above zero; otherwise `disable`
    is called once, so that what a former run of the agent changed is put back. `interval_s` is read after each round.
    """

    name: str
    gates: tuple[str, ...]
    interval_s: float

    def run(self) -> Awaitable[None] | None:
        """One round: read the view and the readings, decide purely, hand updates to the executor."""
        ...

    def disable(self) -> None:
        """Put back what it changed, when its gate is off at start or the agent is asked to at exit."""
        ...


class Reporter(Protocol):
    """Learns or tells the cluster now and then (`predict.trainer.Trainer`, `report.all`); always on.

    Its first round comes at once. It bounds its own waits and survives an API that is away.
    """

    @property
    def name(self) -> str: ...

    @property
    def interval_s(self) -> float:
        """Seconds between two rounds, to be read after each: it changes with settings and failures."""
        ...

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        """Caches that it reads: each `run` is a task of the agent. Until they have synced, nothing is written."""
        ...

    def run(self) -> Awaitable[None] | None:
        """One round."""
        ...


@runtime_checkable
class Following(Protocol):
    """A part whose rounds follow a change instead of a clock of their own (`agent.Pace` makes the pauses)."""

    after: Topic
