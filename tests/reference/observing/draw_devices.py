"""Draws questions about the devices that the agent reports."""

import json
import random
from typing import Any

from tests.reference.observing.draw_pods import GIB

Json = dict[str, Any]


def _xpu(chance: random.Random, index: int) -> Json:
    card: Json = {
        "vendor": chance.choice(("huawei", "v", "")),
        "model": chance.choice(("Ascend-910B", "m x", "")),
        "uuid": f"u{chance.randint(0, 9)}{index}",
        "minor": chance.choice((str(index),) * 6 + ("x", "", f"0{index}")),
    }
    if chance.random() < 0.8:
        names = ("huawei.com/npu-core", "gpu-core", "gpu-memory", "koordinator.sh/gpu-memory-ratio", "x")
        card["resources"] = {
            name: chance.choice(("100", "32Gi", "x", "", "1.5", "100m"))
            for name in names
            if chance.random() < 0.5
        }
    if chance.random() < 0.7:
        topology: Json = {
            "nodeID": chance.choice(("0", "1", "", "x", "-1")),
            "pcieID": chance.choice(("p", "")),
            "busID": chance.choice(("b", "")),
        }
        if chance.random() < 0.7:
            peers = ("0,1", "1,0", "2", "1,2,3", "0,x", "", ",", "1,,2", "5")
            topology["p2pLinks"] = [
                {"peerMinor": chance.choice(peers), "type": chance.choice(("HCCS", "NVLink", ""))}
                for _ in range(chance.randint(0, 3))
            ]
        if chance.random() < 0.3:
            topology["mustHonorPartition"] = True
        card["topology"] = topology
    if chance.random() < 0.4:
        card["status"] = {
            "healthy": chance.random() < 0.5,
            "errCode": chance.choice(("", "E1")),
            "errMessage": chance.choice(("", "broken")),
        }
    return card


def _device_report(chance: random.Random) -> Json:
    asked: Json = {"op": "report", "xpuEnforce": chance.random() < 0.2}
    asked["xpus"] = [_xpu(chance, index) for index in range(chance.choice((0, 0, 1, 2, 4)))]
    asked["gpus"] = [
        {
            "uuid": f"g{minor}",
            "minor": minor,
            "memoryTotal": chance.choice((0, 8000, 16 * GIB)),
            "busID": chance.choice((f"b{minor}", f"b{minor}", "")),
            "nodeID": chance.choice((0, 1, -1)),
            "pcie": chance.choice(("pci0000:3a", "")),
        }
        for minor in chance.sample(range(8), chance.choice((0, 1, 2, 4)))
    ]
    asked["gpuModel"], asked["gpuDriver"] = chance.choice(("A100", "")), chance.choice(("470", ""))
    faults = [gpu["busID"] for gpu in asked["gpus"] if gpu["busID"] and chance.random() < 0.2]
    asked["unhealthyGPUs"] = {bus: {"errCode": "Xid44", "errMessage": "m"} for bus in faults}
    asked["rdmas"] = [
        {
            "id": f"r{minor}",
            "busID": f"r{minor}",
            "minor": minor,
            "nodeID": chance.choice((0, 1)),
            "health": chance.random() < 0.7,
            "vfEnabled": chance.random() < 0.5,
            "pcie": chance.choice(("p", "")),
            "vfs": chance.sample(("v1", "v2", "v10", "a"), chance.randint(0, 4)),
        }
        for minor in chance.sample(range(5), chance.choice((0, 1, 2)))
    ]
    return asked


