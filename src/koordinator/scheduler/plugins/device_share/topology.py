"""GPUs close to each other: the smallest scope that fits, in use rather than idle. Source: behaviour/devices 6.4."""

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from koordinator.api.annotations.device import TOPOLOGY_SCOPE_LEVELS, TopologyScope
from koordinator.scheduler.plugins.device_share.inventory import View, VisibleDevice

Scorer = Callable[[VisibleDevice], int]


class GPURequest(msgspec.Struct, frozen=True):
    """The number of GPUs, and how much each must have left; `level` is the widest scope that will do (see the
    annotation).
    """

    count: int
    amounts: dict[str, int]
    is_shared: bool
    level: int = 0


class _Found(msgspec.Struct, frozen=True):
    minors: tuple[int, ...]
    depth: int
    in_use: int
    score: int = 0


class _Scope(msgspec.Struct, frozen=True):
    level: int
    devices: Sequence[VisibleDevice]
    children: Sequence["_Scope"] = ()


def closest(
    view: View, wanted: GPURequest, used: Collection[int], score: Scorer | None = None
) -> tuple[int, ...]:
    """The minors in the smallest scope with enough of them; empty when no scope will do."""
    found = _search(_tree(view.values()), wanted, used, score, 0, 0)
    return found.minors if found is not None else ()


def _tree(devices: Iterable[VisibleDevice]) -> _Scope:
    cards = sorted(devices, key=lambda device: device.minor)
    numa_nodes = []
    for numa in sorted({card.entry.numa_node for card in cards}):
        near = [card for card in cards if card.entry.numa_node == numa]
        switches = [
            _Scope(
                TOPOLOGY_SCOPE_LEVELS[TopologyScope.PCIE], [card for card in near if card.entry.pcie == pcie]
            )
            for pcie in sorted({card.entry.pcie for card in near})
        ]
        numa_nodes.append(_Scope(TOPOLOGY_SCOPE_LEVELS[TopologyScope.NUMA_NODE], near, switches))
    return _Scope(TOPOLOGY_SCOPE_LEVELS[TopologyScope.NODE], cards, numa_nodes)


def _search(
    scope: _Scope, wanted: GPURequest, used: Collection[int], score: Scorer | None, depth: int, in_use: int
) -> _Found | None:
    if len(scope.devices) < wanted.count:
        return None
    depth += 1
    in_use += any(device.minor in used for device in scope.devices)
    best: _Found | None = None
    for child in scope.children:
        found = _search(child, wanted, used, score, depth, in_use)
        if found is not None and (best is None or _rank(found) > _rank(best)):
            best = found
    if best is not None or wanted.level > scope.level:
        return best
    return _take(scope, wanted, score, depth, in_use)


def _rank(found: _Found) -> tuple[int, int, int]:
    return found.depth, found.in_use, found.score


def _take(scope: _Scope, wanted: GPURequest, score: Scorer | None, depth: int, in_use: int) -> _Found | None:
    fitting = [d for d in scope.devices if d.is_healthy and d.fits(wanted.amounts)]
    if len(fitting) < wanted.count:
        return None
    if not wanted.is_shared:
        return _Found(tuple(device.minor for device in fitting[: wanted.count]), depth, in_use)
    points = {device.minor: score(device) if score else 0 for device in fitting}
    best = max(fitting, key=lambda device: points[device.minor])
    return _Found((best.minor,), depth, in_use, points[best.minor])
