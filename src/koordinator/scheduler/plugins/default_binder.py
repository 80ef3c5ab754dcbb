"""DefaultBinder posts the binding. Source: behaviour/scheduler B1."""

import asyncio

from koordinator.api.core import Pod
from koordinator.cluster import errors
from koordinator.scheduler.plugin.framework import BindPlugin
from koordinator.scheduler.plugin.status import SUCCESS, Status, error
from koordinator.scheduler.table.pod_info import PodInfo

LOOK_PAUSES_S = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses before each look at a pod whose binding was left without an answer. Together they outlast a restart
of the API server; the node stays booked meanwhile, so that its room is not given away twice."""


class DefaultBinder(BindPlugin[None]):
    """Posts `pods/binding`. An answer that got lost is found out by looking at the pod; as a pod can be bound
    only once, asking again is safe."""

    name = "DefaultBinder"

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        failure = await self._post(pod, node_name)
        for pause_s in LOOK_PAUSES_S:
            if failure is None:
                return SUCCESS
            if not _is_open(failure):
                break
            await asyncio.sleep(pause_s)
            try:
                fate = await self._fate(pod, node_name)
            except errors.ApiError:
                continue  # nobody answers yet
            if fate is not None:
                return fate
            if isinstance(failure, errors.Conflict):
                break  # refused for another reason
            failure = await self._post(pod, node_name)
        return SUCCESS if failure is None else error(failure.message)

    async def _post(self, pod: PodInfo, node_name: str) -> errors.ApiError | None:
        """Post the binding and return why it failed."""
        meta = pod.pod.metadata
        try:
            await self.handle.cluster.bind(meta.namespace, meta.name, node_name, uid=meta.uid)
        except errors.ApiError as failure:
            return failure
        return None

    async def _fate(self, pod: PodInfo, node_name: str) -> Status | None:
        """Return what became of the pod; None when it can still be bound. Raises: ApiError."""
        table = self.handle.table
        place = table.place_of(pod.uid)
        if place is not None and not place.assumed:  # the watch was faster
            return _taken(pod, table.name_of(place.row), node_name)
        meta = pod.pod.metadata
        try:
            live = await self.handle.cluster.get(Pod, meta.name, meta.namespace)
        except errors.NotFound:
            return error(f"pod {pod.key} is gone")
        if live.metadata.uid != meta.uid:
            return error(f"pod {pod.key} is gone")
        if live.spec.node_name:
            return _taken(pod, live.spec.node_name, node_name)
        if live.metadata.deletion_timestamp is not None:
            return error(f"pod {pod.key} is being deleted")
        return None


def _taken(pod: PodInfo, by: str, node_name: str) -> Status:
    """The end for a pod that is assigned: to the node that we meant, or to another."""
    return SUCCESS if by == node_name else error(f"pod {pod.key} is already assigned to node {by}")


def _is_open(failure: errors.ApiError) -> bool:
    """Return whether the pod may be bound nevertheless: nobody answered, or it is said to be bound already."""
    return failure.code >= 500 or isinstance(failure, errors.Conflict)
