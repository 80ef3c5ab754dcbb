"""Keeping the NodeResourceTopology: for the scheduler in the API, for the agent itself in the view.

A round in which nothing changed compares a few values and stops there. Source: behaviour/koordlet-observe 9.2.
"""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api import decode, pod_labels
from koordinator.api.core import Pod
from koordinator.api.meta import Object, to_wire
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.host.kubelet import KubeletError, cpu_manager_state
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.report import topology, topology_object
from koordinator.koordlet.report.outage import FirstRounds, Outage
from koordinator.koordlet.report.reserved_cpus import KubeletAllocations, KubeletConfig
from koordinator.koordlet.report.stored_object import StoredObject
from koordinator.koordlet.report.topology import NUMANode
from koordinator.koordlet.report.topology_object import Inputs, KubeletFacts
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

CONFIG_S = 60.0
"""Interval at which the configuration is read again: it only changes when the kubelet is restarted."""

GATE, HUGE_PAGES_GATE = "NodeTopologyReport", "HugePageReport"
INVALID_ANNOTATION = "InvalidAnnotation"
"""Reason of the events about annotations of the Node that cannot be read."""
_REPORTED_BY_EVENT = (topology_object.SYSTEM_QOS, topology_object.RESERVATION)


class KubeletSource:
    """Asks as seldom as it may; what is not answered keeps its last value."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._outage = Outage("reading the kubelet's configuration")
        self._config: KubeletConfig | None = None
        self._read_s: float | None = None

    async def facts(self) -> KubeletFacts | None:
        """Return what is known now; None where the kubelet is not to be asked."""
        if self._shared.config.kubelet.no_config:
            return None
        now_s = self._shared.clock.now()
        is_fresh = self._read_s is not None and self._read_s <= now_s < self._read_s + CONFIG_S
        if not is_fresh and self._outage.is_due(now_s):
            await self._read(now_s)
        host = self._shared.host
        return KubeletFacts(self._config, cpu_manager_state(host.files, host.roots))

    async def _read(self, now_s: float) -> None:
        if self._shared.kubelet is None:
            return
        try:
            raw = await self._shared.kubelet.config()
            self._config = decode.from_builtins(raw, KubeletConfig)  # it writes null where nothing is set
        except (KubeletError, msgspec.ValidationError) as error:
            self._outage.failed(error, now_s)
            return
        self._read_s = now_s
        self._outage.ended()


class TopologyReporter:
    """Computes the topology each few seconds; with the gate NodeTopologyReport it is written, too."""

    name = "nodetopology"

    def __init__(self, shared: Shared) -> None:
        self._rounds = FirstRounds(shared.config.kubelet.topology_interval_s)
        self._shared = shared
        self._kubelet = KubeletSource(shared)
        self._inputs: Inputs | None = None
        self._pinned: KubeletAllocations | None = None
        self._problems: dict[str, str] = {}
        self._pods_of: Mapping[str, PodRecord] | None = None
        self._pods: tuple[Pod, ...] = ()
        self._finished: frozenset[str] = frozenset()
        self._is_reporting = shared.gates.is_on(GATE)
        self._stored = StoredObject(shared, NodeResourceTopology, new=_new, patch_of=_patch_of)
        self.informers = [self._stored.informer] if self._is_reporting else []

    @property
    def interval_s(self) -> float:
        """Return the configured interval; a short one until the first report."""
        return self._rounds.interval_s

    async def run(self) -> None:
        """One round."""
        inputs = await self._read()
        if inputs is None or (self._is_reporting and not self._stored.is_known):
            self._rounds.waited()
        else:
            self._rounds.reported()
        if inputs is None:
            return  # not all of it is known yet
        view = self._shared.view
        if inputs != self._inputs or view.topology is None:
            computed = topology_object.compute(inputs, self._pinned)
            self._pinned = topology_object.pinned(inputs) or self._pinned
            self._inputs = inputs
            self._report_problem(computed.problems)
            if topology.is_changed(view.topology, computed.object):
                view.topology = computed.object
                view.changed(Topic.TOPOLOGY)
        if self._is_reporting and self._stored.is_known and view.topology is not None:
            await self._stored.write(view.topology)

    async def _read(self) -> Inputs | None:
        kubelet = await self._kubelet.facts()
        view = self._shared.view
        if view.node is None or view.cpu is None or view.cpu_info is None or not view.has_pods:
            return None
        if view.pods is not self._pods_of:
            self._pods_of = view.pods
            active = (record.pod for record in view.pods.values() if record.is_active)
            self._pods = tuple(topology_object.slim_pod(pod) for pod in active)
            self._finished = frozenset(
                uid for uid, record in view.pods.items() if pod_labels.is_terminated(record.pod)
            )
        return Inputs(
            node=topology_object.slim_node(view.node),
            pods=self._pods,
            finished=self._finished,
            cpu=view.cpu,
            cpu_info=view.cpu_info,
            numa={
                number: NUMANode(0, meminfo.get("MemTotal", 0), dict(view.huge_pages.get(number, {})))
                for number, meminfo in view.numa_meminfo_kib.items()
            },
            reports_huge_pages=self._shared.gates.is_on(HUGE_PAGES_GATE),
            kubelet=kubelet,
        )

    def _report_problem(self, problems: dict[str, str]) -> None:
        """Say each problem once; those of annotations to whoever looks at the Node."""
        for part, problem in problems.items():
            if self._problems.get(part) == problem:
                continue
            log.warning("topology reported without %s: %s", part, problem, extra={"part": part})
            node: Object | None = self._shared.view.node
            if part in _REPORTED_BY_EVENT and node is not None:
                self._shared.events.warning(node, INVALID_ANNOTATION, f"{problem}; it counts as absent")
        self._problems = problems


def _new(wanted: NodeResourceTopology) -> dict[str, Any]:
    if not wanted.topology_policies:
        wanted = msgspec.structs.replace(wanted, topology_policies=["None"])
    return to_wire(wanted)


def _patch_of(stored: NodeResourceTopology, wanted: NodeResourceTopology) -> dict[str, Any] | None:
    patch = topology.patch_of(stored, wanted)
    if patch is not None:
        # Zones are written as one list: without the version, what others wrote into it meanwhile would be lost.
        patch.setdefault("metadata", {})["resourceVersion"] = stored.metadata.resource_version
    return patch
