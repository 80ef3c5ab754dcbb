"""The agent put together: what runs, whom to end, and the loops that keep it up to date. Source: behaviour/yarn 8.4 to
8.7.

While the NodeManager is away (it restarts, its containers go on) containers are those in whose groups processes run,
with what it said of them last.
"""

import asyncio
import logging
import random
from collections.abc import Mapping

import msgspec

from koordinator.api import quantity
from koordinator.api.copilot import ContainerInfo, KillAnswer, KillRequest, ReleaseRequest, is_yarn_id
from koordinator.api.errors import KoordinatorError, SubjectError
from koordinator.api.quantity import Family, QuantityError
from koordinator.clock import Clock, rfc3339
from koordinator.cluster.backoff import Backoff, BackoffPolicy
from koordinator.cluster.supervise import Guard, Step, supervise
from koordinator.host.kill_group import kill_group
from koordinator.prometheus import Counter, Gauge, GaugeReading, MetricsRegistry
from koordinator.yarn import eviction
from koordinator.yarn.amounts import MEBIBYTE, MILLI
from koordinator.yarn.copilot.groups import ContainerGroups
from koordinator.yarn.copilot.memory_groups import MemoryGroups
from koordinator.yarn.copilot.node_manager import NodeManager, NodeManagerError
from koordinator.yarn.eviction import CPU, YARN, EvictionCandidate, NMContainer, ReleaseMode

log = logging.getLogger(__name__)

SAMPLE_S = 2.0
FIND_S = 10.0
PAUSES = BackoffPolicy(initial_s=1.0, max_s=30.0, jitter_ratio=0.2)
MEMORY = "memory"
"""The resource that orders victims when several are asked for: want of it kills what is not to blame."""
BY_NAME = "killed by name"
"""Reason of a kill whose caller tells none."""


class BadRequest(SubjectError):
    """A request with a field that makes no sense."""


class UnknownContainer(KoordinatorError):
    """No such container is on this node."""

    def __init__(self, container_id: str) -> None:
        super().__init__(container_id)
        self.container_id = container_id

    def __str__(self) -> str:
        return f"container {self.container_id} is not on this node"


class KillFailed(KoordinatorError):
    """A container could not be ended."""

    def __init__(self, container_id: str, reason: str) -> None:
        super().__init__(container_id, reason)
        self.container_id, self.reason = container_id, reason

    def __str__(self) -> str:
        return f"container {self.container_id} not killed: {self.reason}"


class CopilotMetrics:
    """The agent's figures."""

    def __init__(self, groups: ContainerGroups) -> None:
        self.killed = Counter("yarn_agent_killed_total", "Containers ended, by reason.", ("reason",))
        self.failures = Counter("yarn_agent_kill_failures_total", "Containers that could not be ended.")
        self.is_up = Gauge("yarn_agent_node_manager_up", "Whether the NodeManager answered last.")
        containers = GaugeReading(
            "yarn_agent_containers",
            "Containers in whose groups processes run.",
            (),
            lambda: {(): len(groups.running())},
        )
        used = GaugeReading(
            "yarn_agent_container_used",
            "Use of a container: cpu in milli-cores, memory in bytes.",
            ("container", "resource"),
            lambda: {
                (each, name): amount
                for each in groups.running()
                for name, amount in groups.used(each).items()
            },
        )
        self.registry = MetricsRegistry((self.killed, self.failures, self.is_up, containers, used))


