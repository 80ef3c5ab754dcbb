"""Filter and Score of one pod over many nodes, from columns. Source: behaviour/devices 4 to 7.

Says row by row what `allocate` and `node_score` say, without choosing devices: a pod that takes whichever devices have
enough left fits where there are as many of them as it wants. Rows where it matters which devices these are (joint
allocation, virtual functions, selectors, scopes, partitions that bind) are handed back; `situations` says which of them
are alike, so that each situation is decided once.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import label_selector
from koordinator.api.affinity import LabelSelector
from koordinator.api.annotations.device import AllocateStrategy, DeviceType
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import SCORE_MAX, Mask, Scores
from koordinator.scheduler.plugin.status import Status, unresolvable, unschedulable
from koordinator.scheduler.plugins.device_share import partition
from koordinator.scheduler.plugins.device_share.allocate import (
    NO_GPU,
    PodDevices,
    check_shared_gpu,
    is_well_planned,
    joint_types,
)
from koordinator.scheduler.plugins.device_share.columns import (
    SLOTS_MAX,
    DeviceAmounts,
    DeviceColumns,
    DeviceTypeColumns,
    Layout,
    Numbered,
)
from koordinator.scheduler.plugins.device_share.inventory import DeviceEntry, NodeDevices
from koordinator.scheduler.plugins.device_share.pick import DeviceScoringStrategy
from koordinator.scheduler.plugins.device_share.request import (
    LENT,
    NAMES_BY_TYPE,
    PerDevice,
    insufficient,
    per_device,
    per_gpu,
)
from koordinator.scheduler.plugins.device_share.templates import GPUTemplates
from koordinator.scheduler.table.columns import Rows, at

Kinds = npt.NDArray[np.uint8]


class TypeDemand(msgspec.Struct, frozen=True, eq=False):
    """The demand for devices of one type: how many, and how much of each; `needs` is what all devices of a node must
    offer for the columns to tell; cards that lend nothing have nothing to lend."""

    device_type: str
    wanted: PerDevice
    needs: tuple[str, ...]


class DeviceDemand(msgspec.Struct, frozen=True, eq=False):
    """The demand of a pod on devices, in the terms of the columns."""

    types: tuple[TypeDemand, ...]
    is_plain: bool
    """Whether any devices will do that have enough left."""
    is_scored_by_columns: bool
    """Whether the columns tell the score."""
    is_whole_gpus: bool
    is_chosen: bool
    """Whether the pod's devices were chosen beforehand."""

    @classmethod
    def of(
        cls, asked: PodDevices, strategy: DeviceScoringStrategy, templates: GPUTemplates, *, is_chosen: bool
    ) -> "DeviceDemand":
        types = tuple(_type_demand(asked, device_type) for device_type in asked.by_type)
        is_plain = all(_is_plain(asked, each, templates) for each in types)
        is_whole = asked.is_whole_gpus
        # Where secondary devices are well planned, types beside the leading one are not tried at all.
        joint = joint_types(asked)
        is_plain = is_plain and len(joint) < (1 if is_whole else 2)
        is_plain = is_plain and not (is_whole and asked.partition_spec)
        names = {name for of_type in NAMES_BY_TYPE.values() for name in of_type}
        is_known = all(each.name in names for each in strategy.resources)
        return cls(
            types,
            is_plain=is_plain and not is_chosen,
            is_scored_by_columns=is_known and not is_chosen,
            is_whole_gpus=is_whole,
            is_chosen=is_chosen,
        )


def _type_demand(asked: PodDevices, device_type: str) -> TypeDemand:
    amounts = asked.by_type[device_type]
    if device_type == DeviceType.GPU:
        wanted = per_gpu(amounts)
        return TypeDemand(device_type, wanted, tuple(wanted.amounts.keys() - LENT))
    hint = msgspec.structs.replace(asked.hint(device_type), selector=None)
    wanted = per_device(device_type, amounts, [{}], hint)
    return TypeDemand(device_type, wanted, tuple(wanted.amounts))


def _is_plain(asked: PodDevices, demand: TypeDemand, templates: GPUTemplates) -> bool:
    hint, amounts = asked.hint(demand.device_type), demand.wanted.amounts
    if hint.selector is not None or hint.vf_selector is not None or not all(amounts.values()):
        return False
    if demand.device_type == DeviceType.GPU:
        return not hint.required_topology_scope and not templates.concern(demand.wanted)
    return hint.allocate_strategy != AllocateStrategy.APPLY_FOR_ALL


PLAIN, LOOSE, BINDING = 0, 1, 2
"""Kinds of nodes by their partition tables: none, one that need not be kept, one that must."""


