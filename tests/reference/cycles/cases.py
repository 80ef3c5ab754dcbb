"""Random questions: a small cluster as Koordinator's agents and manager have it, and pods that come one by one."""

import functools
import json
import random
from typing import Any

from koordinator.clock import rfc3339
from tests.real.lives import koordinator

Json = dict[str, Any]

NAMES = ("load", "cpus", "gpus", "reservations", "all")
"""Kinds of clusters; `all` has most of what the others have."""
LEFT_OUT = ("Coscheduling", "ElasticQuota", "DynamicResources")
"""Plugins that have their own questions: what they say is the same for all nodes."""
NAME = koordinator.NAME
BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
GPU_MEMORY_GIB = 80
_SPEC = "scheduling.koordinator.sh/resource-spec"


@functools.cache
def _configuration() -> str:
    found = koordinator.configuration()
    [profile] = found["profiles"]
    for point in profile["plugins"].values():
        point["enabled"] = [each for each in point.get("enabled", ()) if each["name"] not in LEFT_OUT]
    profile["plugins"]["multiPoint"] = {"disabled": [{"name": "DynamicResources"}]}
    return json.dumps(found)


def _args(plugin: str, args: Json) -> Json:
    meta = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": f"{plugin}Args"}
    return {"name": plugin, "args": meta | args}


def question_of(name: str, seed: int, now_s: float) -> Json:
    """What both are asked; times are relative to now."""
    return _Draws(name, random.Random(f"{name}/{seed}"), now_s).question()


