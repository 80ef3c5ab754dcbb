"""Let an operator switch on score tables, failed filters and diagnoses while the scheduler runs.

All of it is worked out from the evaluation, right before it decides, and only when it is on.
Source: behaviour/scheduler A2, A6 and C6.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from koordinator import clock
from koordinator.api import labels
from koordinator.api.schedule_explanation import NodeFailedDetail, sorted_details
from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.results import Unplaced
from koordinator.scheduler.plugin.status import Code, Status, Suggestion
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of the pieces; names are those of the dump."""


class ScheduleDiagnosis(_Part, frozen=True):
    """The answers of the nodes. `already_wait_for_bound`: members of the pod's gang that hold a node;
    `node_offer_slot`: how many pods of the gang each node would take."""

    already_wait_for_bound: int = 0
    node_offer_slot: dict[str, int] = {}
    node_failed_details: list[NodeFailedDetail] = []


class PreemptionDiagnosis(_Part, frozen=True):
    """The result of an attempt to make room by evictions."""

    dry_run_filter_diagnosis: ScheduleDiagnosis | None = None
    other_diagnosis: Any = None
    failed_message: str = ""


class PodDiagnosis(_Part, frozen=True, kw_only=True):
    """One attempt. `timestamp` is RFC 3339; `questioned_key` is `namespace/name`, or the name of the gang or
    reservation that the pod stands for; `is_root_cause_pod` is false for members of a gang that failed only
    because another did."""

    timestamp: str
    questioned_key: str
    nominated_node: str = ""
    pre_filter_message: str = ""
    topology_key_to_explain: str = ""
    is_root_cause_pod: bool
    schedule_diagnosis: ScheduleDiagnosis | None = None
    preemption_diagnosis: PreemptionDiagnosis | None = None
    suggestion: Suggestion | None = None


def diagnose(pod: PodInfo, result: Unplaced, table: NodeTable, now_s: float) -> PodDiagnosis:
    """Return what the cycle that ended with `result` found; to be asked before the next cycle."""
    evaluation, verdict = result.evaluation, result.verdict
    marks = pod.pod.metadata.labels
    pre_filter_message, key = "", ""
    details: list[NodeFailedDetail] = []
    slots: dict[str, int] = {}
    if evaluation is not None and not evaluation.status.is_success:
        pre_filter_message = evaluation.status.message
    if verdict is not None:
        rows, key = table.rows.tolist(), verdict.must_layer
        details = _details((verdict.status_of(row), [table.name_of(row)]) for row in rows)
        slots = {table.name_of(row): verdict.slots_of(row) for row in rows}
    elif evaluation is not None and evaluation.status.is_success:
        details = node_failed_details(evaluation, table)
    said = result.post_filter_message
    return PodDiagnosis(
        timestamp=clock.rfc3339(now_s),
        questioned_key=marks.get(labels.QUESTIONED_OBJECT_KEY) or pod.key,
        nominated_node=result.nominated_node or "",
        is_root_cause_pod=True,
        pre_filter_message=pre_filter_message,
        topology_key_to_explain=marks.get(labels.TOPOLOGY_KEY_TO_EXPLAIN, "") or key,
        schedule_diagnosis=ScheduleDiagnosis(node_failed_details=details, node_offer_slot=slots),
        preemption_diagnosis=PreemptionDiagnosis(failed_message=said) if said else None,
        suggestion=result.suggestion,
    )


def node_failed_details(evaluation: Evaluation, table: NodeTable) -> list[NodeFailedDetail]:
    """Return nodes by (reason, plugin, whether evictions could help), sorted; a node with two reasons is in both."""
    rows = table.rows
    pairs = evaluation.refused_by[rows].astype(np.int64) << 16 | evaluation.codes[rows]
    _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    return _details(
        (evaluation.status_of(int(rows[index])), [table.name_of(int(row)) for row in rows[inverse == number]])
        for number, index in enumerate(first)
    )


def _details(refusals: Iterable[tuple[Status, list[str]]]) -> list[NodeFailedDetail]:
    """From what nodes (their names) answered; success has no reasons."""
    grouped: defaultdict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for status, names in refusals:
        may_help = status.code is not Code.UNSCHEDULABLE_AND_UNRESOLVABLE
        for reason in status.reasons:
            grouped[reason, status.plugin, may_help] += names
    return sorted_details(
        NodeFailedDetail(reason=reason, failed_plugin=plugin, preempt_might_help=may_help, failed_nodes=names)
        for (reason, plugin, may_help), names in grouped.items()
    )


