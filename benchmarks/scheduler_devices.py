"""What pods with claims for devices cost: 1,000 nodes with 8 devices each, or with 8 cards in 15 parts, or shared.

Each figure is CPU time per pod from its evaluation to Reserve with the stock profile, in this process, on one core,
beside pods without claims in the same run. Writing of claims is left out. Options: `--nodes`, `--pods`.
"""

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.dra import DeviceClass, ResourceClaim, ResourceSlice
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.meta import Object
from koordinator.clock import FixedClock
from koordinator.scheduler.config import config
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.table.pod_info import PodInfo

NOW_S = 1_700_000_000.0
DRIVER = "gpu.example.com"
DEVICES = 8
Json = dict[str, Any]


def node(name: str) -> Json:
    amounts = {"cpu": "1000", "memory": "4Ti", "pods": "500"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": amounts},
    }


def slice_of(name: str) -> Json:
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {
                "model": {"string": "a100"},
                "numa": {"int": number // 4},
                "uuid": {"string": f"{name}-{number}"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for number in range(DEVICES)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": name},
        "spec": {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices},
    }


def counters_of(name: str) -> Json:
    sets = [{"name": f"gpu-{n}", "counters": {"memory": {"value": "80Gi"}}} for n in range(DEVICES)]
    body = slice_of(name)
    del body["spec"]["devices"]
    body["metadata"]["name"] += "-counters"
    return {**body, "spec": {**body["spec"], "sharedCounters": sets, "pool": two_slices(name)}}


def two_slices(name: str) -> Json:
    return {"name": name, "generation": 1, "resourceSliceCount": 2}


def parts_of(name: str) -> Json:
    """Each card whole, in halves, quarters and eighths."""
    devices = []
    for card in range(DEVICES):
        for count in (1, 2, 4, 8):
            takes = [{"counterSet": f"gpu-{card}", "counters": {"memory": {"value": f"{80 // count}Gi"}}}]
            for part in range(count):
                attributes = {
                    "model": {"string": "a100"},
                    "numa": {"int": card // 4},
                    "parts": {"int": count},
                }
                name_of_part = f"gpu-{card}-{count}-{part}"
                devices.append({"name": name_of_part, "attributes": attributes, "consumesCounters": takes})
    body = slice_of(name)
    return {**body, "spec": {**body["spec"], "devices": devices, "pool": two_slices(name)}}


def shared_slice_of(name: str) -> Json:
    body = slice_of(name)
    devices = [{**each, "allowMultipleAllocations": True} for each in body["spec"]["devices"]]
    return {**body, "spec": {**body["spec"], "devices": devices}}


def request(count: int, **more: Any) -> Json:
    return {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count, **more}


MEMORY = f"device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0"
CASES: dict[str, Json | None] = {
    "no claim (peer)": None,
    "one device": {"requests": [{"name": "r", "exactly": request(1)}]},
    "one device with a selector of its own": {
        "requests": [{"name": "r", "exactly": request(1, selectors=[{"cel": {"expression": MEMORY}}])}]
    },
    "two devices of one NUMA node": {
        "requests": [{"name": "r", "exactly": request(2)}],
        "constraints": [{"matchAttribute": f"{DRIVER}/numa"}],
    },
    "four of one node, else two": {
        "requests": [
            {"name": "r", "firstAvailable": [{"name": "a", **request(4)}, {"name": "b", **request(2)}]}
        ],
        "constraints": [{"matchAttribute": f"{DRIVER}/numa"}],
    },
}


QUARTER = f"device.attributes['{DRIVER}'].parts == 4"
TENTH = {"requests": {"memory": "8Gi"}}
PARTS: dict[str, Json] = {
    "a quarter of a card": {
        "requests": [{"name": "r", "exactly": request(1, selectors=[{"cel": {"expression": QUARTER}}])}]
    },
    "three quarters of one NUMA node": {
        "requests": [{"name": "r", "exactly": request(3, selectors=[{"cel": {"expression": QUARTER}}])}],
        "constraints": [{"matchAttribute": f"{DRIVER}/numa"}],
    },
}
SHARES: dict[str, Json] = {
    "a tenth of a shared card": {"requests": [{"name": "r", "exactly": request(1, capacity=TENTH)}]}
}
GATES = "DRAPartitionableDevices=true,DRAConsumableCapacity=true"
Slices = Callable[[str], list[Json]]


class Bench:
    def __init__(self, nodes: int, slices: Slices) -> None:
        settings = config.decode({"profiles": [{"schedulerName": "koord-scheduler"}]})
        gates = FeatureGates.of(Component.SCHEDULER, GATES)
        self.engine = Engine(settings, FixedClock(NOW_S), plugins=installed_plugins(), gates=gates)
        [self.profile] = self.engine.profiles.values()
        driver = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].model == 'a100'"
        self.put(
            DeviceClass,
            {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": driver}}]}},
        )
        for number in range(nodes):
            self.engine.table.set_node(from_builtins(node(f"node-{number}"), Node))
            for each in slices(f"node-{number}"):
                self.put(ResourceSlice, each)

    def put(self, view: type[Object], body: Json) -> None:
        obj = from_builtins(body, view)
        for handle in self.engine.handles:
            for watch in handle.watches:
                if watch.view is view:
                    watch.on_add(obj)

    def pods(self, claim: Json | None, count: int, prefix: str) -> list[PodInfo]:
        made = []
        for number in range(count):
            name = f"{prefix}-{number}"
            body: Json = {"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {}}
            body["spec"]["containers"] = [
                {"name": "m", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
            ]
            if claim is not None:
                meta = {"name": name, "namespace": "d", "uid": f"claim-{name}", "resourceVersion": "1"}
                self.put(ResourceClaim, {"metadata": meta, "spec": {"devices": claim}})
                body["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": name}]
            made.append(PodInfo.of(from_builtins(body, Pod), self.engine.table.registry))
        return made

    def place(self, pods: list[PodInfo]) -> tuple[float, float, int]:
        """Seconds of the first and of all others, and how many were placed."""
        seconds = [self._timed(partial(self._place, pod)) for pod in pods]
        placed = sum(is_placed for _, is_placed in seconds)
        return seconds[0][0], sum(second for second, _ in seconds[1:]), placed

    def _place(self, pod: PodInfo) -> bool:
        key = self.profile.class_key(pod)
        return isinstance(self.engine.cycle.run(self.profile, pod, key, 1, NOW_S), Placed)

    @staticmethod
    def _timed(work: Callable[[], bool]) -> tuple[float, bool]:
        began_s = time.process_time()
        result = work()
        return time.process_time() - began_s, result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--pods", type=int, default=1_000)
    options = parser.parse_args()
    print(f"{options.nodes} nodes with {DEVICES} devices each, {options.pods} pods: CPU per pod")
    whole: Slices = lambda name: [slice_of(name)]  # noqa: E731
    parts: Slices = lambda name: [counters_of(name), parts_of(name)]  # noqa: E731
    shared: Slices = lambda name: [shared_slice_of(name)]  # noqa: E731
    cases = [(name, claim, whole) for name, claim in CASES.items()]
    cases += [(name, claim, parts) for name, claim in PARTS.items()]
    cases += [(name, claim, shared) for name, claim in SHARES.items()]
    for name, claim, slices in cases:
        bench = Bench(options.nodes, slices)
        pods = bench.pods(claim, options.pods, "p")
        gc.collect()
        gc.disable()
        first_s, rest_s, placed = bench.place(pods)
        gc.enable()
        each_us = rest_s / max(1, len(pods) - 1) * 1e6
        print(f"  {name:40} {each_us:8.0f} µs, the first {first_s * 1e3:7.1f} ms, {placed} placed")


if __name__ == "__main__":
    main()
