"""Recounts ResourceQuotas when objects go, end or shrink; what comes is charged when it is written
(`admission.quota`).

Source: kube-controller-manager's resource quota controller. It counts from caches; here the registry counts what is
stored in one step, so that no charge of the same moment is lost.
"""

from collections.abc import Awaitable, Callable, Iterable

from koordinator.api import kinds
from koordinator.api.core import Pod
from koordinator.api.groups import ResourceQuota
from koordinator.api.meta import Object, Resource
from koordinator.cluster.controller import Controller, ControllerLoop
from koordinator.cluster.informer import InformerFactory, Key, key_of
from koordinator.local.admission.quota import counted_kinds

RESYNC_S = 300.0
"""Time for which a pod that does not end within its grace may count: no event tells when that is over."""
TOGETHER_S = 0.2
"""Changes within this time are counted at once: objects mostly go by the dozen."""

Recount = Callable[[str, str], Awaitable[None]]
"""Counts a quota anew, by namespace and name."""


class ResourceQuotaController(ControllerLoop):
    """The loop; its keys are quotas. It follows the kinds that quotas name, from the first that does."""

    def __init__(
        self, factory: InformerFactory, resources: Callable[[], Iterable[Resource]], recount: Recount
    ) -> None:
        self._factory = factory
        self._resources = resources
        self._recount = recount
        self._followed: set[str] = set()
        self._quotas = factory.informer(ResourceQuota)
        self._quotas.add_handler(self._on_quota, lambda _, new: self._on_quota(new))
        self._controller: Controller[Key] = Controller("resource quota", self._reconcile)
        self._informers = [self._quotas]

    def _on_quota(self, quota: ResourceQuota) -> None:
        self._follow({counted_kinds(name) for name in quota.spec.hard})
        self._controller.queue.add(key_of(quota))

    def _follow(self, wanted: set[str]) -> None:
        """Watch kinds that are not watched yet; those that nobody serves are looked for with the next quota."""
        missing = wanted - self._followed
        if not missing:
            return
        for resource in self._resources():
            if resource.qualified not in missing or resource.qualified in self._followed:
                continue
            self._followed.add(resource.qualified)
            if resource.qualified == "pods":
                self._factory.informer(Pod).add_handler(None, self._on_pod_change, self._on_change)
            else:
                informer = self._factory.informer(kinds.view_of(resource))
                informer.add_handler(None, lambda _, new: self._on_change(new), self._on_change)

    def _on_pod_change(self, old: Pod, new: Pod) -> None:
        """Look at quotas again when a pod ends, is deleted or resized: nothing else that happens to pods changes what
        they use."""
        is_same = (
            old.status.phase == new.status.phase
            and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
            and old.spec == new.spec
            and old.status.container_statuses == new.status.container_statuses
        )
        if not is_same:
            self._on_change(new)

    def _on_change(self, obj: Object) -> None:
        for quota in self._quotas.list(obj.metadata.namespace):
            self._controller.queue.add_after(key_of(quota), TOGETHER_S)

    async def _reconcile(self, key: Key) -> float | None:
        await self._recount(*key)
        return RESYNC_S
