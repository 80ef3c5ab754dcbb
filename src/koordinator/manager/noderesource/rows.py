"""All that is known of one node, as plugins see it: facts, worked out once when an object changes.

Amounts per NUMA zone, on the NodeResourceTopology of a node, are Batch resources (behaviour/manager 6.6). GPU and RDMA
resources follow from what the Device object lists (behaviour/manager 10). Amounts are in thousandths, as everywhere in
this room; None or absent means that the node must not have it.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from koordinator import clock
from koordinator.api import labels, quantity, resources
from koordinator.api.annotations.node import CPU_BASIC_INFO, CPUBasicInfo
from koordinator.api.core import Node
from koordinator.api.device import Device, DeviceInfo
from koordinator.api.errors import ProtocolError
from koordinator.api.node_metric import NodeMetricStatus
from koordinator.api.node_topology import NodeResourceTopology, Zone, ZoneResource
from koordinator.api.quantity import QuantityError
from koordinator.api.workload_profile import ProfiledMetric
from koordinator.manager.config.colocation_config import NodeStrategy
from koordinator.manager.noderesource import account, batch, decide, hours, target
from koordinator.manager.noderesource.account import (
    EMPTY_REPORT,
    AccountedNode,
    AccountedPod,
    Amount,
    HighPriorityDemand,
    MetricFigures,
    ZoneDemand,
    bounded,
)
from koordinator.manager.noderesource.batch import MILLI
from koordinator.manager.noderesource.decide import NodeInputs, Withdrawal
from koordinator.manager.noderesource.lent_gpus import NO_CARDS, CardAmounts, cards_of
from koordinator.manager.noderesource.target import Note

log = logging.getLogger(__name__)

GPU_TYPE, RDMA_TYPE = "gpu", "rdma"
WHOLE_DEVICE_PERCENT = 100
TOP_SERVICES = 3
"""So many services that use most of a node's CPU are told by name."""

GPU_RESOURCES = (
    resources.GPU,
    resources.GPU_CORE,
    resources.GPU_MEMORY,
    resources.GPU_MEMORY_RATIO,
    resources.GPU_SHARED,
    resources.HUAWEI_NPU_CORE,
    resources.HUAWEI_NPU_CPU,
    resources.HUAWEI_NPU_DVPP,
)
"""All that is ever written on, or removed from, a node for its GPUs."""
RDMA_RESOURCES = (resources.RDMA,)

_COPIED_LABELS = (labels.GPU_VENDOR, labels.GPU_MODEL, labels.GPU_DRIVER_VERSION)
_VENDORS_WITH_GPU_RESOURCE = ("", "nvidia")


class DeviceTarget(msgspec.Struct, frozen=True):
    """The amounts and labels that the node should have: None removes an amount; a resource not named stays."""

    amounts: dict[str, int | None]
    labels: dict[str, str] = {}


NO_GPUS = DeviceTarget(dict.fromkeys(GPU_RESOURCES))
NO_NICS = DeviceTarget(dict.fromkeys(RDMA_RESOURCES))


def gpu_target(device: Device | None, *, publishes_shared: bool) -> DeviceTarget:
    """Sums over healthy GPUs; without any, all known resources go.

    `publishes_shared` is the feature gate EnableSyncGPUSharedResource. Raises: quantity.QuantityError.
    """
    healthy = _healthy(device, GPU_TYPE)
    if device is None or not healthy:
        return NO_GPUS
    sums = _sums(healthy)
    amounts: dict[str, int | None] = {name: sums[name] for name in GPU_RESOURCES if name in sums}
    own = device.metadata.labels
    # Amounts of koordinator.sh/gpu are percents of cards, which only these vendors' cores are.
    if own.get(labels.GPU_VENDOR, "") in _VENDORS_WITH_GPU_RESOURCE:
        amounts[resources.GPU] = sums.get(resources.GPU_CORE, 0)
    if publishes_shared:
        amounts[resources.GPU_SHARED] = len(healthy) * WHOLE_DEVICE_PERCENT * MILLI
    return DeviceTarget(amounts, {key: own[key] for key in _COPIED_LABELS if key in own})


def rdma_target(device: Device | None) -> DeviceTarget:
    """100 for each healthy NIC; without any, the resource goes."""
    count = len(_healthy(device, RDMA_TYPE))
    return DeviceTarget({resources.RDMA: count * WHOLE_DEVICE_PERCENT * MILLI if count else None})


def _healthy(device: Device | None, kind: str) -> list[DeviceInfo]:
    if device is None:
        return []
    return [info for info in device.spec.devices if info.type == kind and info.health]


