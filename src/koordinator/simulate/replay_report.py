"""Sum up a replay: allocation, fragmentation, speed, and why pods were left over. Pure.

Free capacity can be there and be of no use. Three figures say how much, for a node n with free amounts f(n,r)
and the pods of the list, of which a share p(m) requests the amounts d(m):

* `unusable_ratio` of resource r: Σ_n Σ_m p(m)·f(n,r)·[d(m) does not fit f(n)] / Σ_n f(n,r), what a pod drawn from
  the list cannot use on average. The measure F of Weng et al., "Beware of Fragmentation", USENIX ATC 2023.
* `stranded_ratio` of r: the part of Σ_n f(n,r) on nodes where another resource is exhausted: less is free than
  the smallest request of the list.
* headroom for a shape d (the p50 and p90 of all requests, resource by resource): Σ_n min_r ⌊f(n,r)/d(r)⌋ pods fit,
  ⌊min_r Σ_n f(n,r)/d(r)⌋ would if all free capacity were one node; `lost_ratio` is 1 − fits/pooled.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.api import resource_vector
from koordinator.api.resource_vector import I64
from koordinator.simulate.gpu_course import GpuReport
from koordinator.simulate.replay import ReplayResult
from koordinator.simulate.replay_input import ReplayInput
from koordinator.simulate.replay_outcomes import PodOutcome, ReplaySample
from koordinator.simulate.replay_reservations import ReservationOutcome

BINS = 10
EXAMPLES_MAX = 3
SHAPES = (50, 90)
SHAPES_MAX = 2_000
"""Distinct requests that take part in `unusable_ratio`, the most frequent ones."""


class ReportPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One piece of the report."""


class ResourceUse(ReportPart, frozen=True, kw_only=True):
    """Amounts are quantity texts, ratios 0 to 1. `wanted` is the sum over all pods of the list."""

    resource: str
    allocatable: str
    wanted: str
    allocated: str
    allocated_ratio: float
    unusable_ratio: float
    stranded_ratio: float


class Headroom(ReportPart, frozen=True, kw_only=True):
    """The number of further pods of a shape that fit."""

    shape: str
    requests: dict[str, str]
    fits: int
    pooled: int
    lost_ratio: float


class LeftOver(ReportPart, frozen=True, kw_only=True):
    """Pods that were never placed for the same reasons."""

    reasons: list[str]
    pods: int
    examples: list[str]


class Speed(ReportPart, frozen=True, kw_only=True):
    """`engine_s` is what cycles took, `placing_s` that and all around them. Times per attempt in µs."""

    reading_s: float
    placing_s: float
    engine_s: float
    attempts: int
    pods_per_s: float
    attempt_p50_us: float
    attempt_p99_us: float


class WaitingTimes(ReportPart, frozen=True, kw_only=True):
    """Virtual seconds from arrival to placement, of placed pods."""

    at_once: int
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float


class ReplayReport(ReportPart, frozen=True, kw_only=True):
    """Everything; the table, the JSON and the page are made from it."""

    nodes: int
    nodes_used: int
    pods: int
    placed: int
    unplaced: int
    gpu_pods_left_out: int
    ended_left_out: int
    timeline: bool
    resources: list[ResourceUse]
    headroom: list[Headroom]
    histogram: dict[str, list[int]]
    """Resource → nodes per tenth of allocation (0–10 %, …, 90–100 %)."""
    left_over: list[LeftOver]
    speed: Speed
    waiting: WaitingTimes | None = None
    peak: dict[str, float] = {}
    mean: dict[str, float] = {}
    """Share allocated at most at any moment, and over time (time line only)."""
    samples: list[ReplaySample] = []
    reservations: ReservationOutcome | None = None
    """Absent where the files have none."""
    gpu: GpuReport | None = None
    """Report of a run in which pods arrived until the GPUs had been requested so many times (`--arrivals`)."""


