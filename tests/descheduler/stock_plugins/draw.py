"""Share what random cases and arguments are drawn from. All times are seconds before `NOW_S`."""

import random
from typing import Any

from koordinator import clock

NOW_S = 1_700_000_000
AGES_S = (0, 1, 59, 60, 61, 600, 3599, 3600, 3601, 90_000)
NAMESPACES = ("default", "other", "kube-system")
GPU = "nvidia.com/gpu"
KINDS = ("ReplicaSet", "DaemonSet", "Job", "StatefulSet")
REASONS = (
    "",
    "NodeAffinity",
    "CrashLoopBackOff",
    "ImagePullBackOff",
    "OOMKilled",
    "Error",
    "Completed",
    "Evicted",
)
REQUIRED, PREFERRED = (f"{kind}DuringSchedulingIgnoredDuringExecution" for kind in ("required", "preferred"))

Json = dict[str, Any]


class Draw(random.Random):
    """A source of random objects; `plugin` says which parts of them matter."""

    def __init__(self, plugin: str, number: int) -> None:
        super().__init__(f"{plugin} {number}")
        self.plugin = plugin

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def some(self, known: Any, most: int = 2) -> list[Any]:
        return self.sample(list(known), self.randint(0, min(most, len(known))))

    def time(self) -> str:
        """A moment; a few are to come, but not for RemoveFailedPods, which takes such a pod for one of any age."""
        to_come = () if self.plugin == "RemoveFailedPods" else (-60,)
        return clock.rfc3339(NOW_S - self.choice((*AGES_S, *to_come)))


def selector(draw: Draw) -> Json | None:
    """A label selector, or none."""
    kind = draw.random()
    if kind < 0.05:
        return None
    if kind < 0.1:
        return {}
    if kind < 0.7:
        return {"matchLabels": {"app": draw.choice(("web", "db"))}}
    operator = draw.choice(("In", "NotIn", "Exists", "DoesNotExist"))
    values = {"values": [draw.choice(("front", "web", "db"))]} if operator in ("In", "NotIn") else {}
    own = {"matchLabels": {"app": "web"}} if draw.chance(0.3) else {}
    return {
        **own,
        "matchExpressions": [{"key": draw.choice(("app", "tier")), "operator": operator, **values}],
    }
