"""Parts of questions that are drawn from nothing."""

import random
from typing import Any

Json = dict[str, Any]
Chance = random.Random

QOS = ("", "LS", "BE", "BE", "LSR")
KUBE = ("Guaranteed", "Burstable", "BestEffort")
GIB = 2**30


def maybe(chance: Chance, likely: float, **members: Any) -> Json:
    return members if chance.random() < likely else {}


def range_of(cpus: list[int]) -> str:
    return ",".join(map(str, cpus))
