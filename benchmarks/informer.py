"""What it costs to follow a cluster and to talk to one: informers, and the HTTP client against its peers.

The peers are the official `kubernetes` client and `kubernetes_asyncio`; each reads the same pod from the same
server (in a process of its own, so that only the client's CPU is counted).
"""

import asyncio
import gc
import json
import multiprocessing
import random
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from koordinator.api.core import Pod
from koordinator.api.meta import Resource
from koordinator.clock import Clock, SystemClock
from koordinator.cluster import wire
from koordinator.cluster.backend import ListOptions, ObjectRecord, RecordEvent, RecordList
from koordinator.cluster.config import from_url
from koordinator.cluster.informer import Informer
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.memory import MemoryCluster
from koordinator.cluster.protocol import EventType
from koordinator.local import registry
from koordinator.local.apiserver import ApiServer

EVENTS = 20_000
BATCH = 100
PODS_IN_MEMORY = 5_000
REQUESTS = 3_000


def pod(number: int, version: int) -> dict[str, Any]:
    """A pod as a Deployment makes them, with status and managed fields (about 4 KB of JSON)."""
    container = {
        "name": "main",
        "image": "registry.example/shop/web:1.2.3",
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
        "env": [{"name": f"VARIABLE_{n}", "value": f"value-{n}"} for n in range(10)],
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets", "readOnly": True}],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }
    when = "2023-11-14T22:13:20Z"
    fields: dict[str, Any] = {f"f:field{n}": {"f:inner": {}, "f:other": {}} for n in range(20)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"web-5d8f7c9b6d-{number:05d}",
            "namespace": f"team-{number % 20}",
            "uid": f"8a0f2e6c-0000-4000-8000-{number:012d}",
            "resourceVersion": str(version),
            "creationTimestamp": when,
            "labels": {"app": "web", "koordinator.sh/qosClass": "LS", "pod-template-hash": "5d8f7c9b6d"},
            "annotations": {"prometheus.io/scrape": "true"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d8f7c9b6d", "uid": "u"}
            ],
            "managedFields": [
                {"manager": m, "operation": "Update", "apiVersion": "v1", "time": when, "fieldsV1": fields}
                for m in ("kube-controller-manager", "kubelet")
            ],
        },
        "spec": {
            "nodeName": f"node-{number % 200}",
            "schedulerName": "koord-scheduler",
            "containers": [container],
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
            ],
            "volumes": [{"name": "token", "projected": {"sources": []}}],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "podIP": "10.0.0.1",
            "startTime": when,
            "conditions": [
                {"type": t, "status": "True", "lastTransitionTime": when}
                for t in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {"name": "main", "ready": True, "restartCount": 0, "image": "web", "imageID": "x"}
            ],
        },
    }


class Prepared:
    """As much of a backend as an informer needs: an empty list, then the events, batch by batch."""

    def __init__(self, events: Sequence[RecordEvent]) -> None:
        self.clock: Clock = SystemClock()
        self._events = events

    def list(self, resource: Resource, namespace: str, options: ListOptions) -> RecordList:
        return RecordList(records=[], version=0)

    def watch(self, resource: Resource, namespace: str, options: ListOptions) -> "Prepared":
        return self

    def close(self) -> None:
        self._events = ()

    async def __aiter__(self) -> AsyncIterator[Sequence[RecordEvent]]:
        for at in range(0, len(self._events), BATCH):
            yield self._events[at : at + BATCH]
        await asyncio.Event().wait()


async def follow(events: Sequence[RecordEvent]) -> float:
    """CPU seconds until an informer with one index and one handler has taken all `events`."""
    last = events[-1].version
    done = asyncio.Event()
    informer = Informer(MemoryCluster(Prepared(events)), Pod, rng=random.Random(1))  # type: ignore[arg-type]
    informer.add_index("node", lambda obj: (obj.spec.node_name,))

    def changed(obj: Pod) -> None:
        if obj.metadata.resource_version == str(last):
            done.set()

    informer.add_handler(changed, lambda _, new: changed(new), changed)
    task = asyncio.create_task(informer.run())
    started_s = time.process_time()  # wall time would count our neighbours on a busy machine
    await done.wait()
    took_s = time.process_time() - started_s
    task.cancel()
    assert informer.event_count == len(events)
    return took_s


def in_process() -> None:
    """Informer events per second, views made by another reader before, and made here."""
    for name, made_before in (("views shared", True), ("views decoded here", False)):
        for pods in (1_000, 10_000):
            events = changes(pods)
            if made_before:
                for event in events:
                    assert event.record is not None
                    event.record.view(Pod)
            gc.collect()
            gc.freeze()  # the prepared events are not the informer's garbage
            took_s = asyncio.run(follow(events))
            gc.unfreeze()
            rate = len(events) / took_s
            print(f"informer, in process, {name:<18}, {pods:>6,} pods: {rate:>9,.0f} events/s")


