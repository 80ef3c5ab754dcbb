"""Area `device-report`."""

import json
from typing import Any

import msgspec

from koordinator.api import labels
from koordinator.api.annotations.device import GPU_PARTITIONS
from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins
from koordinator.api.device import DeviceInfo
from koordinator.host import sysfs
from koordinator.host.gpu import GPUDevice
from koordinator.host.network import RDMADevice
from koordinator.koordlet.collect import gpu_usage
from koordinator.koordlet.collect.gpu_usage import GPUUsage
from koordinator.koordlet.report import device, pod_resources, xpu
from koordinator.koordlet.report.device import Fault
from koordinator.koordlet.report.xpu import XPUDevice
from tests.vectors.compare import quantities


def device_report(case: dict[str, Any]) -> Any:
    return {
        "report": _report,
        "gpu-model": _gpu_model,
        "gpu-usage": _gpu_usage,
        "pod-resources": _pod_resources,
        "pci": _pci,
        "gpu-bus-ids": _gpu_bus_ids,
        "rdma-minor": _rdma_minor,
        "rdma-health": _rdma_health,
        "xpu-files": _xpu_files,
    }[case["op"]](case)


def _report(case: dict[str, Any]) -> Any:
    gpus, unhealthy = case.get("gpus", []), case.get("unhealthyGPUs", {})
    found = device.report(
        [_gpu(raw) for raw in gpus],
        [from_builtins(raw, XPUDevice) for raw in case.get("xpus", [])],
        [_rdma(raw) for raw in case.get("rdmas", [])],
        gpu_model=case.get("gpuModel", ""),
        driver_version=case.get("gpuDriver", ""),
        only_files=case.get("xpuEnforce", False),
        faults={
            raw["uuid"]: Fault(fault["errCode"], fault["errMessage"])
            for raw in gpus
            if (fault := unhealthy.get(raw.get("busID", "")))
        },
    )
    annotations = {}
    if found.partitions:
        annotations[labels.GPU_PARTITIONS] = json.loads(GPU_PARTITIONS.encode(found.partitions))
    return {
        "devices": [_info(info) for info in found.devices],
        "labels": found.labels,
        "annotations": annotations,
    }


def _gpu(raw: dict[str, Any]) -> GPUDevice:
    return GPUDevice(
        uuid=raw["uuid"],
        minor=raw["minor"],
        name="",
        memory_bytes=raw["memoryTotal"],
        bus_id=raw.get("busID", ""),
        numa_node=raw.get("nodeID", 0),
        root_complex=raw.get("pcie", ""),
    )


def _rdma(raw: dict[str, Any]) -> RDMADevice:
    return RDMADevice(
        id=raw["id"],
        minor=raw["minor"],
        is_healthy=raw["health"],
        bus_id=raw.get("busID", ""),
        numa_node=raw.get("nodeID", 0),
        root_complex=raw.get("pcie", ""),
        virtual_functions=tuple(raw.get("vfs", [])) if raw.get("vfEnabled") else None,
    )


def _info(info: DeviceInfo) -> dict[str, Any]:
    raw: dict[str, Any] = msgspec.to_builtins(info)
    for condition in raw.get("conditions", []):
        del condition["lastTransitionTime"]
    return raw


def _gpu_model(case: dict[str, Any]) -> Any:
    return {"model": device.common_model(case["names"])}


def _gpu_usage(case: dict[str, Any]) -> Any:
    processes = {
        each["pid"]: {
            use["minor"]: GPUUsage(use["smUtil"], use["memoryBytes"])
            for use in each["usage"]
            if use.get("smUtil") is not None
        }
        for each in case["processes"]
    }
    pids = case.get("pids")
    if pids is None:
        found = gpu_usage.node_usage(case["minors"], processes)
    else:
        found = gpu_usage.group_usage(processes, pids)
    return {
        "byMinor": {
            str(minor): {"smUtil": usage.core_percent, "memoryBytes": usage.memory_bytes}
            for minor, usage in found.items()
        }
    }


def _pod_resources(case: dict[str, Any]) -> Any:
    pods = [from_builtins(raw, Pod) for raw in case["pods"]]
    known = {(pod.metadata.namespace, pod.metadata.name): pod.metadata.annotations for pod in pods}
    answers = []
    for raw in case["kubelet"]:
        added = pod_resources.allocated_devices(known.get((raw["namespace"], raw["name"]), {}))
        entries = [{"resourceName": each.resource, "deviceIds": list(each.ids)} for each in added]
        first, *others = raw["containers"]
        if entries:
            devices = sorted([*first.get("devices", []), *entries], key=lambda each: each["resourceName"])
            first = {**first, "devices": devices}
        answers.append({**raw, "containers": [first, *others]})
    return {"podResources": answers}


def _pci(case: dict[str, Any]) -> Any:
    return {"nodeID": sysfs.numa_node(case["numaNode"]), "pcieID": sysfs.root_complex(case["devicePath"])}


def _gpu_bus_ids(case: dict[str, Any]) -> Any:
    return {"busIDs": sysfs.bus_ids(case["entries"])}


def _rdma_minor(case: dict[str, Any]) -> Any:
    return {"minor": sysfs.rdma_minor(case["device"])}


def _rdma_health(case: dict[str, Any]) -> Any:
    return {"healthy": sysfs.is_rdma_healthy(case["portStates"])}


def _xpu_files(case: dict[str, Any]) -> Any:
    return {"uuids": [each.uuid for each in xpu.parse_files(case["files"])]}


ADAPTERS = {"device-report": device_report}
COMPARE = {"device-report": quantities}
