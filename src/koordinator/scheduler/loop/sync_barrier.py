"""A new leader waits until its caches hold what the last one did. Source: behaviour/scheduler A5 (gate SyncBarrier).

A write of ours that comes back through the watch proves that everything written before it has come, too.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from koordinator import clock
from koordinator.api.core import Pod
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.loop.caches import Caches
from koordinator.scheduler.table.nodes import NodeTable

log = logging.getLogger(__name__)

ANNOTATION_PREFIX = "scheduling.koordinator.sh/sync-barrier-"
POLL_S = 0.1


class BarrierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The pod whose annotation is written, and how long to wait before scheduling anyway."""

    namespace: str = "kube-system"
    name: str = "koord-scheduler-sync-barrier"
    lease: str = "koord-scheduler"
    timeout_s: float = 60.0


def is_reached(version: str, wanted: str) -> bool:
    """Return whether a resourceVersion is at or after another: the longer text is later, equal ones by their text."""
    return (len(version), version) >= (len(wanted), wanted)


async def pass_barrier(cluster: Cluster, caches: Caches, table: NodeTable, options: BarrierOptions) -> bool:
    """Wait; False when there is no barrier pod, or it took too long (which is logged)."""
    facts = {"pod": f"{options.namespace}/{options.name}"}
    try:
        async with asyncio.timeout(options.timeout_s):
            version = await _write(cluster, options)
            if version is None:
                log.info("sync barrier skipped: its pod does not exist", extra=facts)
                return False
            await _until(lambda: _has_seen(caches, options, version))
            await _until(lambda: _counts(table, _last_scheduled(caches)))
    except TimeoutError:
        log.warning("sync barrier not passed in time", extra=facts | {"timeout_s": options.timeout_s})
        return False
    log.info("sync barrier passed", extra=facts)
    return True


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 (as upstream: the caches tell nobody)
        await asyncio.sleep(POLL_S)


async def _write(cluster: Cluster, options: BarrierOptions) -> str | None:
    """Version of the barrier pod after our write; None when there is no such pod."""
    while True:
        # Nine digits, as upstream writes them.
        now = clock.rfc3339_micro(cluster.clock.now()).replace("Z", "000Z")
        patch = {"metadata": {"annotations": {ANNOTATION_PREFIX + options.lease: now}}}
        try:
            pod = await cluster.patch(Pod, options.name, patch, options.namespace)
        except errors.NotFound:
            return None
        except errors.ApiError as error:
            log.warning("sync barrier not written: %s", error)
            await asyncio.sleep(POLL_S)
        else:
            return pod.metadata.resource_version


def _has_seen(caches: Caches, options: BarrierOptions, version: str) -> bool:
    found = caches.pods.get(options.name, options.namespace)
    return found is not None and is_reached(found.metadata.resource_version, version)


def _last_scheduled(caches: Caches) -> Pod | None:
    """Return the pod on a node that changed last."""
    assigned = (
        pod
        for pod in caches.pods.objects.values()
        if pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed")
    )
    return max(
        assigned,
        key=lambda pod: (len(pod.metadata.resource_version), pod.metadata.resource_version),
        default=None,
    )


def _counts(table: NodeTable, pod: Pod | None) -> bool:
    if pod is None:
        return True
    place = table.place_of(pod.metadata.uid)
    if place is None or place.assumed:
        return False
    return is_reached(place.pod.pod.metadata.resource_version, pod.metadata.resource_version)
