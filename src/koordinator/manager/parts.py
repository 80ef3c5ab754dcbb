"""Define what controllers and admission handlers of the manager get, and what the manager asks of a controller."""

import random
from typing import Protocol

import msgspec

from koordinator.api.feature_gates import FeatureGates
from koordinator.clock import Clock
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.proof import Prove
from koordinator.cluster.protocol import Cluster
from koordinator.manager.config.slo_configs import SLOConfigs
from koordinator.manager.metrics import ManagerMetrics
from koordinator.manager.options import ManagerOptions


class ManagerContext(msgspec.Struct, frozen=True, kw_only=True):
    """The state that all parts share. Informers asked of `factory` in constructors are started and waited for.

    Their caches hold pods, nodes and NodeMetrics without what no part reads (`caches`).
    """

    cluster: Cluster
    clock: Clock
    rng: random.Random
    factory: InformerFactory
    events: EventRecorder
    options: ManagerOptions
    gates: FeatureGates
    metrics: ManagerMetrics
    configs: SLOConfigs
    prove: Prove | None = None
    """Function that answers where pods would be placed; None where nobody is asked."""


class ManagerController(Protocol):
    """A loop that runs on the leader only."""

    async def run(self) -> None:
        """Work until cancelled; all caches are filled."""
        ...
