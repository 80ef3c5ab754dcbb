"""`koordinator explain slow`: what the API knows of a service that suffers, in words."""

from typing import Any

import msgspec

from koordinator.api import crd, workload_profile
from koordinator.api.core import Event, Pod
from koordinator.api.groups import CustomResourceDefinition
from koordinator.api.node_metric import NodeMetric
from koordinator.api.workload_profile import PodInterference
from koordinator.cli import explain_slow
from koordinator.clock import FixedClock
from koordinator.cluster.memory import MemoryCluster
from koordinator.local import registry

OBJECTIVE = '{"targetMilliseconds":50,"prometheus":{"port":80,"metric":"t"}}'
MESSAGE = "default/web suffers (latency at 2.4 of what it bears) from default/etl, which takes cpu"


async def cluster_with(annotations: dict[str, str]) -> MemoryCluster:
    cluster = MemoryCluster(registry.in_memory(FixedClock(), checks=False))
    for manifest in crd.manifests():
        await cluster.create(CustomResourceDefinition, manifest)
    spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "x"}]}
    await cluster.create(
        Pod, {"metadata": {"name": "web", "annotations": annotations}, "spec": spec}, "default"
    )
    return cluster


async def test_the_report_and_events_are_told() -> None:
    cluster = await cluster_with({"koordinator.sh/latency-objective": OBJECTIVE})
    told = PodInterference(level=2.4, slack=-1.4, suffering_seconds=7, culprit="default/etl", resource="cpu")
    pod: dict[str, Any] = {
        "name": "web",
        "namespace": "default",
        "extensions": {workload_profile.EXTENSION: msgspec.to_builtins(told)},
    }
    await cluster.create(NodeMetric, {"metadata": {"name": "n1"}, "spec": {}})
    status = {"updateTime": "2026-01-01T00:00:00Z", "podsMetric": [pod]}
    await cluster.patch(NodeMetric, "n1", {"status": status}, subresource="status")
    for name, reason in (("web", "SlowedByNeighbour"), ("web", "Pulled"), ("other", "SlowedByNeighbour")):
        event = {
            "metadata": {"name": f"{name}.{reason.lower()}"},
            "involvedObject": {"kind": "Pod", "name": name, "namespace": "default"},
            "reason": reason,
            "message": MESSAGE,
            "lastTimestamp": "2026-01-01T00:00:01Z",
            "count": 3,
        }
        await cluster.create(Event, event, "default")

    text = "\n".join(explain_slow.lines(await explain_slow.gather(cluster, "default", "web")))

    assert "Objective: p99 within 50 ms." in text
    assert "Reported 2026-01-01T00:00:00Z: level 2.40 (1: suffers), slack -140%." in text
    assert "Named: default/etl, by cpu" in text
    assert text.count("SlowedByNeighbour ×3: default/web suffers") == 1
    assert "Pulled" not in text


async def test_what_is_missing_is_said() -> None:
    cluster = await cluster_with({})

    text = "\n".join(explain_slow.lines(await explain_slow.gather(cluster, "default", "web")))

    assert "It has no latency objective" in text
    assert "gate Interference of koordlet is off, or it is no service" in text
    assert "No event tells" in text
