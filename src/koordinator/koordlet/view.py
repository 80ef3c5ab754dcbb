"""Keep what the agent knows of its node: one place that informers and collectors fill and everybody reads.

Nobody waits here and nothing is copied: each value is replaced as a whole, so a reader that took one keeps a
consistent one. Source: behaviour/koordlet-observe 7.1.
"""

import enum
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from koordinator.api import quantity, resources
from koordinator.api.annotations.node import CPUBasicInfo
from koordinator.api.core import Node
from koordinator.api.node_metric import NodeMetricSpec
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.api.quantity import QuantityError
from koordinator.api.slo import HostApplicationSpec, NodeSLOSpec
from koordinator.api.slo_qos import ResourceQOSStrategy
from koordinator.cluster.supervise import Guard
from koordinator.host.cgroup_layout import Driver
from koordinator.host.storage import LocalStorage
from koordinator.host.sysfs import HostCPUTopology
from koordinator.koordlet import allowance
from koordinator.koordlet.allowance import AS_CONFIGURED, BatchAllowance
from koordinator.koordlet.degradation import Interference, Learnt
from koordinator.koordlet.node_pods import ForeignContainer, PodRecord


def are_same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Return whether these are the very same objects: values are replaced as a whole, so nothing has changed then."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


class Topic(enum.Enum):
    """The topic of a change."""

    NODE = "node metadata"
    NODE_SLO = "NodeSLO spec"
    PODS = "all pods"
    TOPOLOGY = "node topology"
    ALLOWANCE = "what batch is allowed"
    USAGE = "usage"
    """A round of collectors has ended: what strategies read each second is new. To act at once, be woken by this
    rather than by a timer of your own, which may come just before it."""


class NodeView:
    """Fields are None (or empty) until they are known; absence means unknown, never zero."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.node: Node | None = None
        self.slo: NodeSLOSpec | None = None
        """Merged with the defaults (`node.with_defaults`); the last good one."""
        self.pods: Mapping[str, PodRecord] = {}
        """By UID; the last list that the kubelet gave."""
        self.foreign: Mapping[str, ForeignContainer] = {}
        """Containers of other runtimes, by id, as their agents told last."""
        self.has_pods = False
        """The kubelet has answered once, perhaps with no pods."""
        self.topology: NodeResourceTopology | None = None
        """Topology that this agent computed, also where it is not reported."""
        self.metric_spec: NodeMetricSpec | None = None
        self.cpu: HostCPUTopology | None = None
        self.cpu_info: CPUBasicInfo | None = None
        self.numa_meminfo_kib: Mapping[int, Mapping[str, int]] = {}
        self.huge_pages: Mapping[int, Mapping[int, int]] = {}
        """NUMA node -> page size in KiB -> number of pages."""
        self.storage: LocalStorage | None = None
        self.volumes: Mapping[str, str] = {}
        """`namespace/claim` -> name of the bound volume."""
        self.has_cold_pages = False
        """The kernel's cold page scanning was started by this agent."""
        self.interference: Interference | None = None
        """Degradation of services, each second (gate Interference); look at `at_s` before acting on it."""
        self.learnt: Mapping[str, Learnt] = {}
        """Profiles of containers of services, by container id; empty where the CPU does not count."""
        self.allowance: BatchAllowance = AS_CONFIGURED
        """Allowance that the closed loop leaves best-effort pods (gate InterferenceControl)."""
        self.extensions: Mapping[str, Any] = {}
        """Members of NodeMetric's `status.extensions`, each set by a part of the agent."""
        self._shrunk: tuple[object, BatchAllowance, ResourceQOSStrategy] | None = None
        self._listeners: dict[Topic, list[tuple[Guard, Callable[[], Any]]]] = {topic: [] for topic in Topic}

    def extend(self, key: str, found: object) -> None:
        """Set a member of `extensions`, with all that is in it: what a merge patch leaves out would stay. None: no such
        member any more."""
        others = {name: value for name, value in self.extensions.items() if name != key}
        changed = others if found is None else others | {key: found}
        if changed != self.extensions:
            self.extensions = changed

    def capacity(self, name: str) -> int:
        """Return what the node has of `cpu` (milli-cores) or `memory` (bytes); 0 when it is not known."""
        raw = self.node.status.capacity.get(name, 0) if self.node is not None else 0
        try:
            return quantity.milli(raw) if name == resources.CPU else quantity.value(raw)
        except QuantityError:
            return 0

    @property
    def qos_strategy(self) -> ResourceQOSStrategy | None:
        """Return the NodeSLO's QoS policy, an empty one where it names none; None before the first NodeSLO."""
        return None if self.slo is None else self.slo.resource_qos_strategy or ResourceQOSStrategy()

    @property
    def qos_in_force(self) -> ResourceQOSStrategy | None:
        """Return the NodeSLO's QoS policy with what the closed loop takes of it; the same object while both are."""
        strategy = self.slo.resource_qos_strategy if self.slo is not None else None
        if strategy is None or self.allowance is AS_CONFIGURED:
            return strategy
        known = self._shrunk
        if known is not None and are_same(known[:2], (strategy, self.allowance)):
            return known[2]
        found = allowance.shrunk(strategy, self.allowance)
        if known is not None and known[0] is strategy and known[2] == found:
            found = known[2]
        self._shrunk = strategy, self.allowance, found
        return found

    @property
    def host_applications(self) -> list[HostApplicationSpec]:
        """Applications outside of pods that the NodeSLO names."""
        return self.slo.host_applications if self.slo is not None else []

    def listen(self, topic: Topic, name: str, listener: Callable[[], Any]) -> None:
        """Call `listener` after each change of the topic. It must not wait; what it raises is logged and counted."""
        self._listeners[topic].append((Guard(f"{name} on {topic.value}"), listener))

    def changed(self, topic: Topic) -> None:
        """Tell the listeners of a topic, in the order in which they came."""
        for guard, listener in self._listeners[topic]:
            guard.call(listener)
