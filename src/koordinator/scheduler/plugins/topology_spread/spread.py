"""How evenly pods are spread, over arrays of nodes. Pure. Source: behaviour/scheduler B2 and B9."""

import math
from collections.abc import Hashable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.scheduler.plugin.framework import SCORE_MAX, Mask, Scores
from koordinator.scheduler.table.columns import Rows
from koordinator.scheduler.table.label_columns import ABSENT

Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Frame(msgspec.Struct, frozen=True, eq=False):
    """The feasible nodes as the soft constraints see them, one entry per constraint: `ids` (rows,) of the
    node's domain, `lacks_key` (rows,) where there is none (None: nowhere), and how many domains there are.
    `is_ignored` (rows,): nodes that get no score; None: all do. `stamp` tells for which state of the nodes'
    labels that holds."""

    rows: Rows
    stamp: Hashable
    ids: tuple[Ids, ...]
    lacks_key: tuple[Mask | None, ...]
    is_ignored: Mask | None
    domain_counts: tuple[int, ...]


def frame_of(
    rows: Rows, stamp: Hashable, ids: Sequence[Ids], is_host: Sequence[bool], *, needs_keys: bool
) -> Frame:
    """`is_host`: for hostnames each node counts as a domain, whatever its label."""
    lacks_key = tuple([_where_any(its_ids == ABSENT) for its_ids in ids])
    is_ignored: Mask | None = None
    for lacks in lacks_key if needs_keys else ():
        if lacks is not None:
            is_ignored = lacks if is_ignored is None else is_ignored | lacks
    scored_count = rows.size - (0 if is_ignored is None else int(np.count_nonzero(is_ignored)))
    counts = [
        scored_count if host else _distinct(its_ids if is_ignored is None else its_ids[~is_ignored])
        for its_ids, host in zip(ids, is_host, strict=True)
    ]
    # Copies: label columns change in place.
    copies = tuple(its_ids.copy() for its_ids in ids)
    return Frame(rows, stamp, copies, lacks_key, is_ignored, tuple(counts))


def _where_any(mask: Mask) -> Mask | None:
    return mask if mask.any() else None


def _distinct(ids: Ids) -> int:
    """How many domains; a node without the key makes one of its own, as upstream has it."""
    seen = np.zeros(int(ids.max(initial=-1)) + 2, np.bool_)
    seen[ids] = True
    return int(np.count_nonzero(seen))


def part(counts: Counts, domain_count: int, max_skew: int) -> Floats:
    """What a constraint adds to the raw score: count·ln(domains + 2) + maxSkew − 1."""
    return np.asarray(counts * math.log(domain_count + 2) + (max_skew - 1), np.float64)


def normalized(raw: Floats, is_ignored: Mask | None) -> Scores:
    """100 for the emptiest: ⌊100·(max + min − s)/max⌋ over nodes that are not ignored, which get 0."""
    # Half up: sums are never negative, so cutting off is rounding down.
    rounded = (raw + 0.5).astype(np.int64)
    taking_part = rounded if is_ignored is None else rounded[~is_ignored]
    if taking_part.size == 0:
        return np.zeros(raw.size, np.int64)
    highest, lowest = int(taking_part.max()), int(taking_part.min())
    if highest > 0:
        scores = SCORE_MAX * (highest + lowest - rounded) // highest
    else:
        scores = np.full(raw.size, SCORE_MAX, np.int64)
    if is_ignored is not None:
        scores[is_ignored] = 0
    return scores
