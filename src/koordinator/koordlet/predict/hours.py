"""Peaks by hour of the day: what batch will have to yield to, hour by hour, of many nodes at once.

Two predictors stand beside each other for each node and resource: the peak of this hour on earlier days, and that of
the last day. The one counts whose predictions of hours that are over have cost less (pinball loss); while neither has
any, the larger. Taking the best of simple predictors by what they were wrong about is the way of Bashir et al., "Take
it to the limit: peak prediction-driven resource overcommitment in datacenters" (EuroSys 2021); the loss is Koenker and
Bassett's (Econometrica 1978), whose minimum is the quantile.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator.koordlet.config import PredictConfig
from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.predict.histogram import HistogramCheckpoint, HistogramTable
from koordinator.koordlet.predict.models import ModelRows

HOURS = 24
HOUR_S = 3_600
QUANTILE = 0.95
"""The share of hours that should stay below what was predicted: under-predicting costs 19 times as much as over."""
HOUR_HALF_LIFE_S, DAY_HALF_LIFE_S = 3 * 86_400.0, 86_400.0
HOUR_PEAK_SHARE, DAY_PEAK_SHARE = 0.98, 0.99
"""The shares of samples below a peak: of the 60 in an hour, all but one; of a day's, all but a quarter of an hour."""
LOSS_KEPT_RATIO = 0.95
"""Share of a loss that is left an hour later: the last day counts with two thirds."""
HOUR_SAMPLES_MIN = 30
"""Samples without which an hour is not known, nor over."""
_PERCENT = 100

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]


class HourlyCheckpoint(msgspec.Struct, frozen=True):
    """The kept state of one node: histograms of CPU and memory of each hour and of the day, and their losses."""

    cpu: list[HistogramCheckpoint]
    memory: list[HistogramCheckpoint]
    samples: list[int]
    """By hour of the day."""
    losses: list[list[float]]
    """(2, 2): predictor (hour, day) by resource."""
    updated_s: float


