"""Keep what nodes and pods used lately: the points of all series of a fleet, in order, as its node agents sample
them."""

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from koordinator.koordlet import series
from koordinator.koordlet.series import Aggregation
from koordinator.local.nodes.usage import F64, Index


class NodeSample(msgspec.Struct, frozen=True):
    """A point of each node's series, all (nodes,): what best-effort pods could use in cores, and `usage`."""

    at_ms: int
    usage: F64
    """(3, nodes): cores and bytes of the node, cores of its system."""
    system_bytes: float
    """The same on all nodes."""
    best_effort_cores: F64
    best_effort_limit_cores: F64
    best_effort_request_cores: F64

    @property
    def cores(self) -> F64:
        """The CPU of each node, (nodes,)."""
        cores: F64 = self.usage[0]
        return cores


class PodSample(msgspec.Struct):
    """A point of each pod's series by slot, (slots,): cores; NaN where nobody ran."""

    at_ms: int
    cores: F64


class Samples:
    """Points of the last `node_s` and `pod_s` seconds; pods are many, so theirs go sooner."""

    def __init__(self, node_s: float, pod_s: float) -> None:
        self.node_s, self.pod_s = node_s, pod_s
        self.nodes: deque[NodeSample] = deque()
        self.pods: deque[PodSample] = deque()

    def retain(self, node_s: float, pod_s: float) -> None:
        """Keep points at least so long from now on."""
        self.node_s, self.pod_s = max(self.node_s, node_s), max(self.pod_s, pod_s)

    def append(self, nodes: NodeSample, pods: PodSample) -> None:
        """Add a point to every series, and let go of old ones."""
        self.nodes.append(nodes)
        self.pods.append(pods)
        while self.nodes[0].at_ms < nodes.at_ms - self.node_s * 1000:
            self.nodes.popleft()
        while self.pods[0].at_ms < pods.at_ms - self.pod_s * 1000:
            self.pods.popleft()

    def grow(self, slots: int) -> None:
        """Have points of so many slots."""
        for sample in self.pods:
            grown = np.full(slots, np.nan)
            grown[: sample.cores.size] = sample.cores
            sample.cores = grown

    def forget(self, slot: int) -> None:
        """Whoever had this slot is gone."""
        for sample in self.pods:
            sample.cores[slot] = np.nan

    def of_nodes(self, now_ms: int, window_s: float) -> list[NodeSample]:
        """Return the points of the window that ends now, both ends included, oldest first."""
        return [each for each in self.nodes if now_ms - window_s * 1000 <= each.at_ms <= now_ms]

    def of_pods(self, now_ms: int, window_s: float, slots: Index) -> F64:
        """Return the points of these pods (n,) within the window, (points, n) cores."""
        found = [each.cores[slots] for each in self.pods if now_ms - window_s * 1000 <= each.at_ms <= now_ms]
        return np.stack(found) if found else np.empty((0, slots.size))


def span_ms(samples: Iterable[NodeSample]) -> int | None:
    """Return the time between the first and the last of them, None when there are none."""
    times = [each.at_ms for each in samples]
    return times[-1] - times[0] if times else None


def aggregations(points: F64, ways: Sequence[Aggregation]) -> list[F64]:
    """Return `series.aggregated` of `points` (points, …) for each of `ways`, of points that all are there: (…) each."""
    in_order = np.sort(points, axis=0)
    return [
        series.aggregated(points, how) if how is Aggregation.AVG else in_order[series.rank(len(points), how)]
        for how in ways
    ]


def aggregated(points: F64, how: Aggregation) -> F64:
    """Return `series.aggregated` of each series of (points, series); points that are NaN are none. NaN without any."""
    found = np.full(points.shape[1], np.nan)
    counts = (~np.isnan(points)).sum(axis=0)
    for count in np.flatnonzero(np.bincount(counts)).tolist():  # few and small: faster than sorting them
        if not count:
            continue
        alike = np.flatnonzero(counts == count)
        known = points[:, alike]
        if count < len(points):
            known = np.sort(known, axis=0)[:count]  # NaN comes last
        found[alike] = series.aggregated(known, how)
    return found
