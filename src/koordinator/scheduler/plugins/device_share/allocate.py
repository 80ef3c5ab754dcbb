"""All devices of a pod on one node, with those chosen beforehand. Source: behaviour/devices 3.2 and 4 to 6."""

import functools
from collections.abc import Callable, Collection, Mapping

import msgspec

from koordinator.api import labels
from koordinator.api.annotations.device import (
    SAME_PCIE,
    TOPOLOGY_SCOPE_LEVELS,
    AllocateStrategy,
    DeviceAllocation,
    DeviceAllocations,
    DeviceHint,
    DeviceType,
    GPUPartitionSpec,
    JointAllocate,
)
from koordinator.api.resource_vector import add_in_place
from koordinator.scheduler.plugin.status import SUCCESS, Status, error, unresolvable, unschedulable
from koordinator.scheduler.plugins.device_share import partition
from koordinator.scheduler.plugins.device_share.inventory import (
    NO_LIMITS,
    DeviceLimits,
    Held,
    HeldDevice,
    NodeDevices,
    View,
    amounts_of,
    view_of,
)
from koordinator.scheduler.plugins.device_share.pick import (
    DeviceCountRequest,
    DeviceScoringStrategy,
    PickDecision,
    Scorer,
    VFChoice,
    device_score,
    pick,
)
from koordinator.scheduler.plugins.device_share.request import (
    Amounts,
    PerDevice,
    insufficient,
    per_device,
    per_gpu,
    with_gpu_memory,
)
from koordinator.scheduler.plugins.device_share.templates import NO_TEMPLATE, GPUTemplates

JOINT_VIOLATION = unschedulable("node(s) Device Joint-Allocate rules violation")
MISSING_TREE = unresolvable("node(s) missing GPU Device Topology Tree")
MULTI_SHARED = unresolvable("node(s) Unsupported Multi-Shared GPU")
NONE_IN_SCOPE = unschedulable("Insufficient Topology Scoped GPU Devices")
NO_GPU = unschedulable("Insufficient GPU Devices")


class PodDevices(msgspec.Struct, frozen=True):
    """The devices that a pod asks for: amounts by type in base names, and how."""

    by_type: Mapping[str, Amounts]
    hints: Mapping[str, DeviceHint] = {}
    joint: JointAllocate | None = None
    partition_spec: GPUPartitionSpec | None = None

    def hint(self, device_type: str) -> DeviceHint:
        return self.hints.get(device_type) or DeviceHint()

    @property
    def is_whole_gpus(self) -> bool:
        asked = self.by_type.get(DeviceType.GPU)
        return asked is not None and not per_gpu(asked).is_shared


class AllocateOptions(msgspec.Struct, frozen=True):
    """The options for choosing devices. Without a strategy all devices score the same."""

    strategy: DeviceScoringStrategy | None = None
    templates: GPUTemplates | None = None
    """None when nobody configured any."""
    is_reserve: bool = False
    """Devices are really taken now, not only tried."""
    card_points: Mapping[int, int] = {}
    """Points of GPUs by minor, in place of the strategy's."""


class DeviceDecision(msgspec.Struct, frozen=True):
    """The devices that a pod gets by type, and the reservation that it uses for them ("": none); nothing when `status`
    is a refusal."""

    by_type: Held = {}
    status: Status = SUCCESS
    reservation: str = ""


def allocate(
    node: NodeDevices,
    pod: PodDevices,
    limits: DeviceLimits = NO_LIMITS,
    options: AllocateOptions | None = None,
) -> DeviceDecision:
    """Return the pod's devices of all types on the node, or why not. Raises: ProtocolError when the node's partition
    table is malformed."""
    options = options or AllocateOptions()
    wanted, status = wanted_by_type(node, pod, pod.by_type if options.is_reserve else tried_types(node, pod))
    if not status.is_success:
        return DeviceDecision(status=status)
    joint = [device_type for device_type in joint_types(pod) if device_type in wanted]
    return _Attempt(node, pod, limits, options, wanted).run(joint)


