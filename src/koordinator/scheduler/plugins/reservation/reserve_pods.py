"""Say which nodes a reserve pod may go to. Source: behaviour/reservations 7 and 10."""

from collections.abc import Callable, Collection

import numpy as np

from koordinator.scheduler.plugin.framework import ReasonCodes
from koordinator.scheduler.plugin.status import RefusalCodes, unresolvable
from koordinator.scheduler.plugins.reservation import fit
from koordinator.scheduler.plugins.reservation.ledger import ReservationLedger
from koordinator.scheduler.plugins.reservation.pre_allocated import (
    NO_CANDIDATE,
    PreAllocationState,
    PreAllocator,
)
from koordinator.scheduler.table.columns import Rows

OTHER_NODE = unresolvable("node(s) didn't match the nodeName specified by reservation")
CONFLICT = unresolvable("node(s) reservation allocate policy conflict")
FEW = 64
"""Up to so many rows are looked up one by one."""


class ReserveState(RefusalCodes):
    """A reserve pod: the node that its template names, the policy of its Reservation, and which pods it may take over
    (`pre`; None: it needs free room)."""

    def __init__(self, node_name: str, policy: str, pre: PreAllocationState | None = None) -> None:
        super().__init__()
        self.node_name = node_name
        self.policy = policy
        self.pre = pre


def filter_rows(
    state: ReserveState,
    rows: Rows,
    ledger: ReservationLedger,
    pre_allocator: PreAllocator,
    row_of: Callable[[str], int | None],
) -> ReasonCodes:
    """Return the refusal of each row, (rows,), 0 for none."""
    codes = np.zeros(rows.size, np.uint16)
    if state.node_name:
        row = row_of(state.node_name)
        codes[rows != (-1 if row is None else row)] = state.code_of(OTHER_NODE)
    for index in positions(rows, ledger.rows):
        there = ledger.at(int(rows[index]))
        policies = [r.reservation.spec.allocate_policy for r in there if r.availability.is_matchable]
        if codes[index] == 0 and fit.is_policy_conflict(state.policy, policies):
            codes[index] = state.code_of(CONFLICT)
    if state.pre is not None:
        _filter_pre_allocating(state, state.pre, rows, codes, pre_allocator)
    return codes


def _filter_pre_allocating(
    state: ReserveState,
    pre: PreAllocationState,
    rows: Rows,
    codes: ReasonCodes,
    pre_allocator: PreAllocator,
) -> None:
    """Enter in `codes` (rows,) what the pods say that may be taken over."""
    has_candidates = np.zeros(rows.size, np.bool_)
    has_candidates[positions(rows, pre_allocator.rows(pre))] = True
    if pre.is_required:
        codes[~has_candidates & (codes == 0)] = state.code_of(NO_CANDIDATE)
    for index in np.flatnonzero(has_candidates & (codes == 0)).tolist():
        codes[index] = state.code_of(pre_allocator.refusal(pre, int(rows[index])))


def positions(rows: Rows, wanted: Collection[int]) -> list[int]:
    """Return the positions in `rows` (rows,) of those that are wanted."""
    if not wanted:
        return []
    if rows.size <= FEW:
        return [index for index, row in enumerate(rows.tolist()) if row in wanted]
    found: list[int] = np.flatnonzero(np.isin(rows, np.fromiter(wanted, np.intp, len(wanted)))).tolist()
    return found
