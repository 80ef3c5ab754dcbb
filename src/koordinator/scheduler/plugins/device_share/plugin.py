"""The extension points of DeviceShare. Source: behaviour/devices 5 to 10.

`node_device_cache` keeps what every node has and who holds it; `allocate` decides for one node. Nodes with equal
devices, equally used, share a decision.
"""

import functools
import logging
from collections.abc import Hashable, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from koordinator.api import labels, pod_labels, resource_vector
from koordinator.api.annotations import device as annotation
from koordinator.api.annotations.device import DeviceType
from koordinator.api.core import ConfigMap
from koordinator.api.device import Device
from koordinator.api.errors import ProtocolError
from koordinator.api.reservation import RESIZE_ALLOCATABLE, Reservation, ResizeAllocatable
from koordinator.api.resource_vector import I64
from koordinator.prometheus import Gauge
from koordinator.scheduler.plugin.capabilities import ApiProvider, Endpoint, ResizePodPlugin
from koordinator.scheduler.plugin.events import ClusterEvent, QueueingEvent
from koordinator.scheduler.plugin.framework import (
    FilterPlugin,
    Handle,
    Mask,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    ReasonCodes,
    ReservePlugin,
    ScorePlugin,
    Scores,
    Watch,
    default_normalize,
    passes,
)
from koordinator.scheduler.plugin.reservation_capabilities import (
    ReservationChoice,
    ReservationFilterPlugin,
    ReservationPreBindPlugin,
    ReservationScorePlugin,
    nominated_reservation,
    pre_allocated_pods,
    reservation_for,
)
from koordinator.scheduler.plugin.status import SKIP, SUCCESS, PodPatch, Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.device_share import adaption, bulk, explained, pod_state
from koordinator.scheduler.plugins.device_share.allocate import DeviceDecision, is_well_planned, joint_types
from koordinator.scheduler.plugins.device_share.exact import ExactDecisions, Room
from koordinator.scheduler.plugins.device_share.inventory import allocations_of, total_of
from koordinator.scheduler.plugins.device_share.node_device_cache import NodeDeviceCache
from koordinator.scheduler.plugins.device_share.node_device_record import NodeDeviceRecord
from koordinator.scheduler.plugins.device_share.pick import DeviceScoringStrategy
from koordinator.scheduler.plugins.device_share.pod_state import DeviceState, DeviceStates
from koordinator.scheduler.plugins.device_share.reservations import all_of
from koordinator.scheduler.plugins.device_share.templates import GPUTemplatesConfig, TemplateSource
from koordinator.scheduler.plugins.node_numa_resource.allocations import NUMAAllocations
from koordinator.scheduler.plugins.node_numa_resource.hint_merge import (
    NUMATopologyHint,
    NUMATopologyHintProvider,
    ProvidedHints,
)
from koordinator.scheduler.table.columns import Recent, RowChange, Rows, at
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

CHOICES_MAX = 4_096
"""Choices of devices that are remembered: nodes that fill up alike pass through few states."""
_NOT_FORESEEN = 0xFFFF
"""Code of rows where nobody can tell before it comes to it."""
_NOT_KNOWN_AHEAD = unschedulable("node(s) may have no devices for more such pods")
_NO_DEVICE = unresolvable("node(s) no longer has the chosen devices")