def wanted_by_type(
    node: NodeDevices, pod: PodDevices, device_types: Collection[str]
) -> tuple[Mapping[str, PerDevice], Status]:
    """Return what the pod wants of these types on this node, or why the node never has it: a type without devices is
    told before one without virtual functions."""
    wanted = {device_type: wanted_of(node, pod, device_type) for device_type in device_types}
    for each in wanted.values():
        if not each.status.is_success:
            return wanted, each.status
    for device_type in device_types:
        entries = node.devices.get(device_type, {}).values()
        if pod.hint(device_type).vf_selector is not None and not any(entry.vf_groups for entry in entries):
            return wanted, unresolvable(f"Insufficient {device_type} VirtualFunctions")
    return wanted, SUCCESS


def wanted_of(node: NodeDevices, pod: PodDevices, device_type: str) -> PerDevice:
    """Return how many devices of a type the pod wants on this node, and how much of each."""
    asked, devices = pod.by_type[device_type], node.devices.get(device_type, {})
    if device_type != DeviceType.GPU:
        listed = [entry.labels for entry in devices.values()]
        return per_device(device_type, asked, listed, pod.hint(device_type))
    return per_gpu(asked) if devices else PerDevice(status=unresolvable(insufficient(device_type)))


def node_score(
    node: NodeDevices, pod: PodDevices, strategy: DeviceScoringStrategy, limits: DeviceLimits = NO_LIMITS
) -> int:
    """Sum over the types that are tried before Reserve, so that it may exceed 100 before nodes are compared; 0 without
    devices. All devices of a type count as one, with one device's request added."""
    points = 0
    for device_type in tried_types(node, pod):
        wanted = wanted_of(node, pod, device_type)
        total: Amounts = {}
        free: Amounts = {}
        for device in view_of(node, device_type, limits, pod.hint(device_type).selector).values():
            add_in_place(total, device.entry.total)
            add_in_place(free, device.free)
        points += device_score(strategy, wanted.amounts, total, free)
    return points


def joint_types(pod: PodDevices) -> list[str]:
    """Return the types that belong together, the leading one first; none for a pod of one type."""
    if pod.joint is None or len(pod.by_type) < 2:
        return []
    return [
        device_type
        for device_type in pod.joint.device_types
        if device_type in pod.by_type
        and pod.hint(device_type).allocate_strategy != AllocateStrategy.APPLY_FOR_ALL
    ]


def tried_types(node: NodeDevices, pod: PodDevices) -> Collection[str]:
    """Return the types that are tried before Reserve: all, or only the leading one where the node's label vouches for
    what goes with it."""
    joint = joint_types(pod)
    return joint[:1] if joint and is_well_planned(node, pod) else pod.by_type


def is_well_planned(node: NodeDevices, pod: PodDevices) -> bool:
    """Return whether a node is said to have a NIC for each GPU, so that only GPUs are tried before Reserve."""
    return node.labels.get(labels.SECONDARY_DEVICE_WELL_PLANNED) == "true" and pod.is_whole_gpus