def _sums(devices: list[DeviceInfo]) -> dict[str, int]:
    """Resource -> thousandths over all devices, of every resource that any of them names."""
    sums: Counter[str] = Counter()
    for info in devices:
        sums.update({name: quantity.milli(amount) for name, amount in info.resources.items()})
    return dict(sums)


ZoneAmounts = Mapping[str, Mapping[str, int | None]]
"""Zone name -> resource -> whole units; None means that the zone must not have it."""


def has_cpu_or_memory(zones: Sequence[Zone]) -> bool:
    """Return whether any zone tells its cpu or memory; without, there is nothing to divide."""
    return any(row.name in (resources.CPU, resources.MEMORY) for zone in zones for row in zone.resources)


def zone_capacity(zone: Zone) -> Amount:
    """Allocatable cpu and memory in thousandths."""
    cpu = memory = 0
    for row in zone.resources:
        if row.name == resources.CPU:
            cpu = quantity.milli(row.allocatable)
        elif row.name == resources.MEMORY:
            memory = quantity.milli(row.allocatable)
    return bounded((cpu, memory))


def withdrawn_zones(zones: Sequence[Zone]) -> dict[str, dict[str, int | None]]:
    """Return what removes the Batch resources of all zones that have some."""
    return {
        zone.name: dict.fromkeys(resources.BATCH_RESOURCES)
        for zone in zones
        if any(row.name in resources.BATCH_RESOURCES for row in zone.resources)
    }


def zones_need_write(zones: Sequence[Zone], wanted: ZoneAmounts, threshold: float) -> bool:
    """Return whether any amount of any zone differs by more than the threshold."""
    for zone in zones:
        amounts = wanted.get(zone.name)
        if not amounts:
            continue
        rows = {row.name: row for row in zone.resources if row.name in amounts}
        for name, want in amounts.items():
            row = rows.get(name)
            if (row is None) != (want is None):
                return True
            if row is None or want is None:
                continue
            for have in (row.capacity, row.allocatable, row.available):
                if batch.differs(quantity.value(have), want, threshold):
                    return True
    return False


def zones_target(zones: Sequence[Zone], wanted: ZoneAmounts, threshold: float) -> tuple[list[Zone], bool]:
    """Return the zones with their Batch resources, and whether any changed by more than the threshold.

    Zones that `wanted` lacks keep what they have, and rows their order unless one is new.
    """
    updated, changed = [], False
    for zone in zones:
        amounts = dict(wanted.get(zone.name, {}))
        rows = []
        zone_changed = False
        for row in zone.resources:
            if row.name not in amounts:
                rows.append(row)
                continue
            want = amounts.pop(row.name)
            if want is None:
                zone_changed = True
                continue
            replaced = _zone_resource(row, want, threshold)
            zone_changed |= replaced is not row
            rows.append(replaced)
        if new := {name: want for name, want in amounts.items() if want is not None}:
            zone_changed = True
            rows += [_new_zone_resource(name, want) for name, want in new.items()]
            rows.sort(key=lambda row: row.name)
        if zone_changed:
            changed = True
            zone = msgspec.structs.replace(zone, resources=rows)
        updated.append(zone)
    return updated, changed


def _new_zone_resource(name: str, want: int) -> ZoneResource:
    text = quantity.text_of_value(want)
    return ZoneResource(name=name, capacity=text, allocatable=text, available=text)


def _zone_resource(row: ZoneResource, want: int, threshold: float) -> ZoneResource:
    """Return the row with those of its three amounts replaced that differ enough; itself when none does."""
    text = quantity.text_of_value(want)
    changes = {
        field: text
        for field in ("capacity", "allocatable", "available")
        if batch.differs(quantity.value(getattr(row, field)), want, threshold)
    }
    return msgspec.structs.replace(row, **changes) if changes else row


OWNED = frozenset(
    (
        *target.BATCH,
        *resources.MID_RESOURCES,
        *GPU_RESOURCES,
        *RDMA_RESOURCES,
        *resources.BATCH_GPU_RESOURCES,
    )
)
"""Resources on nodes that are ours to write."""

CLOCK_SKEW_S = 60.0
"""A report dated further ahead of its arrival comes from a clock that is wrong."""

