"""Random lives by name and seed: what users do to workloads, and how their pods fare."""

from collections.abc import Callable

from tests.real.lives import jobs, surroundings, workloads
from tests.real.lives.drawing import Draw, Life

_FAMILIES: dict[str, Callable[[Draw], Life]] = {
    "deployment": workloads.deployment,
    "replicaset": workloads.replicaset,
    "statefulset": workloads.statefulset,
    "daemonset": workloads.daemonset,
    "job": jobs.job,
    "cronjob": jobs.cronjob,
    "disruption": surroundings.disruption,
    "service": surroundings.service,
    "owners": surroundings.owners,
    "quota": surroundings.quota,
    "nodes": surroundings.nodes,
}
NAMES = tuple(_FAMILIES)


def life_of(name: str, seed: int) -> Life:
    draw = Draw(f"{name} {seed}")
    life = _FAMILIES[name](draw)
    return {"name": f"{name.replace(' ', '-')}-{seed}", "nodes": 3, **life}
