"""The controllers that bring users' workloads to life."""

import random
from typing import Protocol

from koordinator.api.apps import ReplicaSet, ReplicationController
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster
from koordinator.local.controllers.cronjob import CronJobController
from koordinator.local.controllers.daemonset import DaemonSetController
from koordinator.local.controllers.deployment import DeploymentController
from koordinator.local.controllers.job import JobController
from koordinator.local.controllers.replicaset import ReplicaSetController
from koordinator.local.controllers.statefulset import StatefulSetController


class Runs(Protocol):
    """Something that works until it is cancelled."""

    async def run(self) -> None: ...


def workloads(cluster: Cluster, factory: InformerFactory, rng: random.Random) -> list[Runs]:
    """Controllers of all built-in workload kinds, to be run side by side with the recorders of their events.

    Each tells its events under its own name, as `kubectl describe` shows it.
    """
    recorders: list[EventRecorder] = []

    def events(component: str) -> EventRecorder:
        recorder = EventRecorder(cluster, component, rng=random.Random(rng.getrandbits(64)))
        recorders.append(recorder)
        return recorder

    controllers: list[Runs] = [
        DeploymentController(cluster, factory, events("deployment-controller")),
        ReplicaSetController(cluster, factory, events("replicaset-controller"), ReplicaSet),
        ReplicaSetController(cluster, factory, events("replication-controller"), ReplicationController),
        StatefulSetController(cluster, factory, events("statefulset-controller")),
        DaemonSetController(cluster, factory, events("daemonset-controller")),
        JobController(cluster, factory, events("job-controller")),
        CronJobController(cluster, factory, events("cronjob-controller")),
    ]
    return [*recorders, *controllers]
