"""Summaries of all nodes as arrays, kept row by row: what Filter and Score need to answer for many nodes at once.

Arrays end in the row. A slot is the position of a NUMA node among those of its node, by ascending id; whatever ids
there are, slots are dense. Everything here follows from a node's facts and its ledger.
"""

import numpy as np
import numpy.typing as npt

from koordinator.api.annotations.placement import NUMATopologyPolicy
from koordinator.api.node_labels import NodeCPUBindPolicy
from koordinator.api.resource_vector import I64
from koordinator.scheduler.nodes import NODE_AMOUNT_MAX
from koordinator.scheduler.plugins.node_numa_resource.ledger import NUMAStatus
from koordinator.scheduler.plugins.node_numa_resource.node_facts import NodeFacts
from koordinator.scheduler.plugins.node_numa_resource.one_node import KINDS, NodeView

NUMA_POLICIES = {
    NUMATopologyPolicy.NONE: 0,
    NUMATopologyPolicy.BEST_EFFORT: 1,
    NUMATopologyPolicy.RESTRICTED: 2,
    NUMATopologyPolicy.SINGLE_NUMA_NODE: 3,
}
SINGLE_NUMA_NODE = NUMA_POLICIES[NUMATopologyPolicy.SINGLE_NUMA_NODE]

FORCED_KINDS = {
    NodeCPUBindPolicy.NONE: 0,
    NodeCPUBindPolicy.FULL_PCPUS_ONLY: 1,
    NodeCPUBindPolicy.SPREAD_BY_PCPUS: 2,
}

STATUSES = {NUMAStatus.IDLE: 0, NUMAStatus.SINGLE: 1, NUMAStatus.SHARED: 2}
SHARED = STATUSES[NUMAStatus.SHARED]

_SLOTS_INITIAL = 2
_RESOURCES_INITIAL = 2