def _pod_resources(chance: random.Random) -> Json:
    pods, listed = [], []
    for index in range(chance.randint(0, 4)):
        meta: Json = {"namespace": "ns", "name": f"p{index}"}
        cards = [
            {"minor": minor, "id": chance.choice((f"g{minor}", ""))} for minor in range(chance.randint(1, 2))
        ]
        functions = {"vfs": [{"minor": -1, "busID": f"v{number}"} for number in range(chance.randint(0, 2))]}
        rdma = [{"minor": 0, "id": "r", "extension": chance.choice((functions, functions, {}, None))}]
        allocated = {"gpu": cards, "rdma": rdma, "fpga": [{"minor": 0, "id": "f"}]}
        names = chance.sample(("gpu", "rdma"), chance.randint(0, 2))
        text = json.dumps({name: allocated[name] for name in names})
        if chance.random() < 0.8:
            meta["annotations"] = {
                "scheduling.koordinator.sh/device-allocated": chance.choice((text,) * 6 + ("{", "null", ""))
            }
        pods.append({"metadata": meta})
        containers: list[Json] = [{"name": f"c{number}"} for number in range(chance.randint(1, 2))]
        for container in containers:
            if chance.random() < 0.3:
                container["devices"] = [{"resourceName": "a/b", "deviceIds": ["1", "2"]}]
        listed.append({"namespace": "ns", "name": f"p{index}", "containers": containers})
    return {
        "op": "pod-resources",
        "kubelet": listed,
        "pods": chance.sample(pods, chance.randint(0, len(pods))),
    }


def _gpu_usage(chance: random.Random) -> Json:
    minors = list(range(chance.randint(1, 4)))
    processes = [
        {
            "pid": pid,
            "usage": [
                {
                    "minor": minor,
                    "smUtil": chance.choice((0, 10, 100, None)),
                    "memoryBytes": chance.randint(0, GIB),
                }
                for minor in minors
                if chance.random() < 0.5
            ],
        }
        for pid in chance.sample(range(1, 9), chance.randint(0, 5))
    ]
    pids = chance.choice((None, chance.sample(range(1, 9), 3), []))
    return {"op": "gpu-usage", "minors": minors, "processes": processes, "pids": pids}


def _device_texts(chance: random.Random) -> Json:
    names = ("NVIDIA A100 SXM4 80GB", "Tesla T4", "NVIDIA ", "", "a  b", "NVIDIA NVIDIA x")
    if (op := chance.choice(("gpu-model", "pci", "gpu-bus-ids", "rdma-minor", "xpu-files"))) == "gpu-model":
        first = chance.choice(names)
        return {
            "op": op,
            "names": [chance.choice((first, first, *names)) for _ in range(chance.randint(0, 3))],
        }
    if op == "pci":
        paths = (
            "/sys/devices/pci0000:00/0000:00:07.0",
            "/sys/devices/pci10000:e0/x",
            "/sys/pci0001:ff/pci0002:aa/x",
        )
        path = chance.choice((*paths, "/sys/devices/virtual/x", "/sys/pci0000:0g/x"))
        return {
            "op": op,
            "numaNode": chance.choice(("-1\n", "0", "3\n", " 1 \n", "x", "", "1 2")),
            "devicePath": path,
        }
    if op == "gpu-bus-ids":
        entries = (
            "0000:3B:00.0",
            "0000:3b:00.1",
            "10000:01:00.0",
            "3b:00.0",
            "bind",
            "0000:3b:00.g",
            "00000:3b:00.0",
        )
        return {"op": op, "entries": sorted(chance.sample(entries, chance.randint(0, 5)))}
    if op == "rdma-minor":
        names = (
            "mlx5_1",
            "mlx5_",
            "mlx_1",
            "mlx5_01",
            "mlx5_1x",
            "xmlx5_1",
            "mlx50_12",
            "rxe0",
            "mlx5_bond_0",
        )
        return {"op": op, "device": chance.choice(names)}
    texts = (
        "[]",
        "null",
        '[{"uuid":"a"}]',
        '[{"uuid":"b","minor":"1"},{}]',
        "",
        "{",
        "[1]",
        '[{"uuid":1}]',
    )
    names = chance.sample(("f1", "f2", "a.json", "z"), chance.randint(0, 3))
    return {"op": op, "files": {name: chance.choice(texts) for name in names}}


def draw(chance: random.Random) -> Json:
    return chance.choice((_device_report, _pod_resources, _gpu_usage, _device_texts))(chance)
