"""Draws pods for questions about what the agent observes."""

import random
from typing import Any

Json = dict[str, Any]

GIB = 1 << 30
_CLASSES = ("koord-prod", "koord-mid", "koord-batch", "koord-free", "gold")
QOS = ("LSE", "LSR", "LS", "BE", "SYSTEM", "x")


def amounts(chance: random.Random) -> Json:
    cpu = chance.choice(("0", "100m", "250m", "1", "2", "1500m", "7", f"{chance.randint(0, 9000)}m"))
    memory = chance.choice(("0", "1Gi", "512Mi", "100M", "1", str(chance.randint(0, 8 * GIB))))
    amounts = {"cpu": cpu, "memory": memory, "kubernetes.io/batch-cpu": "1000"}
    names = chance.sample(sorted(amounts), chance.choice((1, 2, 3)))
    return {name: amounts[name] for name in names}


def draw_pod(chance: random.Random, uid: str) -> Json:
    meta: Json = {"name": uid, "namespace": chance.choice(("a", "b")), "uid": uid}
    labels: Json = {}
    if chance.random() < 0.3:
        labels["koordinator.sh/priority-class"] = chance.choice(_CLASSES)
    if chance.random() < 0.4:
        labels["koordinator.sh/qosClass"] = chance.choice(QOS)
    if labels:
        meta["labels"] = labels
    if chance.random() < 0.1:
        meta["deletionTimestamp"] = "2024-01-01T00:00:00Z"
    requests = [{"requests": amounts(chance)} for _ in range(chance.choice((1, 1, 2)))]
    spec: Json = {
        "containers": [{"name": f"c{index}", "resources": each} for index, each in enumerate(requests)]
    }
    if chance.random() < 0.2:
        spec["initContainers"] = [{"name": "i", "resources": {"requests": amounts(chance)}}]
    if chance.random() < 0.2:
        spec["overhead"] = amounts(chance)
    if chance.random() < 0.7:
        spec["priority"] = chance.choice((9000, 9999, 10000, 7500, 5500, 3000, 0, -1))
    phase = chance.choice(("Running",) * 5 + ("Pending", "Succeeded", "Failed", ""))
    status = {"phase": phase, "qosClass": chance.choice(("Guaranteed", "Burstable", "BestEffort", ""))}
    return {"metadata": meta, "spec": spec, "status": status}
