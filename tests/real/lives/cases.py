"""Random lives by name and seed: what users do to workloads, and how their pods fare."""

from collections.abc import Callable

from tests.real.lives import (
    claims,
    descheduling,
    jobs,
    koordinator,
    managing,
    scheduling,
    surroundings,
    workloads,
)
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
_SCHEDULED: dict[str, Callable[[Draw], Life]] = {
    "pods": scheduling.pods,
    "gates": scheduling.gates,
    "preemption": scheduling.preemption,
    "spreading": scheduling.spreading,
    "mixed": scheduling.mixed,
    "volumes": claims.volumes,
    "devices": claims.devices,
}
OF_CONTROLLERS, OF_SCHEDULER, OF_KOORDINATOR = tuple(_FAMILIES), tuple(_SCHEDULED), tuple(koordinator.KINDS)
OF_MANAGER, OF_DESCHEDULER = tuple(managing.KINDS), tuple(descheduling.KINDS)
NAMES = (*OF_CONTROLLERS, *OF_SCHEDULER, *OF_KOORDINATOR, *OF_MANAGER, *OF_DESCHEDULER)
"""Lives under a scheduler or a manager have a server for themselves: every node and every pod may concern all pods."""


def life_of(name: str, seed: int) -> Life:
    draw = Draw(f"{name} {seed}")
    koordinators = koordinator.KINDS | managing.KINDS | descheduling.KINDS
    life = (_FAMILIES | _SCHEDULED | koordinators)[name](draw)
    return {"name": f"{name.replace(' ', '-')}-{seed}", "nodes": 3, **life}
