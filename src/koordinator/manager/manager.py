"""The manager put together: its controllers and admission handlers on one cluster.

`Manager.run` works until cancelled. Where its admission handlers are served is the caller's choice: over
HTTPS (`webhooks.server`) or in process.
"""

import asyncio
import random
from collections.abc import Mapping

import msgspec

from koordinator.api import slo_config
from koordinator.cluster.events import EventRecorder
from koordinator.cluster.informer import InformerFactory
from koordinator.cluster.protocol import Cluster
from koordinator.manager.colocation_config import ColocationConfigSource
from koordinator.manager.nodemetric import NodeMetricController
from koordinator.manager.noderesource.controller import NodeResourceController
from koordinator.manager.nodeslo_controller import NodeSLOConfigSource, NodeSLOController
from koordinator.manager.webhooks import pod_mutating
from koordinator.manager.webhooks.review import Handler

COMPONENT = "koord-manager"


class ManagerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between installations; names and defaults are those of koord-manager's flags."""

    config_namespace: str = slo_config.CONFIG_NAMESPACE
    slo_config_name: str = slo_config.CONFIG_NAME
    skip_mutating_resources: bool = False  # feature gate ColocationProfileSkipMutatingResources
    seed: int = 0


class Manager:
    """All loops of the manager. `handlers` maps a URL path to an admission handler."""

    def __init__(self, cluster: Cluster, options: ManagerOptions = ManagerOptions()) -> None:  # noqa: B008
        rng = random.Random(options.seed)
        self._factory = InformerFactory(cluster, rng)
        self._events = EventRecorder(cluster, COMPONENT, rng=rng)
        self.config = ColocationConfigSource(
            self._factory,
            self._events,
            namespace=options.config_namespace,
            name=options.slo_config_name,
        )
        self.nodeslo_config = NodeSLOConfigSource(
            self._factory,
            self._events,
            namespace=options.config_namespace,
            name=options.slo_config_name,
        )
        self.nodeslo = NodeSLOController(cluster, self._factory, self.nodeslo_config)
        self.nodemetric = NodeMetricController(cluster, self._factory, self.config)
        self.noderesource = NodeResourceController(cluster, self._factory, self.config, rng)
        self.handlers: Mapping[str, Handler] = {
            pod_mutating.PATH: pod_mutating.PodMutatingHandler(
                self._factory, rng, skip_resources=options.skip_mutating_resources
            )
        }
        self.synced = asyncio.Event()
        """Set once every cache is filled: from then on the handlers may be asked."""

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._factory.start(group)
            group.create_task(self._events.run(), name="manager events")
            await self._factory.wait_synced()
            await self.config.ready()
            self.synced.set()
            group.create_task(self.nodemetric.run(), name="nodemetric")
            group.create_task(self.nodeslo.run(), name="nodeslo")
            group.create_task(self.noderesource.run(), name="noderesource")
