"""All prediction models of a node: pods by UID, and items of the node by their reserved names.

Source: behaviour/koordlet-observe 11.3.

Files keep them in the format of the reference, so that an upgrade keeps what was learnt.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordinator import clock
from koordinator.api.priority import PriorityClass
from koordinator.host.files import FileFailure, FileProblem, problem_of
from koordinator.koordlet import metric_kinds as kinds
from koordinator.koordlet.config import PredictConfig
from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.predict.histogram import (
    CPU_BUCKETS,
    MEMORY_BUCKETS,
    HistogramCheckpoint,
    HistogramTable,
    Rows,
)
from koordinator.koordlet.predict.reclaimable import ReclaimableAmount
from koordinator.koordlet.series import NO_PROPERTIES, Aggregation, SeriesStore

log = logging.getLogger(__name__)

_NEVER = "0001-01-01T00:00:00Z"  # the reference time of a histogram that never saw a sample

FILE_BYTES_MAX = 1024 * 1024
"""A model has some 3 kB; whatever is larger is none."""
_TEMPORARY = ".tmp"


class ModelCheckpoint(msgspec.Struct, frozen=True):
    """A model: pod UID or node item, histograms of CPU and memory, and when it last learnt (unix seconds)."""

    uid: str
    cpu: HistogramCheckpoint
    memory: HistogramCheckpoint
    updated_s: float


class _Histogram(msgspec.Struct, rename="camel"):
    total_weight: float = 0.0
    bucket_weights: dict[int, int] = {}
    reference_timestamp: str | None = None


class _SavedModel(msgspec.Struct):
    uid: str = msgspec.field(name="UID")
    cpu: _Histogram = msgspec.field(name="CPU")
    memory: _Histogram = msgspec.field(name="Memory")
    last_updated: str = msgspec.field(name="LastUpdated")


def encode_checkpoint(model: ModelCheckpoint) -> bytes:
    """Return the content of the model's file."""
    return msgspec.json.encode(
        _SavedModel(
            uid=model.uid,
            cpu=_to_file(model.cpu),
            memory=_to_file(model.memory),
            last_updated=clock.rfc3339(model.updated_s),
        )
    )


def decode_checkpoint(name: str, content: bytes) -> ModelCheckpoint:
    """Return the model in the file of that name, which is the model's id.

    Raises: ModelError when it is no model; the file is of no use then.
    """
    try:
        model = msgspec.json.decode(content, type=_SavedModel)
        return ModelCheckpoint(
            uid=name,
            cpu=_from_file(model.cpu),
            memory=_from_file(model.memory),
            updated_s=clock.parse_rfc3339(model.last_updated),
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise ModelError(name, f"the checkpoint is malformed: {error}") from error


def _to_file(saved: HistogramCheckpoint) -> _Histogram:
    reference = _NEVER if saved.reference_s is None else clock.rfc3339(saved.reference_s)
    return _Histogram(saved.total_weight, saved.bucket_weights, reference)


def _from_file(file: _Histogram) -> HistogramCheckpoint:
    reference = file.reference_timestamp
    reference_s = None if reference in (None, _NEVER) else clock.parse_rfc3339(reference)
    return HistogramCheckpoint(file.total_weight, file.bucket_weights, reference_s)


class CheckpointFiles:
    """Files named like the models; an empty directory name keeps nothing, `is_read_only` changes nothing.

    Each is replaced as a whole, and none is worth a crash: a disk that is full or read-only is told once, and once more
    when writing works again; what is learnt stays in memory.
    """

    def __init__(self, directory: str, *, is_read_only: bool = False) -> None:
        self._directory = directory
        self._is_read_only = is_read_only
        self.problem: FileProblem | None = None
        """Reason for which the last write failed; None when it worked."""

    def read(self) -> dict[str, bytes]:
        """Contents by name; removes what an interrupted write left."""
        if not self._directory:
            return {}
        try:
            names = sorted(os.listdir(self._directory))
        except OSError as error:
            if problem_of(self._directory, error).failure is not FileFailure.GONE:
                log.warning("checkpoints not read", extra={"path": self._directory, "problem": str(error)})
            return {}
        found = {}
        for name in names:
            if name.endswith(_TEMPORARY):
                self.remove(name)
            elif (content := self._content(name)) is not None:
                found[name] = content
        return found

    def write(self, name: str, content: bytes) -> bool:
        """Replace a model's file; False when that failed, the old file stays then."""
        path = os.path.join(self._directory, name)
        temporary = path + _TEMPORARY
        if not self._directory or self._is_read_only or os.path.basename(path) != name:
            return False
        try:
            os.makedirs(self._directory, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # half a file only fills the disk
            self._failed(problem_of(path, error))
            return False
        if self.problem is not None:
            log.info("checkpoint writes recovered", extra={"path": self._directory})
            self.problem = None
        return True

    def remove(self, name: str) -> None:
        """Forget a model; one that has no file is fine."""
        if not self._directory or self._is_read_only:
            return
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._directory, name))

    def _content(self, name: str) -> bytes | None:
        path = os.path.join(self._directory, name)
        if not os.path.isfile(path):
            return None
        try:
            with open(path, "rb") as file:
                return file.read(FILE_BYTES_MAX)
        except OSError as error:
            log.warning("checkpoint not read", extra={"path": path, "problem": str(error)})
            return None

    def _failed(self, problem: FileProblem) -> None:
        if self.problem is None or self.problem.failure is not problem.failure:
            log.warning("checkpoints not written; models are in memory only", extra={"problem": str(problem)})
        self.problem = problem


