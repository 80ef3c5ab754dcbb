"""Random nodes, pods and owners of pods for stories about topology."""

import random

from koordinator.api.apps import ReplicaSet, ReplicationController, StatefulSet
from koordinator.api.meta import Object
from tests.scheduler.topology.reference import HOSTNAME, PREFERRED, REQUIRED, Json

ZONE, RACK = "topology.kubernetes.io/zone", "rack"
KEYS = (ZONE, RACK, HOSTNAME)
NAMESPACES = ("one", "two", "three")
OWNER_VIEWS: dict[str, type[Object]] = {
    "ReplicaSet": ReplicaSet,
    "StatefulSet": StatefulSet,
    "ReplicationController": ReplicationController,
}


class Writer:
    """Random objects from few words, so that they often have to do with each other."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def some(self, chance: float) -> bool:
        return self.rng.random() < chance

    def labels(self) -> dict[str, str]:
        rng = self.rng
        found = {"app": rng.choice("ab"), "tier": rng.choice("xy"), "version": rng.choice("12")}
        return {key: value for key, value in found.items() if self.some(0.85)}

    def selector(self) -> Json | None:
        rng = self.rng
        app, tier = rng.choice("ab"), rng.choice("xy")
        return rng.choice(
            [
                {"matchLabels": {"app": app}},
                {"matchLabels": {"app": app}},
                {"matchLabels": {"app": app, "tier": tier}},
                {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]},
                {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": [tier]}]},
                {"matchExpressions": [{"key": "tier", "operator": "Exists"}]},
                {
                    "matchLabels": {"tier": tier},
                    "matchExpressions": [{"key": "app", "operator": "DoesNotExist"}],
                },
                {},
                None,
            ]
        )

    def term(self) -> Json:
        rng = self.rng
        term: Json = {"topologyKey": rng.choice(KEYS)}
        if (selector := self.selector()) is not None:
            term["labelSelector"] = selector
        if self.some(0.2):
            term["namespaces"] = rng.sample(NAMESPACES, rng.choice((1, 2)))
        if self.some(0.3):
            term["namespaceSelector"] = rng.choice(({}, {"matchLabels": {"team": rng.choice("rs")}}))
        return term

    def affinity(self) -> Json:
        rng = self.rng
        found: Json = {}
        for kind in ("podAffinity", "podAntiAffinity"):
            part: Json = {}
            if self.some(0.3):
                part[REQUIRED] = [self.term() for _ in range(rng.choice((1, 1, 2)))]
            if self.some(0.3):
                part[PREFERRED] = [
                    {"weight": rng.choice((1, 7, 100)), "podAffinityTerm": self.term()}
                    for _ in range(rng.choice((1, 2)))
                ]
            if part:
                found[kind] = part
        if self.some(0.15):
            wanted = {"key": "disk", "operator": rng.choice(("In", "NotIn")), "values": ["ssd"]}
            found["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}}
        return found

    def constraints(self) -> list[Json]:
        rng = self.rng
        found = {}
        for _ in range(rng.choice((1, 1, 2, 3))):
            each: Json = {
                "maxSkew": rng.choice((1, 1, 2, 3)),
                "topologyKey": rng.choice(KEYS),
                "whenUnsatisfiable": rng.choice(("DoNotSchedule", "ScheduleAnyway")),
            }
            if (selector := self.selector()) is not None:
                each["labelSelector"] = selector
            if each["whenUnsatisfiable"] == "DoNotSchedule" and self.some(0.3):
                each["minDomains"] = rng.choice((1, 2, 4))
            if self.some(0.3):
                each["nodeAffinityPolicy"] = rng.choice(("Honor", "Ignore"))
            if self.some(0.3):
                each["nodeTaintsPolicy"] = rng.choice(("Honor", "Ignore"))
            if self.some(0.2):
                each["matchLabelKeys"] = ["version"]
            found[each["topologyKey"], each["whenUnsatisfiable"]] = each
        return list(found.values())

    def pod(self, name: str) -> Json:
        rng = self.rng
        meta: Json = {"name": name, "namespace": rng.choice(NAMESPACES), "uid": name, "labels": self.labels()}
        spec: Json = {"containers": [], "schedulerName": "koord-scheduler"}
        if self.some(0.4) and (affinity := self.affinity()):
            spec["affinity"] = affinity
        if self.some(0.5):
            spec["topologySpreadConstraints"] = self.constraints()
        if self.some(0.2):
            spec["nodeSelector"] = {"disk": "ssd"}
        if self.some(0.2):
            spec["tolerations"] = [{"key": "t", "operator": "Exists"}]
        if self.some(0.5):
            kind = rng.choice(tuple(OWNER_VIEWS))
            group = "v1" if kind == "ReplicationController" else "apps/v1"
            ref = {"apiVersion": group, "kind": kind, "name": "own", "uid": "own", "controller": True}
            meta["ownerReferences"] = [ref]
        return {"metadata": meta, "spec": spec}

    def node(self, name: str) -> Json:
        rng = self.rng
        labels = {
            HOSTNAME: name if self.some(0.9) else "node-0",
            ZONE: rng.choice("uvw"),
            RACK: rng.choice("12"),
            "disk": rng.choice(("ssd", "hdd")),
        }
        labels = {key: value for key, value in labels.items() if self.some(0.85)}
        taints = [{"key": "t", "effect": rng.choice(("NoSchedule", "PreferNoSchedule"))}]
        return {
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints if self.some(0.4) else [], "unschedulable": self.some(0.15)},
            "status": {"allocatable": {"cpu": "4", "pods": "99"}},
        }
