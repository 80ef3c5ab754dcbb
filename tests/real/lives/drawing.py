"""What random lives are made of: a generator with words, objects, and acts that many lives have."""

import random
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Life = dict[str, Any]
Step = list[Any]

IMAGES = ("one", "two", "three")


class Draw(random.Random):
    """Words for what is drawn."""

    def often(self) -> bool:
        return self.random() < 0.6

    def seldom(self) -> bool:
        return self.random() < 0.25

    def some(self, **values: Any) -> Json:
        """Each of the members, or not; one of its values."""
        return {name: self.choice(found) for name, found in values.items() if self.random() < 0.5}


def body_of(kind: str, name: str, spec: Json | None = None, **metadata: Any) -> Json:
    groups = {
        "Deployment": "apps/v1",
        "ReplicaSet": "apps/v1",
        "StatefulSet": "apps/v1",
        "DaemonSet": "apps/v1",
    }
    groups |= {"PriorityClass": "scheduling.k8s.io/v1", "StorageClass": "storage.k8s.io/v1"}
    groups |= dict.fromkeys(("DeviceClass", "ResourceSlice", "ResourceClaim"), "resource.k8s.io/v1")
    groups |= {"Job": "batch/v1", "CronJob": "batch/v1", "PodDisruptionBudget": "policy/v1"}
    groups |= {"ElasticQuota": "scheduling.sigs.k8s.io/v1alpha1"}
    groups |= {"ElasticQuotaProfile": "quota.koordinator.sh/v1alpha1"}
    groups |= {"ClusterColocationProfile": "config.koordinator.sh/v1alpha1"}
    groups |= dict.fromkeys(
        ("Reservation", "Device", "PodMigrationJob"), "scheduling.koordinator.sh/v1alpha1"
    )
    groups |= {"NodeMetric": "slo.koordinator.sh/v1alpha1"}
    groups |= {"NodeResourceTopology": "topology.node.k8s.io/v1alpha1"}
    body = {"apiVersion": groups.get(kind, "v1"), "kind": kind, "metadata": {"name": name, **metadata}}
    return body if spec is None else {**body, "spec": spec}


def template(image: str = "one", app: str = "web", **spec: Any) -> Json:
    containers = [{"name": "c", "image": image}]
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": containers, **spec}}


def selector(app: str = "web") -> Json:
    return {"matchLabels": {"app": app}}


def new_image(kind: str, draw: Draw) -> Step:
    """Rolls back, too, when it was there before."""
    containers = [{"name": "c", "image": draw.choice(IMAGES)}]
    return ["patch", kind, "web", {"spec": {"template": {"spec": {"containers": containers}}}}]


def scale(kind: str, draw: Draw, most: int = 6) -> Step:
    return ["patch", kind, "web", {"spec": {"replicas": draw.randint(0, most)}}]


def kubelet(draw: Draw, *fates: str) -> Step:
    rules: list[Json] = []
    if draw.often():
        rules.append({"image": draw.choice(IMAGES), "do": draw.choice(fates or ("hold", "run", "bind"))})
        if draw.seldom():
            rules[0]["below"] = draw.randint(1, 3)
    return ["kubelet", rules]


def leave(kind: str, draw: Draw) -> Step:
    return ["delete", kind, "web", draw.choice(("Foreground", "Background", "Orphan"))]


def acts(draw: Draw, count: int, *acts: Callable[[], Step]) -> list[Step]:
    return [draw.choice(acts)() for _ in range(count)]
