"""What reservations cost: a cluster with and without them, in this process, on one core.

* pods that match no reservation, beside the same pods in a cluster without any;
* owners, each taking one of the reservations;
* placing reservations themselves, against an in-process API, beside pods without them.

Figures are CPU time per pod. Options: `--nodes`, `--reservations`, `--pods`, `--kinds` (templates of strangers).
"""

import argparse
import asyncio
import gc
import random
import time
from typing import Any

from koordinator.api import crd
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.reservation import Reservation
from koordinator.clock import FixedClock, SystemClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugin.handle import Actions
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.table.pod_info import PodInfo

Json = dict[str, Any]
NOW_S = 1_700_000_000.0


def node(name: str) -> Json:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "500"}},
    }


def container(cpu: str) -> Json:
    return {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}


def pod(name: str, app: str, cpu: str = "1") -> Json:
    return {
        "metadata": {"name": name, "namespace": "d", "uid": name, "labels": {"app": app}},
        "spec": {"schedulerName": "koord-scheduler", "containers": [container(cpu)]},
    }


def reservation(number: int, node_name: str = "") -> Json:
    status: Json = {}
    if node_name:
        status = {"phase": "Available", "nodeName": node_name, "allocatable": {"cpu": "2", "memory": "1Gi"}}
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": f"room-{number}", "uid": f"room-{number}"},
        "spec": {
            "template": {"spec": {"schedulerName": "koord-scheduler", "containers": [container("2")]}},
            "owners": [{"labelSelector": {"matchLabels": {"app": f"team-{number % 10}"}}}],
            "ttl": "1h",
        },
        "status": status,
    }


class TableActions(Actions):
    """Reserve pods go straight to their rows: nothing waits here."""

    engine: Engine

    def enter_pod(self, old: Pod | None, pod: Pod) -> None:
        table = self.engine.table
        table.assign(PodInfo.of(pod, table.registry), pod.spec.node_name)


class Bench:
    def __init__(self, nodes: int, reservations: int) -> None:
        actions = TableActions()
        self.engine = actions.engine = Engine(
            default_plugins.shipped_config(), FixedClock(NOW_S), plugins=installed_plugins(), actions=actions
        )
        [self.profile] = self.engine.profiles.values()
        for number in range(nodes):
            self.engine.table.set_node(from_builtins(node(f"node-{number}"), Node))
        for number in range(reservations):
            room = from_builtins(reservation(number, f"node-{number % nodes}"), Reservation)
            for handle in self.engine.handles:
                for watch in handle.watches:
                    if watch.view is Reservation:
                        watch.on_add(room)

    def place(self, bodies: list[Json]) -> tuple[float, int]:
        """Seconds of CPU per pod after the first tenth, and how many were placed."""
        pods = [PodInfo.of(from_builtins(body, Pod), self.engine.table.registry) for body in bodies]
        gc.collect()
        gc.disable()
        placed, first = 0, len(pods) // 10
        begin_s = time.process_time()
        for number, info in enumerate(pods):
            if number == first:
                begin_s = time.process_time()
            result = self.engine.cycle.run(self.profile, info, self.profile.class_key(info), 1, NOW_S)
            placed += isinstance(result, Placed)
        seconds = time.process_time() - begin_s
        gc.enable()
        return seconds / (len(pods) - first), placed


def strangers(count: int, kinds: int) -> list[Json]:
    rng = random.Random(1)
    chosen = [rng.randrange(kinds) for _ in range(count)]
    return [pod(f"s-{i}", f"app-{kind}", f"{100 + 10 * kind}m") for i, kind in enumerate(chosen)]


def owners(count: int) -> list[Json]:
    return [pod(f"o-{number}", f"team-{number % 10}", "2") for number in range(count)]


async def creating(nodes: int, count: int, of_pods: bool) -> float:
    """CPU seconds until all are on nodes, in a whole scheduler with an API in the same process."""
    cluster = MemoryCluster(registry.in_memory(SystemClock(), checks=False))
    for manifest in crd.manifests():
        await cluster.create(CustomResourceDefinition, manifest)
    for number in range(nodes):
        await cluster.create(Node, node(f"node-{number}"))
    scheduler = Scheduler(cluster)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(scheduler.run())
        await scheduler.synced.wait()
        begin_s = time.process_time()
        for number in range(count):
            if of_pods:
                body = pod(f"p-{number}", "web", "2")
                body["metadata"]["namespace"] = "default"
                await cluster.create(Pod, body, "default")
            else:
                await cluster.create(Reservation, {**reservation(number), "status": {}})
            if number % 16 == 0:
                await asyncio.sleep(0)
        while len(list(scheduler.table.places())) < count or scheduler.bindings_in_progress:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        seconds = time.process_time() - begin_s
        task.cancel()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--reservations", type=int, default=1_000)
    parser.add_argument("--pods", type=int, default=5_000)
    parser.add_argument("--kinds", type=int, default=20)
    options = parser.parse_args()
    many = strangers(options.pods, options.kinds)
    alone_s, _ = Bench(options.nodes, 0).place(many)
    beside_s, placed = Bench(options.nodes, options.reservations).place(many)
    owner_s, used = Bench(options.nodes, options.reservations).place(owners(options.reservations))
    print(f"{options.nodes} nodes, {options.reservations} reservations, {options.kinds} kinds of strangers")
    print(f"  no reservations (peer)        {1 / alone_s:8.0f} pods/s")
    print(
        f"  strangers beside reservations {1 / beside_s:8.0f} pods/s  {beside_s / alone_s:5.2f}x  {placed} placed"
    )
    print(
        f"  owners                        {1 / owner_s:8.0f} pods/s  {owner_s / alone_s:5.2f}x  {used} placed"
    )
    pods_s = asyncio.run(creating(options.nodes, options.reservations, True))
    rooms_s = asyncio.run(creating(options.nodes, options.reservations, False))
    count = options.reservations
    print(f"  creating pods (peer)          {count / pods_s:8.0f} /s")
    print(f"  creating reservations         {count / rooms_s:8.0f} /s  {rooms_s / pods_s:5.2f}x")


if __name__ == "__main__":
    main()
