"""What parts of the manager share, made for a test of one part."""

import random

from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster
from koordinator.manager.config.slo_configs import SLOConfigs
from koordinator.manager.metrics import ManagerMetrics
from koordinator.manager.options import ManagerOptions
from koordinator.manager.parts import ManagerContext


def shared_parts(
    cluster: Cluster, *, gates: str = "", options: ManagerOptions | None = None
) -> ManagerContext:
    """The parts on `cluster`; nothing runs yet (`shared.factory.start`, `shared.events.run`)."""
    options = options or ManagerOptions()
    rng = random.Random(options.seed)
    factory = InformerFactory(cluster, rng)
    events = EventRecorder(cluster, "koord-manager", rng=rng)
    return ManagerContext(
        cluster=cluster,
        clock=cluster.clock,
        rng=rng,
        factory=factory,
        events=events,
        options=options,
        gates=FeatureGates.of(Component.MANAGER, gates),
        metrics=ManagerMetrics(cluster.clock),
        configs=SLOConfigs(factory, events, namespace=options.config_namespace, name=options.slo_config_name),
    )
