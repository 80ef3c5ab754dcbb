"""Devices of one type, by preference, score and number. Source: behaviour/devices 5.4 and 7."""

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from koordinator.api import label_selector, resources
from koordinator.api.affinity import LabelSelector
from koordinator.api.annotations.device import VirtualFunction
from koordinator.scheduler.plugin.percent import ScoredResource, ScoringStrategy
from koordinator.scheduler.plugin.status import SUCCESS, Status, unschedulable
from koordinator.scheduler.plugins.device_share.inventory import HeldDevice, View, VisibleDevice
from koordinator.scheduler.plugins.device_share.request import Amounts, insufficient

Scorer = Callable[[VisibleDevice], int]


class PickDecision(msgspec.Struct, frozen=True):
    """The devices that a pod gets of a type, by ascending minor; none when `status` is a refusal."""

    picked: tuple[HeldDevice, ...] = ()
    status: Status = SUCCESS


class DeviceCountRequest(msgspec.Struct, frozen=True):
    """The number of devices, and those that are preferred."""

    count: int
    amounts: Amounts
    preferred: frozenset[int] = frozenset()
    preferred_pcies: frozenset[str] = frozenset()
    """Without preferred minors: one device on each of these, before others."""


class VFChoice(msgspec.Struct, frozen=True):
    """The virtual functions that will do."""

    selector: LabelSelector
    taken: frozenset[str] = frozenset()
    allowed: Mapping[int, frozenset[str]] | None = None
    """By minor; None, or a minor that is not in it, allows all."""
    preferred: frozenset[str] = frozenset()

    def of(self, device: VisibleDevice) -> VirtualFunction | None:
        """Return the device's free one with the lowest bus id, a preferred one if there is any."""
        allowed = None if self.allowed is None else self.allowed.get(device.minor)
        free = [
            VirtualFunction(minor=vf.minor, bus_id=vf.bus_id)
            for group in device.entry.vf_groups
            if label_selector.matches(self.selector, group.labels)
            for vf in group.vfs
            if vf.bus_id not in self.taken and (allowed is None or vf.bus_id in allowed)
        ]
        return min(free, key=lambda vf: (vf.bus_id not in self.preferred, vf.bus_id), default=None)


def pick(
    device_type: str,
    view: View,
    request: DeviceCountRequest,
    score: Scorer | None = None,
    vfs: VFChoice | None = None,
) -> PickDecision:
    """Return the first devices in order that have enough left (and a virtual function, where one is wanted)."""
    count_max = max(request.count, len(request.preferred_pcies))
    picked: list[HeldDevice] = []
    for device in in_order(view.values(), request.preferred, request.preferred_pcies, score):
        if len(picked) == count_max:
            break
        if not device.fits(request.amounts):
            continue
        vf = vfs.of(device) if vfs is not None else None
        if vfs is None or vf is not None:
            picked.append(HeldDevice(device.minor, request.amounts, () if vf is None else (vf,)))
    if len(picked) < request.count:
        return PickDecision(status=unschedulable(insufficient(device_type)))
    return PickDecision(tuple(sorted(picked, key=lambda p: p.minor)))


def in_order(
    devices: Iterable[VisibleDevice],
    preferred: Collection[int],
    preferred_pcies: Collection[str],
    score: Scorer | None,
) -> list[VisibleDevice]:
    """Preferred minors first, else preferred switches in rounds; then by score and minor."""

    def rank(device: VisibleDevice) -> tuple[bool, int, int]:
        return device.minor not in preferred, -(score(device) if score else 0), device.minor

    ranked = sorted(devices, key=rank)
    if preferred or not preferred_pcies:
        return ranked
    seen: dict[str, int] = {}
    rounds: dict[int, int] = {}
    last = len(ranked)  # after all rounds
    for device in ranked:
        pcie = device.entry.pcie
        is_there = device.entry.has_topology and pcie in preferred_pcies
        if not is_there:
            rounds[device.minor] = last
            continue
        rounds[device.minor] = seen.get(pcie, 0)
        seen[pcie] = seen.get(pcie, 0) + 1
    return sorted(ranked, key=lambda device: rounds[device.minor])


_SCORED = (resources.GPU_MEMORY_RATIO, resources.GPU_MEMORY, resources.RDMA, resources.FPGA)


class DeviceScoringStrategy(ScoringStrategy, frozen=True, forbid_unknown_fields=True):
    """The choice whether devices in use (MostAllocated) or idle ones are preferred, and by which resources."""

    resources: tuple[ScoredResource, ...] = tuple(ScoredResource(name) for name in _SCORED)


def device_score(
    strategy: DeviceScoringStrategy,
    request: Mapping[str, int],
    total: Mapping[str, int],
    free: Mapping[str, int],
) -> int:
    """Weighted mean, cut off, over the resources that the device has; 0 when none counts."""
    points = weights = 0
    for resource in strategy.resources:
        capacity = total.get(resource.name, 0)
        if capacity <= 0:
            continue
        left = free.get(resource.name, 0)
        used = capacity if left > capacity else capacity - left + request.get(resource.name, 0)
        points += resource.weight * strategy.score(used, capacity)
        weights += resource.weight
    return points // weights if weights else 0
