"""A cluster to which random things happen, the same ones for the same seed."""

import random
from typing import Any

from koordinator.api.core import Node, Pod
from koordinator.api.decode import from_builtins
from koordinator.api.meta import Object
from koordinator.api.node_metric import NodeMetric
from koordinator.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from koordinator.clock import FixedClock, rfc3339
from koordinator.scheduler.config import config
from koordinator.scheduler.engine.engine import Engine
from koordinator.scheduler.engine.results import Placed, Unplaced
from koordinator.scheduler.plugins.built_in import installed_plugins
from koordinator.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from koordinator.scheduler.table.pod_info import PodInfo
from tests.scheduler.world import node, pod

ZONES = ("a", "b", "c")
SHIPPED_WITH_LOAD_FILTER = config.decode(
    {
        "profiles": [
            {
                "schedulerName": "koord-scheduler",
                "plugins": {
                    "filter": {"enabled": [{"name": "LoadAwareScheduling"}]},
                    "score": {"enabled": [{"name": "LoadAwareScheduling", "weight": 1}]},
                },
                "pluginConfig": [
                    {
                        "name": "LoadAwareScheduling",
                        "args": {"usageThresholds": {"cpu": 60}, "filterExpiredNodeMetrics": True},
                    }
                ],
            }
        ]
    }
)


HARD, SOFT = "DoNotSchedule", "ScheduleAnyway"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _app(*names: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "app", "operator": "In", "values": list(names)}]}


def spread_over(key: str, when: str) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": when,
        "labelSelector": _app("spread", "soft", "shy"),
        "nodeTaintsPolicy": "Honor",
    }


def _near(key: str, *names: str) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": _app(*names)}


def _claim_volume(number: int) -> dict[str, Any]:
    return {"name": f"v{number}", "persistentVolumeClaim": {"claimName": f"claim-{number}"}}


