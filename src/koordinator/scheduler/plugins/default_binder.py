"""DefaultBinder posts the binding; DefaultPreBind stores what plugins wrote. Source: spec 03, D1."""

import logging

from koordinator.api.core import Pod
from koordinator.cluster import errors
from koordinator.scheduler.framework import BindPlugin, PreBindPlugin
from koordinator.scheduler.pod_info import PodInfo
from koordinator.scheduler.pod_patch import PodPatch
from koordinator.scheduler.status import SUCCESS, Status, error

log = logging.getLogger(__name__)


class DefaultBinder(BindPlugin[None]):
    name = "DefaultBinder"

    async def bind(self, pod: PodInfo, node_name: str) -> Status:
        meta = pod.pod.metadata
        try:
            await self.handle.cluster.bind(meta.namespace, meta.name, node_name, uid=meta.uid)
        except errors.ApiError as failure:
            return error(failure.message)
        return SUCCESS


class DefaultPreBind(PreBindPlugin[None]):
    """Writes one patch with the results of all PreBind plugins before it; none when there are none.

    The cluster client retries conflicts of other writers, throttling and broken connections.
    """

    name = "DefaultPreBind"

    async def pre_bind(self, state: None, pod: PodInfo, node_name: str, patch: PodPatch) -> Status:
        body = patch.body()
        if not body:
            return SUCCESS
        meta = pod.pod.metadata
        if meta.uid:
            body["metadata"]["uid"] = meta.uid
        try:
            patched = await self.handle.cluster.patch(Pod, meta.name, body, meta.namespace)
        except errors.ApiError as failure:
            return error(failure.message)
        if patched.metadata.deletion_timestamp is not None:
            return error("pod is being deleted")
        return SUCCESS
