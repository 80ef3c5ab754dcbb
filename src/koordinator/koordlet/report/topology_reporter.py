"""Keeping the NodeResourceTopology: for the scheduler in the API, for the agent itself in the view.

A round in which nothing changed compares a few values and stops there. Source: behaviour/koordlet-observe 9.2.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from koordinator.api.core import Pod
from koordinator.api.meta import Object, to_wire
from koordinator.api.node_topology import NodeResourceTopology
from koordinator.cluster import errors
from koordinator.cluster.backoff import new_rng
from koordinator.cluster.informer import Informer
from koordinator.host.kubelet import KubeletError, cpu_manager_state
from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.parts import Shared
from koordinator.koordlet.report import topology, topology_object
from koordinator.koordlet.report.outage import FirstRounds, Outage
from koordinator.koordlet.report.reserved_cpus import KubeletAllocations, KubeletConfig
from koordinator.koordlet.report.topology import NUMANode
from koordinator.koordlet.report.topology_object import Inputs, KubeletFacts
from koordinator.koordlet.view import Topic

log = logging.getLogger(__name__)

CONFIG_S = 60.0
"""Interval at which the configuration is read again: it only changes when the kubelet is restarted."""

GATE, HUGE_PAGES_GATE = "NodeTopologyReport", "HugePageReport"
WRITE_S_MAX = 20.0
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
            self._config = msgspec.convert(_without_nulls(raw), KubeletConfig)
        except (KubeletError, msgspec.ValidationError) as error:
            self._outage.failed(error, now_s)
            return
        self._read_s = now_s
        self._outage.ended()


def _without_nulls(raw: dict[str, object]) -> dict[str, object]:
    """The kubelet writes null where nothing is set."""
    return {key: value for key, value in raw.items() if value is not None}


class TopologyReporter:
    """Computes the topology each few seconds; with the gate NodeTopologyReport it is written, too."""

    name = "nodetopology"

    def __init__(self, shared: Shared) -> None:
        self._rounds = FirstRounds(shared.config.kubelet.topology_interval_s)
        self._shared = shared
        self._kubelet = KubeletSource(shared)
        self._outage = Outage(f"report of NodeResourceTopology {shared.config.node_name}")
        self._inputs: Inputs | None = None
        self._pinned: KubeletAllocations | None = None
        self._problems: dict[str, str] = {}
        self._pods_of: Mapping[str, PodRecord] | None = None
        self._pods: tuple[Pod, ...] = ()
        self._is_reporting = shared.gates.is_on(GATE)
        self._stored = Informer(
            shared.cluster,
            NodeResourceTopology,
            rng=new_rng(shared.rng),
            field_selector=f"metadata.name={shared.config.node_name}",
        )
        self._stored.add_handler(self._on_stored, lambda _, new: self._on_stored(new), self._on_stored)
        self._written: NodeResourceTopology | None = None
        """Object that we wrote last, until the cache has it or a newer one."""
        self._matched: tuple[NodeResourceTopology, NodeResourceTopology] | None = None
        """Stored and wanted object when there was nothing left to write."""

    @property
    def interval_s(self) -> float:
        """Return the configured interval; a short one until the first report."""
        return self._rounds.interval_s

    @property
    def informers(self) -> list[Informer[Any]]:
        """Caches that must be run for the report to be written."""
        return [self._stored] if self._is_reporting else []

    async def run(self) -> None:
        """One round."""
        inputs = await self._read()
        if inputs is None or (self._is_reporting and not self._stored.synced.is_set()):
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
        if self._is_reporting and self._stored.synced.is_set() and view.topology is not None:
            await self._report(view.topology)

    async def _read(self) -> Inputs | None:
        kubelet = await self._kubelet.facts()
        view = self._shared.view
        if view.node is None or view.cpu is None or view.cpu_info is None or not view.has_pods:
            return None
        if view.pods is not self._pods_of:
            self._pods_of = view.pods
            active = (record.pod for record in view.pods.values() if record.is_active)
            self._pods = tuple(topology_object.slim_pod(pod) for pod in active)
        return Inputs(
            node=topology_object.slim_node(view.node),
            pods=self._pods,
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

    async def _report(self, wanted: NodeResourceTopology) -> None:
        """Create the object, or patch what is ours of it; lost races are tried again in the next round."""
        now_s = self._shared.clock.now()
        stored = self._newest()
        if stored is not None and self._matched is not None and self._matched == (stored, wanted):
            return
        if not self._outage.is_due(now_s):
            return
        patch = None if stored is None else topology.patch_of(stored, wanted)
        if stored is not None and patch is None:
            self._matched = (stored, wanted)
            return
        try:
            async with asyncio.timeout(WRITE_S_MAX):
                written = await self._write(stored, patch, wanted)
        except (errors.Conflict, errors.AlreadyExists, errors.NotFound) as error:
            self._written = None
            log.debug("topology not written, the cache was stale: %s", error)
            return
        except (errors.ApiError, TimeoutError) as error:
            self._outage.failed(error, now_s)
            return
        self._outage.ended()
        self._written = written
        # Should the answer not say what we wrote (a dry run, a field that the API drops), saying it again is no use.
        self._matched = (written, wanted)

    async def _write(
        self, stored: NodeResourceTopology | None, patch: dict[str, Any] | None, wanted: NodeResourceTopology
    ) -> NodeResourceTopology:
        if stored is None or patch is None:
            if not wanted.topology_policies:
                wanted = msgspec.structs.replace(wanted, topology_policies=["None"])
            return await self._shared.cluster.create(NodeResourceTopology, to_wire(wanted))
        # Zones are written as one list: without the version, what others wrote into it meanwhile would be lost.
        patch.setdefault("metadata", {})["resourceVersion"] = stored.metadata.resource_version
        return await self._shared.cluster.patch(NodeResourceTopology, self._shared.config.node_name, patch)

    def _newest(self) -> NodeResourceTopology | None:
        return self._written or self._stored.get(self._shared.config.node_name)

    def _on_stored(self, _: NodeResourceTopology) -> None:
        self._written = None
