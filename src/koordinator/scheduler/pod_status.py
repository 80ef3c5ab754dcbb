"""Telling users in the pod's status why it is not scheduled, without holding up the next cycle."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from koordinator import clock
from koordinator.api.core import Condition, Pod
from koordinator.cluster import errors
from koordinator.cluster.protocol import Cluster, PatchType

log = logging.getLogger(__name__)

WRITERS = 8
"""Patches under way at a time."""


def unscheduled_patch(
    pod: Pod, reason: str, message: str, nominated_node: str | None, now_s: float
) -> dict[str, Any]:
    """The status patch that sets PodScheduled to False; empty when the pod says so already.

    `nominated_node` None leaves the nomination as it is, "" clears it.
    """
    old = next((c for c in pod.status.conditions if c.type == "PodScheduled"), Condition())
    status: dict[str, Any] = {}
    if (old.status, old.reason, old.message) != ("False", reason, message):
        kept = old.last_transition_time if old.status == "False" else None
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": reason,
                "message": message,
                "lastProbeTime": None,
                "lastTransitionTime": kept or clock.rfc3339(now_s),
            }
        ]
    if nominated_node is not None and nominated_node != pod.status.nominated_node_name:
        status["nominatedNodeName"] = nominated_node or None
    if not status:
        return {}
    return {"metadata": {"uid": pod.metadata.uid}, "status": status}


class StatusWriter:
    """Writes status patches in the background: the latest per pod, so the backlog is bounded by the pods."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pending: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._filled = asyncio.Event()
        self.failure_count = 0

    def write(self, pod: Pod, patch: Mapping[str, Any]) -> None:
        if patch:
            self._pending[(pod.metadata.namespace, pod.metadata.name)] = patch
            self._filled.set()

    def discard(self, pod: Pod) -> None:
        """The pod is bound or gone: an old refusal must not be written any more."""
        self._pending.pop((pod.metadata.namespace, pod.metadata.name), None)

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(self._work(), name=f"pod status writer {number}")

    async def _work(self) -> None:
        while True:
            while not self._pending:
                self._filled.clear()
                await self._filled.wait()
            (namespace, name), patch = next(iter(self._pending.items()))
            del self._pending[(namespace, name)]
            try:
                await self._cluster.patch(
                    Pod, name, patch, namespace, patch_type=PatchType.STRATEGIC, subresource="status"
                )
            except (errors.NotFound, errors.Conflict):
                continue  # the pod is gone or another one has its name: nobody to tell
            except errors.ApiError as error:
                # The next failed attempt writes again; the event tells the user meanwhile.
                self.failure_count += 1
                facts = {"pod": f"{namespace}/{name}", "error": str(error)}
                log.warning("pod condition not written: %s", error, extra=facts)
