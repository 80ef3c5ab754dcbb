"""Decide whether nodes have the devices that a demand asks for, many nodes at once, and how an allocation is written.

1. Counting: free devices per kind of request and node, in columns. Most nodes without enough go here, and where a
   pod asks for one kind of device without constraints, nothing else is needed.
2. Nodes whose devices look alike to the demand share one search.
"""

import uuid
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api.affinity import NodeSelector
from koordinator.api.dra import ALTERNATIVES_MAX, RESULTS_MAX, ResourceClaim
from koordinator.api.resource_vector import I64
from koordinator.scheduler.plugin.framework import Mask
from koordinator.scheduler.plugins.dynamic_resources.allocator import (
    ALL,
    AllocationOutcome,
    AllocatorResult,
    Stock,
    search,
)
from koordinator.scheduler.plugins.dynamic_resources.consumable_capacity import Share
from koordinator.scheduler.plugins.dynamic_resources.demand import CLAIM, ClaimDemand, SubRequestTerms
from koordinator.scheduler.plugins.dynamic_resources.inventory import FINE, INVALID, NOWHERE, Inventory
from koordinator.scheduler.plugins.dynamic_resources.slice_devices import DeviceUse, SliceDevice
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.label_columns import LabelColumns

Json = dict[str, Any]


class Grant(msgspec.Struct, frozen=True):
    """The grant to one claim: what nobody else may have then, and `status.allocation`."""

    claim: ResourceClaim
    devices: tuple[DeviceUse, ...]
    allocation: Json


def grants(
    demand: ClaimDemand,
    answer: AllocatorResult,
    numbers: Sequence[int],
    inventory: Inventory,
    node_name: str,
) -> list[Grant]:
    """Return one per claim; `numbers` are the devices of the node that the answer's indices mean."""
    found = []
    for index, claim in enumerate(demand.claims):
        results: list[Json] = []
        chosen: list[SubRequestTerms] = []
        taken: list[DeviceUse] = []
        used: list[SliceDevice] = []
        for ask, words, pick in zip(demand.problem.asks, demand.wanted, answer.picks, strict=True):
            if ask.claim != index:
                continue
            wanted, sub_request = words[pick.sub_request], ask.sub_requests[pick.sub_request]
            chosen.append(wanted)
            for number in (numbers[device] for device in pick.devices):
                entry = inventory.entries[number]
                used.append(entry)
                share = demand.selections[sub_request.fits].shares.get(number)
                share_id = _share_id(claim, len(results)) if share is not None else ""
                result = _result(wanted, entry, share_id, is_admin=sub_request.is_admin)
                if share and not sub_request.is_admin:
                    result["consumedCapacity"] = {name: amount.text for name, amount in share.items()}
                results.append(result)
                if not sub_request.is_admin:
                    taken.append(DeviceUse(entry.key, None if share is None else _nanos(share)))
        allocation: Json = {"devices": {"results": results}}
        if config := _config(claim, chosen):
            allocation["devices"]["config"] = config
        if selector := node_selector(used, node_name):
            allocation["nodeSelector"] = selector
        found.append(Grant(claim, tuple(taken), allocation))
    return found


def _nanos(share: Share) -> tuple[tuple[str, int], ...]:
    return tuple((name, amount.nanos) for name, amount in sorted(share.items()))


def _share_id(claim: ResourceClaim, place: int) -> str:
    """Name a share: another one for each device of a claim, and each time that the claim is allocated."""
    meta = claim.metadata
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{meta.uid}/{meta.resource_version}/{place}"))


def _result(wanted: SubRequestTerms, entry: SliceDevice, share_id: str, *, is_admin: bool) -> Json:
    driver, pool, device = entry.key
    result: Json = {"request": wanted.request, "driver": driver, "pool": pool, "device": device}
    if is_admin:
        result["adminAccess"] = True
    if wanted.tolerations:
        result["tolerations"] = [msgspec.to_builtins(each) for each in wanted.tolerations]
    if share_id:
        result["shareID"] = share_id
    if entry.device.binding_conditions:
        result["bindingConditions"] = entry.device.binding_conditions
        if entry.device.binding_failure_conditions:
            result["bindingFailureConditions"] = entry.device.binding_failure_conditions
    return result


def _config(claim: ResourceClaim, chosen: Sequence[SubRequestTerms]) -> list[Json]:
    """Parameters of the classes first, then those of the claim for the subrequests that were met: later ones win."""
    found: list[Json] = []
    for wanted in chosen:
        for own in wanted.device_class.spec.config:
            found.append(_parameters("FromClass", [wanted.request], own.opaque))
    met = {wanted.request for wanted in chosen}
    met |= {request.partition("/")[0] for request in met}
    for config in claim.spec.devices.config:
        if not config.requests or met.intersection(config.requests):
            found.append(_parameters("FromClaim", config.requests, config.opaque))
    return found