def partition_kind(kind: NodeDevices) -> int:
    """Return how far whole GPUs of such nodes are given out in partitions."""
    try:
        found = partition.partitions_of(kind)
    except (ProtocolError, QuantityError):
        return BINDING
    if found.is_binding:
        return BINDING
    return PLAIN if found.table is None else LOOSE


class KindVerdicts:
    """The verdicts on a pod that follow from the kind of a node (`DeviceColumns.kinds`), of kinds known by now."""

    def __init__(
        self,
        asked: PodDevices,
        pod_labels: Mapping[str, str],
        unsupported: Mapping[str, frozenset[str]],
    ) -> None:
        self._asked, self._labels, self._unsupported = asked, pod_labels, unsupported
        self.leading = next(iter(joint_types(asked)), "")
        """The type with which others go."""
        self._forget(0)

    def _forget(self, version: int) -> None:
        self._version = version
        self.refusals: list[Status] = []
        self.partitions: Kinds = np.zeros(0, np.uint8)
        """(kinds,): `PLAIN`, `LOOSE` or `BINDING`; of a pod without whole GPUs always `PLAIN`."""
        self.leads: Mask = np.zeros(0, np.bool_)
        """(kinds,): whether the leading type alone is looked at before Reserve."""

    def follow(self, numbered: Numbered[NodeDevices]) -> bool:
        """Take in kinds that are new, or have other numbers; return whether there are any."""
        if self._version != numbered.version:
            self._forget(numbered.version)
        more = numbered.values[len(self.refusals) :]
        if not more:
            return False
        self.refusals += [
            check_shared_gpu(self._asked, self._labels, kind.node_labels, self._unsupported) for kind in more
        ]
        found = [partition_kind(kind) if self._asked.is_whole_gpus else PLAIN for kind in more]
        self.partitions = np.concatenate([self.partitions, np.array(found, np.uint8)])
        alone = [bool(self.leading) and is_well_planned(kind, self._asked) for kind in more]
        self.leads = np.concatenate([self.leads, np.array(alone, np.bool_)])
        return True


class LayoutFacts:
    """The devices that a pod's selectors find in layouts (`DeviceColumns.layouts`), in those known by now."""

    def __init__(self, asked: PodDevices) -> None:
        hints = {device_type: asked.hint(device_type) for device_type in asked.by_type}
        self._selectors = {t: hint.selector for t, hint in hints.items() if hint.selector is not None}
        self._vf_selectors = {
            t: hint.vf_selector for t, hint in hints.items() if hint.vf_selector is not None
        }
        self._forget(0)

    def _forget(self, version: int) -> None:
        self._version, self._known = version, 0
        nowhere = np.zeros((1, SLOTS_MAX), np.bool_)
        self.selected: dict[str, Mask] = dict.fromkeys(self._selectors, nowhere)
        """Type → (layouts + 1, slots): devices that its selector selects; the last row is for nodes without any."""
        self.takes_any_vf: dict[str, Mask] = dict.fromkeys(self._vf_selectors, nowhere[0, :1])
        """Type → (layouts + 1,): whether any virtual function will do."""

    def follow(self, numbered: Numbered[Layout]) -> None:
        """Take in layouts that are new, or have other numbers."""
        if not (self._selectors or self._vf_selectors):
            return
        if self._version != numbered.version:
            self._forget(numbered.version)
        more = numbered.values[self._known :]
        if not more:
            return
        self._known += len(more)
        for device_type, selector in self._selectors.items():
            found = np.zeros((len(more) + 1, SLOTS_MAX), np.bool_)
            for index, layout in enumerate(more):
                entries = list(layout.get(device_type, {}).values())[:SLOTS_MAX]
                found[index, : len(entries)] = [label_selector.matches(selector, e.labels) for e in entries]
            self.selected[device_type] = np.concatenate([self.selected[device_type][:-1], found])
        for device_type, selector in self._vf_selectors.items():
            alike = [_takes_any_vf(selector, layout.get(device_type, {}).values()) for layout in more]
            known = self.takes_any_vf[device_type][:-1]
            self.takes_any_vf[device_type] = np.concatenate([known, np.array([*alike, False])])


def _takes_any_vf(selector: LabelSelector, devices: Iterable[DeviceEntry]) -> bool:
    return all(label_selector.matches(selector, group.labels) for each in devices for group in each.vf_groups)


class DeviceVerdict(msgspec.Struct, frozen=True, eq=False):
    """(rows,) each: `short_of` is the position of a type (from 1) of which too few devices have enough left, 0 where
    there is none; `has_none` the same of a type that the node does not have; `is_open` rows that the columns cannot
    tell about."""

    short_of: I64
    has_none: I64
    is_open: Mask

    @property
    def is_pass(self) -> bool:
        """Return whether all rows are known to pass."""
        return not any(map(np.count_nonzero, (self.short_of, self.has_none, self.is_open)))


