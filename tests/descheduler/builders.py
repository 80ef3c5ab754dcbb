"""Pods, nodes and jobs in one line each."""

from typing import Any

from koordinator import clock
from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.node_metric import NodeMetric
from koordinator.api.pod_migration import PodMigrationJob
from koordinator.descheduler.measurements import MeasuredNode, measured
from koordinator.descheduler.plugin import Handle
from koordinator.descheduler.pod_filter import PodPredicate

NOW_S = 1_700_000_000.0


def pod(name: str, node: str = "", cpu: str = "0", owner: str = "rs", **spec: Any) -> Pod:
    owners = [{"kind": "ReplicaSet", "name": owner, "uid": f"uid-{owner}", "controller": True}]
    body = {
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": f"uid-{name}",
            "creationTimestamp": clock.rfc3339(NOW_S - 60),
            "ownerReferences": owners if owner else [],
        },
        "spec": {
            "nodeName": node,
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            **spec,
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return from_builtins(body, Pod)


def node(name: str, cpu: str = "10", memory: str = "10Gi", **spec: Any) -> Node:
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110"}
    body = {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": allocatable}}
    return from_builtins(body, Node)


def metric(pod_cpu_milli: dict[str, int], system_milli: int = 0) -> MeasuredNode:
    """Usage of pods of the namespace `default`, and of the system."""
    pods = [
        {"namespace": "default", "name": name, "podUsage": {"resources": {"cpu": f"{milli}m"}}}
        for name, milli in pod_cpu_milli.items()
    ]
    status = {
        "updateTime": clock.rfc3339(NOW_S),
        "nodeMetric": {"systemUsage": {"resources": {"cpu": f"{system_milli}m"}}},
        "podsMetric": pods,
    }
    return measured(from_builtins({"status": status}, NodeMetric))


def job(name: str, of: Pod, phase: str = "", **spec: Any) -> PodMigrationJob:
    ref = {"namespace": of.metadata.namespace, "name": of.metadata.name, "uid": of.metadata.uid}
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": clock.rfc3339(NOW_S)}
    body = {"metadata": metadata, "spec": {"podRef": ref, **spec}, "status": {"phase": phase}}
    return from_builtins(body, PodMigrationJob)


def handle(may_evict: PodPredicate = lambda _: True, now: PodPredicate = lambda _: True) -> Handle:
    """The handle of a profile whose filters answer so."""
    return Handle(may_evict=may_evict, may_evict_now=now)
