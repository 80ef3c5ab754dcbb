"""Random cases for a plugin: a configuration, a cluster, and a pod to be placed, all from a seed."""

import random
from collections.abc import Callable
from typing import Any

from koordinator.clock import rfc3339
from tests.real.plugins import pods, volumes
from tests.real.plugins.ours import NOW_S
from tests.real.plugins.pods import chance, some

Json = dict[str, Any]
Draw = Callable[[random.Random], Json]

VOLUMES = ("VolumeBinding", "VolumeZone", "VolumeRestrictions", "NodeVolumeLimits")
PREEMPTION = "DefaultPreemption"
ALL = "all"
"""Name of the cases with all stock plugins together."""
NODES_MAX = 7
PODS_MAX = 14
NEVER_STOCK_DEFAULT = ("DynamicResources",)


def case_of(name: str, seed: int) -> Json:
    """The case of a plugin, of DefaultPreemption beside some filters, or of `ALL`, with this number."""
    rng = random.Random(f"{name}/{seed}")
    draws = _Draws(name, rng)
    return draws.case()


class _Draws:
    def __init__(self, name: str, rng: random.Random) -> None:
        self._name, self._rng = name, rng
        self._is_all = name in (ALL, PREEMPTION)
        self._node_names = tuple(f"node-{number}" for number in range(rng.randint(1, NODES_MAX)))
        self._count = 0
        self._popular = (pods.labels(rng), rng.choice(pods.NAMESPACES[:3]))
        """Labels and namespace of many pods."""
        self._volumes = volumes.Volumes(rng, self._node_names) if self._has(*VOLUMES) else None

    def _has(self, *names: str) -> bool:
        """Whether the field that these plugins look at is drawn."""
        return self._name in names or (self._is_all and chance(self._rng, 40))

    def case(self) -> Json:
        rng = self._rng
        nodes = [self._node(name) for name in self._node_names]
        on_nodes = [self._pod(rng.choice(self._node_names)) for _ in range(rng.randint(0, PODS_MAX))]
        pod = self._pod("")
        if self._name in ("NodeName", ALL) and chance(rng, 50 if self._name == "NodeName" else 5):
            pod["spec"]["nodeName"] = rng.choice((*self._node_names, "nobody"))
        found: Json = {
            "config": self._config(),
            "pod": pod,
            "nodes": nodes,
            "pods": on_nodes,
            "nominated": [],
            "objects": self._objects(pod),
            "preempt": self._name == PREEMPTION,
            "early": {
                "nodes": [name for name in self._node_names if chance(rng, 80)],
                "pods": [],
            },
        }
        early = set(found["early"]["nodes"])
        found["early"]["pods"] = [
            each["metadata"]["uid"]
            for each in on_nodes
            if each["spec"]["nodeName"] in early and chance(rng, 70)
        ]
        if chance(rng, 15):
            found["nominated"] = [self._nominated() for _ in range(rng.randint(1, 2))]
        return found

    def _nominated(self) -> Json:
        pod = self._pod("")
        pod["status"] = {"nominatedNodeName": self._rng.choice(self._node_names)}
        return pod

    # Nodes

    def _node(self, name: str) -> Json:
        rng = self._rng
        labels = {key: rng.choice(("a", "a", "b", "b", "1", "")) for key in pods.NODE_KEYS if chance(rng, 75)}
        if "level" in labels:
            labels["level"] = rng.choice(("0", "1", "4", "-3", "5", "x", "1.5", ""))
        if chance(rng, 85):
            labels["kubernetes.io/hostname"] = name
        allocatable = {
            "pods": rng.choice(("110", "110", "110", "10", "4", "0")),
            "cpu": "32",
            "memory": "64Gi",
        }
        if chance(rng, 50 if self._name != ALL else 15):
            allocatable |= {
                "cpu": rng.choice(("2", "3999m", "0", "16", "1")),
                "memory": rng.choice(pods.MEMORY),
            }
        if chance(rng, 5):
            allocatable.pop(rng.choice(("cpu", "memory", "pods")))
        for resource, choices in (
            ("ephemeral-storage", pods.STORAGE),
            ("hugepages-2Mi", pods.HUGE),
            *((extended, pods.COUNT) for extended in pods.EXTENDED),
        ):
            if chance(rng, 75):
                allocatable[resource] = rng.choice((*choices, choices[-1]))
        spec: Json = {}
        if self._has("TaintToleration", "NodeUnschedulable", "PodTopologySpread"):
            spec = {"taints": pods.taints(rng), "unschedulable": chance(rng, 25)}
        return {
            "metadata": {"name": name, "uid": name, "labels": labels},
            "spec": spec,
            "status": {
                "allocatable": allocatable,
                "capacity": allocatable,
                "images": self._images() if self._has("ImageLocality") else [],
            },
        }

    def _images(self) -> list[Json]:
        rng = self._rng
        names = [
            "web:latest",
            "web:1",
            "db:latest",
            "registry:5000/tool:latest",
            "registry:5000/tool:2",
            "x@sha256:0000",
        ]
        return [
            {
                "names": [name, *([f"mirror/{name}"] if chance(rng, 20) else [])],
                "sizeBytes": rng.choice(
                    (0, 1, 22 << 20, 23 << 20, 500 << 20, 1000 << 20, 5 << 30, 123456789)
                ),
            }
            for name in rng.sample(names, rng.randint(0, len(names)))
        ]

    # Pods

    def _pod(self, node: str) -> Json:
        rng, number = self._rng, self._count
        self._count += 1
        own, namespace = pods.labels(rng), rng.choice(pods.NAMESPACES[:3])
        if chance(rng, 55):
            own, namespace = dict(self._popular[0]), self._popular[1]
        has_amounts = self._has("NodeResourcesFit", "NodeResourcesBalancedAllocation")
        spec: Json = {**pods.containers(rng, odd=has_amounts), "schedulerName": "default-scheduler"}
        if self._name == PREEMPTION and chance(rng, 60):
            for each in spec["containers"]:
                each["resources"] = {"requests": {"cpu": rng.choice(("500m", "1", "2"))}}
        if node:
            spec["nodeName"] = node
        if chance(rng, 60):
            spec["priority"] = rng.choice((0, 0, 10, 100, -5))
        if not node and self._name == PREEMPTION:
            spec["priority"] = rng.choice((10, 100, 1000, 1000))
        meta: Json = {
            "name": f"pod-{number}",
            "namespace": namespace,
            "uid": f"uid-{number}",
            "labels": own,
            "creationTimestamp": rfc3339(NOW_S - 1000),
        }
        affinity: Json = {}
        if self._has("NodeAffinity", "PodTopologySpread") and chance(rng, 75):
            affinity["nodeAffinity"] = pods.node_affinity(rng, self._node_names)
        if self._has("NodeAffinity", "PodTopologySpread") and chance(rng, 40):
            spec["nodeSelector"] = pods.node_selector(rng)
        if self._has("InterPodAffinity") and chance(rng, 70 if not node else 50):
            affinity |= pods.pod_affinity(rng, own)
        if affinity:
            spec["affinity"] = affinity
        if self._has("TaintToleration", "NodeUnschedulable", "PodTopologySpread"):
            spec["tolerations"] = pods.tolerations(rng)
        if self._has("PodTopologySpread") and chance(rng, 85):
            spec["topologySpreadConstraints"] = pods.spread(rng, own)
        if self._has("NodePorts"):
            for each in (*spec["containers"], *spec.get("initContainers", ())):
                each["ports"] = pods.ports(rng)
        if self._volumes is not None:
            spec["volumes"] = self._volumes.of_pod(meta, is_on_node=bool(node))
        if self._has("PodTopologySpread") and chance(rng, 50):
            meta["ownerReferences"] = [self._owner()]
        status: Json = {"phase": "Running", "startTime": rfc3339(NOW_S - number * 7)} if node else {}
        if node and chance(rng, 10):
            meta["deletionTimestamp"] = rfc3339(NOW_S - 1)
            if chance(rng, 50):
                why = rng.choice(("PreemptionByScheduler", "TerminationByKubelet"))
                status["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": why}]
        elif node and has_amounts:
            status |= pods.resized(rng, spec)
        if not node and self._name == PREEMPTION and chance(rng, 15):
            status["nominatedNodeName"] = rng.choice(self._node_names)
            spec["preemptionPolicy"] = rng.choice(("Never", "PreemptLowerPriority"))
        return {"metadata": meta, "spec": spec, "status": status}

    def _owner(self) -> Json:
        kind, version = self._rng.choice(
            (
                ("ReplicaSet", "apps/v1"),
                ("StatefulSet", "apps/v1"),
                ("ReplicationController", "v1"),
                ("Job", "batch/v1"),
            )
        )
        return {
            "apiVersion": version,
            "kind": kind,
            "name": f"owner-{self._rng.randint(0, 1)}",
            "uid": "owner",
            "controller": chance(self._rng, 85),
        }

    # What else there is

    def _objects(self, pod: Json) -> list[Json]:
        rng = self._rng
        found: list[Json] = [] if self._volumes is None else self._volumes.objects()
        if self._has("InterPodAffinity"):
            for name in some(rng, pods.NAMESPACES, 4):
                meta = {"name": name, "labels": pods.labels(rng)}
                found.append({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        if self._has("PodTopologySpread"):
            found += self._selecting_objects(pod)
        if self._name == PREEMPTION:
            for number in range(rng.randint(0, 3)):
                meta = {"name": f"budget-{number}", "namespace": rng.choice(pods.NAMESPACES[:3])}
                spec = {"selector": pods.selector(rng)} if chance(rng, 90) else {}
                status: Json = {"disruptionsAllowed": rng.choice((0, 0, 1, 2))}
                if chance(rng, 15):
                    status["disruptedPods"] = {f"pod-{rng.randint(0, 9)}": rfc3339(NOW_S)}
                budget = {"metadata": meta, "spec": spec, "status": status}
                found.append({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", **budget})
        return found

    def _selecting_objects(self, pod: Json) -> list[Json]:
        rng, found = self._rng, []
        own = list(pod["metadata"]["labels"].items())
        namespace = pod["metadata"]["namespace"]
        for number in range(rng.randint(0, 2)):
            selector = dict(rng.sample(own, min(len(own), rng.randint(0, 2))))
            if chance(rng, 15):
                selector["app"] = "other"
            meta = {"name": f"service-{number}", "namespace": namespace}
            service = {"metadata": meta, "spec": {"selector": selector} if selector else {}}
            found.append({"apiVersion": "v1", "kind": "Service", **service})
        for kind, version in (
            ("ReplicaSet", "apps/v1"),
            ("StatefulSet", "apps/v1"),
            ("ReplicationController", "v1"),
        ):
            for number in range(2):
                if chance(rng, 50):
                    selector = pods.labels(rng) if kind == "ReplicationController" else pods.selector(rng)
                    meta = {"name": f"owner-{number}", "namespace": namespace}
                    body = {"metadata": meta, "spec": {"selector": selector}}
                    found.append({"apiVersion": version, "kind": kind, **body})
        return found

    # The configuration

    def _config(self) -> Json:
        profile: Json = {"schedulerName": "default-scheduler"}
        if self._name == PREEMPTION:
            filters = [
                "NodeResourcesFit",
                *some(self._rng, ("NodePorts", "InterPodAffinity", "PodTopologySpread"), 2),
            ]
            filters += some(self._rng, ("NodeAffinity", "TaintToleration", *VOLUMES), 2)
            profile["plugins"] = _only(*filters, PREEMPTION)
        elif self._name != ALL:
            profile["plugins"] = _only(self._name)
        else:
            profile["plugins"] = {
                "multiPoint": {"disabled": [{"name": each} for each in NEVER_STOCK_DEFAULT]}
            }
        profile["pluginConfig"] = [
            {"name": name, "args": draw(self._rng)}
            for name, draw in ARGS.items()
            if (self._is_all or name == self._name) and chance(self._rng, 60)
        ]
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [profile],
        }


def _only(*names: str) -> Json:
    enabled = [{"name": name} for name in ("PrioritySort", *names, "DefaultBinder")]
    return {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}}


def _fit_args(rng: random.Random) -> Json:
    found: Json = {}
    if chance(rng, 25):
        found["ignoredResources"] = some(rng, pods.EXTENDED, 2)
    if chance(rng, 15):
        found["ignoredResourceGroups"] = ["example.com"]
    if chance(rng, 85):
        kind = rng.choice(("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"))
        strategy: Json = {"type": kind, "resources": _resources(rng, weighted=True)}
        if kind == "RequestedToCapacityRatio":
            points = sorted(rng.sample((0, 10, 30, 50, 75, 100), rng.randint(1, 4)))
            shape = [{"utilization": at, "score": rng.randint(0, 10)} for at in points]
            strategy["requestedToCapacityRatio"] = {"shape": shape}
        if not strategy["resources"]:
            del strategy["resources"]
        found["scoringStrategy"] = strategy
    return found


def _resources(rng: random.Random, *, weighted: bool) -> list[Json]:
    names = ("cpu", "memory", "ephemeral-storage", "hugepages-2Mi", *pods.EXTENDED, "pods")
    return [
        {"name": name, **({"weight": rng.choice((1, 3, 100)) if weighted else 1} if chance(rng, 80) else {})}
        for name in some(rng, names, 4)
    ]


def _balanced_args(rng: random.Random) -> Json:
    found = [{"name": each["name"], "weight": 1} for each in _resources(rng, weighted=False)]
    return {"resources": found} if found else {}


def _affinity_args(rng: random.Random) -> Json:
    return {"addedAffinity": pods.node_affinity(rng, ("node-0", "node-1"))}


def _inter_pod_args(rng: random.Random) -> Json:
    return {
        "hardPodAffinityWeight": rng.choice((0, 1, 50, 100)),
        "ignorePreferredTermsOfExistingPods": chance(rng, 40),
    }


def _spread_args(rng: random.Random) -> Json:
    if chance(rng, 40):
        return {"defaultingType": "System"}
    found = []
    for each in pods.spread(rng, {}):
        fields = ("maxSkew", "topologyKey", "whenUnsatisfiable")
        found.append({field: each[field] for field in fields})
    return {"defaultingType": "List", "defaultConstraints": found}


ARGS: dict[str, Draw] = {
    "NodeResourcesFit": _fit_args,
    "NodeResourcesBalancedAllocation": _balanced_args,
    "NodeAffinity": _affinity_args,
    "InterPodAffinity": _inter_pod_args,
    "PodTopologySpread": _spread_args,
}

NAMES = (
    "NodeResourcesFit",
    "NodeResourcesBalancedAllocation",
    "NodeAffinity",
    "TaintToleration",
    "NodeName",
    "NodePorts",
    "NodeUnschedulable",
    "InterPodAffinity",
    "PodTopologySpread",
    "ImageLocality",
    *VOLUMES,
    PREEMPTION,
    ALL,
)
"""What cases there are: of a plugin alone, of DefaultPreemption, of all stock plugins together."""
