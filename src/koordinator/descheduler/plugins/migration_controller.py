"""MigrationController at its extension points: filters by the gates of migration, evicts by creating jobs.
Source: behaviour/descheduler 7.2 and 8.3."""

from koordinator.api import label_selector
from koordinator.api.core import Pod
from koordinator.api.label_selector import compile_selector
from koordinator.descheduler import facts, node_fit
from koordinator.descheduler.config import API_VERSION, migration
from koordinator.descheduler.config.migration import MigrationControllerArgs, SkippableGate
from koordinator.descheduler.node_fit import Rooms
from koordinator.descheduler.plugin import EvictOrder, EvictPlugin, FilterPlugin, LiveHandle


class MigrationController(FilterPlugin, EvictPlugin):
    """The plugin of one profile; all share one controller."""

    name = "MigrationController"
    args = MigrationControllerArgs
    api_version = API_VERSION
    complete = staticmethod(migration.complete)
    check_args = staticmethod(migration.check)

    def __init__(self, args: MigrationControllerArgs, handle: LiveHandle) -> None:
        self._args = args
        self._migration = handle.migration
        self._caches = handle.caches
        self._rooms: Rooms | None = None
        self._takes_part = compile_selector(label_selector.of_text(args.node_selector))
        self._needs_fit = args.node_fit and SkippableGate.NODE_FIT not in args.skip_eviction_gates

    async def prepare(self) -> None:
        """Count jobs and look workloads up."""
        self._rooms = None
        await self._migration.prepare()

    def refusal(self, pod: Pod) -> str:
        """Return the first gate that refuses, in words."""
        return self._migration.refusal(pod)

    def late_refusal(self, pod: Pod) -> str:
        """Refuse a pod that fits no other node, where that is asked for."""
        if not self._needs_fit or facts.has_evict_annotation(pod):
            return ""
        if self._rooms is None:
            seen = self._caches.observe(0.0, self._takes_part)
            self._rooms = Rooms(seen.nodes, seen.pods_of)
        return "" if node_fit.fits_elsewhere(pod, self._rooms) else "it fits no other node"

    async def evict(self, order: EvictOrder) -> str:
        """Create a job, unless that is switched off."""
        if self._args.dry_run:
            return ""
        return await self._migration.create(order.pod, order.plugin, order.reason, order.target)