Values = NDArray[np.float64]

NODE = "__node__"
SYSTEM = "__node-sys__"
CLASSES = {priority: f"__node-{priority.value}__" for priority in PriorityClass}
"""The model of all pods of a priority class."""
NODE_ITEMS = frozenset((NODE, SYSTEM, *CLASSES.values()))


class TrainingUsage(msgspec.Struct, frozen=True):
    """The usage that a model learns from."""

    cores: float
    memory_bytes: float

    def __add__(self, other: "TrainingUsage") -> "TrainingUsage":
        return TrainingUsage(self.cores + other.cores, self.memory_bytes + other.memory_bytes)

    def above(self, other: "TrainingUsage") -> "TrainingUsage":
        """Return what is used beyond another usage, never below zero."""
        return TrainingUsage(
            max(self.cores - other.cores, 0.0), max(self.memory_bytes - other.memory_bytes, 0.0)
        )


NO_USAGE = TrainingUsage(0.0, 0.0)
NODE_USAGE = (kinds.NODE_CPU, kinds.NODE_MEMORY)
POD_USAGE = (kinds.POD_CPU, kinds.POD_MEMORY)


class TrainingWindow(msgspec.Struct, frozen=True):
    """The part of the series that models learn from in one round."""

    store: SeriesStore
    start_ms: int
    end_ms: int

    @classmethod
    def ending(cls, now_s: float, length_s: float, store: SeriesStore) -> "TrainingWindow":
        end_ms = int(now_s * 1000)
        return cls(store, end_ms - int(length_s * 1000), end_ms)

    def usage(
        self, of: tuple[str, str], properties: Mapping[str, str] = NO_PROPERTIES, per_core: float = 1.0
    ) -> TrainingUsage | None:
        """Return the 90th percentile of two kinds of series: compute, of which `per_core` is one core (or card), and
        memory. None where either was not measured."""
        compute, memory = (
            self.store.query(kind, self.start_ms, self.end_ms, properties).aggregate(Aggregation.P90)
            for kind in of
        )
        return None if compute is None or memory is None else TrainingUsage(compute / per_core, memory)


class _Model:
    """A row of both tables, and when (unix seconds) it last learnt and was last saved (None: never)."""

    __slots__ = ("row", "saved_s", "updated_s")

    def __init__(self, row: int, updated_s: float) -> None:
        self.row, self.updated_s = row, updated_s
        self.saved_s: float | None = None


class ModelRows:
    """Models by row: a histogram of CPU and one of memory each. Whoever takes rows remembers whose they are."""

    def __init__(self, config: PredictConfig) -> None:
        """No rows yet. Raises: ModelError when a half-life is not above zero."""
        self.cpu = HistogramTable(CPU_BUCKETS, config.cpu_half_life_s)
        self.memory = HistogramTable(MEMORY_BUCKETS, config.memory_half_life_s)

    def grow(self, count: int) -> None:
        """Have at least `count` rows; new ones are empty."""
        self.cpu.grow(count)
        self.memory.grow(count)

    def clear(self, rows: Rows) -> None:
        """Make rows (n,) empty."""
        self.cpu.clear(rows)
        self.memory.clear(rows)

    def learn(self, rows: Rows, cores: Values, memory_bytes: Values, now_s: float) -> None:
        """Add a sample to each of these rows, all (n,); no row twice."""
        self.cpu.add(rows, cores, now_s)
        self.memory.add(rows, memory_bytes, now_s)

    def peaks(self, rows: Rows, cpu_share: float, memory_share: float) -> NDArray[np.int64]:
        """Return (n, 2) milli-cores and bytes that these shares of the samples of each row lie below; 0 if empty."""
        cores = self.cpu.percentile(rows, cpu_share)
        memory = self.memory.percentile(rows, memory_share)
        return np.stack((cores * 1000, memory), axis=-1).astype(np.int64)