class YarnCopilot:
    """Answers for the YARN containers of one node."""

    def __init__(self, node_manager: NodeManager, groups: ContainerGroups, clock: Clock) -> None:
        self.metrics = CopilotMetrics(groups)
        self._node_manager = node_manager
        self._groups = groups
        self._clock = clock
        self._known: list[NMContainer] = []
        self._problem = ""

    # Answers

    async def containers(self) -> list[ContainerInfo]:
        """Return what runs, in the NodeManager's order."""
        return [self._info(each) for each in await self._look() if not each.is_final]

    async def container(self, container_id: str) -> ContainerInfo:
        """Return one container in any state. Raises: BadRequest, UnknownContainer."""
        return self._info(await self._find(container_id))

    async def kill(self, asked: KillRequest) -> KillAnswer:
        """End one container. Raises: BadRequest, UnknownContainer, KillFailed."""
        found = await self._find(asked.container_id)
        told = self._info(found)
        await self._kill(found.id, asked.reason or BY_NAME)
        return KillAnswer(items=[told])

    async def release(self, asked: ReleaseRequest) -> KillAnswer:
        """End containers until the amounts are given back, as `eviction.select` says; tell what is missing then.

        One that cannot be ended gives nothing back: the choice is made anew without it.
        Raises: BadRequest.
        """
        targets, mode = _targets(asked), _mode(asked)
        resource = MEMORY if targets.get(MEMORY, 0) > 0 else CPU
        looked = {each.id: each for each in await self._look()}
        candidates = [self._candidate(each) for each in looked.values()]
        chosen = eviction.select(candidates, resource, targets, mode)
        ended: list[ContainerInfo] = []
        while chosen.victims:
            victim = chosen.victims[0]
            told = self._info(looked[victim.id])
            reason = asked.reason or f"release of {resource}"
            candidates.remove(victim)
            try:
                await self._kill(victim.id, reason, used=victim.used, targets=targets)
            except KillFailed as error:
                log.warning("container not killed", extra={"problem": str(error)})
            else:
                ended.append(told)
                candidates.append(msgspec.structs.replace(victim, state="KILLING"))
            chosen = eviction.select(candidates, resource, targets, mode)
        missing = {name: amount for name, amount in chosen.shortfall.items() if amount > 0}
        return KillAnswer(
            items=ended, shortfall={name: _text(name, amount) for name, amount in missing.items()}
        )

    # Loops

    async def run(self, rng: random.Random, memory: MemoryGroups | None) -> None:
        """Follow the NodeManager, sample use and keep memory groups, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            loops: dict[str, Step] = {"find NodeManager": self._follow, "sample use": self._sample}
            if memory is not None:

                async def sync() -> float:
                    return memory.sync(await self._look())

                loops["memory groups"] = sync
            for name, step in loops.items():
                tasks.create_task(supervise(step, Backoff(PAUSES, rng), Guard(name)), name=name)

    async def _follow(self) -> float:
        await self._node_manager.find()
        return FIND_S

    async def _sample(self) -> float:
        self._groups.sample()
        return SAMPLE_S

    # What is there

    async def _look(self) -> list[NMContainer]:
        """Return the NodeManager's containers; while it is away those that have a group."""
        try:
            found = await self._node_manager.containers()
        except NodeManagerError as error:
            if str(error) != self._problem:
                log.warning("containers are told by their groups", extra={"problem": str(error)})
            self._problem = str(error)
            self.metrics.is_up.set(0)
            known = {each.id: each for each in self._known if not each.is_final}
            return [known.get(each, NMContainer(id=each, state="RUNNING")) for each in self._groups.running()]
        if self._problem:
            log.info("NodeManager is back", extra={"endpoint": self._node_manager.endpoint})
        self._problem = ""
        self.metrics.is_up.set(1)
        self._known = [each for each in found if is_yarn_id(each.id)]
        return self._known

    async def _find(self, container_id: str) -> NMContainer:
        if not is_yarn_id(container_id):
            raise BadRequest("containerID", f"{container_id!r} is no id of a YARN container")
        for each in await self._look():
            if each.id == container_id:
                return each
        raise UnknownContainer(container_id)

    async def _kill(
        self,
        container_id: str,
        reason: str,
        *,
        used: Mapping[str, int] | None = None,
        targets: Mapping[str, int] | None = None,
    ) -> None:
        problem = await kill_group(self._groups.host, self._groups.group(container_id))
        if problem:
            self.metrics.failures.inc()
            raise KillFailed(container_id, problem)
        self.metrics.killed.inc(reason.partition(":")[0])
        facts = {"container": container_id, "reason": reason, "used": used, "targets": targets}
        log.info("container killed", extra={name: fact for name, fact in facts.items() if fact is not None})

    def _info(self, container: NMContainer) -> ContainerInfo:
        age_s = self._groups.age_s(container.id)
        created = None if age_s is None else rfc3339(self._clock.now() - age_s)
        return eviction.info(container, self._groups.path, created)

    def _candidate(self, container: NMContainer) -> EvictionCandidate:
        requested = {
            CPU: container.total_vcores_needed * MILLI,
            MEMORY: container.total_memory_needed_mb * MEBIBYTE,
        }
        return EvictionCandidate(
            kind=YARN,
            id=container.id,
            opportunistic=container.is_opportunistic,
            used=self._groups.used(container.id),
            requested=requested,
            age_seconds=self._groups.age_s(container.id),
            state=container.state,
        )


def _targets(asked: ReleaseRequest) -> dict[str, int]:
    found = {}
    for name, raw in asked.resources.items():
        if name not in (CPU, MEMORY):
            raise BadRequest(f"resources.{name}", f"expected {CPU} or {MEMORY}")
        try:
            found[name] = quantity.milli(raw) if name == CPU else quantity.value(raw)
        except QuantityError as error:
            raise BadRequest(f"resources.{name}", str(error)) from error
    return found


def _mode(asked: ReleaseRequest) -> ReleaseMode:
    try:
        return ReleaseMode(asked.mode)
    except ValueError as error:
        modes = " or ".join(each.value for each in ReleaseMode)
        raise BadRequest("mode", f"{asked.mode!r}: expected {modes}") from error


def _text(name: str, amount: int) -> str:
    return quantity.text_of_milli(amount) if name == CPU else quantity.text_of_value(amount, Family.BINARY)