def judge(
    columns: DeviceColumns, demand: DeviceDemand, partitions: Kinds, rows: Rows, ahead: int | I64 = 0
) -> DeviceVerdict:
    """Filter `rows` (rows,), all of them reported; `partitions` as in `KindVerdicts`. `ahead` tells how many more such
    pods are on each row, one number or (rows,)."""
    short_of, has_none = np.zeros(rows.size, np.int64), np.zeros(rows.size, np.int64)
    if not demand.is_plain:
        return DeviceVerdict(short_of, has_none, np.ones(rows.size, np.bool_))
    is_open = np.zeros(rows.size, np.bool_)
    for position, each in enumerate(demand.types, 1):
        of_type = columns.by_type[each.device_type]
        lacks = at(of_type.count.values, rows) == 0
        if np.count_nonzero(lacks):
            has_none[lacks & (has_none == 0)] = position
        needs = of_type.bits_of(each.needs)
        if needs is None:
            # No device offers it: where there is a healthy one, that is not checked (4.2).
            is_open |= at(of_type.is_healthy.values, rows).any(axis=0)
            short_of[short_of == 0] = position
            continue
        is_open |= (at(of_type.common.values, rows) & needs) != needs
        if not all(name in of_type.amounts for name in each.wanted.amounts):
            short_of[short_of == 0] = position  # nobody lends any
            continue
        if demand.is_whole_gpus and each.device_type == DeviceType.GPU:
            is_open |= _is_partitioned(columns, of_type, each.wanted, partitions, rows)
        is_short, is_unknown = _short(of_type, each.wanted, rows, ahead)
        if is_unknown is not None:
            is_open |= is_unknown
        if np.count_nonzero(is_short):
            short_of[is_short & (short_of == 0)] = position
    return DeviceVerdict(short_of, has_none, is_open & (has_none == 0))


def _fits(of_type: DeviceTypeColumns, amounts: Mapping[str, int], rows: Rows) -> Mask:
    """(slots, rows): devices that have enough left."""
    found: Mask | None = None
    for name, amount in amounts.items():
        enough = at(of_type.amounts[name].free.values, rows) >= amount
        found = enough if found is None else found & enough
    assert found is not None, "a pod asks for something"
    return found


Situations = npt.NDArray[np.int64]
"""(facts, rows): equal columns get equal answers from `allocate`."""


def situations(
    columns: DeviceColumns, demand: DeviceDemand, facts: LayoutFacts, rows: Rows
) -> tuple[Situations, Mask]:
    """Return what the exact decision looks at on `rows` (rows,) while nothing is really taken, and on which of them
    (rows,) it looks at nothing else."""
    layout = at(columns.layout.values, rows)
    found: list[npt.NDArray[Any]] = [at(columns.kind.values, rows), layout]
    is_known = np.full(rows.size, not demand.is_chosen)
    for each in demand.types:
        of_type, amounts = columns.by_type[each.device_type], each.wanted.amounts
        needs = of_type.bits_of(each.needs)
        if needs is None or not any(amounts.values()):
            return np.zeros((0, rows.size), np.int64), np.zeros(rows.size, np.bool_)
        is_known &= (at(of_type.common.values, rows) & needs) == needs
        if all(name in of_type.amounts for name in amounts):
            found.append(_bits(_fits(of_type, amounts, rows)))
        if each.device_type == DeviceType.GPU:
            found.append(_bits(at(of_type.is_used.values, rows)))
        takes_any_vf = facts.takes_any_vf.get(each.device_type)
        if takes_any_vf is not None:
            is_known &= takes_any_vf[layout]
            found.append(_bits(at(of_type.free_vfs.values, rows) > 0))
    return np.array(found, np.int64), is_known


def _bits(mask: Mask) -> I64:
    """Return a set of slots (slots, rows) as one number per row: (rows,)."""
    weights = np.left_shift(np.int64(1), np.arange(len(mask)))
    bits: I64 = weights @ mask
    return bits


