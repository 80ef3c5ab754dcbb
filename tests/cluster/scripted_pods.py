"""Pods as a scripted server sends them, and a `KubeCluster` that asks it."""

import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

from koordinator.cluster.config import from_url
from koordinator.cluster.kube import KubeCluster
from tests.cluster.scripted_server import ScriptedServer


@contextlib.asynccontextmanager
async def connected(server: ScriptedServer, **options: Any) -> AsyncIterator[KubeCluster]:
    async with KubeCluster(from_url(server.url), rng=random.Random(1), **options) as cluster:
        yield cluster


def pod(name: str, version: int = 1, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "shop", "resourceVersion": str(version), "uid": f"u-{name}"},
        "spec": spec,
    }


def pod_list(*pods: dict[str, Any], version: int = 9, more: str = "") -> dict[str, Any]:
    meta = {"resourceVersion": str(version)} | ({"continue": more} if more else {})
    return {"kind": "PodList", "metadata": meta, "items": list(pods)}
