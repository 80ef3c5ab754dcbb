"""Know on which nodes batch degrades services, and which workloads should not meet again for a while.

Nodes report it (NodeMetric's `status.extensions.interference`); a level fades by itself, and without any
report all of this costs a comparison per pod. Ours; the reference has nothing of it.
"""

import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import interference, priority, qos
from koordinator.api.core import Pod
from koordinator.api.interference import LEVEL_PERCENT_MIN, REFUSED_PERCENT, workload_of
from koordinator.api.node_metric import NodeMetric
from koordinator.api.priority import PriorityClass
from koordinator.api.qos import QoSClass
from koordinator.scheduler.plugin.framework import ReasonCodes, Relief, Scores
from koordinator.scheduler.plugin.status import Status, unschedulable
from koordinator.scheduler.table.columns import ColumnSpec, Rows, TableColumn, at, grown
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

log = logging.getLogger(__name__)

REFRESH_S = 10.0
"""Interval at which fading levels are worked out anew."""
FULL_PERCENT = 100
INTERFERENCE_CODE, PAIR_CODE = 60_000, 60_001
"""Beside the codes of thresholds, which count up from 1."""
INTERFERENCE = unschedulable("node(s) have services that suffer from batch")
PAIR = unschedulable("node(s) run a workload that suffered from this one")
Counts = npt.NDArray[np.int32]


class Neighbour(msgspec.Struct, frozen=True):
    """A pod, as far as it may disturb or be disturbed: is it batch, and its workload where a pair names that."""

    is_batch: bool = False
    workload: str = ""


NOBODY = Neighbour()

COLUMNS = (
    ColumnSpec("interferencePercent", np.int64),
    ColumnSpec("reportedInterference", np.float64),
    ColumnSpec("interferenceReportedAt", np.float64),
    ColumnSpec("interferenceHalfLife", np.float64, fill=1.0),
)
"""The level now, and the last report that it fades from."""