class _Attempt:
    """One try on one node; holds what all steps need."""

    def __init__(
        self,
        node: NodeDevices,
        pod: PodDevices,
        limits: DeviceLimits,
        options: AllocateOptions,
        wanted: Mapping[str, PerDevice],
    ) -> None:
        self.node, self.pod, self.limits, self.options, self.wanted = node, pod, limits, options, wanted

    def run(self, joint: list[str]) -> DeviceDecision:
        found: dict[str, tuple[HeldDevice, ...]] = {}
        if joint:
            decision = self._joint(joint)
            if not decision.status.is_success:
                return decision
            found.update(decision.by_type)
        for device_type in self.wanted:
            if device_type in found:
                continue
            picked = self._pick(device_type)
            if not picked.status.is_success:
                return DeviceDecision(status=picked.status)
            found[device_type] = picked.picked
        return self._completed(found)

    def _joint(self, joint: list[str]) -> DeviceDecision:
        primary, *others = joint
        first = self._pick(primary)
        if not first.status.is_success:
            return DeviceDecision(status=first.status)
        found = {primary: first.picked}
        pcies = self._pcies(primary, first.picked)
        is_same = self.pod.joint is not None and self.pod.joint.required_scope == SAME_PCIE
        for device_type in others:
            picked = self._pick(device_type, pcies, len(pcies) if is_same else 0)
            if not picked.status.is_success:
                return DeviceDecision(status=picked.status)
            if is_same and self._pcies(device_type, picked.picked) != pcies:
                return DeviceDecision(status=JOINT_VIOLATION)
            found[device_type] = picked.picked
        return DeviceDecision(found)

    def _pcies(self, device_type: str, picked: tuple[HeldDevice, ...]) -> frozenset[str]:
        devices = self.node.devices[device_type]
        return frozenset(devices[p.minor].pcie for p in picked if devices[p.minor].has_topology)

    def _completed(self, found: Held) -> DeviceDecision:
        """With memory and its ratio on each GPU."""
        by_type = dict(found)
        gpus = []
        for picked in found.get(DeviceType.GPU, ()):
            amounts = with_gpu_memory(picked.amounts, self.node.devices[DeviceType.GPU][picked.minor].total)
            if amounts is None:
                return DeviceDecision(status=unschedulable(insufficient(DeviceType.GPU)))
            gpus.append(msgspec.structs.replace(picked, amounts=amounts))
        if gpus:
            by_type[DeviceType.GPU] = tuple(gpus)
        return DeviceDecision(by_type)

    # One type

    def _pick(
        self, device_type: str, pcies: frozenset[str] = frozenset(), count_min: int = 0
    ) -> PickDecision:
        """Pick at least so many devices, on these switches first."""
        wanted, hint = self.wanted[device_type], self.pod.hint(device_type)
        view = view_of(self.node, device_type, self.limits, hint.selector)
        score = self._scorer(device_type, wanted.amounts)
        request = DeviceCountRequest(
            max(wanted.count, count_min),
            wanted.amounts,
            self.limits.preferred.get(device_type, frozenset()),
            pcies,
        )
        generic = functools.partial(pick, device_type, view, request, score, self._vfs(device_type, hint))
        return generic() if device_type != DeviceType.GPU else self._pick_gpus(view, wanted, generic)

    def _vfs(self, device_type: str, hint: DeviceHint) -> VFChoice | None:
        allowed = self.limits.allowed_vfs.get(device_type)
        if hint.vf_selector is None:
            return None
        taken = self.node.taken_vfs.get(device_type, frozenset())
        back = self.limits.given_back_vfs.get(device_type, {}).values()
        return VFChoice(hint.vf_selector, taken.difference(*back), allowed, self.limits.preferred_vfs)

    def _scorer(
        self, device_type: str, amounts: Mapping[str, int], *, is_by_topology: bool = False
    ) -> Scorer | None:
        """By closeness, total and free change places, as users know it: cards partly in use all score alike."""
        strategy, points = self.options.strategy, self.options.card_points
        if points and device_type == DeviceType.GPU:
            return lambda device: points.get(device.minor, 0)
        if strategy is None:
            return None
        if is_by_topology:
            return lambda device: device_score(strategy, amounts, device.free, device.entry.total)
        return lambda device: device_score(strategy, amounts, device.entry.total, device.free)

    def _pick_gpus(self, view: View, wanted: PerDevice, generic: Callable[[], PickDecision]) -> PickDecision:
        templates, names = self.options.templates, []
        if templates is not None and templates.concern(wanted):
            names = templates.equal_on(self.node.node_labels, wanted.amounts)
            if not names:
                return PickDecision(status=NO_TEMPLATE)
        used = self._used_gpus(view)
        if not wanted.is_shared:
            decision = self._partition(view, wanted, used)
            if decision is not None:
                return decision
        decision = self._by_topology(view, wanted, used) or generic()
        if len(names) != 1:
            return decision
        picked = tuple(msgspec.structs.replace(p, template=names[0]) for p in decision.picked)
        return PickDecision(picked, decision.status)

    def _used_gpus(self, view: View) -> frozenset[int]:
        """Cards in use as the pod sees them, and those that it does not see."""
        hidden = self.node.devices[DeviceType.GPU].keys() - view.keys()
        seen = {minor for minor, device in view.items() if device.is_used}
        return frozenset(seen | {minor for minor in hidden if self.node.is_used(DeviceType.GPU, minor)})

    def _partition(self, view: View, wanted: PerDevice, used: frozenset[int]) -> PickDecision | None:
        """By the partition table; None when there is nothing and the pod need not keep to it."""
        spec, partitions = self.pod.partition_spec, partition.partitions_of(self.node)
        healthy = {minor for minor, device in view.items() if device.is_healthy}
        must = self.limits.must.get(DeviceType.GPU, frozenset())
        decision = partition.choose(partitions.table, wanted.count, used, healthy, spec, must)
        if decision.status.is_success:
            return _picked(decision.minors, wanted)
        is_binding = spec is not None or partitions.is_binding
        return PickDecision(status=decision.status) if is_binding else None

    def _by_topology(self, view: View, wanted: PerDevice, used: frozenset[int]) -> PickDecision | None:
        """By closeness; None when the cards' places are not known and no scope is required."""
        scope = self.pod.hint(DeviceType.GPU).required_topology_scope
        cards = self.node.devices[DeviceType.GPU].values()
        if not all(card.has_topology for card in cards):
            return PickDecision(status=MISSING_TREE) if scope else None
        if wanted.is_shared and wanted.count > 1:
            return PickDecision(status=MULTI_SHARED) if scope else None
        level = TOPOLOGY_SCOPE_LEVELS.get(scope, 0)
        must = self.limits.must.get(DeviceType.GPU, frozenset())
        asked = partition.GPURequest(wanted.count, wanted.amounts, wanted.is_shared, level, must)
        score = self._scorer(DeviceType.GPU, wanted.amounts, is_by_topology=True)
        minors = partition.closest(cards, view, asked, used, score)
        if minors:
            return _picked(minors, wanted)
        return PickDecision(status=NONE_IN_SCOPE if scope else NO_GPU)


