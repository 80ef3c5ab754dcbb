"""The informers of a scheduler: pods, nodes, and whatever plugins watch."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterable
from typing import Any, TypeVar

from koordinator.api import normalization
from koordinator.api.core import Node, Pod
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.meta import Object
from koordinator.cluster import errors
from koordinator.cluster.informer import Informer
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.plugin.framework import Watch

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

SYNC_POLL_S = 0.1


class Caches:
    """Local copies of what the scheduler decides on; one informer per view serves all who watch. `rng` seeds the
    jitter of reconnects."""

    def __init__(self, cluster: Cluster, gates: FeatureGates, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._transforms = normalization.by_view(normalization.PodSteps.of(gates))
        self.pods = self._informer(Pod)
        self.nodes = self._informer(Node)
        self._informers: dict[type[Object], Informer[Any]] = {Node: self.nodes, Pod: self.pods}

    def watch(self, watches: Iterable[Watch[Any]]) -> None:
        """Keep plugins informed, too: before the queue when they are added before its handlers are."""
        for watch in watches:
            informer = self._informers.get(watch.view)
            if informer is None:
                informer = self._informers[watch.view] = self._informer(watch.view)
            informer.add_handler(watch.on_add, watch.on_update, watch.on_delete)

    def live(self, pod: Pod) -> Pod | None:
        """Return the pod as the API said last; None when it is gone or another one has its name."""
        meta = pod.metadata
        found = self.pods.get(meta.name, meta.namespace)
        return found if found is not None and found.metadata.uid == meta.uid else None

    def start(self, group: asyncio.TaskGroup) -> list[asyncio.Task[Any]]:
        """Follow the cluster in tasks of `group`, until they are cancelled."""
        return [group.create_task(each.run(), name=each.guard.name) for each in self.informers]

    async def synced(self) -> None:
        """Until all are filled for the first time."""
        for informer in self.informers:
            await _first_list(informer)

    @property
    def informers(self) -> list[Informer[Any]]:
        """All, pods and nodes first."""
        return list(self._informers.values())

    def _informer(self, view: type[T]) -> Informer[T]:
        """Its objects are as everyone should see them: with current names of resources, for one."""
        rng = random.Random(self._rng.getrandbits(64))
        return Informer(self._cluster, view, rng=rng, transform=self._transforms.get(view))


async def _first_list(informer: Informer[Any]) -> None:
    """Until an informer is filled, or the API says that it does not serve such objects (a CRD that is not
    installed): the plugin then has no opinion until it is."""
    while not informer.synced.is_set():
        if isinstance(informer.guard.last_error, errors.NotFound):
            resource = informer.view.resource.qualified
            log.warning("resource not served: going on without", extra={"resource": resource})
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SYNC_POLL_S):
                await informer.synced.wait()
