"""CPU and memory of containers of other runtimes (YARN), which eviction orders them by."""

from collections.abc import Mapping

from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.collect.group_usage import GroupRings, GroupScan, MeasuredGroup
from koordinator.koordlet.node_pods import ForeignContainer
from koordinator.koordlet.parts import Shared


class ForeignUsage:
    """Groups are worked out when the list of containers changes; those that stay keep their readings."""

    name = "ForeignContainerCollector"

    def __init__(self, shared: Shared, scan: GroupScan) -> None:
        self._shared = shared
        self._scan = scan
        self.interval_s = shared.config.collect.used_interval_s
        self._listed: Mapping[str, ForeignContainer] = {}
        self._groups: dict[str, MeasuredGroup] = {}

    def collect(self) -> bool:
        foreign = self._shared.view.foreign
        if foreign is not self._listed:
            self._listed = foreign
            self._groups = {uid: self._group(uid, each.record.group) for uid, each in foreign.items()}
        if self._groups:
            self._scan.measure(list(self._groups.values()), int(self._shared.clock.now() * 1000))
        return True

    def _group(self, uid: str, group: str) -> MeasuredGroup:
        known = self._groups.get(uid)
        if known is not None and known.group == group:
            return known
        names = {kinds.CONTAINER_ID: uid}
        store = self._shared.store
        rings = GroupRings(
            store.ring(kinds.FOREIGN_CPU, names), store.ring(kinds.FOREIGN_MEMORY, names), None, None
        )
        return MeasuredGroup(self._shared.host.cgroups, group, rings)