class Drama:
    """An engine and the random things that happen to it; two with one seed see the same."""

    def __init__(self, seed: int, classes_max: int, *, nodes: int = 12, is_uniform: bool = False) -> None:
        self.is_uniform = is_uniform
        self.rng = random.Random(seed)
        self.clock = FixedClock(1_700_000_000.0)
        self.engine = Engine(
            SHIPPED_WITH_LOAD_FILTER,
            self.clock,
            seed=seed,
            classes_max=classes_max,
            plugins=installed_plugins(),
        )
        [self.profile] = self.engine.profiles.values()
        self.placed: list[PodInfo] = []
        self.history: list[str] = []
        self._numbers = iter(range(1_000_000))
        for number in range(nodes):
            self.set_node(number)
        body: dict[str, Any] = {"metadata": {"name": "local"}, "volumeBindingMode": "WaitForFirstConsumer"}
        self.deliver(from_builtins({**body, "provisioner": "kubernetes.io/no-provisioner"}, StorageClass))

    @property
    def table(self) -> Any:
        return self.engine.table

    def classes(self) -> list[dict[str, Any]]:
        """Shapes of pods; their order is that of `random_pod`."""
        preferred = [
            {
                "weight": 30,
                "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
            }
        ]
        image = {
            "containers": [
                {
                    "name": "c",
                    "image": "app:v1",
                    "ports": [{"containerPort": 80, "hostPort": 80}],
                    "resources": {"requests": {"cpu": "100m"}},
                }
            ]
        }
        return [
            {"cpu": "500m", "memory": "1Gi"},
            {"cpu": "2", "memory": "512Mi", "priority": 9500},
            {
                "requests": {"kubernetes.io/batch-cpu": "1000", "kubernetes.io/batch-memory": "1Gi"},
                "priority": 5500,
            },
            {"cpu": "100m", "nodeSelector": {"zone": "b"}},
            {
                "cpu": "300m",
                "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
            },
            {"cpu": "300m", "tolerations": [{"operator": "Exists"}]},
            image,
            {"requests": {}},
            {
                "cpu": "100m",
                "labels": {"app": "spread"},
                "topologySpreadConstraints": [spread_over("zone", HARD)],
            },
            {
                "cpu": "100m",
                "labels": {"app": "soft"},
                "topologySpreadConstraints": [
                    spread_over("zone", SOFT),
                    spread_over("kubernetes.io/hostname", SOFT),
                ],
            },
            {
                "cpu": "100m",
                "labels": {"app": "lonely"},
                "affinity": {"podAntiAffinity": {_REQUIRED: [_near("kubernetes.io/hostname", "lonely")]}},
            },
            {
                "cpu": "100m",
                "labels": {"app": "social"},
                "affinity": {"podAffinity": {_REQUIRED: [_near("zone", "social")]}},
            },
            {
                "cpu": "100m",
                "labels": {"app": "shy"},
                "affinity": {
                    "podAntiAffinity": {
                        _PREFERRED: [{"weight": 7, "podAffinityTerm": _near("zone", "spread", "soft")}]
                    }
                },
            },
            {"cpu": "100m", "labels": {"app": "lonely"}},
            {"cpu": "100m", "volumes": [_claim_volume(0)]},
            {"cpu": "100m", "volumes": [_claim_volume(1), _claim_volume(2)]},
            {"cpu": "100m", "volumes": [{"name": "disk", "gcePersistentDisk": {"pdName": "one"}}]},
        ]

    def random_pod(self, number: int) -> PodInfo:
        return self.pod_of(f"pod-{number}", self.rng.choice(self.classes()))

    def pod_of(self, name: str, shape: dict[str, Any]) -> PodInfo:
        body = pod(name, **shape)
        body["metadata"]["uid"] = f"uid-{name}"
        body["metadata"]["labels"] = body["spec"].pop("labels", {})
        return PodInfo.of(from_builtins(body, Pod), self.table.registry)

    def set_node(self, number: int) -> None:
        """A node comes or changes; in a uniform cluster all are alike, so that most choices are ties."""
        rng = self.rng
        if self.is_uniform:
            zone = {"zone": ZONES[number % len(ZONES)]}
            self.table.set_node(from_builtins(node(f"node-{number}", cpu="8", labels=zone), Node))
            return
        body = node(
            f"node-{number}",
            cpu=rng.choice(("2", "4", "8")),
            memory=rng.choice(("4Gi", "16Gi")),
            pods=rng.choice((4, 20)),
            labels={"zone": rng.choice(ZONES)} if rng.random() < 0.8 else {},
            taints=rng.choice(
                (
                    [],
                    [],
                    [{"key": "x", "effect": "NoSchedule"}],
                    [{"key": "y", "effect": "PreferNoSchedule"}],
                )
            ),
            unschedulable=rng.random() < 0.1,
            extra={"kubernetes.io/batch-cpu": "3000", "kubernetes.io/batch-memory": "4Gi"},
        )
        if rng.random() < 0.3:
            body["status"]["images"] = [{"names": ["app:v1"], "sizeBytes": 400 << 20}]
        self.table.set_node(from_builtins(body, Node))

    def node_with_batch(self, number: int) -> Node:
        """A node of a uniform cluster that takes batch pods, too."""
        extra = {"kubernetes.io/batch-cpu": "90000", "kubernetes.io/batch-memory": "99Gi"}
        body = node(f"node-{number}", cpu="16", extra=extra, labels={"zone": ZONES[number % len(ZONES)]})
        return from_builtins(body, Node)

    def set_metric(self) -> None:
        rng = self.rng
        usage = {"cpu": f"{rng.randrange(0, 6000)}m", "memory": f"{rng.randrange(0, 8)}Gi"}
        body = {
            "metadata": {"name": f"node-{rng.randrange(14)}"},
            "status": {
                "updateTime": rfc3339(self.clock.now_s - rng.choice((0, 100, 170))),
                "nodeMetric": {"nodeUsage": {"resources": usage}},
            },
        }
        plugin = next(p for p in self.profile.plugins if isinstance(p, LoadAwareScheduling))
        metric = from_builtins(body, NodeMetric)
        plugin.set_metric(metric, metric)

    def deliver(self, obj: Object) -> None:
        """All plugins that watch such objects hear of it."""
        for handle in self.engine.handles:
            for watch in handle.watches:
                if watch.view is type(obj):
                    watch.on_add(obj)

    def set_storage(self) -> None:
        rng = self.rng
        number = rng.randrange(3)
        spec = {"storageClassName": "local", "accessModes": ["ReadWriteOncePod"]}
        if rng.random() < 0.5:
            meta: dict[str, Any] = {"name": f"claim-{number}", "namespace": "default"}
            if rng.random() < 0.4:
                meta["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
                spec["volumeName"] = f"volume-{number}"
            self.deliver(from_builtins({"metadata": meta, "spec": spec}, PersistentVolumeClaim))
            return
        term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [rng.choice(ZONES)]}]}
        body = {
            "metadata": {"name": f"volume-{number}"},
            "spec": {**spec, "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}},
            "status": {"phase": rng.choice(("Available", "Released"))},
        }
        self.deliver(from_builtins(body, PersistentVolume))

    def remove_pod(self) -> None:
        if self.placed:
            gone = self.placed.pop(self.rng.randrange(len(self.placed)))
            self.table.unassign(gone.uid)

    def step(self) -> None:
        """Something happens, most often a pod to be placed."""
        rng = self.rng
        self.clock.now_s += rng.choice((0.0, 0.0, 1.0, 20.0))
        what = rng.random()
        if what < 0.70:
            self.place()
        elif what < 0.80 and self.placed:
            self.remove_pod()
        elif what < 0.84:
            self.set_storage()
        elif what < 0.90:
            self.set_metric()
        elif what < 0.97:
            self.set_node(rng.randrange(14))
        else:
            self.table.remove_node(f"node-{rng.randrange(14)}")

    def place(self, shape: dict[str, Any] | None = None) -> None:
        """Try to place a pod, of a random shape unless one is given."""
        number = next(self._numbers)
        info = self.random_pod(number) if shape is None else self.pod_of(f"pod-{number}", shape)
        key = self.profile.class_key(info)
        result = self.engine.cycle.run(self.profile, info, key, 1, self.clock.now_s)
        if isinstance(result, Placed):
            self.placed.append(info)
            self.history.append(f"{info.key} on {result.node_name}")
        else:
            assert isinstance(result, Unplaced)
            if result.nominated_node is not None:
                self.engine.nominations.set(info, result.nominated_node)
            refusal = f"{result.status.message} by {sorted(result.rejected_by)}"
            self.history.append(f"{info.key}: {refusal}, nominated to {result.nominated_node}")
