"""Nodes and pods of the churn: a bit of everything that a scheduler has to keep count of."""

import random
from typing import Any

NAMESPACE = "churn"
ZONES = ("zone-a", "zone-b", "zone-c")
SCHEDULER = "koord-scheduler"
APPS = 20
TEMPLATES = 400

Json = dict[str, Any]


def node_name(number: int) -> str:
    return f"node-{number}"


def node(number: int, rng: random.Random) -> Json:
    """A machine of one of three sizes; some are tainted."""
    cores = rng.choice((16, 32, 64))
    amounts = {
        "cpu": str(cores),
        "memory": f"{cores * 4}Gi",
        "ephemeral-storage": "500Gi",
        "pods": "110",
        "kubernetes.io/batch-cpu": str(cores * 400),
        "kubernetes.io/batch-memory": f"{cores}Gi",
    }
    taints = [{"key": "dedicated", "value": "infra", "effect": "NoSchedule"}] if rng.random() < 0.05 else []
    name = node_name(number)
    labels = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": ZONES[number % len(ZONES)],
        "disk": rng.choice(("ssd", "hdd")),
    }
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {"allocatable": amounts, "capacity": dict(amounts)},
    }


def node_patch(action: str, rng: random.Random) -> tuple[Json, str]:
    """What operators do to nodes: a patch, and the subresource that it is for."""
    if action in ("cordon", "uncordon"):
        return {"spec": {"unschedulable": action == "cordon" or None}}, ""
    if action == "relabel":
        labels = {"disk": rng.choice(("ssd", "hdd")), "topology.kubernetes.io/zone": rng.choice(ZONES)}
        return {"metadata": {"labels": labels}}, ""
    return {"status": {"allocatable": {"cpu": str(rng.choice((16, 32, 48, 64)))}}}, "status"


def metric(number: int) -> Json:
    return {"metadata": {"name": node_name(number)}, "spec": {}}


def usage(number: int, now: str, rng: random.Random) -> Json:
    """The status of a NodeMetric."""
    used = {"cpu": f"{rng.randrange(1_000, 9_000)}m", "memory": f"{rng.randrange(2, 30)}Gi"}
    return {"updateTime": now, "nodeMetric": {"nodeUsage": {"resources": used}}}


def pod(name: str, rng: random.Random) -> Json:
    """A pod of a random kind."""
    kind = rng.choices(
        ("service", "batch", "apart", "together", "spread", "port", "picky", "tolerant", "huge"),
        (30, 40, 6, 3, 8, 4, 5, 3, 1),
    )[0]
    app = f"app-{rng.randrange(APPS)}"
    labels = {"app": app, "kind": kind}
    spec: Json = {"schedulerName": SCHEDULER}
    cpu, memory = rng.choice((100, 250, 500, 1000, 2000)), rng.choice((128, 512, 1024, 4096))
    requests = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
    container: Json = {"name": "main", "image": f"{app}:v1", "resources": {"requests": requests}}
    same = {"labelSelector": {"matchLabels": {"app": app, "kind": kind}}}
    if kind == "batch":
        labels["koordinator.sh/qosClass"] = "BE"
        amounts = {"kubernetes.io/batch-cpu": str(cpu), "kubernetes.io/batch-memory": f"{memory}Mi"}
        container["resources"] = {"requests": amounts, "limits": dict(amounts)}
        spec["priorityClassName"] = "koord-batch"
    elif kind == "apart":
        term = {**same, "topologyKey": "kubernetes.io/hostname"}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    elif kind == "together":
        near = {**same, "topologyKey": "topology.kubernetes.io/zone"}
        preference = {"weight": 50, "podAffinityTerm": near}
        spec["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}
    elif kind == "spread":
        key = rng.choice(("topology.kubernetes.io/zone", "kubernetes.io/hostname"))
        rule = rng.choice(("DoNotSchedule", "ScheduleAnyway"))
        spec["topologySpreadConstraints"] = [
            {**same, "topologyKey": key, "maxSkew": 5, "whenUnsatisfiable": rule}
        ]
    elif kind == "port":
        container["ports"] = [{"containerPort": 80, "hostPort": 8000 + rng.randrange(20)}]
    elif kind == "picky":
        spec["nodeSelector"] = {"disk": "ssd"}
        spec["priorityClassName"] = "koord-prod"
    elif kind == "tolerant":
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    elif kind == "huge":
        requests["cpu"] = "100"
    spec["containers"] = [container]
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": spec,
        "status": {"phase": "Pending"},
    }


def templates(rng: random.Random) -> list[Json]:
    """What the workloads of the cluster make their pods from."""
    return [pod("", rng) for _ in range(TEMPLATES)]


def of_template(template: Json, name: str) -> Json:
    """A pod to create; it shares with the template what nobody changes."""
    return {**template, "metadata": {**template["metadata"], "name": name}}


def probes(rng: random.Random) -> list[Json]:
    """Pods to ask two schedulers about; they are never created."""
    bodies = [pod(f"probe-{number}", rng) for number in range(60)]
    for number, body in enumerate(bodies):
        body["metadata"]["uid"] = f"probe-{number}"
    return bodies
