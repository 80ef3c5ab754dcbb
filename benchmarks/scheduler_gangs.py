"""What gangs cost: from the queue to the moment when Permit lets them go, and to being bound and confirmed.

    python -m benchmarks.scheduler_gangs [--nodes 5000] [--gangs 100] [--size 100] [--part NAME ...]

A whole scheduler in this process with all plugins of the shipped profile; the pods of a gang are alike, those of the
next gang are not.
Figures are CPU time on one core. The peer of the same run are the same pods without their gangs.
"""

import argparse
import asyncio
import contextlib
import enum
import gc
import logging
import math
import resource
import timeit
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from koordinator.api import labels
from koordinator.api.core import Node, Pod
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.sigs import PodGroup
from koordinator.clock import SystemClock
from koordinator.cluster import garbage
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.local.cluster import install
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.loop.binding import Binder, BindingCycle
from koordinator.scheduler.plugins.coscheduling.early_refusal import EarlyRefusals
from koordinator.scheduler.plugins.coscheduling.plugin import Coscheduling
from koordinator.scheduler.scheduler import Scheduler

TEMPLATES = 100
"""Kinds of pods; those of a gang are alike, and gangs of one kind are apart in the queue."""
GROWTH_SIZES = (10, 100, 1_000)
GROWTH_NODES = (1_000, 5_000, 20_000)
STUCK_SIZES = (100, 1_000)
IDLE_S = 0.002
"""CPU time within 50 ms of a scheduler with nothing to do."""

Body = dict[str, Any]


class Kind(enum.Enum):
    """How the pods of a job say that they belong together."""

    SINGLE = "no gangs"
    ANNOTATIONS = "annotations"
    POD_GROUP = "PodGroups"


class Until(enum.Enum):
    """Where a pod's way ends."""

    RELEASED = "let go by Permit"
    BOUND = "bound and confirmed"


class Setting:
    """What is measured. `inline` places a gang in one cycle (EnableInlineBatchSchedule)."""

    def __init__(self, nodes: int, gangs: int, size: int, kind: Kind, *, inline: bool = False) -> None:
        self.nodes, self.gangs, self.size, self.kind, self.inline = nodes, gangs, size, kind, inline

    @property
    def pods(self) -> int:
        return self.gangs * self.size

    @property
    def gates(self) -> FeatureGates:
        return FeatureGates.of(Component.SCHEDULER, f"EnableInlineBatchSchedule={str(self.inline).lower()}")


def node_body(number: int) -> Body:
    amounts = {"cpu": "96", "memory": "384Gi", "pods": "256", "ephemeral-storage": "1Ti"}
    return {
        "metadata": {
            "name": f"node-{number}",
            "labels": {
                "kubernetes.io/hostname": f"node-{number}",
                "topology.kubernetes.io/zone": f"zone-{number % 3}",
            },
        },
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod_body(gang: int, member: int, setting: Setting) -> Body:
    template = gang % TEMPLATES
    requests = {"cpu": f"{100 + template}m", "memory": f"{128 + template}Mi"}
    name = f"job-{gang}"
    metadata: Body = {"name": f"{name}-{member}", "namespace": "default", "labels": {"app": name}}
    if setting.kind is Kind.ANNOTATIONS:
        metadata["annotations"] = {
            labels.GANG_NAME: name,
            labels.GANG_MIN_AVAILABLE: str(setting.size),
        }
    if setting.kind is Kind.POD_GROUP:
        metadata["labels"][labels.POD_GROUP] = name
    return {
        "metadata": metadata,
        "status": {"phase": "Pending"},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "main", "image": "app:v1", "resources": {"requests": requests}}],
        },
    }