class HourlyPeaks:
    """The models of `nodes` nodes. Source: see the module; histograms are those of `histogram`."""

    def __init__(self, nodes: int, config: PredictConfig) -> None:
        """Nothing is known yet."""
        self._nodes = nodes
        self._margin_ratio = (_PERCENT + config.safety_margin_percent) / _PERCENT
        self._of_hours = ModelRows(_with_half_life(config, HOUR_HALF_LIFE_S))  # row: node * HOURS + hour
        self._of_hours.grow(nodes * HOURS)
        self._of_day = ModelRows(_with_half_life(config, DAY_HALF_LIFE_S))
        self._of_day.grow(nodes)
        self._samples: I64 = np.zeros((nodes, HOURS), np.int64)
        self._losses: F64 = np.zeros((2, nodes, 2))
        self._hour = -1
        """Hours since the epoch of the last sample; −1 before the first."""
        self._seen: F64 = np.zeros((nodes, 2))
        self._seen_count: I64 = np.zeros(nodes, np.int64)
        self._expected: F64 = np.zeros((2, nodes, 2))
        self._is_expected: Mask = np.zeros(nodes, np.bool_)
        self._rows = np.arange(nodes)

    def learn(self, cores: F64, memory_bytes: F64, is_measured: Mask, now_s: float) -> None:
        """Add a sample of each node, all (nodes,): cores and bytes that are not used by pods to which it is lent."""
        hour = int(now_s // HOUR_S)
        if hour != self._hour:
            self._begin(hour, now_s)
        rows = np.flatnonzero(is_measured)
        at = hour % HOURS
        self._of_hours.learn(rows * HOURS + at, cores[rows], memory_bytes[rows], now_s)
        self._of_day.learn(rows, cores[rows], memory_bytes[rows], now_s)
        self._samples[rows, at] += 1
        used = np.stack((cores[rows] * 1000, memory_bytes[rows]), axis=-1)
        self._seen[rows] = np.maximum(self._seen[rows], used)
        self._seen_count[rows] += 1

    def knows(self, rows: I64) -> Mask:
        """Return whether anything can be said of each of these nodes, (n,): after half an hour of samples."""
        return np.asarray(self._samples[rows].sum(axis=1) >= HOUR_SAMPLES_MIN)

    def peaks(self, rows: I64) -> I64:
        """Return what each of these nodes (n,) yields to at the peak of each hour of the day in UTC, margin included:
        (n, 24, 2) milli-cores and bytes."""
        models = (rows[:, None] * HOURS + np.arange(HOURS)).reshape(-1)
        hours = self._of_hours.peaks(models, HOUR_PEAK_SHARE, HOUR_PEAK_SHARE).reshape(rows.size, HOURS, 2)
        day = self._of_day.peaks(rows, DAY_PEAK_SHARE, DAY_PEAK_SHARE)
        is_known = self._samples[rows] >= HOUR_SAMPLES_MIN
        found = chosen(hours, day, is_known, self._losses[:, rows])
        return (found * self._margin_ratio).astype(np.int64)

    def _begin(self, hour: int, now_s: float) -> None:
        """Judge the predictions of the hour that is over, if it was seen, and note those of the new one."""
        if hour == self._hour + 1:
            is_over = self._is_expected & (self._seen_count >= HOUR_SAMPLES_MIN)
            costs = pinball_loss(self._expected, self._seen[None])
            kept = self._losses * LOSS_KEPT_RATIO
            self._losses = np.where(is_over[None, :, None], kept + costs, self._losses)
        at = hour % HOURS
        models = self._rows * HOURS + at
        self._expected = self._margin_ratio * np.stack(
            (
                self._of_hours.peaks(models, HOUR_PEAK_SHARE, HOUR_PEAK_SHARE),
                self._of_day.peaks(self._rows, DAY_PEAK_SHARE, DAY_PEAK_SHARE),
            )
        ).astype(np.float64)
        # Only hours that both can predict compare them.
        self._is_expected = self._samples[:, at] >= HOUR_SAMPLES_MIN
        self._hour = hour
        self._seen = np.zeros((self._nodes, 2))
        self._seen_count = np.zeros(self._nodes, np.int64)

    # Kept beyond a restart

    def checkpoint(self, row: int, now_s: float) -> HourlyCheckpoint:
        """Return what to keep of a node."""

        def saved(hours: HistogramTable, day: HistogramTable) -> list[HistogramCheckpoint]:
            return [*(hours.checkpoint(row * HOURS + hour) for hour in range(HOURS)), day.checkpoint(row)]

        return HourlyCheckpoint(
            saved(self._of_hours.cpu, self._of_day.cpu),
            saved(self._of_hours.memory, self._of_day.memory),
            self._samples[row].tolist(),
            self._losses[:, row].tolist(),
            now_s,
        )

    def load(self, row: int, saved: HourlyCheckpoint) -> None:
        """Take a node over from a checkpoint. Raises: ModelError when it does not fit; the node knows nothing then."""
        losses = np.array(saved.losses, np.float64)
        fits = len(saved.cpu) == len(saved.memory) == HOURS + 1 and len(saved.samples) == HOURS
        if not (fits and losses.shape == (2, 2) and np.isfinite(losses).all() and min(saved.samples) >= 0):
            raise ModelError("hours", "the checkpoint has not 24 hours and a day")
        cpu = self._of_hours.cpu, self._of_day.cpu, saved.cpu
        memory = self._of_hours.memory, self._of_day.memory, saved.memory
        try:
            for hours, day, histograms in (cpu, memory):
                for hour in range(HOURS):
                    hours.load(row * HOURS + hour, histograms[hour])
                day.load(row, histograms[HOURS])
        except ModelError:
            self._of_hours.clear(np.arange(row * HOURS, (row + 1) * HOURS))
            self._of_day.clear(np.array([row]))
            raise
        self._samples[row] = saved.samples
        self._losses[:, row] = np.maximum(losses, 0.0)


def chosen(hours: I64, day: I64, is_known: Mask, losses: F64) -> I64:
    """Return the peak of each hour by the predictor that was less wrong, (n, 24, 2): `hours` (n, 24, 2) where
    `is_known` (n, 24), `day` (n, 2) elsewhere, the larger of both while neither has any loss; `losses` is (2, n, 2)."""
    of_day = np.broadcast_to(day[:, None, :], hours.shape)
    of_hours, of_days = losses[0][:, None, :], losses[1][:, None, :]
    is_untried = (of_hours == 0) & (of_days == 0)
    best = np.where(is_untried, np.maximum(hours, of_day), np.where(of_hours < of_days, hours, of_day))
    return np.where(is_known[:, :, None], best, of_day)


def pinball_loss(expected: F64, seen: F64) -> F64:
    """Return what each prediction cost, elementwise: 95 % of what it was too low by, or 5 % of what it was too high by.
    Source: Koenker and Bassett, "Regression quantiles" (Econometrica 46, 1978)."""
    error = seen - expected
    return np.asarray(np.maximum(QUANTILE * error, (QUANTILE - 1) * error))


def _with_half_life(config: PredictConfig, seconds: float) -> PredictConfig:
    return msgspec.structs.replace(config, cpu_half_life_s=seconds, memory_half_life_s=seconds)