def _parameters(source: str, requests: Iterable[str], opaque: Json | None) -> Json:
    parameters: Json = {"source": source}
    if names := list(requests):
        parameters["requests"] = names
    if opaque is not None:
        parameters["opaque"] = opaque
    return parameters


def node_selector(entries: Sequence[SliceDevice], node_name: str) -> Json | None:
    """Return nodes from which all of the devices can be used; None for all nodes. `node_name` is the chosen one."""
    fields: list[Json] = []
    labels: list[Json] = []
    for entry in entries:
        if entry.node_name or entry.device.binds_to_node:
            on_node = {"key": "metadata.name", "operator": "In", "values": [node_name]}
            return {"nodeSelectorTerms": [{"matchFields": [on_node]}]}
        _add(entry.reach, fields, labels)
    term: Json = {}
    if labels:
        term["matchExpressions"] = labels
    if fields:
        term["matchFields"] = fields
    return {"nodeSelectorTerms": [term]} if term else None


def _add(reach: NodeSelector | None, fields: list[Json], labels: list[Json]) -> None:
    """The API allows slices a selector of exactly one term."""
    for term in reach.node_selector_terms[:1] if reach is not None else ():
        for requirements, known in ((term.match_expressions, labels), (term.match_fields, fields)):
            for requirement in requirements:
                body = msgspec.to_builtins(requirement)
                if body not in known:
                    known.append(body)


CODE_MAX = 1 << 40
"""Codes of devices are numbered anew beyond that, so that they never overflow."""


STEPS_AT_LEAST = 200
"""Devices tried on each kind of nodes, however many the others took."""


def _points(demand: ClaimDemand, result: AllocatorResult) -> int:
    if result.outcome is not AllocationOutcome.FOUND:
        return 0
    return sum(
        ALTERNATIVES_MAX - pick.sub_request
        for words, pick in zip(demand.wanted, result.picks, strict=True)
        if words[0].is_alternative
    )