_ANNOTATIONS = (
    labels.NODE_RESERVATION,
    labels.NODE_COLOCATION_STRATEGY,
    labels.NODE_THIRD_PARTY_ALLOCATIONS,
    labels.NODE_CPU_NORMALIZATION_RATIO,
    labels.NODE_RESOURCE_AMPLIFICATION_RATIO,
    labels.NODE_RAW_ALLOCATABLE,
    labels.NODE_BATCH_GPUS,
    labels.NODE_BATCH_DURATIONS,
)
_NODE_UNREADABLE = "NodeUnreadable"
_THIRD_PARTY_IGNORED = "ThirdPartyAllocationsIgnored"


class ReportReading(msgspec.Struct, frozen=True, gc=False):
    """The latest report of a node agent; `problem` tells why it is not believed."""

    updated_s: float | None = None
    report: MetricFigures = EMPTY_REPORT
    problem: str = ""


NO_READING = ReportReading()


def reading_of(status: NodeMetricStatus) -> ReportReading:
    """Return the report in a NodeMetric status; one without time is none."""
    if status.update_time is None:
        return NO_READING
    try:
        updated_s = clock.parse_rfc3339(status.update_time)
    except ValueError:
        return ReportReading(None, problem=f"status.updateTime: {status.update_time[:80]!r} is no time")
    try:
        report = account.report_of(status)
        problem = account.report_problem(status, report)
    except QuantityError as error:
        return ReportReading(updated_s, problem=f"status: {error}")
    return ReportReading(updated_s, report if not problem else EMPTY_REPORT, problem)


class ReadMetric(ProfiledMetric, frozen=True, kw_only=True):
    """A NodeMetric of which the report has been read already; it never travels on the wire."""

    reading: ReportReading = NO_READING