def changes(pods: int) -> list[RecordEvent]:
    """`pods` additions, then changes; versions of one pod share what did not change, as in the store."""
    objects = [pod(number, number + 1) for number in range(pods)]
    events = []
    for version in range(1, pods + EVENTS + 1):
        obj = objects[(version - 1) % pods]
        obj = obj | {"metadata": obj["metadata"] | {"resourceVersion": str(version)}}
        kind = EventType.ADDED if version <= pods else EventType.MODIFIED
        events.append(RecordEvent(kind, ObjectRecord(obj, version), version))
    return events


def memory() -> None:
    """Growth of the process per 1,000 cached pods, each way of holding them in a fresh process."""
    spawn = multiprocessing.get_context("spawn")
    figures = {}
    for name, hold in (
        ("koordinator", hold_views),
        ("kubernetes client", hold_models),
        ("dicts", hold_dicts),
    ):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=measure_growth, args=(hold, theirs))
        process.start()
        figures[name] = ours.recv()
        process.join()
    for name, grown_bytes in figures.items():
        per_thousand = grown_bytes / PODS_IN_MEMORY * 1000 / 2**20
        ratio = grown_bytes / figures["koordinator"]
        print(f"memory per 1,000 pods, {name:<18}: {per_thousand:6.1f} MiB  ({ratio:.1f} × koordinator)")


def measure_growth(hold: Callable[[bytes], list[Any]], result: Connection) -> None:
    hold(page(10))  # imports and caches are not counted
    before = rss_bytes()
    held: list[Any] = []
    for _ in range(PODS_IN_MEMORY // 500):
        held += hold(page(500))
    result.send(rss_bytes() - before)
    assert len(held) == PODS_IN_MEMORY


def page(count: int) -> bytes:
    items = [pod(number, number) for number in range(count)]
    return json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items}).encode()


def hold_views(data: bytes) -> list[Any]:
    return wire.read_page(Pod, data)[0].items


def hold_dicts(data: bytes) -> list[Any]:
    items: list[Any] = json.loads(data)["items"]
    return items


def hold_models(data: bytes) -> list[Any]:
    from kubernetes.client import ApiClient

    client: Any = ApiClient()
    try:
        items: list[Any] = client.deserialize(SimpleNamespace(data=data.decode()), "V1PodList").items
    except TypeError:  # newer releases want text and media type
        items = client.deserialize(data.decode(), "V1PodList", "application/json").items
    return items


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def serve(ready: Connection) -> None:
    """An API server with one pod, until the other end closes."""

    async def run() -> None:
        backend = registry.in_memory(SystemClock(), checks=False)
        server = ApiServer(backend)
        await server.start()
        await MemoryCluster(backend).create(Pod, pod(1, 1) | {"metadata": {"name": "web"}}, "default")
        ready.send(server.url)
        await asyncio.to_thread(ready.poll, None)
        await server.stop()

    asyncio.run(run())


def requests() -> None:
    """Requests per second and client CPU per request, reading one pod."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    url = ours.recv()
    figures: dict[str, tuple[float, float]] = {}
    clients: tuple[tuple[str, Callable[[], object]], ...] = (
        ("koordinator, 1 at a time", lambda: asyncio.run(ask_ours(url, 1))),
        ("koordinator, 16 at a time", lambda: asyncio.run(ask_ours(url, 16))),
        ("kubernetes_asyncio, 16 at a time", lambda: asyncio.run(ask_asyncio(url, 16))),
        ("kubernetes, 1 at a time", lambda: ask_official(url)),
    )
    for name, ask in clients:
        count = REQUESTS if name.startswith("koordinator") else REQUESTS // 5
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        ask()
        figures[name] = ((time.perf_counter() - wall_s) / count, (time.process_time() - cpu_s) / count)
    ours.close()
    process.terminate()
    process.join()
    base_s = figures["koordinator, 16 at a time"][1]
    for name, (wall_s, cpu_s) in figures.items():
        print(
            f"GET pod, {name:<33}: {1 / wall_s:>7,.0f} requests/s, {cpu_s * 1e6:>6,.0f} µs client CPU each "
            f"({cpu_s / base_s:.1f} × koordinator)"
        )


async def ask_ours(url: str, at_once: int) -> None:
    async with KubeCluster(from_url(url), rng=random.Random(1)) as cluster:

        async def ask() -> None:
            for _ in range(REQUESTS // at_once):
                await cluster.get(Pod, "web", "default")

        await asyncio.gather(*(ask() for _ in range(at_once)))


async def ask_asyncio(url: str, at_once: int) -> None:
    from kubernetes_asyncio import client

    async with client.ApiClient(client.Configuration(host=url)) as api:
        core = client.CoreV1Api(api)

        async def ask() -> None:
            for _ in range(REQUESTS // 5 // at_once):
                await core.read_namespaced_pod("web", "default")

        await asyncio.gather(*(ask() for _ in range(at_once)))


def ask_official(url: str) -> None:
    from kubernetes import client

    core = client.CoreV1Api(client.ApiClient(client.Configuration(host=url)))
    for _ in range(REQUESTS // 5):
        core.read_namespaced_pod("web", "default")


def main() -> None:
    in_process()
    requests()
    if sys.platform == "linux":
        memory()


if __name__ == "__main__":
    main()
