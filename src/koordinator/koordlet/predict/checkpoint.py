"""Prediction models in files, in the format of the reference, so that an upgrade keeps what was learnt.

Source: behaviour/koordlet-observe 11.3.
"""

import contextlib
import logging
import os

import msgspec

from koordinator import clock
from koordinator.host.files import FileFailure, FileProblem, problem_of
from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.predict.histogram import HistogramCheckpoint

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


class _Model(msgspec.Struct):
    uid: str = msgspec.field(name="UID")
    cpu: _Histogram = msgspec.field(name="CPU")
    memory: _Histogram = msgspec.field(name="Memory")
    last_updated: str = msgspec.field(name="LastUpdated")


def encode(model: ModelCheckpoint) -> bytes:
    """Return the content of the model's file."""
    return msgspec.json.encode(
        _Model(
            uid=model.uid,
            cpu=_to_file(model.cpu),
            memory=_to_file(model.memory),
            last_updated=clock.rfc3339(model.updated_s),
        )
    )


def decode(name: str, content: bytes) -> ModelCheckpoint:
    """Return the model in the file of that name, which is the model's id.

    Raises: ModelError when it is no model; the file is of no use then.
    """
    try:
        model = msgspec.json.decode(content, type=_Model)
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
        """Why the last write failed; None when it worked."""

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
            log.info("checkpoints are written again", extra={"path": self._directory})
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
            log.warning("checkpoints not written, models are kept in memory", extra={"problem": str(problem)})
        self.problem = problem
