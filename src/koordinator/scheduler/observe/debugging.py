"""Let an operator switch on score tables, failed filters and diagnoses while the scheduler runs.

All of it is worked out from the evaluation, right before it decides, and only when it is on.
Source: behaviour/scheduler A2, A6 and C6.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator

import msgspec
import numpy as np

from koordinator.scheduler.engine.evaluation import Evaluation
from koordinator.scheduler.engine.profile import Profile
from koordinator.scheduler.observe.pod_diagnosis import PodDiagnosis, dump_line, node_failed_details
from koordinator.scheduler.table.nodes import NodeTable
from koordinator.scheduler.table.pod_info import PodInfo

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


def top_scores(evaluation: Evaluation, profile: Profile, table: NodeTable, count: int) -> list[NodeScore]:
    """The `count` best nodes, best first; equal ones by name."""
    rows = evaluation.feasible
    if rows.size == 0 or count <= 0:
        return []
    skipped = {
        plugin.name
        for plugin in profile.pre_scorers
        if plugin.pre_score(evaluation.state_of(plugin.name)).is_skip
    }
    parts = []
    total = np.zeros(rows.size, np.int64)
    for plugin, weight in profile.scorers:
        if plugin.name in skipped:
            continue
        state = evaluation.state_of(plugin.name)
        raw = plugin.score(state, rows)
        part = weight * (plugin.normalize_at(state, raw, rows) if plugin.normalizes else raw)
        parts.append((plugin.name, part))
        total += part
    best = sorted(range(rows.size), key=lambda i: (-int(total[i]), table.name_of(int(rows[i]))))[:count]
    return [
        NodeScore(
            table.name_of(int(rows[i])), int(total[i]), tuple((name, int(part[i])) for name, part in parts)
        )
        for i in best
    ]


def score_table(pod: PodInfo, scores: list[NodeScore]) -> str:
    """The nodes as a table in Markdown."""
    names = [name for name, _ in scores[0].parts] if scores else []
    head = ["#", "Pod", "Node", "Score", *names]
    rows = [
        [str(i), pod.key, each.node, str(each.total), *(str(part) for _, part in each.parts)]
        for i, each in enumerate(scores)
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def failed_filters(pod: PodInfo, evaluation: Evaluation, table: NodeTable) -> Iterator[str]:
    """A line for each node that a filter refused."""
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