class GPUModel(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A card that cannot be shared."""

    vendor: str = ""
    model: str = ""


class DeviceShareArgs(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """GPUs, RDMA and FPGAs; `allocator` has no effect, as in upstream."""

    allocator: str = ""
    scoring_strategy: DeviceScoringStrategy = DeviceScoringStrategy()
    disable_device_numa_topology_alignment: bool = msgspec.field(
        default=False, name="disableDeviceNUMATopologyAlignment"
    )
    gpu_shared_resource_templates_config: GPUTemplatesConfig = GPUTemplatesConfig()
    gpu_share_unsupported_models: list[GPUModel] = []


DEVICE_EVENTS = (ClusterEvent.DEVICE_ADDED, ClusterEvent.DEVICE_UPDATED, ClusterEvent.DEVICE_DELETED)


class DeviceShare(
    NUMATopologyHintProvider[DeviceState | None],
    PreFilterPlugin[DeviceState | None],
    FilterPlugin[DeviceState | None],
    ScorePlugin[DeviceState | None],
    ReservePlugin[DeviceState | None],
    PreBindPlugin[DeviceState | None],
    ReservationFilterPlugin[DeviceState | None],
    ReservationScorePlugin[DeviceState | None],
    ReservationPreBindPlugin[DeviceState | None],
    ResizePodPlugin[DeviceState | None],
    ApiProvider[DeviceState | None],
):
    """Chooses which GPUs, NICs and FPGAs a pod gets, whole or in part. Pods that ask for none have no state."""

    name = pod_state.PLUGIN
    args = DeviceShareArgs
    per_profile = in_rehearsals = True
    reads = RowChange.NODE | RowChange.PODS
    wakes_for_row = True
    normalizes = normalizes_by_highest = True
    foresees_everywhere = False
    wakes_on = (
        *DEVICE_EVENTS,
        ClusterEvent.GPU_TEMPLATES,
        ClusterEvent.ASSIGNED_POD_DELETED,
        ClusterEvent.ASSIGNED_POD_UPDATED,
        ClusterEvent.NODE_ADDED,
        ClusterEvent.NODE_LABELS,
        ClusterEvent.NODE_ANNOTATIONS,
        ClusterEvent.POD_UPDATED,
    )

    def __init__(self, args: DeviceShareArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._args = args
        self._table = handle.table
        self._unsupported: dict[str, frozenset[str]] = {}
        for each in args.gpu_share_unsupported_models:
            self._unsupported[each.vendor] = self._unsupported.get(each.vendor, frozenset()) | {each.model}
        config = args.gpu_shared_resource_templates_config
        event = QueueingEvent(ClusterEvent.GPU_TEMPLATES)
        self._templates = TemplateSource(config, lambda: handle.happened(event))
        self._adapts = handle.gates.is_on(adaption.GATE)
        self._resizes = handle.gates.is_on("ResizePod")
        self._not_well_planned = handle.metrics.registry.shared(
            Gauge(
                "scheduler_secondary_device_not_well_planned",
                "Whether the last pod with NICs beside whole GPUs found none on a node that vouches for them.",
                ("node_name",),
            )
        )
        self._strategy = args.scoring_strategy
        self._exact = ExactDecisions(self._strategy, self._unsupported, lambda: self._templates.templates)
        self._states = DeviceStates(handle.table, self._strategy, self._unsupported, self._templates)
        self._choices: Recent[DeviceDecision] = Recent(CHOICES_MAX)
        self.cache = handle.table.shared(NodeDeviceCache)
        self._numa = handle.table.shared(NUMAAllocations)
        handle.watch(Watch.changes(Device, self.set_device))
        where = config.config_map_namespace, config.config_map_name
        handle.watch(Watch.one(ConfigMap, *where, self._templates.set_config_map))

    # A pod

    def class_key(self, pod: PodInfo) -> Hashable:
        return (pod.request_key, *pod_state.beside_amounts(pod)) if self._states.asks(pod) else None

    def live_key(self, pod: PodInfo) -> Hashable:
        return self._templates.version

    def prepare(self, pod: PodInfo) -> DeviceState | None:
        return self._states.of(pod)

    def pre_filter(self, state: DeviceState | None) -> PreFilterResult:
        return PreFilterResult(SKIP if state is None else state.status)

    # Filter

    def filter(self, state: DeviceState | None, rows: Rows) -> ReasonCodes:
        return self.filter_ahead(state, rows, 0)

    def filter_ahead(self, state: DeviceState | None, rows: Rows, ahead: int | I64) -> ReasonCodes:
        if state is None:
            return passes(rows)
        columns = self.cache.columns
        reported = at(columns.is_reported.values, rows)
        if reported.all():
            return self._codes(state, rows, ahead)
        codes = np.zeros(rows.size, np.uint16)
        if reported.any():
            of_reported = ahead if isinstance(ahead, int) else ahead[reported]
            codes[reported] = self._codes(state, rows[reported], of_reported)
        return codes

    def _codes(self, state: DeviceState, rows: Rows, ahead: int | I64) -> ReasonCodes:
        """Filter for rows with a Device."""
        columns, demand = self.cache.columns, state.demand
        state.follow(columns)
        found = bulk.judge(columns, demand, state.kinds.partitions, rows, ahead)
        has_kind_codes = np.count_nonzero(state.kind_codes) > 0
        if found.is_pass and not has_kind_codes:
            return passes(rows)
        codes = np.zeros(rows.size, np.uint16)
        for status, is_meant in bulk.refusals(columns, demand, found, rows).items():
            codes[is_meant] = state.code_of(status)
        is_open = found.is_open
        if has_kind_codes:
            by_kind = state.kind_codes[at(columns.kind.values, rows)]
            codes, is_open = np.where(by_kind > 0, by_kind, codes), is_open & (by_kind == 0)
        if np.count_nonzero(is_open):
            is_now = is_open & (np.asarray(ahead) == 0)
            codes[is_open & ~is_now] = _NOT_FORESEEN
            codes[is_now] = self._exact_codes(state, rows[is_now])
        return codes

    def _exact_codes(self, state: DeviceState, rows: Rows) -> ReasonCodes:
        """Decide once for rows that are in the same situation."""
        codes = np.zeros(rows.size, np.uint16)
        found, is_known = bulk.situations(self.cache.columns, state.demand, state.facts, rows)
        for index in np.flatnonzero(~is_known).tolist():
            record = self.cache.at(int(rows[index]))
            codes[index] = self._exact_code(state, record.signature, record)
        if np.count_nonzero(is_known):
            first, which = bulk.distinct(found[:, is_known])
            known = rows[is_known]
            keys = zip(*found[:, is_known][:, first].tolist(), strict=True)
            answers = [
                self._exact_code(state, key, self.cache.at(row))
                for key, row in zip(keys, known[first].tolist(), strict=True)
            ]
            codes[is_known] = np.array(answers, np.uint16)[which]
        return codes

    def _exact_code(self, state: DeviceState, key: Hashable, record: NodeDeviceRecord) -> int:
        return state.codes.get(key, lambda: state.code_of(self._exact.decide(state, record).status))

    def refusal(self, state: DeviceState | None, code: int) -> Status:
        assert state is not None
        return _NOT_KNOWN_AHEAD if code == _NOT_FORESEEN else state.statuses[code - 1]

    def pods_matter(self, state: DeviceState | None, rows: Rows) -> Mask:
        found: Mask = at(self.cache.columns.holders.values, rows) > 0
        return found

    def foresees(self, state: DeviceState | None) -> bool:
        """Return whether it does not matter which devices a pod gets: then so many of them are left after it.

        Where it matters on single nodes, what lies ahead counts as refused, and the node is asked again."""
        return state is None or state.demand.is_plain

    # NUMA nodes

    def numa_hints(
        self, state: DeviceState | None, pod: PodInfo, row: int, choice: ReservationChoice | None = None
    ) -> ProvidedHints:
        if state is None or self._args.disable_device_numa_topology_alignment:
            return ProvidedHints()
        record, room = self._seen(pod, row, choice)
        return self._exact.numa_hints(state, record, room) if record.is_reported else ProvidedHints()

    def try_numa(
        self,
        state: DeviceState | None,
        pod: PodInfo,
        row: int,
        hint: NUMATopologyHint,
        choice: ReservationChoice | None = None,
    ) -> Status:
        if state is None or self._args.disable_device_numa_topology_alignment:
            return SUCCESS
        record, room = self._seen(pod, row, choice, hint.numa_nodes)
        return self._exact.decide(state, record, room).status if record.is_reported else SUCCESS

    # Reservations

    def _seen(
        self, pod: PodInfo, row: int, choice: ReservationChoice | None = None, numa_nodes: int | None = None
    ) -> tuple[NodeDeviceRecord, Room]:
        """Return the devices of a row, and what a pod may look at of them: with the reservation that it would use, or
        the one nominated for it. A trial takes all away that it may use: one of them will do, or all together."""
        if choice is not None:
            return self._using(row, choice.reservation, numa_nodes)
        record = self.cache.at(row)
        is_ignoring = pod_labels.is_reservation_ignored(pod.pod.metadata.labels)
        if self._table.is_trial:
            away = () if is_ignoring else self.cache.reservations_aside(row)
            if not away:
                return record, Room(numa_nodes)
            record = self.cache.with_reservations(row)
            found = [record.left_by(uid, reservation_for(self.handle, uid)) for uid in away]
            must_use = labels.RESERVATION_AFFINITY in pod.pod.metadata.annotations
            return record, Room(numa_nodes, [each for each in found if each is not None], must_use=must_use)
        taken = self.cache.held_by(row, pre_allocated_pods(self.handle, pod.uid))
        if taken:
            held = all_of([each.held for each in taken])
            return record, Room(numa_nodes, (held,), must_use=True, must_have=True)
        if is_ignoring:
            there = self._table.pods_at(row).values()
            uids = [each.uid for each in there if pod_labels.stands_for_reservation(each.pod.metadata)]
            found = [record.reserved_by(uid, is_restricted=False) for uid in uids]
            return record, Room(numa_nodes, [each for each in found if each is not None], is_ignoring=True)
        nominated = nominated_reservation(self.handle, pod.uid, self._table.name_of(row))
        if nominated is None:
            return record, Room(numa_nodes)
        return self._using(row, nominated, numa_nodes)

    def _using(
        self, row: int, reservation: Reservation | None, numa_nodes: int | None = None
    ) -> tuple[NodeDeviceRecord, Room]:
        """Return the devices of a row to a pod that uses this reservation there, and no other."""
        record = self.cache.with_reservations(row)
        if reservation is None:
            return record, Room(numa_nodes)
        reserved = record.left_by(reservation.metadata.uid, reservation)
        return record, Room(numa_nodes, (reserved,) if reserved is not None else (), must_use=True)

    def filter_reservation(
        self, state: DeviceState | None, pod: PodInfo, reservation: Reservation | None, row: int
    ) -> Status:
        if state is None:
            return SUCCESS
        record, room = self._using(row, reservation)
        is_shown = not room.reserved and self._table.is_trial and record is self.cache.at(row)
        if is_shown or not record.is_reported:
            return SUCCESS  # it is as Filter saw it
        if room.reserved:
            return self._exact.decide(state, record, room).status
        code = self._exact_code(state, record.signature, record)
        return self.refusal(state, code) if code else SUCCESS

    def filter_without(self, state: DeviceState | None, pod: PodInfo, row: int) -> Status:
        return self.filter_reservation(state, pod, None, row)

    def filter_pre_allocation(self, state: DeviceState | None, pod: PodInfo, row: int) -> Status:
        record, room = self._seen(pod, row)
        if state is None or not record.is_reported:
            return SUCCESS
        return self._exact.decide(state, record, room).status

    def score_reservation(
        self, state: DeviceState | None, pod: PodInfo, reservation: Reservation, row: int
    ) -> int:
        record, room = self._using(row, reservation)
        if state is None or not room.reserved:
            return 0
        return self._exact.points(state, record, room.reserved[0])

    def normalize_reservations(self, scores: Mapping[str, int]) -> Mapping[str, int]:
        normalised = default_normalize(np.array(list(scores.values()), np.int64)).tolist()
        return dict(zip(scores, normalised, strict=True))

    # Score

    def scores(self, state: DeviceState | None) -> bool:
        return state is not None

    def score(self, state: DeviceState | None, rows: Rows) -> Scores:
        assert state is not None, "else it does not score"
        columns = self.cache.columns
        state.follow(columns)
        if state.demand.is_scored_by_columns and bulk.has_slots(columns, state.facts, rows):
            return bulk.score(columns, state.demand, state.facts, state.kinds, self._strategy, rows)
        points = np.zeros(rows.size, np.int64)
        for index, row in enumerate(rows.tolist()):
            record = self.cache.at(row)
            if record.is_reported:
                work_out = functools.partial(self._exact.points, state, record)
                points[index] = state.points.get(record.signature, work_out)
        return points

    def normalize(self, state: DeviceState | None, scores: Scores) -> Scores:
        return default_normalize(scores)

    # Reserve and PreBind

    def reserves(self, state: DeviceState | None) -> bool:
        return state is not None

    def reserve(self, state: DeviceState | None, pod: PodInfo, row: int) -> Status:
        if state is None or not self.cache.at(row).is_reported:
            return SUCCESS
        decision = self._chosen(state, pod, row)
        if is_well_planned(self.cache.at(row).devices, state.asked) and joint_types(state.asked):
            self._not_well_planned.set(int(not decision.status.is_success), self._table.name_of(row))
        if decision.status.is_success:
            self.cache.reserve(row, pod.uid, decision.by_type, decision.reservation)
            self.cache.take_over(pod.uid, row, pre_allocated_pods(self.handle, pod.uid))
        return decision.status

    def _chosen(self, state: DeviceState, pod: PodInfo, row: int) -> DeviceDecision:
        """Return the devices that the pod gets now on a node with a Device."""
        record, room = self._seen(pod, row, numa_nodes=self._chosen_numa(pod))
        room = replace(room, card_points=self._card_points(pod, row, record))
        if room.reserved:
            return self._exact.decide(state, record, room, reserves=True)
        return self._choices.get(
            (state, record.signature, room.numa_nodes, *room.card_points.values()),
            lambda: self._exact.decide(state, record, room, reserves=True),
        )

    def resize(self, state: DeviceState | None, pod: PodInfo, node_name: str) -> PodInfo | Status:
        """Let a reserve pod hold what its devices are in every name, so that owners may ask for them in any."""
        row = self._table.row_of(node_name)
        if state is None or row is None or not pod_labels.is_reserve_pod(pod.pod.metadata.annotations):
            return pod
        if not self.cache.at(row).is_reported:
            return pod
        decision = self._chosen(state, pod, row)
        if not decision.status.is_success:
            return decision.status
        column = self._table.registry.column
        amounts = {column(name): amount for name, amount in total_of(decision.by_type).items()}
        return pod.holding({**dict(pod.requests), **amounts})

    def _card_points(self, pod: PodInfo, row: int, record: NodeDeviceRecord) -> Mapping[int, int]:
        """Return the points of GPUs by minor, if a plugin of the profile prefers some of them."""
        chooser = self.cache.choosers.get(pod.pod.spec.scheduler_name)
        points = chooser.card_points(pod, row) if chooser is not None else ()
        return dict(zip(record.idle.devices.get(DeviceType.GPU, {}), points, strict=False))

    def _chosen_numa(self, pod: PodInfo) -> int | None:
        """Return the NUMA nodes (a mask) that NodeNUMAResource has just chosen with the hints given to it."""
        if self._args.disable_device_numa_topology_alignment:
            return None
        placed = self._numa.reserved(pod.uid)
        return placed.hint.numa_nodes if placed is not None and placed.hint is not None else None

    def unreserve(self, state: DeviceState | None, pod: PodInfo, node_name: str) -> None:
        self.cache.unreserve(pod.uid)

    async def pre_bind(
        self, state: DeviceState | None, pod: PodInfo, node_name: str, patch: PodPatch
    ) -> Status:
        row, held = self._table.row_of(node_name), self.cache.reserved(pod.uid)
        if held is None:
            if state is not None and labels.DEVICE_ALLOCATED in pod.pod.metadata.annotations:
                # Left from an attempt that did not succeed: these devices are not the pod's.
                patch.annotations[labels.DEVICE_ALLOCATED] = None
            return SUCCESS
        if row is None:
            return _NO_DEVICE
        allocations = allocations_of(held, self.cache.at(row).ids)
        patch.annotations[labels.DEVICE_ALLOCATED] = annotation.DEVICE_ALLOCATED.encode(allocations)
        if not self._adapts:
            return SUCCESS
        own = self.cache.at(row).devices.labels
        return await adaption.write(self.handle, patch, pod, node_name, allocations, own)

    async def pre_bind_reservation(
        self, state: DeviceState | None, reservation: Reservation, node_name: str, patch: PodPatch
    ) -> Status:
        uid = reservation.metadata.uid
        place, held = self._table.place_of(uid), self.cache.reserved(uid)
        if self._resizes and held is not None:
            known = RESIZE_ALLOCATABLE.read(reservation.metadata.annotations, reservation.key)
            amounts = {name: resource_vector.amount_text(name, each) for name, each in total_of(held).items()}
            resources = {**(known.resources if known is not None else {}), **amounts}
            patch.annotations[labels.RESERVATION_RESIZE_ALLOCATABLE] = RESIZE_ALLOCATABLE.encode(
                ResizeAllocatable(resources=resources)
            )
        return SUCCESS if place is None else await self.pre_bind(state, place.pod, node_name, patch)

    # Device objects

    def set_device(self, old: Device | None, new: Device | None) -> None:
        """Take in what is reported of a node's devices; None when nothing was before, or is any more."""
        try:
            row = None
            if new is not None:
                row = self.cache.set_report(new)
            elif old is not None:
                row = self.cache.remove_report(old.metadata.name)
        except ProtocolError as problem:
            log.warning("report ignored: %s", problem)
            return
        if row is not None:
            self.handle.changed(DEVICE_EVENTS, old, new, row)

    # For people

    def facts(self, state: DeviceState | None, row: int) -> tuple[str, ...]:
        """Return what the pod asks for, what each device of the node has left, and which Reservations keep some."""
        if state is None:
            return ()
        pods = [each.pod for each in self._table.pods_at(row).values()]
        kept_by = {
            each.metadata.uid: each.metadata.annotations.get(labels.RESERVATION_NAME, each.key)
            for each in pods
            if pod_labels.stands_for_reservation(each.metadata)
        }
        return explained.facts(state.asked, self.cache.at(row), kept_by)

    def endpoints(self) -> tuple[Endpoint, ...]:
        return explained.endpoints(self._table, self.cache)