def report(given: ReplayInput, result: ReplayResult, reading_s: float, placing_s: float) -> ReplayReport:
    """Return the figures of a finished replay. Allocation and fragmentation are those of the end, with a time line
    those of the fullest moment."""
    timeline = bool(result.samples)
    allocatable, requested = _capacity(result)
    wanted = _wanted(result)
    free = np.maximum(allocatable - requested, 0)
    slots = _free_slots(result)
    unusable, stranded = unusable_ratio(free, slots, wanted), stranded_ratio(free, wanted)
    placed = [each for each in result.outcomes if each.node]
    return ReplayReport(
        nodes=int(allocatable.shape[1]),
        nodes_used=int((result.fullest.pod_count > 0).sum()),
        pods=len(result.outcomes),
        placed=len(placed),
        unplaced=len(result.outcomes) - len(placed),
        gpu_pods_left_out=given.gpu_pods_left_out,
        ended_left_out=given.ended_left_out,
        timeline=timeline,
        resources=[
            ResourceUse(
                resource=name,
                allocatable=_text(name, allocatable[i].sum()),
                wanted=_text(name, wanted[:, i].sum()),
                allocated=_text(name, requested[i].sum()),
                allocated_ratio=_ratio(requested[i].sum(), allocatable[i].sum()),
                unusable_ratio=float(unusable[i]),
                stranded_ratio=float(stranded[i]),
            )
            for i, name in enumerate(result.resources)
        ],
        headroom=_headrooms(result.resources, free, slots, wanted),
        histogram={name: histogram(requested[i], allocatable[i]) for i, name in enumerate(result.resources)},
        left_over=left_over(result.outcomes),
        speed=_speed(result, reading_s, placing_s),
        waiting=_waiting(placed) if timeline else None,
        peak=_peak(result),
        mean=_mean(result),
        samples=result.samples,
        reservations=result.reservations if result.reservations != ReservationOutcome() else None,
        gpu=result.gpu,
    )


def _text(name: str, amount: int | np.int64) -> str:
    return resource_vector.amount_text(name, int(amount))


def _ratio(part: float | np.int64, whole: float | np.int64) -> float:
    return float(part / whole) if whole else 0.0


def _capacity(result: ReplayResult) -> tuple[I64, I64]:
    """(resources, nodes): allocatable and requested."""
    table = result.engine.table
    columns = [table.registry.column(name) for name in result.resources]
    return table.allocatable[columns][:, table.rows], result.fullest.requested


def _free_slots(result: ReplayResult) -> I64:
    """(nodes,): how many more pods each node may hold."""
    table = result.engine.table
    return np.asarray(np.maximum(table.pods_max[table.rows] - result.fullest.pod_count, 0))


def _wanted(result: ReplayResult) -> I64:
    """(pods, resources): what each pod of the list requests."""
    registry = result.engine.table.registry
    position = {registry.column(name): i for i, name in enumerate(result.resources)}
    wanted = np.zeros((len(result.outcomes), len(result.resources)), np.int64)
    for number, each in enumerate(result.outcomes):
        for column, amount in each.info.requests:
            wanted[number, position[column]] = amount
    return wanted


def unusable_ratio(free: I64, slots: I64, wanted: I64) -> npt.NDArray[np.float64]:
    """Per resource the share of what is free that a pod drawn from the list cannot use on average. Shapes: free
    (resources, nodes), slots (nodes,), wanted (pods, resources); returns (resources,)."""
    lost = np.zeros(free.shape[0])
    if not wanted.shape[0]:
        return lost
    shapes, counts = np.unique(wanted, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:SHAPES_MAX]
    for shape, count in zip(shapes[order], counts[order], strict=True):
        fits = (free >= shape[:, np.newaxis]).all(axis=0) & (slots > 0)
        lost += count * free[:, ~fits].sum(axis=1)
    total = free.sum(axis=1) * counts[order].sum()
    return np.asarray(np.where(total > 0, lost / np.maximum(total, 1), 0.0))


def stranded_ratio(free: I64, wanted: I64) -> npt.NDArray[np.float64]:
    """Per resource the share of what is free on nodes where another resource is exhausted. Shapes: free (resources,
    nodes), wanted (pods, resources); returns (resources,)."""
    smallest = np.array([column[column > 0].min(initial=np.iinfo(np.int64).max) for column in wanted.T])
    is_exhausted = free < smallest[:, np.newaxis]
    found = np.zeros(free.shape[0])
    for resource in range(free.shape[0]):
        others = np.delete(is_exhausted, resource, axis=0).any(axis=0)
        found[resource] = _ratio(free[resource, others].sum(), free[resource].sum())
    return found