def dump_line(pod: PodInfo, found: PodDiagnosis) -> str:
    """Return the log line: key, pod, and everything as JSON after a dollar sign."""
    meta = pod.pod.metadata
    target = f"{meta.namespace}/{meta.name}/{meta.uid}"
    text = msgspec.json.encode(found).decode()
    return f"dump diagnosis for {found.questioned_key}, targetPod: {target}: ${text}"


log = logging.getLogger(__name__)


class DebugOptions(msgspec.Struct, kw_only=True):
    """Changed by flags and by `PUT /debug/flags/…`. `top_scores`: nodes per table, 0 for none."""

    top_scores: int = 0
    filters: bool = False
    diagnosis: bool = False
    diagnosis_blocking: bool = False


class NodeScore(msgspec.Struct, frozen=True):
    """A node that could hold the pod: the sum, and each plugin's part (normalised, weighted)."""

    node: str
    total: int
    parts: tuple[tuple[str, int], ...]


def top_scores(evaluation: Evaluation, table: NodeTable, count: int) -> list[NodeScore]:
    """Return the `count` best nodes, best first; equal ones by name."""
    rows = evaluation.feasible
    if rows.size == 0 or count <= 0:
        return []
    parts = [(each.plugin, each.weight * each.normalised) for each in evaluation.score_shares(rows)]
    total = sum((part for _, part in parts), np.zeros(rows.size, np.int64))
    best = sorted(range(rows.size), key=lambda i: (-int(total[i]), table.name_of(int(rows[i]))))[:count]
    return [
        NodeScore(
            table.name_of(int(rows[i])), int(total[i]), tuple((name, int(part[i])) for name, part in parts)
        )
        for i in best
    ]


def score_table(pod: PodInfo, scores: list[NodeScore]) -> str:
    """Return the nodes as a table in Markdown."""
    names = [name for name, _ in scores[0].parts] if scores else []
    head = ["#", "Pod", "Node", "Score", *names]
    rows = [
        [str(i), pod.key, each.node, str(each.total), *(str(part) for _, part in each.parts)]
        for i, each in enumerate(scores)
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def failed_filters(pod: PodInfo, evaluation: Evaluation, table: NodeTable) -> Iterator[str]:
    """Yield a line for each node that a filter refused."""
    if not evaluation.status.is_success:
        status = evaluation.status
        yield f"Failed to prefilter Pod {pod.key!r}, failedPlugin: {status.plugin}, reason: {status.message}"
        return
    for detail in node_failed_details(evaluation, table):
        for name in detail.failed_nodes:
            yield (
                f"Failed to filter for Pod {pod.key!r} on Node {name!r}, "
                f"failedPlugin: {detail.failed_plugin}, reason: {detail.reason}"
            )


class DumpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Diagnoses that wait to be written at most, and how many are written at a time."""

    queue_size: int = 1_000
    worker_count: int = 10


class DiagnosisDump:
    """Writes diagnoses as log lines without holding up the next cycle."""

    def __init__(self, options: DumpOptions) -> None:
        self.dropped_count = 0
        self._options = options
        self._waiting: deque[tuple[PodInfo, PodDiagnosis]] = deque()
        self._filled = asyncio.Event()

    def write(self, pod: PodInfo, found: PodDiagnosis, *, blocking: bool) -> None:
        """Now when `blocking`, else soon; dropped with a warning when too many wait."""
        if blocking:
            log.info("%s", dump_line(pod, found))
        elif len(self._waiting) >= self._options.queue_size:
            self.dropped_count += 1
            facts = {"pod": pod.key, "queue_size": self._options.queue_size, "dropped": self.dropped_count}
            log.warning("diagnosis dropped: the queue is full", extra=facts)
        else:
            self._waiting.append((pod, found))
            self._filled.set()

    async def run(self) -> None:
        """Write until cancelled: up to `worker_count` lines, then everybody else has a turn."""
        while True:
            await self._filled.wait()
            for _ in range(min(self._options.worker_count, len(self._waiting))):
                pod, found = self._waiting.popleft()
                log.info("%s", dump_line(pod, found))
            if not self._waiting:
                self._filled.clear()
            await asyncio.sleep(0)