async def filled(setting: Setting) -> MemoryCluster:
    """A cluster with nodes, and gangs that wait."""
    cluster = MemoryCluster(registry.in_memory(SystemClock(), checks=False))
    await install(cluster)
    for number in range(setting.nodes):
        await cluster.create(Node, node_body(number))
    for gang in range(setting.gangs):
        if setting.kind is Kind.POD_GROUP:
            body = {"metadata": {"name": f"job-{gang}"}, "spec": {"minMember": setting.size}}
            await cluster.create(PodGroup, body, "default")
        for member in range(setting.size):
            await cluster.create(Pod, pod_body(gang, member, setting), "default")
    return cluster


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def place_s(setting: Setting, until: Until) -> float:
    """CPU seconds per pod."""
    cluster = await filled(setting)
    scheduler = Scheduler(cluster, default_plugins.shipped_config(), gates=setting.gates)
    released: list[BindingCycle] = []
    with contextlib.ExitStack() as stack:
        if until is Until.RELEASED:
            # Placements that Permit lets go end here: nothing is bound.
            stack.enter_context(mock.patch.object(Binder, "begin", lambda _, job: released.append(job)))
        return await measured_s(scheduler, setting, until, released)


async def measured_s(
    scheduler: Scheduler, setting: Setting, until: Until, released: Sequence[BindingCycle]
) -> float:
    """CPU seconds per pod until all are let go (`released`), or bound."""
    async with scheduler.following():
        garbage.set_aside()
        started_s = cpu_s()
        task = asyncio.create_task(scheduler.schedule())
        if until is Until.RELEASED:
            while len(released) < setting.pods:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        else:
            while scheduler.metrics.placed_count < setting.pods or scheduler.table.assumed_count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        took_s = cpu_s() - started_s
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    gc.unfreeze()
    return took_s / setting.pods


def best_s(setting: Setting, until: Until, times: int) -> float:
    """Of several runs."""

    def once() -> float:
        with garbage.collected_rarely():  # as the scheduler's command does
            return asyncio.run(place_s(setting, until))

    return min(once() for _ in range(times))


def kinds(options: argparse.Namespace) -> None:
    """Gangs of both kinds beside the same pods without gangs."""
    print(f"{options.gangs} jobs of {options.size} pods on {options.nodes:,} nodes:")
    for until in Until:
        alone_s = None
        for kind in Kind:
            setting = Setting(options.nodes, options.gangs, options.size, kind)
            found_s = best_s(setting, until, options.times)
            alone_s = alone_s or found_s
            print(
                f"  {until.value}: {kind.value:>11} {1 / found_s:>7,.0f} pods/s, {found_s * 1e6:.0f} µs per pod "
                f"({found_s / alone_s:.2f} × no gangs)",
                flush=True,
            )


def inline(options: argparse.Namespace) -> None:
    """Whole gangs in one cycle, and member by member."""
    for size in GROWTH_SIZES:
        found = {}
        for is_inline in (False, True):
            gangs = options.gangs * options.size // size
            setting = Setting(options.nodes, gangs, size, Kind.POD_GROUP, inline=is_inline)
            found[is_inline] = best_s(setting, Until.RELEASED, options.times)
        print(
            f"  gangs of {size:>5,}: member by member {1 / found[False]:,.0f} pods/s, in one cycle "
            f"{1 / found[True]:,.0f} pods/s ({found[False] / found[True]:.2f} times)",
            flush=True,
        )


