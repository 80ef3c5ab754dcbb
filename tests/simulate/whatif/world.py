"""A small cluster to ask about: nodes of 16 cores, services that request much and use little."""

from pathlib import Path
from typing import Any

import msgspec

AT = "2026-01-02T03:04:05Z"
GIB = 2**30

Json = dict[str, Any]


class WhatIfWorld:
    """Objects to be dumped."""

    def __init__(self) -> None:
        self.items: list[Json] = []
        self._used: dict[str, list[Json]] = {}

    def node(self, name: str, *, cores: int = 16, reported: bool = True, **spec: Any) -> None:
        capacity = {"cpu": str(cores), "memory": f"{4 * cores}Gi", "pods": "110"}
        allocatable = {**capacity, "cpu": f"{cores * 1000 - 500}m"}
        self.items.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"pool": spec.pop("pool", "general")}},
                "spec": spec,
                "status": {"capacity": capacity, "allocatable": allocatable},
            }
        )
        if reported:
            self._used[name] = []

    def pods(
        self, workload: str, node: str, count: int, *, asks: int = 4, uses_milli: int = 500, **labels: str
    ) -> None:
        for number in range(count):
            name = f"{workload}-{node}-{number}"
            requests = {"cpu": str(asks), "memory": f"{4 * asks}Gi"}
            self.items.append(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": name, "namespace": "shop", "labels": {"app": workload, **labels}},
                    "spec": {
                        "nodeName": node,
                        "containers": [{"name": "main", "resources": {"requests": requests}}],
                    },
                    "status": {"phase": "Running"},
                }
            )
            if node in self._used:
                usage = {"cpu": f"{uses_milli}m", "memory": f"{asks}Gi"}
                entry = {"name": name, "namespace": "shop", "podUsage": {"resources": usage}}
                self._used[node].append(entry)

    def objects(self) -> list[Json]:
        system = {"resources": {"cpu": "200m", "memory": "2Gi"}}
        node_use = {"resources": {"cpu": "2", "memory": "8Gi"}}
        metrics = [
            {
                "apiVersion": "slo.koordinator.sh/v1alpha1",
                "kind": "NodeMetric",
                "metadata": {"name": name},
                "status": {
                    "updateTime": AT,
                    "nodeMetric": {"nodeUsage": node_use, "systemUsage": system},
                    "podsMetric": pods,
                },
            }
            for name, pods in self._used.items()
        ]
        return [*self.items, *metrics]

    def dump(self, path: Path) -> Path:
        path.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": self.objects()}))
        return path


def shop(nodes: int = 4) -> WhatIfWorld:
    """Nodes with three replicas of two services each."""
    world = WhatIfWorld()
    for number in range(nodes):
        world.node(f"n{number}")
        world.pods("web", f"n{number}", 2)
        world.pods("api", f"n{number}", 1, uses_milli=1_500)
    return world


def day_csv(path: Path, nodes: int, percent: float = 20.0, hours: int = 24) -> Path:
    """CPU use of every node, flat, in percent per five minutes."""
    values = ",".join([f"{percent:g}"] * (12 * hours))
    path.write_text("".join(f"n{number},{values}\n" for number in range(nodes)))
    return path
