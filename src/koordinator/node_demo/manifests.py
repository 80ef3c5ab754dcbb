"""Make the objects that a user would apply: the configuration of co-location, the service, and batch in two ways."""

import json
from typing import Any

from koordinator.api import defaults, labels
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import QoSClass
from koordinator.manager.config import addons
from koordinator.node_demo.disk import LIMIT_BPS, LIMIT_IOPS, WholeDisk
from koordinator.node_demo.plan import BATCH_PODS, SERVICE_REQUEST_MILLI, DemoMode

NAMESPACE = "default"
SERVICE = "service"
BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
BATCH_REQUEST_MILLI = 50
"""CPU that a managed batch pod must be lent to be placed; it may use more (its limit is that of the machine)."""
REPORT_S, AVERAGE_S = 30, 60
"""The node agent's report interval, and the window of its averages: the shortest times that it accepts."""
_MIB = 2**20
_SERVICE_MEMORY_MIB = 256
_SUPPRESS_PERCENT = 95
"""Up to this use of the machine batch is not confined to fewer CPUs."""
_SCHEDULER = "koord-scheduler"
_COLOCATION, _QOS = "colocation-config", "resource-qos-config"
_OBJECTIVE_WINDOW_S = 15
"""A pause of the hypervisor of some 20 ms alone shall not be 1 % of the requests that count."""
_METRIC = "demo_request_duration_seconds"  # histogram.h
_NO_IMAGE = "none"  # the process node runs commands of this machine
_ANY_CPU_USE = json.dumps({"usageThresholds": {"memory": 95}})  # what is not listed has no threshold


def configuration(disk: WholeDisk | None, mode: DemoMode = DemoMode.MANAGED) -> dict[str, str | None]:
    """Return the data of ConfigMap `slo-controller-config`: lend all that is left, and protect services.

    None is a key of another mode that must not stay.

    In mode `DEFAULT` services are protected as an installation does that nobody has configured. Both lend the same,
    so that batch finds a place at any load.
    """
    colocation = {
        "enable": True,
        "metricReportIntervalSeconds": REPORT_S,
        "metricAggregateDurationSeconds": AVERAGE_S,
        "cpuReclaimThresholdPercent": 100,
        "memoryReclaimThresholdPercent": 80,
    }
    if mode is DemoMode.DEFAULT:
        installed: dict[str, str] = defaults.slo_config()["data"]
        return {**installed, _COLOCATION: json.dumps(colocation), _QOS: "{}", addons.INTERFERENCE.key: None}
    threshold = {
        "enable": True,
        "cpuSuppressPolicy": "cpuset",
        "cpuSuppressThresholdPercent": _SUPPRESS_PERCENT,
    }
    best_effort: dict[str, Any] = {
        "cpuQOS": {"enable": True, "groupIdentity": -1},
        "memoryQOS": {"enable": True},
    }
    if disk is not None:
        limits = {
            "readBPS": LIMIT_BPS,
            "writeBPS": LIMIT_BPS,
            "readIOPS": LIMIT_IOPS,
            "writeIOPS": LIMIT_IOPS,
        }
        best_effort["blkioQOS"] = {
            "enable": True,
            "blocks": [{"name": disk.name, "type": "device", "ioCfg": limits}],
        }
    qos = {
        "policies": {"cpuPolicy": "groupIdentity"},
        "lsClass": {
            "cpuQOS": {"enable": True, "groupIdentity": 2},
            "memoryQOS": {"enable": True, "lowLimitPercent": 100},
        },
        "beClass": best_effort,
    }
    is_closed_loop = mode is DemoMode.CLOSED_LOOP
    if is_closed_loop:  # two CPUs, which a CPU set never takes from batch, may be all that there is
        threshold["cpuSuppressPolicy"] = "cfsQuota"
    return {
        _COLOCATION: json.dumps(colocation),
        "resource-threshold-config": json.dumps({"clusterStrategy": threshold}),
        _QOS: json.dumps({"clusterStrategy": qos}),
        addons.INTERFERENCE.key: json.dumps(
            {"clusterStrategy": {"enable": True, "cpuThresholdMaxPercent": 100}}
        )
        if is_closed_loop
        else None,
    }


def node_annotations() -> dict[str, str]:
    """This node is meant to be full: the scheduler does not turn batch away for it."""
    return {labels.USAGE_THRESHOLDS: _ANY_CPU_USE}


def objective(target_ms: float, port: int) -> str:
    """Return the service's annotation of its latency: where it tells it, and what it promises."""
    source = {"port": port, "metric": _METRIC}
    promise = {
        "percentile": 99,
        "targetMilliseconds": round(target_ms, 3),
        "windowSeconds": _OBJECTIVE_WINDOW_S,
    }
    return json.dumps({**promise, "prometheus": source})


def service(command: list[str]) -> dict[str, Any]:
    """Return the latency-sensitive service: a burstable pod of class LS that knows its address as `$(POD_IP)`."""
    requests = {"cpu": f"{SERVICE_REQUEST_MILLI}m", "memory": f"{_SERVICE_MEMORY_MIB}Mi"}
    return _pod(
        SERVICE, PriorityClass.PROD, {labels.QOS_CLASS: QoSClass.LS.value}, command, {"requests": requests}
    )


def batch(
    mode: DemoMode,
    number: int,
    command: list[str],
    cpus: int,
    memory_mib: int,
    request_milli: int = BATCH_REQUEST_MILLI,
) -> dict[str, Any]:
    """Return a batch pod: managed it is best-effort and asks for what is lent, unmanaged it is a pod like any other."""
    name = f"batch-{mode}-{number}"
    if mode is DemoMode.UNMANAGED:
        requests = {"cpu": f"{SERVICE_REQUEST_MILLI // BATCH_PODS}m", "memory": f"{memory_mib}Mi"}
        return _pod(name, PriorityClass.PROD, {}, command, {"requests": requests})
    resources = {
        "requests": {BATCH_CPU: str(request_milli), BATCH_MEMORY: str(memory_mib * _MIB)},
        "limits": {BATCH_CPU: str(1_000 * cpus), BATCH_MEMORY: str(2 * memory_mib * _MIB)},
    }
    return _pod(name, PriorityClass.BATCH, {labels.QOS_CLASS: QoSClass.BE.value}, command, resources)


def _pod(
    name: str,
    priority: PriorityClass,
    pod_labels: dict[str, str],
    command: list[str],
    resources: dict[str, dict[str, str]],
) -> dict[str, Any]:
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {
        "name": "main",
        "image": _NO_IMAGE,
        "command": command,
        "env": [address],
        "resources": resources,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name, **pod_labels}},
        "spec": {
            "schedulerName": _SCHEDULER,
            "priorityClassName": priority.value,
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "containers": [container],
        },
    }