class Supply:
    """Answers for nodes. `steps_max`: see `allocator.search`."""

    def __init__(self, inventory: Inventory, labels: LabelColumns, steps_max: int) -> None:
        self._inventory = inventory
        self._labels = labels
        self._steps_max = self._steps_left = steps_max
        self._memory: dict[bytes, AllocatorResult] = {}
        self._memory_is_of: tuple[ClaimDemand, int, int] | None = None

    def outcomes(self, demand: ClaimDemand, rows: Rows) -> npt.NDArray[np.uint8]:
        """Return an `AllocationOutcome` for each of the rows: (rows,)."""
        self._refresh(demand)
        found = np.full(rows.size, AllocationOutcome.NOT_FOUND, np.uint8)
        reaches = self._reaches(rows)
        passing = np.flatnonzero(self._has_enough(demand, rows, reaches))
        if self._is_countable(demand):
            found[passing] = AllocationOutcome.FOUND
        elif passing.size:
            results, kind_of = self._search_all(demand, rows[passing], reaches[:, passing])
            found[passing] = np.array([each.outcome for each in results], np.uint8)[kind_of]
        is_invalid = self._inventory.trouble == INVALID
        if is_invalid.any():
            refused = found == AllocationOutcome.NOT_FOUND
            found[refused & (self._count(is_invalid, rows, reaches) > 0)] = AllocationOutcome.INVALID_POOL
        return found

    def points(self, demand: ClaimDemand, rows: Rows) -> I64:
        """Return how well each of the rows meets the alternatives that claims prefer: (rows,); rows that cannot have
        the claims get 0.

        Source: upstream's DynamicResources: 8 for the first alternative of a request, 7 for the second, and so on.
        """
        self._refresh(demand)
        results, kind_of = self._search_all(demand, rows, self._reaches(rows))
        points: I64 = np.array([_points(demand, each) for each in results], np.int64)
        return points[kind_of]

    def answer(self, demand: ClaimDemand, row: int) -> tuple[AllocatorResult, list[int]]:
        """Return what one node would give, and the numbers of its devices."""
        self._refresh(demand)
        rows = np.array([row], np.intp)
        node = int(self._inventory.nodes_of(rows)[0])
        numbers = self._numbers(node, self._reaches(rows)[:, 0], self._matters(demand))
        return self._search(demand, numbers, self._codes(demand, np.array(numbers, np.intp))), numbers

    def failure(self, demand: ClaimDemand, row: int, node_name: str) -> str:
        """Return what went wrong with selectors or pools on a node that was refused, or which gate it may lack; "" when
        nothing did."""
        self._refresh(demand)
        rows = np.array([row], np.intp)
        every = np.ones(self._inventory.node.size, np.bool_)
        numbers = self._numbers(int(self._inventory.nodes_of(rows)[0]), self._reaches(rows)[:, 0], every)
        for number in numbers:
            for ask in demand.problem.asks:
                for sub_request in ask.sub_requests:
                    text = demand.selections[sub_request.fits].failures.get(number)
                    if text is not None:
                        return text.replace(CLAIM, demand.claims[ask.claim].key)
        for number in numbers:
            driver, pool, _ = self._inventory.entries[number].key
            if why := self._inventory.invalid.get((driver, pool)):
                return f"pool {driver}/{pool} is invalid: {why}"
        return self._inventory.left_out(node_name)

    def _refresh(self, demand: ClaimDemand) -> None:
        self._inventory.refresh()
        for selection in demand.selections:
            selection.refresh()
        for attribute in demand.attributes:
            attribute.refresh()

    def _reaches(self, rows: Rows) -> Mask:
        """(groups, rows): whether the nodes reach each group of shared devices."""
        inventory = self._inventory
        found = np.zeros((len(inventory.reaches), rows.size), np.bool_)
        for group, reach in enumerate(inventory.reaches):
            if not inventory.members[group]:
                continue
            found[group] = (
                True if reach is None else self._labels.match_terms(reach.node_selector_terms, rows)
            )
        return found

    # Counting

    def _has_enough(self, demand: ClaimDemand, rows: Rows, reaches: Mask) -> Mask:
        """Return rows with as many devices as the requests that have no choice need."""
        needs: dict[int, int] = {}
        passes = np.ones(rows.size, np.bool_)
        inventory = self._inventory
        for ask in demand.problem.asks:
            if len(ask.sub_requests) > 1:
                continue
            [sub_request] = ask.sub_requests
            if sub_request.is_admin or sub_request.count == ALL:
                fits = demand.selections[sub_request.fits].values
                passes &= self._count(fits, rows, reaches) >= max(1, sub_request.count)
            else:
                needs[sub_request.fits] = needs.get(sub_request.fits, 0) + sub_request.count
        for index, count in needs.items():
            is_free = demand.selections[index].values & ~inventory.is_used & (inventory.trouble == FINE)
            passes &= self._count(is_free, rows, reaches) >= count
        return passes

    def _count(self, mask: Mask, rows: Rows, reaches: Mask) -> I64:
        """Return how many of the devices in a mask each row has, those of several nodes included; one that several
        claims may share counts as often as a claim can have it."""
        inventory = self._inventory
        times = np.where(inventory.is_multi, RESULTS_MAX, 1) * (mask & inventory.is_alive)
        is_own = (times > 0) & (inventory.node != NOWHERE)
        per_node = np.bincount(inventory.node[is_own], times[is_own], inventory.slots.shape[0])
        nodes = inventory.nodes_of(rows)
        counts = np.where(nodes == NOWHERE, 0, per_node[nodes])
        if reaches.size:
            is_far = (times > 0) & (inventory.group != NOWHERE)
            counts = counts + np.bincount(inventory.group[is_far], times[is_far], len(reaches)) @ reaches
        return counts.astype(np.int64)

    def _is_countable(self, demand: ClaimDemand) -> bool:
        """Return whether enough free devices are all that it takes."""
        problem = demand.problem
        return (
            not problem.rules
            and len(demand.selections) == 1
            and not demand.selections[0].shares
            and not (demand.selections[0].values & self._inventory.takes_counters).any()
            and all(
                len(ask.sub_requests) == 1
                and ask.sub_requests[0].count != ALL
                and not ask.sub_requests[0].is_admin
                for ask in problem.asks
            )
        )

    # Searching

    def _matters(self, demand: ClaimDemand) -> Mask:
        """Return which devices are looked at: those that suit some request, and those of pools that change."""
        matters: Mask = self._inventory.trouble != FINE
        for each in demand.selections:
            matters = matters | each.values
        return matters

    def _codes(self, demand: ClaimDemand, numbers: npt.NDArray[np.intp]) -> I64:
        """Return a code for each device, equal for those that are alike to the demand: (numbers,)."""
        inventory = self._inventory
        codes: I64 = inventory.trouble[numbers].astype(np.int64) * 2 + inventory.is_used[numbers]
        codes = codes * 2 + inventory.is_last[numbers]
        span = 4 * (INVALID + 1)
        columns = [(each.values[numbers], 2, 0) for each in demand.selections]
        columns += [
            (each.values[numbers], int(each.values.max(initial=0)) + 2, 1) for each in demand.attributes
        ]
        columns += [(each[numbers], int(each.max(initial=0)) + 1, 0) for each in inventory.looks()]
        for values, width, shift in columns:
            if span * width > CODE_MAX:
                codes = np.unique(codes, return_inverse=True)[1].reshape(-1).astype(np.int64)
                span = int(codes.max(initial=0)) + 1
            codes = codes * width + values + shift
            span *= width
        return codes

    def _search_all(
        self, demand: ClaimDemand, rows: Rows, reaches: Mask
    ) -> tuple[list[AllocatorResult], npt.NDArray[np.intp]]:
        """Search once on each kind of nodes: their results, and the kind of each row (rows,).

        All searches together try `steps_max` devices, and each kind may try a few even when these are used up.
        """
        matters = self._matters(demand)
        codes = np.full(matters.size, -1, np.int64)
        codes[matters] = self._codes(demand, np.flatnonzero(matters))
        nodes = self._inventory.nodes_of(rows)
        slots = self._inventory.slots[nodes]
        slots[nodes == NOWHERE] = NOWHERE
        looks = np.where(slots == NOWHERE, -1, codes[slots])
        looks = np.ascontiguousarray(np.concatenate([looks, reaches.T.astype(np.int64)], axis=1))
        as_one = looks.view(np.dtype((np.void, looks.dtype.itemsize * looks.shape[1]))).reshape(-1)
        kinds, firsts, kind_of = np.unique(as_one, return_index=True, return_inverse=True)
        memory = self._memory_of(demand)
        results = []
        for kind, first in zip(kinds, firsts.tolist(), strict=True):
            key = kind.tobytes()
            result = memory.get(key)
            if result is None:
                numbers = self._numbers(int(nodes[first]), reaches[:, first], matters)
                steps = max(self._steps_left, STEPS_AT_LEAST) if self._steps_max else 0
                result = memory[key] = self._search(demand, numbers, codes[numbers], steps)
                self._steps_left -= result.steps
            results.append(result)
        return results, kind_of.reshape(-1)

    def _memory_of(self, demand: ClaimDemand) -> dict[bytes, AllocatorResult]:
        """Return what is known of nodes by their looks, for the same demand and unchanged devices."""
        inventory = self._inventory
        now = (demand, inventory.version, inventory.stamp_now)
        if self._memory_is_of != now:
            self._memory_is_of, self._memory, self._steps_left = now, {}, self._steps_max
        return self._memory

    def _numbers(self, node: int, reaches: Mask, matters: Mask) -> list[int]:
        """Devices that a node reaches, of those that matter, its own first."""
        inventory = self._inventory
        numbers = [] if node == NOWHERE else [n for n in inventory.slots[node].tolist() if n != NOWHERE]
        for group in np.flatnonzero(reaches).tolist():
            numbers += inventory.members[group]
        numbers = [number for number in numbers if matters[number]]
        if inventory.is_last.any():
            numbers.sort(key=inventory.is_last.__getitem__)
        return numbers

    def _search(
        self, demand: ClaimDemand, numbers: list[int], codes: I64, steps_max: int | None = None
    ) -> AllocatorResult:
        """Search one node; `codes` are those of the numbers."""
        inventory = self._inventory
        kinds: Sequence[Hashable] = codes.tolist()
        if inventory.has_looks:
            kinds = [self._kind(number, code) for number, code in zip(numbers, kinds, strict=True)]
        available, consumes = inventory.counters.stock(numbers)
        stock = Stock(
            kinds=kinds,
            fits=[each.values[numbers].tolist() for each in demand.selections],
            values=[each.values[numbers].tolist() for each in demand.attributes],
            is_used=inventory.is_used[numbers].tolist(),
            is_unusable=(inventory.trouble[numbers] != FINE).tolist(),
            consumes=consumes,
            available=available,
            room=inventory.room(numbers),
            shares=[each.amounts(numbers) for each in demand.selections],
            is_shared=inventory.is_shared(numbers),
        )
        return search(demand.problem, stock, self._steps_max if steps_max is None else steps_max)

    def _kind(self, number: int, code: Hashable) -> Hashable:
        """Devices that share counters are alike within their pool only; one that is shared is like no other, as what is
        left of it changes while it is given away."""
        if self._inventory.is_multi[number]:
            return (number,)
        pool = self._inventory.counters.pool_of(number)
        return code if pool is None else (code, pool.number)
