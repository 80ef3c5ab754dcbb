"""What GPUs and NICs cost the scheduler: pods placed per CPU second, from the class key to Reserve.

The shipped profile, nodes with 8 GPUs and 4 NICs each, two GPUs and one NIC at a PCIe switch, two switches at a NUMA
node; beside them pods without devices in the same run.
Options: `--nodes`, `--pods`, `--case`.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.device import Device
from koordinator.clock import FixedClock
from koordinator.cluster import garbage
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.device_share.plugin import DeviceShare
from koordinator.scheduler.table.pod_info import PodInfo

NOW_S = 1_700_000_000.0
GPUS, NICS, VFS = 8, 4, 8
TEMPLATES = 100
CORE, RATIO, MEMORY = (f"koordinator.sh/gpu-{part}" for part in ("core", "memory-ratio", "memory"))
RDMA = "koordinator.sh/rdma"
SWITCHES_PER_NUMA = 2
Json = dict[str, Any]


def node(name: str) -> Json:
    amounts = {
        "cpu": "192", "memory": "2Ti", "pods": "500", "nvidia.com/gpu": str(GPUS), RDMA: str(100 * NICS),
        CORE: str(100 * GPUS), RATIO: str(100 * GPUS), MEMORY: f"{80 * GPUS}Gi",
    }  # fmt: skip
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": amounts},
    }


def vfs_of(minor: int) -> list[Json]:
    return [{"minor": n, "busID": f"0000:1{minor}:00.{n}"} for n in range(VFS)]


def device(name: str) -> Json:
    def place(switch: int, bus: str) -> Json:
        return {
            "socketID": 0,
            "nodeID": switch // SWITCHES_PER_NUMA,
            "pcieID": f"pci-{switch}",
            "busID": bus,
        }

    cards = [
        {
            "type": "gpu", "minor": minor, "id": f"GPU-{minor}", "health": True,
            "topology": place(minor * NICS // GPUS, f"0000:{minor:02}"),
            "resources": {CORE: "100", RATIO: "100", MEMORY: "80Gi"},
        }
        for minor in range(GPUS)
    ]  # fmt: skip
    cards += [
        {
            "type": "rdma", "minor": minor, "id": f"0000:1{minor}:00.0", "health": True,
            "topology": place(minor, f"0000:1{minor}"),
            "resources": {RDMA: "100"},
            "vfGroups": [{"labels": {"type": "general"}, "vfs": vfs_of(minor)}],
        }
        for minor in range(NICS)
    ]  # fmt: skip
    return {"metadata": {"name": name}, "spec": {"devices": cards}}


def pod_body(number: int, requests: Json, annotations: Json | None = None) -> Json:
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "default",
            "uid": f"uid-{number}",
            "annotations": annotations or {},
        },
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [
                {"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi", **requests}}}
            ],
        },
    }


def shared(number: int) -> Json:
    """One of `TEMPLATES` kinds of parts of a card, 5 to 55 % of it."""
    kind = number % TEMPLATES
    core, ratio = 5 * (1 + kind % 10), 5 * (1 + (kind // 10 + kind) % 10)
    return pod_body(number, {CORE: str(core), RATIO: str(ratio)})


_JOINT = {
    "scheduling.koordinator.sh/device-joint-allocate": json.dumps(
        {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}
    ),
    "scheduling.koordinator.sh/device-allocate-hint": json.dumps(
        {"rdma": {"vfSelector": {"matchLabels": {"type": "general"}}}}
    ),
}
CASES: dict[str, Callable[[int], Json]] = {
    "no devices": lambda n: pod_body(n, {}),
    "whole cards, identical": lambda n: pod_body(n, {"nvidia.com/gpu": "1"}),
    "whole cards, 1 to 8": lambda n: pod_body(n, {"nvidia.com/gpu": str(1 << n % 4)}),
    "half cards, identical": lambda n: pod_body(n, {CORE: "50", RATIO: "50"}),
    "shared cards, 100 templates": shared,
    "GPU and RDMA joint": lambda n: pod_body(n, {CORE: "100", RATIO: "100", RDMA: "1"}, _JOINT),
    "2 GPUs and RDMA joint": lambda n: pod_body(n, {CORE: "200", RATIO: "200", RDMA: "1"}, _JOINT),
}


def engine_of(nodes: int) -> Engine:
    engine = Engine(default_plugins.shipped_config(), FixedClock(NOW_S), plugins=installed_plugins())
    plugin = plugin_of(engine)
    for number in range(nodes):
        engine.table.set_node(from_builtins(node(f"node-{number}"), Node))
        plugin.set_device(None, from_builtins(device(f"node-{number}"), Device))
    return engine


def plugin_of(engine: Engine) -> DeviceShare:
    [profile] = engine.profiles.values()
    return next(p for p in profile.plugins if isinstance(p, DeviceShare))


def pods_of(engine: Engine, make: Callable[[int], Json], count: int) -> list[PodInfo]:
    return [PodInfo.of(from_builtins(make(n), Pod), engine.table.registry) for n in range(count)]


def seconds(engine: Engine, pods: list[PodInfo]) -> tuple[float, int]:
    """CPU seconds, and how many pods were placed."""
    [profile] = engine.profiles.values()
    started_s = time.process_time()
    placed = 0
    for pod in pods:
        found = engine.cycle.run(profile, pod, profile.class_key(pod), 1, NOW_S)
        placed += isinstance(found, Placed)
    return time.process_time() - started_s, placed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=5_000)
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    options = parser.parse_args()
    with garbage.collected_rarely():  # as in the running scheduler
        for name, make in CASES.items():
            if options.case in name:
                measure(name, make, options.nodes, options.pods)


def measure(name: str, make: Callable[[int], Json], nodes: int, count: int) -> None:
    engine = engine_of(nodes)
    pods = pods_of(engine, make, count)
    needed_s, placed = seconds(engine, pods)
    text = f"{name:<30} {nodes:>6,} nodes: {count / needed_s:>8,.0f} pods/s, {placed:,} placed"
    print(text, flush=True)


if __name__ == "__main__":
    main()
