"""Prediction models in files, in the format of the reference, so that an upgrade keeps what was learnt.

Source: behaviour/koordlet-observe 11.3.
"""

import msgspec

from koordinator import clock
from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.predict.histogram import HistogramCheckpoint

_NEVER = "0001-01-01T00:00:00Z"  # the reference time of a histogram that never saw a sample


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