def headroom(free: I64, slots: I64, shape: I64) -> tuple[int, int]:
    """Return how many pods of a shape fit on the nodes, and how many would if their free capacity were pooled.
    Shapes: free (resources, nodes), slots (nodes,), shape (resources,)."""
    asked = shape > 0
    if not asked.any():
        return int(slots.sum()), int(slots.sum())
    per_node = (free[asked] // shape[asked, np.newaxis]).min(axis=0)
    pooled = (free[asked].sum(axis=1) // shape[asked]).min()
    return int(np.minimum(per_node, slots).sum()), int(min(pooled, slots.sum()))


def _headrooms(names: Sequence[str], free: I64, slots: I64, wanted: I64) -> list[Headroom]:
    found = []
    for percentile in SHAPES:
        if not wanted.shape[0]:
            break
        shape = np.ceil(np.percentile(wanted, percentile, axis=0)).astype(np.int64)
        fits, pooled = headroom(free, slots, shape)
        requests = {name: _text(name, amount) for name, amount in zip(names, shape.tolist(), strict=True)}
        lost = 1.0 - _ratio(fits, pooled) if pooled else 0.0
        found.append(
            Headroom(shape=f"p{percentile}", requests=requests, fits=fits, pooled=pooled, lost_ratio=lost)
        )
    return found


def histogram(requested: I64, allocatable: I64) -> list[int]:
    """Return nodes per tenth of allocation; nodes without the resource are in none. Shapes: both (nodes,)."""
    has = allocatable > 0
    tenth = np.minimum(requested[has] * BINS // allocatable[has], BINS - 1)
    return [int(count) for count in np.bincount(tenth, minlength=BINS)]


def left_over(outcomes: Sequence[PodOutcome]) -> list[LeftOver]:
    """Return pods without a node by their reasons, most pods first."""
    counts: Counter[tuple[str, ...]] = Counter()
    examples: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for each in outcomes:
        if not each.node:
            counts[each.reasons] += 1
            if len(examples[each.reasons]) < EXAMPLES_MAX:
                examples[each.reasons].append(each.info.key)
    return [
        LeftOver(reasons=list(reasons), pods=pods, examples=examples[reasons])
        for reasons, pods in counts.most_common()
    ]


def _speed(result: ReplayResult, reading_s: float, placing_s: float) -> Speed:
    times = np.array(result.cycle_s or [0.0])
    return Speed(
        reading_s=reading_s,
        placing_s=placing_s,
        engine_s=float(times.sum()),
        attempts=len(result.cycle_s),
        pods_per_s=_ratio(len(result.outcomes), placing_s),
        attempt_p50_us=float(np.percentile(times, 50)) * 1e6,
        attempt_p99_us=float(np.percentile(times, 99)) * 1e6,
    )


def _waiting(placed: Sequence[PodOutcome]) -> WaitingTimes:
    waited = np.array([each.waited_s for each in placed] or [0.0])
    p50, p90, p99 = (float(value) for value in np.percentile(waited, (50, 90, 99)))
    at_once = int((waited == 0).sum()) if placed else 0
    return WaitingTimes(at_once=at_once, p50_s=p50, p90_s=p90, p99_s=p99, max_s=float(waited.max()))


def _peak(result: ReplayResult) -> dict[str, float]:
    shares = np.array([each.allocated for each in result.samples])
    return dict(zip(result.resources, shares.max(axis=0).tolist(), strict=True)) if shares.size else {}


def _mean(result: ReplayResult) -> dict[str, float]:
    """Over time: each sample counts until the next."""
    samples = result.samples
    if not samples:
        return {}
    shares = np.array([each.allocated for each in samples])
    lasted = np.diff([each.at_s for each in samples], append=samples[-1].at_s)
    if not lasted.sum():
        return dict(zip(result.resources, shares[-1].tolist(), strict=True))
    mean = (shares * lasted[:, np.newaxis]).sum(axis=0) / lasted.sum()
    return dict(zip(result.resources, mean.tolist(), strict=True))
