"""How many operations per second the store and the registry do, and how that changes with their size.

An operation is one of create, get, merge patch, delete, in equal numbers, on pods with one container. The
store is measured alone, then the registry on top of it (checks off and, where schemas are there, on), each
beside 1,000, 10,000 and 100,000 objects, with one watcher that reads along. On disk, the same operations run
from 1, 16 and 256 writers at a time: writers share commits, each of which waits for the disk.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from koordinator.api.meta import Resource
from koordinator.clock import FixedClock
from koordinator.cluster import errors
from koordinator.cluster.backend import DeleteRequest, ListOptions, Subscription
from koordinator.cluster.protocol import PatchType
from koordinator.local import registry
from koordinator.local.patches import json_patch
from koordinator.local.registry import ObjectRegistry
from koordinator.local.registry.reading import INDEXES
from koordinator.local.store import ObjectStore, Table

SIZES = (1_000, 10_000, 100_000)
ROUNDS = 5_000
WRITERS = (1, 16, 256)
NOW = DeleteRequest(grace_period_s=0)
PATCH = {"metadata": {"labels": {"tier": "batch"}}}


def pod(name: str) -> dict[str, Any]:
    """A small pod, as a client sends it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {
            "containers": [
                {"name": "main", "image": "web:1", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
            ]
        },
    }


def filled_store(size: int) -> Table:
    table = ObjectStore().table("pods", INDEXES["pods"])
    for i in range(size):
        table.put("default", f"old-{i}", pod(f"old-{i}"))
    return table


def run_store(table: Table, rounds: int) -> float:
    """Operations per second on the bare store."""
    names = [f"pod-{i}" for i in range(rounds)]
    bodies = [pod(name) for name in names]
    begin = time.perf_counter()
    for name, body in zip(names, bodies, strict=True):
        table.put("default", name, body)
        record = table.get("default", name)
        assert record is not None
        patched = json_patch.merge(record.obj, PATCH)
        table.put("default", name, {**patched, "metadata": dict(patched["metadata"])})
        table.remove("default", name)
    return 4 * rounds / (time.perf_counter() - begin)


async def filled_registry(size: int, *, checks: bool) -> ObjectRegistry:
    backend = registry.in_memory(FixedClock(), checks=checks)
    pods = backend.resolve("", "v1", "pods")
    for i in range(size):
        await backend.create(pods, "default", pod(f"old-{i}"))
    return backend


async def run_registry(backend: ObjectRegistry, rounds: int) -> float:
    """Operations per second through the whole life cycle."""
    pods = backend.resolve("", "v1", "pods")
    watch = backend.watch(pods, "", ListOptions(resource_version=str(backend.store.version)))
    reader = asyncio.create_task(_count(watch))
    bodies = [pod(f"pod-{i}") for i in range(rounds)]
    begin = time.perf_counter()
    for body in bodies:
        await _one_life(backend, pods, body)
    elapsed_s = time.perf_counter() - begin
    await asyncio.sleep(0.05)
    watch.close()
    seen = await reader
    assert seen == 3 * rounds, (seen, rounds)
    return 4 * rounds / elapsed_s


async def _one_life(backend: ObjectRegistry, pods: Resource, body: dict[str, Any]) -> None:
    name = body["metadata"]["name"]
    await backend.create(pods, "default", body)
    backend.get(pods, "default", name)
    await backend.patch(pods, "default", name, PATCH, PatchType.MERGE)
    await backend.delete(pods, "default", name, NOW)


async def _count(watch: Subscription) -> int:
    seen = 0
    try:
        async for batch in watch:
            seen += len(batch)
    except errors.Gone:
        return -1
    return seen


async def run_on_disk(data_dir: Path, writers: int, rounds: int) -> float:
    """Operations per second when every write waits until it is on disk."""
    backend = registry.on_disk(FixedClock(), data_dir)
    pods = backend.resolve("", "v1", "pods")

    async def writer(number: int) -> None:
        for i in range(rounds // writers):
            await _one_life(backend, pods, pod(f"pod-{number}-{i}"))

    begin = time.perf_counter()
    await asyncio.gather(*(writer(number) for number in range(writers)))
    elapsed_s = time.perf_counter() - begin
    await backend.close()
    return 4 * (rounds // writers) * writers / elapsed_s


def main() -> None:
    """Print one line per size."""
    print("operations per second (create + get + patch + delete), by objects beside")
    print(f"{'objects':>10}{'store':>12}{'registry, no checks':>22}{'registry, checks':>20}")
    for size in SIZES:
        store_ops = run_store(filled_store(size), ROUNDS)
        fast = _run_registry(size, checks=False)
        full = _run_registry(min(size, 10_000), checks=True)
        note = "" if size <= 10_000 else "  (checks: beside 10,000)"
        print(f"{size:>10,}{store_ops:>12,.0f}{fast:>22,.0f}{full:>20,.0f}{note}")
    print("on disk (registry with checks), by concurrent writers")
    for writers in WRITERS:
        with tempfile.TemporaryDirectory() as data_dir:
            ops = asyncio.run(
                run_on_disk(Path(data_dir), writers, 64 * writers if writers < 64 else ROUNDS // 2)
            )
        print(f"{writers:>10,}{ops:>12,.0f}")


def _run_registry(size: int, *, checks: bool) -> float:
    async def measured() -> float:
        return await run_registry(await filled_registry(size, checks=checks), ROUNDS)

    return asyncio.run(measured())


if __name__ == "__main__":
    main()
