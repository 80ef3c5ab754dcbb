"""The informers of a scheduler: pods, nodes, and whatever plugins watch; a new leader waits until they hold what the
last one did. Source: behaviour/scheduler A5 (gate SyncBarrier).

A write of ours that comes back through the watch proves that everything written before it has come, too.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from koordinator import clock
from koordinator.api import normalization
from koordinator.api.core import Node, Pod
from koordinator.api.feature_gates import FeatureGates
from koordinator.api.meta import Object
from koordinator.api.pod_labels import is_terminated
from koordinator.cluster import errors
from koordinator.cluster.backoff import new_rng
from koordinator.cluster.informer import Informer
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.plugin.framework import Watch
from koordinator.scheduler.table.nodes import NodeTable

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

POLL_S = 0.1


class Caches:
    """Local copies of what the scheduler decides on; one informer per view serves all who watch. `rng` seeds the
    jitter of reconnects."""

    def __init__(self, cluster: Cluster, gates: FeatureGates, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._transforms = normalization.by_view(normalization.PodSteps.of(gates))
        self.pods = self._informer(Pod)
        self.nodes = self._informer(Node)
        self._informers: dict[_Key, Informer[Any]] = {(Node, "", ""): self.nodes, (Pod, "", ""): self.pods}

    def watch(self, watches: Iterable[Watch[Any]]) -> None:
        """Keep plugins informed, too: before the queue when they are added before its handlers are."""
        for watch in watches:
            key = (watch.view, watch.namespace, watch.name)
            informer = self._informers.get(key)
            if informer is None:
                informer = self._informers[key] = self._informer(*key)
            informer.add_handler(watch.on_add, watch.on_update, watch.on_delete)

    def find(self, view: type[T]) -> Informer[T] | None:
        """Return the informer of all objects of a kind, where somebody watches them."""
        return self._informers.get((view, "", ""))

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
        for (_, _, name), informer in self._informers.items():
            await _first_list(informer, _ABSENT_OR_SECRET if name else errors.NotFound)

    @property
    def informers(self) -> list[Informer[Any]]:
        """Return all, pods and nodes first."""
        return list(self._informers.values())

    def _informer(self, view: type[T], namespace: str = "", name: str = "") -> Informer[T]:
        """Its objects are as everyone should see them: with current names of resources, for one."""
        rng = new_rng(self._rng)
        selector = f"metadata.name={name}" if name else ""
        transform = self._transforms.get(view)
        return Informer(self._cluster, view, namespace, rng=rng, field_selector=selector, transform=transform)


_Key = tuple[type[Object], str, str]
"""Subject of an informer: the view, and namespace and name where it is one object."""
_ABSENT_OR_SECRET = (errors.NotFound, errors.Forbidden)


async def _first_list(
    informer: Informer[Any], without: type[errors.ApiError] | tuple[type[errors.ApiError], ...]
) -> None:
    """Until an informer is filled, or the API answers with an error of the kinds `without` (a CRD that is not
    installed, say): the plugin then has no opinion until it is."""
    while not informer.synced.is_set():
        if isinstance(informer.guard.last_error, without):
            facts = {"resource": informer.view.resource.qualified, "reason": str(informer.guard.last_error)}
            log.warning("resource not served: continuing without it", extra=facts)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await informer.synced.wait()


ANNOTATION_PREFIX = "scheduling.koordinator.sh/sync-barrier-"


class BarrierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The pod whose annotation is written, and how long to wait before scheduling anyway."""

    namespace: str = "kube-system"
    name: str = "koord-scheduler-sync-barrier"
    lease: str = "koord-scheduler"
    timeout_s: float = 60.0


def order_of(pod: Pod) -> tuple[int, str]:
    """Return what tells which of two states is later: a longer resourceVersion, equally long ones by their text."""
    version = pod.metadata.resource_version
    return len(version), version


async def pass_barrier(cluster: Cluster, caches: Caches, table: NodeTable, options: BarrierOptions) -> bool:
    """Wait; False when there is no barrier pod, or it took too long (which is logged)."""
    facts = {"pod": f"{options.namespace}/{options.name}"}
    try:
        async with asyncio.timeout(options.timeout_s):
            written = await _write(cluster, options)
            if written is None:
                log.info("sync barrier skipped: its pod does not exist", extra=facts)
                return False
            await _until(lambda: _has_seen(caches, written))
            await _until(lambda: _counts(table, _last_scheduled(caches)))
    except TimeoutError:
        log.warning("sync barrier not passed in time", extra=facts | {"timeout_s": options.timeout_s})
        return False
    log.info("sync barrier passed", extra=facts)
    return True


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 (as upstream: the caches tell nobody)
        await asyncio.sleep(POLL_S)


async def _write(cluster: Cluster, options: BarrierOptions) -> Pod | None:
    """Return the barrier pod after our write; None when there is no such pod."""
    while True:
        # Nine digits, as upstream writes them.
        now = clock.rfc3339_micro(cluster.clock.now()).replace("Z", "000Z")
        patch = {"metadata": {"annotations": {ANNOTATION_PREFIX + options.lease: now}}}
        try:
            return await cluster.patch(Pod, options.name, patch, options.namespace)
        except errors.NotFound:
            return None
        except errors.ApiError as error:
            log.warning("sync barrier not written: %s", error)
            await asyncio.sleep(POLL_S)


def _has_seen(caches: Caches, written: Pod) -> bool:
    found = caches.pods.get(written.metadata.name, written.metadata.namespace)
    return found is not None and order_of(found) >= order_of(written)


def _last_scheduled(caches: Caches) -> Pod | None:
    """Return the pod on a node that changed last."""
    assigned = (pod for pod in caches.pods.objects.values() if pod.spec.node_name and not is_terminated(pod))
    return max(assigned, key=order_of, default=None)


def _counts(table: NodeTable, pod: Pod | None) -> bool:
    if pod is None:
        return True
    place = table.place_of(pod.metadata.uid)
    return place is not None and not place.assumed and order_of(place.pod.pod) >= order_of(pod)
