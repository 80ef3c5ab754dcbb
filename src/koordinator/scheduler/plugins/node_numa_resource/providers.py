"""Ask the plugins that take part in choosing the NUMA nodes of a pod on a node. Source: behaviour/numa-cpu 7.1;
behaviour/scheduler C1.

NodeNUMAResource asks every provider of its profile (`Handle.companions(NUMATopologyHintProvider)`, itself
included) for hints, merges them (`hint_merge.admit`), and asks every provider for a trial allocation with
the outcome.
"""

import abc

import msgspec

from koordinator.scheduler.plugin.framework import Plugin, S
from koordinator.scheduler.plugin.status import SUCCESS, Status
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import Hints, NUMATopologyHint
from koordinator.scheduler.table.pod_info import PodInfo


class ProvidedHints(msgspec.Struct, frozen=True):
    """Hints by resource (none at all: no preference), or why the node cannot hold the pod."""

    by_resource: Hints = {}
    status: Status = SUCCESS


class NUMATopologyHintProvider(Plugin[S]):
    """Knows which NUMA nodes can give a pod what it asks for."""

    @abc.abstractmethod
    def numa_hints(self, state: S, pod: PodInfo, row: int) -> ProvidedHints:
        """Sets of NUMA nodes of the node at `row` that would do. `state` is from the provider's `prepare`."""

    @abc.abstractmethod
    def try_numa(self, state: S, pod: PodInfo, row: int, hint: NUMATopologyHint) -> Status:
        """Return whether the pod gets what it asks for from the chosen NUMA nodes (None in the hint: any)."""
