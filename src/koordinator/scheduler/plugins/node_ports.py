"""NodePorts: a host port is given once per node, protocol and address. Source: behaviour/scheduler B1."""

from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np

from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.events import ClusterEvent
from koordinator.scheduler.plugin.framework import (
    FilterPlugin,
    Handle,
    PreFilterPlugin,
    PreFilterResult,
    ReasonCodes,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, Reason, unschedulable
from koordinator.scheduler.table.changes import RowChange
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.nodes import RowKeeper
from koordinator.scheduler.table.pod_info import HOST_PORTS, HostPort, PodInfo

ANY_ADDRESS = "0.0.0.0"


class PortReason(Reason):
    OK = 0, SUCCESS
    TAKEN = 1, unschedulable("node(s) didn't have free ports for the requested pod ports")


class NodePorts(PreFilterPlugin[tuple[HostPort, ...]], FilterPlugin[tuple[HostPort, ...]], RowKeeper):
    name = "NodePorts"
    keyed_by = (HOST_PORTS,)
    fewer_pods_help = True
    reasons = PortReason
    reads = RowChange.NODE | RowChange.PODS
    wakes_on = (ClusterEvent.ASSIGNED_POD_DELETED, ClusterEvent.NODE_ADDED, ClusterEvent.POD_UPDATED)

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self._used: dict[tuple[str, int], dict[int, Counter[str]]] = {}

    def prepare(self, pod: PodInfo) -> tuple[HostPort, ...]:
        return pod.host_ports

    def pre_filter(self, state: tuple[HostPort, ...]) -> PreFilterResult:
        return PreFilterResult() if state else PreFilterResult(SKIP)

    def filter(self, state: tuple[HostPort, ...], rows: Rows) -> ReasonCodes:
        taken = {
            row
            for address, protocol, port in state
            for row, used in self._used.get((protocol, port), {}).items()
            if is_taken(address, used)
        }
        return np.isin(rows, sorted(taken)).astype(np.uint16)

    def foresees(self, state: tuple[HostPort, ...]) -> bool:
        return True

    def filter_ahead(self, state: tuple[HostPort, ...], rows: Rows, ahead: I64) -> ReasonCodes:
        return self.filter(state, rows) | (ahead > 0)

    def facts(self, state: tuple[HostPort, ...], row: int) -> tuple[str, ...]:
        return tuple(
            f"port {port}/{protocol} of {their_address} is taken by pod {pod.key}"
            for pod in self.handle.table.pods_at(row).values()
            for their_address, their_protocol, their_port in pod.host_ports
            for address, protocol, port in state
            if (protocol, port) == (their_protocol, their_port) and is_taken(address, (their_address,))
        )

    # Who uses what

    def pod_assigned(self, row: int, pod: PodInfo) -> None:
        for address, protocol, port in pod.host_ports:
            self._used.setdefault((protocol, port), {}).setdefault(row, Counter())[address] += 1

    def pod_unassigned(self, row: int, pod: PodInfo) -> None:
        for address, protocol, port in pod.host_ports:
            by_row = self._used[(protocol, port)]
            used = by_row[row]
            used[address] -= 1
            if not used[address]:
                del used[address]
            if not used:
                del by_row[row]
            if not by_row:
                del self._used[(protocol, port)]

    def pod_changed(self, row: int, old: PodInfo, new: PodInfo) -> None:
        if old.host_ports != new.host_ports:
            self.pod_unassigned(row, old)
            self.pod_assigned(row, new)


def is_taken(address: str, used: Collection[str]) -> bool:
    """Return whether a port at an address collides with its uses at others; 0.0.0.0 stands for all addresses."""
    return address in used or ANY_ADDRESS in used or (address == ANY_ADDRESS and bool(used))