class NodeRow(msgspec.Struct):
    """One node. A member that is None has not been seen, or is gone."""

    name: str
    node: Node | None = None
    facts: AccountedNode | None = None
    have: dict[str, int] = {}
    """Our resources in `status.allocatable`, in whole units."""
    taken: dict[str, int] = {}
    """Batch amounts of third parties, in whole units."""
    node_notes: tuple[Note, ...] = ()
    pods: dict[str, AccountedPod] = {}
    reading: ReportReading = NO_READING
    reported_s: float | None = None
    """Time at which the report was made, as we believe: never later than it arrived."""
    skew_s: float = 0.0
    """By how much the report was ahead of its arrival."""
    topology: NodeResourceTopology | None = None
    zone_capacities: list[Amount] = []
    """Capacities of the topology's zones; empty when none tells its amounts."""
    cpu: CPUBasicInfo | ProtocolError | None = None
    has_device: bool = False
    gpu: DeviceTarget = NO_GPUS
    rdma: DeviceTarget = NO_NICS
    gpus: CardAmounts = NO_CARDS
    """Amounts of each healthy GPU."""
    device_problem: str = ""
    strategy: NodeStrategy | None = None
    withdrawal: Withdrawal = Withdrawal.MISSING
    demand_known: HighPriorityDemand | None = None
    zones_known: list[ZoneDemand] | None = None
    top_known: list[tuple[int, int, str]] | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is known of the node any more."""
        nothing_reported = self.reading is NO_READING and self.topology is None and not self.has_device
        return self.node is None and not self.pods and nothing_reported

    @property
    def is_enabled(self) -> bool:
        """Return whether co-location is on for the node."""
        return self.withdrawal is not Withdrawal.DISABLED

    def demand(self) -> HighPriorityDemand:
        """Sums over the node's pods; worked out when pods or the report have changed."""
        if self.demand_known is None:
            self.demand_known = account.node_demand(self.pods, self.reading.report)
        return self.demand_known

    def inputs(self, ahead: Amount = account.ZERO) -> NodeInputs:
        """Return the facts that the formulas work with."""
        assert self.facts is not None
        return NodeInputs(self.facts, self.reading.report, self.demand(), ahead)

    @property
    def looks_ahead(self) -> bool:
        """Return whether Batch yields to predictions of hours to come: both asked for and known."""
        is_asked = self.strategy is not None and self.strategy.ahead_s > 0
        return is_asked and self.withdrawal is Withdrawal.NONE and bool(self.reading.report.yielded_by_hour)

    def yielded_ahead(self) -> Amount:
        """Return what batch will have to yield to as far ahead as the node's strategy looks."""
        if not self.looks_ahead or self.strategy is None or self.reported_s is None:
            return account.ZERO
        by_hour = self.reading.report.yielded_by_hour
        cpu, memory = hours.rise(by_hour, self.reported_s, self.strategy.ahead_s)
        if not cpu and not memory:
            return account.ZERO
        now = decide.held(self.inputs())
        return now[0] + cpu, now[1] + memory

    def zone_demands(self) -> list[ZoneDemand]:
        """Return the same for each zone of `zone_capacities`."""
        if self.zones_known is None:
            self.zones_known = account.zone_demands(self.pods, self.reading.report, len(self.zone_capacities))
        return self.zones_known

    def top_services(self) -> list[tuple[int, int, str]]:
        """Return the services that use most CPU: nano-cores, thousandths of bytes, and the pod."""
        if self.top_known is None:
            used = [
                (usage[0], usage[1], key)
                for key, usage in self.reading.report.pods.items()
                if usage[2] and ((pod := self.pods.get(key)) is None or pod.is_high_priority)
            ]
            used.sort(reverse=True)  # faster than a heap for as many as a node has
            self.top_known = used[:TOP_SERVICES]
        return self.top_known

    def forget_demand(self) -> None:
        self.demand_known = self.zones_known = self.top_known = None

    def see_node(self, node: Node | None) -> None:
        """Take what is new of the node itself. Text that nobody can read gives nothing back of what others have
        taken."""
        is_known = node is not None and self.node is not None and node.metadata.uid == self.node.metadata.uid
        taken = self.taken if is_known else {}
        self.node = node
        self.strategy = None
        self.facts, self.have, self.taken, self.node_notes = None, {}, taken, ()
        if node is None:
            return
        try:
            self.facts = account.node_facts(node)
            self.have = {
                name: quantity.value(amount)
                for name, amount in node.status.allocatable.items()
                if name in OWNED
            }
        except QuantityError as error:
            self.facts = None
            self.node_notes = (Note(_NODE_UNREADABLE, f"node left as it is: {error}"),)
            return
        try:
            self.taken = target.third_party(node.metadata.annotations, f"Node {self.name}")
        except (ProtocolError, QuantityError) as error:
            still = "those known before count on" if taken else "none are known"
            message = f"third-party allocations ignored, {still}: {error}"
            self.node_notes = (Note(_THIRD_PARTY_IGNORED, message),)

    def see_reading(self, reading: ReportReading, now_s: float) -> None:
        """Take a report that arrived at `now_s`.

        One dated in the future counts as made on arrival: a node whose clock is ahead must not stay fresh when its
        agent has died.
        """
        if reading.updated_s is None:
            self.reported_s, self.skew_s = None, 0.0
        elif reading.updated_s != self.reading.updated_s:
            self.reported_s = min(reading.updated_s, now_s)
            self.skew_s = max(reading.updated_s - now_s, 0.0)
        self.reading = reading
        self.forget_demand()

    def see_topology(self, found: NodeResourceTopology | None) -> None:
        """Take zones and CPU model. Zones with amounts that nobody can read are as good as none."""
        self.topology = found
        self.zones_known = None
        self.zone_capacities = []
        self.cpu = None
        if found is None:
            return
        try:
            capacities = [zone_capacity(zone) for zone in found.zones]
            for zone in found.zones:
                for row in zone.resources:
                    if row.name in target.BATCH:  # they will be compared with what we want
                        for amount in (row.capacity, row.allocatable, row.available):
                            quantity.value(amount)
            self.zone_capacities = capacities if has_cpu_or_memory(found.zones) else []
        except QuantityError as error:
            log.warning("zones left unchanged", extra={"node": self.name, "error": str(error)})
        try:
            self.cpu = CPU_BASIC_INFO.read(found.metadata.annotations, f"NodeResourceTopology {self.name}")
        except ProtocolError as error:
            self.cpu = error

    def see_device(self, found: Device | None, *, publishes_shared: bool) -> None:
        """Take cards and NICs. Amounts that nobody can read leave the node's resources as they are."""
        self.device_problem = ""
        self.has_device = found is not None
        try:
            self.gpu = gpu_target(found, publishes_shared=publishes_shared)
            self.rdma = rdma_target(found)
            self.gpus = cards_of(_healthy(found, GPU_TYPE))
        except QuantityError as error:
            self.device_problem = f"Device {self.name}: {error}"


def is_same_to_us(old: Node, new: Node) -> bool:
    """Return whether nothing changed that any plugin looks at (as in a kubelet's heartbeat)."""
    before, after = old.metadata.annotations, new.metadata.annotations
    return (
        old.status.allocatable == new.status.allocatable
        and old.status.capacity == new.status.capacity
        and old.metadata.labels == new.metadata.labels
        and (before == after or all(before.get(key) == after.get(key) for key in _ANNOTATIONS))
        and old.metadata.uid == new.metadata.uid
    )