class InterferenceLevels:
    """Keeps levels of rows, and counts of pods of workloads that pairs name."""

    def __init__(self, columns: Mapping[str, TableColumn], table: NodeTable) -> None:
        self._table = table
        self._level, self._percent = columns["interferencePercent"], columns["reportedInterference"]
        self._at_s, self._half_life_s = columns["interferenceReportedAt"], columns["interferenceHalfLife"]
        self._refresh_s = -np.inf
        self._has_levels = False
        """True when any row has a level."""
        self._pairs_of: dict[str, dict[tuple[str, str], float]] = {}
        """Node → (victim, culprit) → until when."""
        self._peers: dict[str, frozenset[str]] = {}
        """Workload → those whose nodes it must not have (culprits), or avoids (victims)."""
        self._culprits: frozenset[str] = frozenset()
        self._counts: dict[str, Counts] = {}
        """Workload that a pair names → number of its pods per row (capacity,)."""
        self._version = 0

    # Pods

    def key(self, pod: PodInfo) -> Hashable:
        """Return what tells pods apart here; the same of all pods while no node reports any."""
        if not self._has_levels and not self._peers:
            return NOBODY
        found = self.neighbour(pod)
        return (found, self._version) if found.workload else found

    def neighbour(self, pod: PodInfo) -> Neighbour:
        """Return the pod as it counts now."""
        if not self._has_levels and not self._peers:
            return NOBODY
        workload = workload_of(pod.pod) if self._peers else ""
        return Neighbour(is_batch(pod.pod), workload if workload in self._peers else "")

    def count(self, row: int, pod: PodInfo, sign: int) -> None:
        """Count a pod that came to a row (1) or left it (-1)."""
        if self._counts and (workload := workload_of(pod.pod)) in self._counts:
            self._counts_of(workload)[row] += sign

    # Nodes

    def reported(self, row: int, metric: NodeMetric, now_s: float) -> set[int]:
        """Take what a report says; return the rows whose answer may differ now."""
        name, raw = metric.metadata.name, metric.status.extensions
        if not raw and not self._percent.values[row] and name not in self._pairs_of:
            return set()
        try:
            found = interference.of_report(raw)
        except (msgspec.ValidationError, ValueError) as error:
            log.warning("NodeMetric extension invalid", extra={"node": name, "error": str(error)})
            return set()  # the last report fades
        fading = interference.fading_of(found)
        self._percent.values[row] = fading.percent
        self._at_s.values[row], self._half_life_s.values[row] = fading.at_s, fading.half_life_s
        changed = self._refreshed(np.array([row], np.intp), now_s)
        return changed | self._set_pairs(name, interference.pairs_of(found, now_s))

    def forget(self, row: int | None, name: str, now_s: float) -> set[int]:
        """Forget a node that is not reported on any more; without a row where it is no node, either."""
        changed: set[int] = set()
        if row is not None:
            self._percent.values[row] = 0
            changed = self._refreshed(np.array([row], np.intp), now_s)
        return changed | self._set_pairs(name, {})

    def refresh(self, now_s: float) -> set[int]:
        """Let levels fade and pairs end; return the rows whose answer may differ now."""
        if (not self._has_levels and not self._peers) or 0 <= now_s - self._refresh_s < REFRESH_S:
            return set()
        self._refresh_s = now_s
        changed = self._refreshed(np.flatnonzero(self._level.values), now_s) if self._has_levels else set()
        self._has_levels = bool(self._level.values.any())
        ended = [name for name, pairs in self._pairs_of.items() if min(pairs.values()) <= now_s]
        for name in ended:
            left = {pair: until_s for pair, until_s in self._pairs_of[name].items() if until_s > now_s}
            changed |= self._set_pairs(name, left)
        return changed

    # Answers

    def refuse(self, neighbour: Neighbour, rows: Rows, codes: ReasonCodes | None) -> ReasonCodes | None:
        """Return codes (rows,) with refusals by level, where nothing else refuses; None: nobody refuses."""
        if neighbour.is_batch and self._has_levels:
            codes = _marked(codes, at(self._level.values, rows) >= REFUSED_PERCENT, INTERFERENCE_CODE)
        if neighbour.workload in self._culprits:
            codes = _marked(codes, self._peers_at(neighbour, rows), PAIR_CODE)
        return codes

    def lower(self, neighbour: Neighbour, rows: Rows, scores: Scores) -> Scores:
        """Return scores (rows,) of nodes, less for batch by the level; 0 where a victim would meet its
        culprit."""
        if neighbour.is_batch and self._has_levels:
            scores = scores * (FULL_PERCENT - at(self._level.values, rows)) // FULL_PERCENT
        if neighbour.workload:
            scores = np.where(self._peers_at(neighbour, rows), 0, scores)
        return scores

    def refusal(self, code: int) -> Status | None:
        """Return what a code means; None for one of somebody else."""
        return {INTERFERENCE_CODE: INTERFERENCE, PAIR_CODE: PAIR}.get(code)

    def facts(self, neighbour: Neighbour, row: int) -> Iterator[str]:
        """Yield what is known of a node, in words."""
        level = int(self._level.values[row])
        if level:
            what = "refused" if level >= REFUSED_PERCENT else "less welcome"
            effect = f", batch is {what} there" if neighbour.is_batch else ""
            yield (
                f"its services suffered from batch: level {level}%, halving every "
                f"{self._half_life_s.values[row]:.0f}s{effect}"
            )
        for peer in sorted(self._peers.get(neighbour.workload, ())):
            if self._counts[peer][row : row + 1].any():
                is_victim = any((peer, neighbour.workload) in pairs for pairs in self._pairs_of.values())
                did = "suffered from" if is_victim else "made suffer"
                yield f"{peer} runs there, and {did} this one"

    def reliefs(self, neighbour: Neighbour, rows: Rows) -> list[Relief]:
        """Return what opens nodes that are refused for their level: time."""
        if not neighbour.is_batch or not self._has_levels:
            return []
        level, half_life_s = at(self._level.values, rows), at(self._half_life_s.values, rows)
        is_refused = level >= REFUSED_PERCENT
        if not is_refused.any():
            return []
        waits_s = half_life_s[is_refused] * np.log2(level[is_refused] / REFUSED_PERCENT)
        first_s = float(waits_s.min())
        opened = tuple(rows[is_refused][waits_s <= first_s + REFRESH_S].tolist())
        return [
            Relief("interference", f"wait {first_s:.0f}s: services there have to be calm for so long", opened)
        ]

    # How it is kept

    def _refreshed(self, rows: Rows, now_s: float) -> set[int]:
        """Work out the levels of rows; return those that changed."""
        age_s = np.maximum(now_s - self._at_s.values[rows], 0.0)
        left = (self._percent.values[rows] * 0.5 ** (age_s / self._half_life_s.values[rows])).astype(np.int64)
        left[left < LEVEL_PERCENT_MIN] = 0
        changed = rows[left != self._level.values[rows]]
        self._level.values[rows] = left
        self._has_levels = self._has_levels or bool(left.any())
        return set(changed.tolist())

    def _set_pairs(self, name: str, live: dict[tuple[str, str], float]) -> set[int]:
        old = self._pairs_of.pop(name, {})
        if live:
            self._pairs_of[name] = live
        if live.keys() == old.keys():
            return set()
        peers: dict[str, set[str]] = {}
        for each in self._pairs_of.values():
            for victim, culprit in each:
                peers.setdefault(culprit, set()).add(victim)
                peers.setdefault(victim, set()).add(culprit)
        self._culprits = frozenset(culprit for each in self._pairs_of.values() for _, culprit in each)
        before = self._peers
        self._peers = {workload: frozenset(others) for workload, others in peers.items()}
        if self._peers == before:
            return set()
        self._version += 1
        self._count_anew(self._peers.keys())
        counts = [self._counts_of(each) for each in self._counts]
        return set(np.flatnonzero(np.any(counts, axis=0)).tolist()) if counts else set()

    def _count_anew(self, named: Iterable[str]) -> None:
        """Count the pods of workloads that pairs name; all pods are looked at only when one is named anew."""
        wanted = set(named)
        new = wanted - self._counts.keys()
        self._counts = {workload: self._counts[workload] for workload in wanted & self._counts.keys()}
        self._counts.update((workload, np.zeros(self._table.capacity, np.int32)) for workload in new)
        if not new:
            return
        for place in self._table.places():  # those on rows without a node, too: they are counted off there
            workload = workload_of(place.pod.pod)
            if workload in new:
                self._counts[workload][place.row] += 1

    def _counts_of(self, workload: str) -> Counts:
        """Return the counts of a workload that a pair names, for all rows."""
        counts = self._counts[workload] = grown(self._counts[workload], self._table.capacity)
        return counts

    def _peers_at(self, neighbour: Neighbour, rows: Rows) -> npt.NDArray[np.bool_]:
        """(rows,): whether pods of workloads that this one should not meet are there."""
        found = np.zeros(rows.size, np.bool_)
        for peer in self._peers.get(neighbour.workload, ()):
            found |= at(self._counts_of(peer), rows) > 0
        return found


def is_batch(pod: Pod) -> bool:
    """Return whether a pod runs on what services leave."""
    return qos.default(pod) is QoSClass.BE or priority.default(pod) in (
        PriorityClass.BATCH,
        PriorityClass.FREE,
    )


def _marked(codes: ReasonCodes | None, refused: npt.NDArray[np.bool_], code: int) -> ReasonCodes | None:
    if not refused.any():
        return codes
    if codes is None:
        codes = np.zeros(refused.size, np.uint16)
    codes[refused & (codes == 0)] = code
    return codes