def growth(options: argparse.Namespace) -> None:
    """How the cost of a pod grows with its gang and with the cluster."""
    total = options.gangs * options.size
    by_size = {
        size: best_s(
            Setting(options.nodes, total // size, size, Kind.ANNOTATIONS), Until.RELEASED, options.times
        )
        for size in GROWTH_SIZES
    }
    by_nodes = {
        nodes: best_s(
            Setting(nodes, options.gangs, options.size, Kind.ANNOTATIONS), Until.RELEASED, options.times
        )
        for nodes in GROWTH_NODES
    }
    for what, found in (("members", by_size), ("nodes", by_nodes)):
        rates = ", ".join(f"{1 / each_s:,.0f}/s at {count:,}" for count, each_s in found.items())
        figures = list(found.values())
        print(f"  {what}: {rates}; × {figures[-1] / figures[0]:.2f} per pod", flush=True)


def stuck(options: argparse.Namespace) -> None:
    """A round of a gang that lacks one place, refused before its first member is placed, and tried member by member;
    and what asking beforehand costs a gang that fits."""
    for size in STUCK_SIZES:
        found = {}
        for is_early in (True, False):
            with contextlib.nullcontext() if is_early else never_early(), garbage.collected_rarely():
                found[is_early] = asyncio.run(round_s(options.nodes, size, options.times))
        print(
            f"  gang of {size:>5,}: {found[True] * 1e3:.1f} ms per round, member by member "
            f"{found[False] * 1e3:.1f} ms ({found[False] / found[True]:.1f} times)",
            flush=True,
        )
    for nodes in GROWTH_NODES[1:]:
        for size in STUCK_SIZES:
            ample_s = asyncio.run(asking_s(nodes, size, nodes, "96"))
            tight_s = asyncio.run(asking_s(nodes, size, size // 2, "250m"))
            print(
                f"  asking for a gang of {size:>5,} that fits on {nodes:,} nodes: {ample_s * 1e6:.0f} µs, "
                f"if just so {tight_s * 1e6:.0f} µs",
                flush=True,
            )


@contextlib.contextmanager
def never_early() -> Iterator[None]:
    """Gangs are tried, whatever is known."""
    asked = EarlyRefusals.shortage
    EarlyRefusals.shortage = lambda self, pod: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        EarlyRefusals.shortage = asked  # type: ignore[method-assign]


async def nearly_full(nodes: int, gang: Setting, open_nodes: int, cpu: str) -> MemoryCluster:
    """A gang, and nodes of which some have room for members."""
    cluster = MemoryCluster(registry.in_memory(SystemClock(), checks=False))
    await install(cluster)
    for number in range(nodes):
        body = node_body(number)
        body["status"]["allocatable"]["cpu"] = cpu if number < open_nodes else "50m"
        await cluster.create(Node, body)
    for member in range(gang.size):
        await cluster.create(Pod, pod_body(0, member, gang), "default")
    return cluster


async def round_s(nodes: int, size: int, times: int) -> float:
    """CPU seconds of the best of some rounds, until everybody is told."""
    gang = Setting(nodes, 1, size, Kind.ANNOTATIONS)
    cluster = await nearly_full(nodes, gang, size - 1, "150m")
    scheduler = Scheduler(cluster, default_plugins.shipped_config())
    best = math.inf
    async with scheduler.following():
        garbage.set_aside()
        task = asyncio.create_task(scheduler.schedule())
        await idle()
        rounds = plugin_of(scheduler).gangs.rounds
        for _ in range(times + 1):  # the first one may still write conditions
            started_s = cpu_s()
            [root_cause] = {
                group.root_cause for gang in rounds.cache.gangs().values() if (group := gang.group)
            }
            scheduler.actions.activate([rounds.cache.pods[root_cause].metadata.uid])
            await idle()
            best = min(best, cpu_s() - started_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    gc.unfreeze()
    return best


async def asking_s(nodes: int, size: int, open_nodes: int, cpu: str) -> float:
    """Seconds to find that a gang may fit."""
    cluster = await nearly_full(nodes, Setting(nodes, 1, size, Kind.ANNOTATIONS), open_nodes, cpu)
    scheduler = Scheduler(cluster, default_plugins.shipped_config())
    async with scheduler.following():
        plugin = plugin_of(scheduler)
        early, member = plugin.early, next(iter(plugin.gangs.rounds.cache.pods.values()))
        waiting = scheduler.queue.find(member.metadata.uid)
        assert waiting is not None, member.metadata.name
        pod = waiting.pod
        assert early.shortage(pod) is None
        return min(timeit.repeat(lambda: early.shortage(pod), number=20, repeat=5)) / 20


async def idle() -> None:
    """Until nobody works any more."""
    while True:
        before_s = cpu_s()
        await asyncio.sleep(0.05)
        if cpu_s() - before_s < IDLE_S:
            return


def plugin_of(scheduler: Scheduler) -> Coscheduling:
    plugins = scheduler.profiles["koord-scheduler"].plugins
    return next(each for each in plugins if isinstance(each, Coscheduling))


PARTS = {"kinds": kinds, "growth": growth, "inline": inline, "stuck": stuck}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--gangs", type=int, default=100)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--times", type=int, default=3, help="runs of which the best counts")
    parser.add_argument("--part", action="append", choices=[*PARTS], help="only these; may be given again")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # what this cluster lacks
    for name in options.part or PARTS:
        print(f"{name}:", flush=True)
        PARTS[name](options)


if __name__ == "__main__":
    main()