class Models:
    """Models by id."""

    def __init__(self, config: PredictConfig) -> None:
        """No models yet. Raises: ModelError when a half-life is not above zero."""
        self._rows = ModelRows(config)
        self._models: dict[str, _Model] = {}
        self._free: list[int] = []

    def __contains__(self, model: str) -> bool:
        return model in self._models

    def __len__(self) -> int:
        return len(self._models)

    def learn(self, usages: Mapping[str, TrainingUsage], now_s: float) -> None:
        """Add a sample to each of these models; new ones begin with it."""
        if not usages:
            return
        models = [self._model(model, now_s) for model in usages]
        for model in models:
            model.updated_s = now_s
        rows = np.array([model.row for model in models], np.intp)
        cores, memory_bytes = np.array([(usage.cores, usage.memory_bytes) for usage in usages.values()]).T
        self._rows.learn(rows, cores, memory_bytes, now_s)

    def peaks(self, cpu_share: float, memory_share: float) -> dict[str, ReclaimableAmount]:
        """Return the peaks below which this share of each model's samples lies."""
        if not self._models:
            return {}
        rows = np.array([model.row for model in self._models.values()], np.intp)
        peaks = self._rows.peaks(rows, cpu_share, memory_share).tolist()
        return {model: ReclaimableAmount(*peak) for model, peak in zip(self._models, peaks, strict=True)}

    def expire(self, now_s: float, after_s: float) -> list[str]:
        """Drop models that learnt nothing for so long; returns their ids.

        One that learnt in the future, before the clock went back, counts from now on.
        """
        gone = []
        for name, model in self._models.items():
            model.updated_s = min(model.updated_s, now_s)
            if now_s - model.updated_s > after_s:
                gone.append(name)
        self._free += [self._models.pop(name).row for name in gone]
        return gone

    def unsaved(self, now_s: float, after_s: float, count_max: int) -> list[str]:
        """Models whose checkpoint is older than that or missing, the oldest first."""
        due = []
        for name, model in self._models.items():
            if model.saved_s is not None:
                model.saved_s = min(model.saved_s, now_s)
                if now_s - model.saved_s <= after_s:
                    continue
            due.append((-1.0 if model.saved_s is None else model.saved_s, name))
        return [name for _, name in sorted(due)[:count_max]]

    def checkpoint(self, model: str) -> ModelCheckpoint:
        """Return what to write to the model's file."""
        known = self._models[model]
        return ModelCheckpoint(
            model,
            self._rows.cpu.checkpoint(known.row),
            self._rows.memory.checkpoint(known.row),
            known.updated_s,
        )

    def saved(self, models: Iterable[str], now_s: float) -> None:
        """These checkpoints are on disk."""
        for model in models:
            self._models[model].saved_s = now_s

    def load(self, saved: ModelCheckpoint, now_s: float) -> None:
        """Take a model over from a checkpoint; it has from `now_s` on time to learn again.

        Raises: ModelError when it does not fit; there is no such model then.
        """
        model = self._model(saved.uid, now_s)
        try:
            self._rows.cpu.load(model.row, saved.cpu)
            self._rows.memory.load(model.row, saved.memory)
        except ModelError as error:
            self._free.append(self._models.pop(saved.uid).row)
            raise ModelError(saved.uid, error.reason) from error
        model.saved_s = saved.updated_s

    def _model(self, name: str, now_s: float) -> _Model:
        known = self._models.get(name)
        if known is not None:
            return known
        row = self._free.pop() if self._free else len(self._models)
        self._rows.grow(row + 1)
        self._rows.clear(np.array([row], np.intp))
        self._models[name] = _Model(row, now_s)
        return self._models[name]


FUTURE_S_MAX = 24 * 3600.0
"""A checkpoint from further ahead was made under a wrong clock: its samples would never fade."""


class KeptModels:
    """Models, and their files in a directory: they are taken over when it is known whose they are."""

    def __init__(self, config: PredictConfig, directory: str, *, is_read_only: bool) -> None:
        """No models yet. Raises: ModelError when a half-life is not above zero."""
        self.models = Models(config)
        self._config = config
        self._files = CheckpointFiles(directory, is_read_only=is_read_only)
        self._unloaded: dict[str, bytes] | None = None

    def load(self, is_wanted: Callable[[str], bool | None], now_s: float) -> None:
        """Take over the checkpoints that are wanted, and remove others; None says that nobody can tell yet."""
        if self._unloaded is None:
            self._unloaded = self._files.read()
        for name in list(self._unloaded):
            wanted = is_wanted(name)
            if wanted is None:
                continue
            content = self._unloaded.pop(name)
            if wanted:
                self._load_one(name, content, now_s)
            else:
                self._files.remove(name)

    def tidy(self, now_s: float) -> None:
        """Forget models that learn no more, and write a few checkpoints: the first that fails ends the round."""
        for model in self.models.expire(now_s, self._config.expiration_s):
            self._files.remove(model)
        due = self.models.unsaved(
            now_s, self._config.checkpoint_interval_s, self._config.checkpoints_per_step
        )
        for model in due:
            if not self._files.write(model, encode_checkpoint(self.models.checkpoint(model))):
                return
            self.models.saved([model], now_s)

    def _load_one(self, name: str, content: bytes, now_s: float) -> None:
        if name in self.models:
            return  # it has learnt since, and its file will be replaced
        try:
            saved = decode_checkpoint(name, content)
            if saved.updated_s > now_s + FUTURE_S_MAX:
                raise ModelError(name, "the checkpoint comes from the future")
            self.models.load(saved, now_s)
        except ModelError as error:
            log.warning("checkpoint dropped", extra={"problem": str(error)})
            self._files.remove(name)
