"""Undo what did not help: batch gets a resource back whose shrinking left services as degraded as before.

While batch has the least of a resource and services stay degraded, that is a trial: when it has lasted longer than any
measurement is late, what services feel now is compared with what they felt before. A shrink that brought little is
undone, and left out for a while, which doubles each time that it was useless again. It counts as useful at once when
services feel more as batch grows back, when another service is worst off, and when a culprit is named.

A shrink that seemed to help may have met a peak that ended by itself. So after as long a while, which doubles too,
batch grows back although services are degraded: as far as they do not feel it.

All arrays are (nodes,) or (nodes, resources); rows are independent. Decisions of a step rest on earlier steps
only, so less slack never gives batch more.

Source of the comparison by own effect: Chen et al., *PARTIES: QoS-Aware Resource Partitioning for Multiple Interactive
Services* (ASPLOS 2019): an adjustment that does not help is reverted, and another resource is tried.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]
Index = NDArray[np.int64]

FELT_S = 2.0
"""Time over which degradation is averaged, about."""
GAIN_RATIO = 0.2
"""A percentile over five seconds moves by as much by itself: what changes less says nothing."""
PAUSE_S_MAX = 86_400.0
"""The longest that a useless shrink is left out without being tried again."""


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of shrinking so far."""

    felt: F64
    """Latency ÷ target of the service that is worst off (1 − slack), smoothed; NaN until anything is known."""
    worst: F64
    """The most that was felt since services are degraded, up to when a shrink was undone."""
    victim: Index
    least_s: F64
    """For how long batch has had the least while services were degraded; (nodes, resources)."""
    left_out_s: F64
    """Time for which a resource is still not shrunk, 0 where it may be; (nodes, resources)."""
    pause_s: F64
    """Time for which the next useless shrink is left out."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The view of one step, (nodes,) unless said otherwise."""

    slack: F64
    is_degraded: Mask
    is_well: Mask
    """Services have been well for long enough that all is forgotten."""
    has_least: Mask
    """Batch has the least of the resource that degraded services lack; (nodes, resources)."""
    has_culprit: Mask
    victim: Index


def some(mask: NDArray[Any]) -> bool:
    """Return `mask.any()`, (nodes,) or (nodes, resources), in a third of its time: a fleet asks often."""
    return bool(np.count_nonzero(mask))


def initial(nodes: int, resources: int, pause_s: float) -> Trials:
    """Return the start: nothing was tried."""
    return Trials(
        felt=np.full(nodes, np.nan),
        worst=np.full(nodes, np.nan),
        victim=np.zeros(nodes, np.int64),
        least_s=np.zeros((nodes, resources)),
        left_out_s=np.zeros((nodes, resources)),
        pause_s=np.full(nodes, pause_s),
    )


def left_out(trials: Trials, has_culprit: Mask, victim: Index) -> Mask:
    """Return the resources that are not shrunk now, since that was useless for this victim; (nodes, resources)."""
    is_left_out: Mask = trials.left_out_s > 0
    if some(is_left_out):
        feels_it = trials.felt > (1 + GAIN_RATIO) * trials.worst
        is_left_out &= ~(feels_it | has_culprit | (victim != trials.victim))[:, None]
    return is_left_out


def follow(
    trials: Trials, is_left_out: Mask, look: Look, elapsed_s: float, judge_s: float, pause_s: float
) -> Trials:
    """Return what is known after a step; `is_left_out` is (nodes, resources).

    `judge_s`: how long a trial lasts; `pause_s`: the first pause after it.
    """
    felt = _felt(trials.felt, look.slack, elapsed_s)
    if not (some(look.is_degraded) or some(is_left_out)):
        # Nothing is tried anywhere, as in nearly all steps of a fleet.
        calm = np.zeros_like(trials.least_s)
        pauses = np.where(look.is_well, pause_s, trials.pause_s)
        return Trials(
            felt=felt, worst=felt, victim=look.victim, least_s=calm, left_out_s=calm, pause_s=pauses
        )
    has_pause = is_left_out.any(axis=1)
    worst = np.where(look.is_degraded, np.fmax(trials.worst, felt), felt)
    least_s = np.where(look.has_least, trials.least_s + elapsed_s, 0.0)
    is_judged = look.has_least & (least_s >= judge_s) & (least_s - elapsed_s < judge_s)
    is_useless = is_judged & ((felt > (1 - GAIN_RATIO) * worst) & ~look.has_culprit)[:, None]
    is_doubted = look.has_least & (least_s >= judge_s + trials.pause_s[:, None]) & ~look.has_culprit[:, None]
    is_undone = is_useless | is_doubted
    is_any = is_undone.any(axis=1)
    left_out_s = np.where(is_left_out, np.maximum(trials.left_out_s - elapsed_s, 0.0), 0.0)
    left_out_s = np.where(look.is_well[:, None], 0.0, left_out_s)
    pauses = np.where(is_any, np.minimum(2 * trials.pause_s, PAUSE_S_MAX), trials.pause_s)
    worst = np.where(is_doubted.any(axis=1), felt, worst)
    return Trials(
        felt=felt,
        worst=np.where(has_pause, trials.worst, worst),
        victim=look.victim,
        least_s=least_s,
        left_out_s=np.where(is_undone, trials.pause_s[:, None], left_out_s),
        pause_s=np.where(look.is_well, pause_s, pauses),
    )


def _felt(before: F64, slack: F64, elapsed_s: float) -> F64:
    now = 1.0 - slack
    is_first, is_silent = np.isnan(before), np.isnan(now)
    known = np.where(is_first, now, before) if some(is_first) else before
    felt: F64 = known + (now - known) * -np.expm1(-elapsed_s / FELT_S)
    return np.where(is_silent, before, felt) if some(is_silent) else felt