def distinct(found: Situations) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the position of one row of each situation, and for each row (rows,) which of them is its own."""
    number = np.zeros(found.shape[1], np.intp)
    first = number[:1]
    if number.size == 1:
        return first, number
    for fact in found:
        _, which = np.unique(fact, return_inverse=True)
        _, first, number = np.unique(
            number * (int(which.max(initial=0)) + 1) + which, return_index=True, return_inverse=True
        )
    return first, number


def _short(
    of_type: DeviceTypeColumns, wanted: PerDevice, rows: Rows, ahead: int | I64
) -> tuple[Mask, Mask | None]:
    """Rows with too few devices that have enough left; and rows where that cannot be foreseen, as it depends on which
    devices the pods before would get (None: nowhere)."""
    if isinstance(ahead, int) and ahead == 0:
        fits = _fits(of_type, wanted.amounts, rows)
        if wanted.count == 1:
            return ~np.logical_or.reduce(fits, axis=0), None
        return np.count_nonzero(fits, axis=0) < wanted.count, None
    copies: I64 | None = None
    for name, amount in wanted.amounts.items():
        each = at(of_type.amounts[name].free.values, rows) // amount
        copies = each if copies is None else np.minimum(copies, each)
    assert copies is not None, "a pod asks for something"
    if wanted.count == 1:
        return copies.sum(axis=0) <= ahead, None
    left = np.count_nonzero(copies, axis=0) - ahead * wanted.count
    return left < wanted.count, (copies > 1).any(axis=0) & (np.asarray(ahead) > 0)


def _is_partitioned(
    columns: DeviceColumns, gpus: DeviceTypeColumns, wanted: PerDevice, partitions: Kinds, rows: Rows
) -> Mask:
    """Rows where whole GPUs are given out as a partition table says: one that need not be kept makes a difference only
    where idle cards have too little."""
    if not partitions.any():
        return np.zeros(rows.size, np.bool_)
    of_rows = partitions[at(columns.kind.values, rows)]
    is_odd = (
        at(gpus.is_healthy.values, rows) & ~at(gpus.is_used.values, rows) & ~_fits(gpus, wanted.amounts, rows)
    )
    found: Mask = (of_rows == BINDING) | ((of_rows == LOOSE) & is_odd.any(axis=0))
    return found


def refusals(
    columns: DeviceColumns, demand: DeviceDemand, found: DeviceVerdict, rows: Rows
) -> Mapping[Status, Mask]:
    """Return the words for what `judge` refused, and for which of `rows` (rows,) each of them is."""
    texts: dict[Status, Mask] = {}
    for position, each in enumerate(demand.types, 1):
        has_none = found.has_none == position
        is_short = (found.short_of == position) & (found.has_none == 0) & ~found.is_open
        if np.count_nonzero(has_none):
            texts[unresolvable(insufficient(each.device_type))] = has_none
        if not np.count_nonzero(is_short):
            continue
        generic = unschedulable(insufficient(each.device_type))
        if each.device_type == DeviceType.GPU and not (each.wanted.is_shared and each.wanted.count > 1):
            has_places = at(columns.by_type[each.device_type].has_places.values, rows)
            texts[NO_GPU] = is_short & has_places
            texts[generic] = is_short & ~has_places
        else:
            texts[generic] = is_short
    return texts


def has_slots(columns: DeviceColumns, facts: LayoutFacts, rows: Rows) -> bool:
    """Return whether all devices of `rows` (rows,) that the pod selects from have a slot."""
    return all(
        at(columns.by_type[each].count.values, rows).max(initial=0) <= SLOTS_MAX for each in facts.selected
    )


def score(
    columns: DeviceColumns,
    demand: DeviceDemand,
    facts: LayoutFacts,
    kinds: KindVerdicts,
    strategy: DeviceScoringStrategy,
    rows: Rows,
) -> Scores:
    """Return `node_score` of `rows` (rows,), which pass Filter, for a pod that is scored by columns."""
    total = np.zeros(rows.size, np.int64)
    leads = kinds.leads[at(columns.kind.values, rows)] if kinds.leads.any() else None
    for each in demand.types:
        of_type = columns.by_type[each.device_type]
        selected = facts.selected.get(each.device_type)
        if selected is not None:
            selected = selected[at(columns.layout.values, rows)].T
        points, weights = np.zeros(rows.size, np.int64), np.zeros(rows.size, np.int64)
        for resource in strategy.resources:
            if resource.name not in of_type.amounts:
                continue
            capacity, left = _sums(of_type.amounts[resource.name], rows, selected)
            used = capacity - left + each.wanted.amounts.get(resource.name, 0)
            is_most = strategy.type == "MostAllocated"
            part = np.minimum(used, capacity) if is_most else np.maximum(capacity - used, 0)
            points += resource.weight * (part * SCORE_MAX // np.maximum(capacity, 1))
            weights += resource.weight * (capacity > 0)
        points //= np.maximum(weights, 1)
        total += points if leads is None or each.device_type == kinds.leading else np.where(leads, 0, points)
    return total


def _sums(amounts: DeviceAmounts, rows: Rows, selected: Mask | None) -> tuple[I64, I64]:
    """Return how much of a resource there is, and is left, on all devices or those `selected` (slots, rows): (rows,)
    each."""
    if selected is None:
        return at(amounts.total_sum.values, rows), at(amounts.free_sum.values, rows)
    total, free = at(amounts.total.values, rows), at(amounts.free.values, rows)
    mask = selected[: len(total)]
    return (total * mask).sum(axis=0), (free * mask).sum(axis=0)