def _picked(minors: tuple[int, ...], wanted: PerDevice) -> PickDecision:
    return PickDecision(tuple(HeldDevice(minor, wanted.amounts) for minor in sorted(minors)))


NO_HAMI_CORE = error("GPUIsolationProviderHAMICore not found on the node")


def check_shared_gpu(
    pod: PodDevices,
    pod_labels: Mapping[str, str],
    node_labels: Mapping[str, str],
    unsupported: Mapping[str, frozenset[str]],
) -> Status:
    """Return whether a node can isolate shares of its GPUs as the pod wants; `unsupported` models by vendor cannot."""
    if DeviceType.GPU not in pod.by_type or pod.is_whole_gpus:
        return SUCCESS
    provider = pod_labels.get(labels.GPU_ISOLATION_PROVIDER, "")
    if provider and provider != node_labels.get(labels.GPU_ISOLATION_PROVIDER, ""):
        return NO_HAMI_CORE
    vendor, model = node_labels.get(labels.GPU_VENDOR, ""), node_labels.get(labels.GPU_MODEL, "")
    if model in unsupported.get(vendor, ()):
        return unresolvable(f'model "{model}" of vendor "{vendor}" does not support GPU Share')
    return SUCCESS


def designated(limits: DeviceLimits, node: NodeDevices, recorded: DeviceAllocations) -> DeviceLimits:
    """Limits to exactly the devices, amounts and virtual functions that were recorded; a type of which none is recorded
    has no limits. Raises: QuantityError when an amount is no quantity."""
    required = {
        device_type: {entry.minor: _amounts(node, device_type, entry) for entry in entries}
        for device_type, entries in recorded.items()
        if entries
    }
    vfs = {
        device_type: {
            entry.minor: frozenset(vf.bus_id for vf in entry.extension.vfs)
            for entry in entries
            if entry.extension is not None and entry.extension.vfs
        }
        for device_type, entries in recorded.items()
    }
    return msgspec.structs.replace(
        limits, required={**limits.required, **required}, allowed_vfs={**limits.allowed_vfs, **vfs}
    )


def _amounts(node: NodeDevices, device_type: str, entry: DeviceAllocation) -> Amounts:
    amounts = amounts_of(entry.resources)
    device = node.devices.get(device_type, {}).get(entry.minor)
    if device_type != DeviceType.GPU or device is None:
        return amounts
    return with_gpu_memory(amounts, device.total) or amounts
