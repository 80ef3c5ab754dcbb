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


def workloads(
    cluster: Cluster, factory: InformerFactory, events: EventRecorder, rng: random.Random
) -> list[Runs]:
    """Controllers of all built-in workload kinds, to be run side by side."""
    return [
        DeploymentController(cluster, factory, events),
        DaemonSetController(cluster, factory, events),
        StatefulSetController(cluster, factory, events),
        JobController(cluster, factory, events),
        CronJobController(cluster, factory, events),
        ReplicaSetController(cluster, factory, events, ReplicaSet),
        ReplicaSetController(cluster, factory, events, ReplicationController),
    ]
