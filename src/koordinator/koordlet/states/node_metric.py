"""Keep what the manager asks us to report. Source: behaviour/koordlet-observe 8.2."""

import random
from typing import ClassVar, NoReturn

from koordinator.api.meta import Object, Resource
from koordinator.api.node_metric import NodeMetric, NodeMetricSpec
from koordinator.cluster.informer import Informer
from koordinator.koordlet.parts import Shared


class NodeMetricPolicy(Object, frozen=True, kw_only=True):
    """A NodeMetric without its status, which is our own and large."""

    resource: ClassVar[Resource] = NodeMetric.resource

    spec: NodeMetricSpec = NodeMetricSpec()


class NodeMetricState:
    """Keeps `view.metric_spec`; None while there is no NodeMetric, also after it was deleted."""

    name = "NodeMetric"
    is_required = False

    def __init__(self, shared: Shared) -> None:
        self._view = shared.view
        self._informer = Informer(
            shared.cluster,
            NodeMetricPolicy,
            rng=random.Random(shared.rng.getrandbits(64)),
            field_selector=f"metadata.name={shared.config.node_name}",
        )
        self.synced = self._informer.synced
        self._informer.add_handler(self._seen, lambda _, found: self._seen(found), self._deleted)

    @property
    def trouble(self) -> str:
        """Return why the API server tells nothing."""
        return "" if self.synced.is_set() else str(self._informer.guard.last_error or "no answer yet")

    async def run(self) -> NoReturn:
        """Follow the NodeMetric."""
        await self._informer.run()

    def _seen(self, found: NodeMetricPolicy) -> None:
        self._view.metric_spec = found.spec

    def _deleted(self, _: NodeMetricPolicy) -> None:
        self._view.metric_spec = None