class Columns:
    """The arrays. `resources` maps the names that any zone offers to their index."""

    def __init__(self, capacity: int) -> None:
        self.resources: dict[str, int] = {}
        slots, kinds = _SLOTS_INITIAL, len(KINDS)
        self.offers: npt.NDArray[np.bool_] = np.zeros((_RESOURCES_INITIAL, capacity), np.bool_)
        """(resources, rows): whether any zone of the node offers it."""
        self.capacity: I64 = np.zeros((slots, _RESOURCES_INITIAL, capacity), np.int64)
        """(slots, resources, rows): what a zone offers, amplified."""
        self.used: I64 = np.zeros_like(self.capacity)
        """As `capacity`: what pods hold of it, bound CPUs amplified."""
        self.available: I64 = np.zeros_like(self.capacity)
        """As `capacity`: what is left, at least 0."""
        self.usable: I64 = np.zeros((kinds, slots, capacity), np.int64)
        """(kinds, slots, rows): free CPUs that can serve under a required policy (`KINDS`)."""
        self.usable_total: I64 = np.zeros((kinds, capacity), np.int64)
        """(kinds, rows): the same for the whole machine."""
        self.status: npt.NDArray[np.int8] = np.zeros((slots, capacity), np.int8)
        """(slots, rows): who binds CPUs there (`STATUSES`)."""
        self.zone_count: I64 = np.zeros(capacity, np.int64)
        self.pinned_count: I64 = np.zeros(capacity, np.int64)
        """CPUs that pods bind."""
        self.pinned_milli: I64 = np.zeros(capacity, np.int64)
        """What these take of the amplified capacity."""
        self.cpus_per_core: I64 = np.ones(capacity, np.int64)
        self.is_valid: npt.NDArray[np.bool_] = np.zeros(capacity, np.bool_)
        """Whether there are CPUs to bind."""
        self.is_misreported: npt.NDArray[np.bool_] = np.zeros(capacity, np.bool_)
        """Whether there is a report that names no CPUs."""
        self.ratio: npt.NDArray[np.float64] = np.ones(capacity)
        self.is_ratio_bad: npt.NDArray[np.bool_] = np.zeros(capacity, np.bool_)
        self.forced_kind: npt.NDArray[np.int8] = np.zeros(capacity, np.int8)
        """The kind that the node's own bind policy forces, 0 when it has none."""
        self.numa_policy: npt.NDArray[np.int8] = np.zeros(capacity, np.int8)
        """`NUMA_POLICIES`."""

    @property
    def row_count(self) -> int:
        return len(self.zone_count)

    @property
    def slot_count(self) -> int:
        return len(self.capacity)

    # Shape

    def reserve(self, rows: int) -> None:
        """Make room for rows of nodes of which there is nothing to tell."""
        self._fit(rows, 0)

    def _fit(self, rows: int, slots: int) -> None:
        """Make room; capacity of rows doubles, as the table's does."""
        while self.row_count < rows:
            self._pad_rows(self.row_count)
        if slots > self.slot_count:
            self._pad("slots", slots - self.slot_count)
        if len(self.resources) > self.offers.shape[0]:
            self._pad("resources", len(self.resources) - self.offers.shape[0])

    def _pad_rows(self, missing: int) -> None:
        fill = {"cpus_per_core": 1, "ratio": 1}
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray):
                tail = np.full((*values.shape[:-1], missing), fill.get(name, 0), values.dtype)
                setattr(self, name, np.concatenate([values, tail], axis=-1))

    def _pad(self, what: str, missing: int) -> None:
        axes = {
            "slots": {"capacity": 0, "used": 0, "available": 0, "usable": 1, "status": 0},
            "resources": {"capacity": 1, "used": 1, "available": 1, "offers": 0},
        }[what]
        for name, axis in axes.items():
            values = getattr(self, name)
            shape = list(values.shape)
            shape[axis] = missing
            setattr(self, name, np.concatenate([values, np.zeros(shape, values.dtype)], axis=axis))

    # Writing

    def set_facts(self, row: int, facts: NodeFacts) -> None:
        """What stays when pods come and go; `set_view` has to follow."""
        for zone in facts.zones.values():
            for name in zone:
                self.resources.setdefault(name, len(self.resources))
        self._fit(row + 1, len(facts.zones))
        topology = facts.options.cpus
        self.capacity[:, :, row] = 0
        self.offers[:, row] = False
        for slot, zone in enumerate(facts.zones.values()):
            for name, amount in zone.items():
                self.capacity[slot, self.resources[name], row] = min(amount, NODE_AMOUNT_MAX)
                self.offers[self.resources[name], row] = True
        self.zone_count[row] = len(facts.zones)
        self.cpus_per_core[row] = topology.cpus_per_core
        self.is_valid[row] = topology.is_valid
        self.is_misreported[row] = facts.has_report and not topology.is_valid
        self.ratio[row] = facts.cpu_ratio
        self.is_ratio_bad[row] = not facts.is_ratio_readable
        self.forced_kind[row] = FORCED_KINDS[facts.bind_policy]
        self.numa_policy[row] = NUMA_POLICIES[facts.numa_policy]

    def set_view(self, row: int, view: NodeView) -> None:
        """What pods hold and leave."""
        facts = view.facts
        slots = len(facts.zones)
        self.available[:, :, row] = self.capacity[:, :, row]
        self.used[:, :, row] = 0
        for slot, numa in enumerate(facts.zones):
            used = view.allocated.get(numa)
            if used is None:
                continue
            left = view.available[numa]
            for name, amount in used.items():
                index = self.resources.get(name)
                if index is not None:
                    self.used[slot, index, row] = min(amount, NODE_AMOUNT_MAX)
                    self.available[slot, index, row] = min(left[name], NODE_AMOUNT_MAX)
        if slots:
            self.usable[:, :slots, row] = view.usable_counts
            self.status[:slots, row] = [STATUSES[view.statuses.get(n, NUMAStatus.IDLE)] for n in facts.zones]
        self.usable_total[:, row] = [cpus.bit_count() for cpus in view.usable]
        self.pinned_count[row] = view.pinned_count
        self.pinned_milli[row] = view.pinned_milli

    def signature(self, row: int, facts: NodeFacts) -> bytes:
        """Equal for rows on which every pod is judged alike, as long as CPU is not amplified."""
        parts = (
            np.array((*facts.zones, -1)),
            self.capacity[:, :, row],
            self.used[:, :, row],
            self.usable[:, :, row],
            self.usable_total[:, row],
            self.status[:, row],
            self.offers[:, row],
            np.array((self.zone_count[row], self.pinned_count[row], self.cpus_per_core[row])),
            np.array((self.ratio[row],)),
            np.array((self.forced_kind[row], self.numa_policy[row], self.is_valid[row])),
            np.array((self.is_misreported[row], self.is_ratio_bad[row])),
        )
        return b"|".join(part.tobytes() for part in parts)
