"""Pods for tests of strategies, and where their groups are."""

import json
from collections.abc import Mapping

from koordinator.api.core import Pod
from koordinator.api.decode import from_builtins

BE, LS, PODS = "kubepods/besteffort", "kubepods/burstable", "kubepods"
CLASS_DIRS = {"BestEffort": BE, "Burstable": LS, "Guaranteed": PODS}


def pod_object(
    uid: str,
    qos: str = "",
    kube: str = "Burstable",
    *,
    limits: Mapping[str, str] | None = None,
    requests: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    containers: int = 1,
    phase: str = "Running",
) -> Pod:
    """A pod whose containers are all alike and named c0, c1, …; their ids are `<uid>-c0`, …"""
    names = [f"c{number}" for number in range(containers)]
    resources = {"limits": dict(limits or {}), "requests": dict(requests or {})}
    raw = {
        "metadata": {
            "name": uid,
            "namespace": "default",
            "uid": uid,
            "labels": {"koordinator.sh/qosClass": qos} if qos else {},
            "annotations": dict(annotations or {}),
        },
        "spec": {"containers": [{"name": name, "resources": resources} for name in names]},
        "status": {
            "phase": phase,
            "qosClass": kube,
            "containerStatuses": [
                {"name": name, "containerID": f"containerd://{uid}-{name}", "state": {"running": {}}}
                for name in names
            ],
        },
    }
    return from_builtins(raw, Pod)


def bound_to(cpus: str) -> dict[str, str]:
    """The annotation of a pod that the scheduler gave CPUs."""
    return {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": cpus})}