class _Draws:
    def __init__(self, name: str, rng: random.Random, now_s: float) -> None:
        self._rng, self._now_s = rng, now_s
        self._parts = [each for each in NAMES[:-1] if rng.random() < 0.8] if name == "all" else [name]
        self._nodes = [f"node-{number}" for number in range(rng.randint(1, 5))]
        self._objects: list[Json] = []
        self._count = 0
        self._free: dict[str, dict[str, int]] = {}
        """By node: what pods and reservations of the beginning may still take."""
        self._cpus: dict[str, list[int]] = {}
        self._gpus: dict[str, list[int]] = {}
        """By node: CPUs, and minors of whole cards, that nobody holds."""

    def _has(self, name: str) -> bool:
        return name in self._parts

    def _chance(self, percent: int) -> bool:
        return self._rng.random() * 100 < percent

    def _ago(self, seconds: float) -> str:
        return rfc3339(self._now_s - seconds)

    def question(self) -> Json:
        for name in self._nodes:
            self._node(name)
        for number in range(self._rng.randint(0, 6)):
            pod = self._pod(f"old-{number}", is_new=False)
            if self._takes(pod["spec"]["nodeName"], pod["spec"]["containers"]):
                self._hold(pod["spec"]["nodeName"], pod["metadata"], pod["spec"]["containers"])
                self._objects.append({"apiVersion": "v1", "kind": "Pod", **pod})
        if self._has("load"):
            for name in self._nodes:
                self._metric(name)
        if self._has("reservations"):
            for number in range(self._rng.randint(1, 4)):
                found = self._reservation(f"reservation-{number}", self._rng.choice(self._nodes))
                if found is not None:
                    self._objects.append(found)
        pods = [self._new(number) for number in range(self._rng.randint(2, 8))]
        return {"config": self._config(), "objects": self._objects, "pods": pods}

    def _new(self, number: int) -> Json:
        # A Reservation that it has just placed is load to the original, until it is started anew.
        if self._has("reservations") and not self._has("load") and self._chance(20):
            found = self._reservation(f"new-{number}", "")
            assert found is not None
            return found
        return {"kind": "Pod", **self._pod(f"pod-{number}")}

    def _config(self) -> Json:
        rng = self._rng
        found: Json = json.loads(_configuration())
        [profile] = found["profiles"]
        args = {each["name"]: each["args"] for each in profile["pluginConfig"]}
        if self._has("load"):
            load = args["LoadAwareScheduling"]
            load["filterExpiredNodeMetrics"] = self._chance(30)
            load["usageThresholds"] = {"cpu": rng.choice((0, 55, 65, 80)), "memory": rng.choice((0, 60, 95))}
            if self._chance(30):
                load["prodUsageThresholds"] = {"cpu": rng.choice((30, 55))}
            if self._chance(30):
                load["scoreAccordingProdUsage"] = True
            if self._chance(30):
                load["aggregated"] = {
                    "usageThresholds": {"cpu": rng.choice((50, 65))},
                    "usageAggregationType": rng.choice(("p95", "p50")),
                    "usageAggregatedDuration": "5m0s",
                    "scoreAggregationType": rng.choice(("p95", "p99")),
                    "scoreAggregatedDuration": "5m0s",
                }
        if self._has("cpus") and self._chance(50):
            weights = [{"name": "cpu", "weight": rng.choice((1, 3))}, {"name": "memory", "weight": 1}]
            strategy = {"type": rng.choice(("LeastAllocated", "MostAllocated")), "resources": weights}
            numa = {
                "defaultCPUBindPolicy": rng.choice(("FullPCPUs", "SpreadByPCPUs")),
                "scoringStrategy": strategy,
                "numaScoringStrategy": strategy,
            }
            profile["pluginConfig"].append(_args("NodeNUMAResource", numa))
        if self._has("gpus") and self._chance(40):
            names = ("koordinator.sh/gpu-memory-ratio", "koordinator.sh/gpu-core", "koordinator.sh/rdma")
            weights = [{"name": each, "weight": rng.choice((1, 2))} for each in names if self._chance(70)]
            strategy = {"type": rng.choice(("LeastAllocated", "MostAllocated")), "resources": weights}
            if weights:
                profile["pluginConfig"].append(_args("DeviceShare", {"scoringStrategy": strategy}))
        return found

    def _takes(self, node: str, containers: list[Json]) -> bool:
        """Whether a node has room for something more; it is taken."""
        free = self._free[node]
        wanted = {
            key: int(value.removesuffix("Gi"))
            for key, value in containers[0]["resources"]["requests"].items()
        }
        if any(value > free[key] for key, value in wanted.items()):
            return False
        for key, value in wanted.items():
            free[key] -= value
        return True

    def _hold(self, node: str, meta: Json, containers: list[Json]) -> None:
        """Give CPUs and a card to who asks for them, or may."""
        resources = containers[0]["resources"]
        cpus, gpus = self._cpus.get(node, []), self._gpus.get(node, [])
        count = int(resources["requests"].get("cpu", "0"))
        is_bound = meta["labels"].get("koordinator.sh/qosClass") == "LSR" and count <= len(cpus)
        if is_bound and meta["annotations"].get(_SPEC):
            held = ",".join(str(cpus.pop(0)) for _ in range(count))
            meta["annotations"]["scheduling.koordinator.sh/resource-status"] = json.dumps({"cpuset": held})
        if gpus and self._chance(40):
            asked = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
            if not self._takes(node, [{"resources": {"requests": asked}}]):
                return
            for part in ("requests", "limits"):
                resources[part] = {**resources[part], **asked}
            amounts = {**asked, "koordinator.sh/gpu-memory": f"{GPU_MEMORY_GIB}Gi"}
            found = {"gpu": [{"minor": gpus.pop(0), "resources": amounts}]}
            meta["annotations"]["scheduling.koordinator.sh/device-allocated"] = json.dumps(found)

    # Nodes

    def _node(self, name: str) -> Json:
        rng = self._rng
        cores = rng.choice((8, 16, 16, 32))
        allocatable = {
            "cpu": str(cores),
            "memory": f"{4 * cores}Gi",
            "pods": "110",
            BATCH_CPU: str(cores * rng.choice((0, 250, 500))),
            BATCH_MEMORY: f"{cores}Gi",
        }
        meta: Json = {
            "name": name,
            "uid": name,
            "labels": {"kubernetes.io/hostname": name, "pool": rng.choice("ab")},
            "annotations": {},
        }
        if self._has("cpus"):
            self._topology(name, cores, meta)
        if self._has("gpus") and self._chance(80):
            allocatable |= self._devices(name)
        self._free[name] = {key: int(value.removesuffix("Gi")) for key, value in allocatable.items()}
        if self._chance(15):
            kept = rng.choice(({"resources": {"cpu": "1", "memory": "2Gi"}}, {"reservedCPUs": "0-1"}))
            meta["annotations"]["node.koordinator.sh/reservation"] = json.dumps(kept)
            self._free[name]["cpu"] -= 2
            self._free[name]["memory"] -= 2
        spec: Json = {}
        if self._chance(10):
            spec["taints"] = [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": meta,
            "spec": spec,
            "status": {"allocatable": allocatable, "capacity": allocatable},
        }
        self._objects.append(body)
        return body

    def _topology(self, name: str, cores: int, node_meta: Json) -> None:
        """CPUs in cores of two threads, over one or two NUMA nodes."""
        rng = self._rng
        numa_nodes = rng.choice((1, 2, 2))
        threads = rng.choice((1, 2, 2))
        self._cpus[name] = list(range(2, cores))
        detail = []
        for cpu in range(cores):
            core = cpu // threads
            detail.append(
                {
                    "id": cpu,
                    "core": core,
                    "socket": (node := core * numa_nodes // (cores // threads)),
                    "node": node,
                }
            )
        annotations = {"node.koordinator.sh/cpu-topology": json.dumps({"detail": detail})}
        if self._chance(20):
            annotations["kubelet.koordinator.sh/cpu-manager-policy"] = json.dumps(
                {"policy": "static", "options": {"full-pcpus-only": "true"}, "reservedCPUs": "0-1"}
            )
        if self._chance(40):
            node_meta["labels"]["node.koordinator.sh/numa-topology-policy"] = rng.choice(
                ("SingleNUMANode", "Restricted")
            )
        if self._chance(20):
            node_meta["labels"]["node.koordinator.sh/cpu-bind-policy"] = rng.choice(
                ("FullPCPUsOnly", "SpreadByPCPUs")
            )
        if self._chance(20):
            node_meta["labels"]["node.koordinator.sh/numa-allocate-strategy"] = rng.choice(
                ("MostAllocated", "LeastAllocated", "DistributeEvenly")
            )
        if self._chance(15):
            ratio = rng.choice((1.2, 1.5, 2))
            node_meta["annotations"]["node.koordinator.sh/resource-amplification-ratio"] = json.dumps(
                {"cpu": ratio}
            )
        zones = []
        for number in range(numa_nodes):
            amounts = {"cpu": str(cores // numa_nodes), "memory": f"{4 * cores // numa_nodes}Gi"}
            resources = [
                {"name": key, "capacity": value, "allocatable": value, "available": value}
                for key, value in amounts.items()
            ]
            zones.append({"name": f"node-{number}", "type": "Node", "resources": resources})
        self._objects.append(
            {
                "apiVersion": "topology.node.k8s.io/v1alpha1",
                "kind": "NodeResourceTopology",
                "metadata": {"name": name, "annotations": annotations},
                "topologyPolicies": ["None"],
                "zones": zones,
            }
        )

    def _devices(self, name: str) -> Json:
        """GPUs, perhaps with RDMA cards beside; what the node has of them."""
        rng = self._rng
        count, devices = rng.choice((1, 2, 4, 8)), []
        for minor in range(count):
            devices.append(
                {
                    "type": "gpu",
                    "id": f"{name}-gpu-{minor}",
                    "minor": minor,
                    "health": not self._chance(7),
                    "resources": {
                        "koordinator.sh/gpu-core": "100",
                        "koordinator.sh/gpu-memory": f"{GPU_MEMORY_GIB}Gi",
                        "koordinator.sh/gpu-memory-ratio": "100",
                    },
                    "topology": self._place(minor, count),
                }
            )
        self._gpus[name] = [each["minor"] for each in devices if each["health"]]
        healthy = len(self._gpus[name])
        found = {
            "koordinator.sh/gpu-core": str(100 * healthy),
            "koordinator.sh/gpu-memory": f"{GPU_MEMORY_GIB * healthy}Gi",
            "koordinator.sh/gpu-memory-ratio": str(100 * healthy),
            "koordinator.sh/gpu": str(100 * healthy),
        }
        if self._chance(50):
            cards = rng.choice((1, 2))
            for minor in range(cards):
                devices.append(
                    {
                        "type": "rdma",
                        "id": f"{name}-rdma-{minor}",
                        "minor": minor,
                        "health": True,
                        "resources": {"koordinator.sh/rdma": "100"},
                        "topology": self._place(minor, cards),
                    }
                )
            found["koordinator.sh/rdma"] = str(100 * cards)
        self._objects.append(
            {
                "apiVersion": "scheduling.koordinator.sh/v1alpha1",
                "kind": "Device",
                "metadata": {"name": name},
                "spec": {"devices": devices},
            }
        )
        return found

    def _place(self, minor: int, count: int) -> Json:
        half = 2 * minor // count
        return {
            "socketID": half,
            "nodeID": half,
            "pcieID": str(4 * minor // count),
            "busID": f"0000:{minor:02x}:00.0",
        }

    def _metric(self, name: str) -> None:
        rng = self._rng
        if self._chance(10):
            return

        def usage(share: float) -> Json:
            return {"resources": {"cpu": f"{int(16_000 * share)}m", "memory": f"{int(64 * share * 1024)}Mi"}}

        base = rng.random()
        pods = [
            {
                "name": each["metadata"]["name"],
                "namespace": "default",
                "priority": rng.choice(("koord-prod", "koord-batch", "")),
                "podUsage": usage(0.1 * rng.random()),
            }
            for each in self._objects
            if each["kind"] == "Pod" and each["spec"].get("nodeName") == name and self._chance(80)
        ]
        status = {
            "updateTime": self._ago(rng.choice((5, 30, 90, 280, 400))),
            "nodeMetric": {
                "nodeUsage": usage(base),
                "systemUsage": usage(0.05),
                "aggregatedNodeUsages": [
                    {
                        "duration": "5m0s",
                        "usage": {
                            key: usage(min(1.0, base * more))
                            for key, more in (("p50", 0.9), ("p90", 1.1), ("p95", 1.2), ("p99", 1.3))
                        },
                    }
                ]
                if self._chance(70)
                else [],
            },
            "podsMetric": pods,
        }
        self._objects.append(
            {
                "apiVersion": "slo.koordinator.sh/v1alpha1",
                "kind": "NodeMetric",
                "metadata": {"name": name},
                "spec": {
                    "metricCollectPolicy": {"reportIntervalSeconds": 60, "aggregateDurationSeconds": 300}
                },
                "status": status,
            }
        )

    # Pods

    def _pod(self, name: str, *, is_new: bool = True) -> Json:
        rng = self._rng
        meta: Json = {
            "name": name,
            "namespace": "default",
            "uid": name,
            "labels": {"app": rng.choice(("web", "db"))},
            "annotations": {},
            "creationTimestamp": self._ago(600),
        }
        spec: Json = {"schedulerName": NAME}
        kind = rng.choice(("LS", "LS", "LSR", "BE", "none"))
        cpus = rng.choice((1, 2, 2, 3, 4, 8))
        requests = {"cpu": str(cpus), "memory": f"{rng.choice((1, 2, 8))}Gi"}
        if kind == "BE":
            requests = {BATCH_CPU: str(1000 * cpus), BATCH_MEMORY: "1Gi"}
            spec |= {"priorityClassName": "koord-batch", "priority": 5500}
        elif kind != "none":
            spec |= {"priorityClassName": "koord-prod", "priority": rng.choice((9000, 9500, 9500, 9900))}
        limits = dict(requests) if kind in ("LSR", "BE") or self._chance(50) else {}
        if kind != "none":
            meta["labels"]["koordinator.sh/qosClass"] = kind
        if self._has("cpus"):
            self._bind_cpus(kind, meta)
        if is_new:
            if self._has("gpus") and kind != "BE" and self._chance(60):
                devices = self._asked_devices()
                if "koordinator.sh/rdma" in devices and self._chance(50):
                    joint: Json = {"deviceTypes": ["gpu", "rdma"]}
                    if self._chance(50):
                        joint["requiredScope"] = "SamePCIe"
                    meta["annotations"]["scheduling.koordinator.sh/device-joint-allocate"] = json.dumps(joint)
                requests |= devices
                limits |= devices
            if self._chance(10):
                spec["nodeSelector"] = {"pool": rng.choice("ab")}
            if self._has("reservations") and kind != "BE" and self._chance(25):
                wanted = rng.choice(({}, {"name": "reservation-0"}, {"reservationSelector": {"tier": "a"}}))
                meta["annotations"]["scheduling.koordinator.sh/reservation-affinity"] = json.dumps(wanted)
            if self._chance(10):
                spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
        else:
            spec["nodeName"] = rng.choice(self._nodes)
        spec["containers"] = [{"name": "main", "resources": {"requests": requests, "limits": limits}}]
        self._count += 1
        status: Json = {"startTime": self._ago(1000 - self._count)}  # no two alike: who runs longest is kept
        if not is_new:
            since = self._ago(rng.choice((3, 40, 200, 500)))
            conditions = [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": since},
                {"type": "Initialized", "status": "True", "lastTransitionTime": since},
            ]
            status |= {"phase": "Running", "conditions": conditions}
        return {"metadata": meta, "spec": spec, "status": status}

    def _bind_cpus(self, kind: str, meta: Json) -> None:
        rng = self._rng
        if kind == "LSR" and self._chance(70):
            policy = rng.choice(("FullPCPUs", "SpreadByPCPUs", "ConstrainedBurst"))
            found = {"requiredCPUBindPolicy": policy}
            if self._chance(25):
                found["preferredCPUExclusivePolicy"] = rng.choice(("PCPULevel", "NUMANodeLevel"))
            meta["annotations"][_SPEC] = json.dumps(found)
        if self._chance(15):
            policy = rng.choice(("SingleNUMANode", "Restricted"))
            meta["annotations"]["scheduling.koordinator.sh/numa-topology-spec"] = json.dumps(
                {"numaTopologyPolicy": policy}
            )

    def _asked_devices(self) -> Json:
        rng = self._rng
        found = rng.choice(
            (
                {"koordinator.sh/gpu": rng.choice(("30", "50", "100", "200"))},
                {
                    "koordinator.sh/gpu-core": "50",
                    "koordinator.sh/gpu-memory-ratio": rng.choice(("50", "30")),
                },
                {"koordinator.sh/gpu-core": "20", "koordinator.sh/gpu-memory": rng.choice(("8Gi", "20Gi"))},
                {"nvidia.com/gpu": rng.choice(("1", "2", "4"))},
                {"koordinator.sh/gpu-memory": "40Gi"},
            )
        )
        if self._chance(20):
            found = dict(found) | {"koordinator.sh/rdma": rng.choice(("50", "100"))}
        return dict(found)

    # Reservations

    def _reservation(self, name: str, node: str) -> Json | None:
        """One that is available on a node, None where that has no room; without a node, one to be placed."""
        rng = self._rng
        cpus = rng.choice((2, 4, 6))
        requests = {"cpu": str(cpus), "memory": "4Gi"}
        limits = dict(requests)
        spec: Json = {
            "template": {
                "spec": {
                    "schedulerName": NAME,
                    "containers": [{"name": "main", "resources": {"requests": requests, "limits": limits}}],
                }
            },
            "owners": [{"labelSelector": {"matchLabels": {"app": rng.choice(("web", "db"))}}}],
            "allocateOnce": self._chance(50),
            "ttl": "24h0m0s",
        }
        if self._chance(60):
            spec["allocatePolicy"] = rng.choice(("Aligned", "Restricted"))
        if node and not self._takes(node, spec["template"]["spec"]["containers"]):
            return None
        marks = {"tier": rng.choice("ab")}
        if self._chance(50):
            marks["koordinator.sh/qosClass"] = "LSR"
        meta: Json = {
            "name": name,
            "uid": name,
            "labels": marks,
            "annotations": {_SPEC: json.dumps({"requiredCPUBindPolicy": "FullPCPUs"})},
            "creationTimestamp": self._ago(500),
        }
        found = {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Reservation",
            "metadata": meta,
            "spec": spec,
            "status": {},
        }
        if not node:
            if self._has("gpus") and self._chance(40):
                for part in (requests, limits):
                    part |= {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
            return found
        others = (each for each in self._objects if each["kind"] == "Reservation")
        if not any(each["status"]["nodeName"] == node for each in others):
            # The original gives owners CPUs of any reservation that they match.
            self._hold(node, meta, spec["template"]["spec"]["containers"])
        found["status"] = {
            "phase": "Available",
            "nodeName": node,
            "allocatable": spec["template"]["spec"]["containers"][0]["resources"]["requests"],
            "conditions": [
                {"type": "Scheduled", "status": "True", "reason": "Scheduled"},
                {"type": "Ready", "status": "True", "reason": "Available"},
            ],
        }
        return found
