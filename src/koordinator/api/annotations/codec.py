"""JSON annotations as typed payloads, by the decoding rules that all of them share (behaviour/api 1.2).

A payload is a frozen struct below `Payload`, or a map or list of such. The type of a field says:

* `int` is an integer literal of 64 bits (`Int32`: of 32), never `80.0` or `"80"`; `float` is any number;
* `RawQuantity` is quantity text or a bare number, `Seconds` a duration in text, `Time` RFC 3339 text;
* a field without default is always written, even when zero; one that may be None is written unless None;
  any other is left out when empty;
* `NotNull` items make a null inside a list an error (else it is an empty item).

Member names match case-insensitively, unknown members are ignored, null is as if absent, unknown enum text
is kept. Encoding is compact and stable: fixed member order, sorted map keys, canonical quantities.
"""

import enum
import json
from collections.abc import Mapping
from typing import Annotated, Any, Generic, NoReturn, TypeVar

import msgspec

from koordinator.api.annotations import codec_types
from koordinator.api.annotations.codec_types import CodecMismatch, JSONNumber
from koordinator.api.errors import ProtocolError

T = TypeVar("T")

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Seconds = Annotated[float, msgspec.Meta(extra={"json": "duration"})]
Time = Annotated[str, msgspec.Meta(extra={"json": "time"})]
NotNull = msgspec.Meta(extra={"json": "not-null"})


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(parse_float=JSONNumber, parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})
_NESTING_REASON = "nested too deeply"


class Payload(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Base of annotation payloads."""


class Empty(enum.Enum):
    """The meaning of an annotation with empty text."""

    ERROR = "malformed"
    ABSENT = "as if the annotation were absent"
    NOTHING_SET = "a payload with nothing set"


class Annotation(Generic[T]):
    """An annotation (or label) that holds a JSON payload of type `T`."""

    def __init__(
        self, key: str, payload: type[T], *, empty: Empty = Empty.ERROR, null_is_error: bool = False
    ) -> None:
        self.key = key
        self._empty = empty
        self._null_is_error = null_is_error
        self._shape = codec_types.shape_of(payload)

    def read(self, annotations: Mapping[str, str], obj: str = "") -> T | None:
        """Return the payload in an object's annotations, None when absent; `obj` names the object in errors.

        Raises: ProtocolError when malformed.
        """
        text = annotations.get(self.key)
        if text is None or (text == "" and self._empty is Empty.ABSENT):
            return None
        return self.decode(text, obj)

    def decode(self, text: str, obj: str = "") -> T:
        """Return the payload that the annotation's text says.

        Raises: ProtocolError when malformed.
        """
        if text == "" and self._empty is not Empty.ERROR:
            return self.nothing()
        try:
            value = _DECODER.decode(text)
            if value is None and not self._null_is_error:
                return self.nothing()
            decoded: T = self._shape.decode(value)
            return decoded
        except CodecMismatch as mismatch:
            raise ProtocolError(obj, self.key, str(mismatch)) from mismatch
        except RecursionError as error:
            raise ProtocolError(obj, self.key, _NESTING_REASON) from error
        except ValueError as error:
            raise ProtocolError(obj, self.key, f"not JSON: {error}") from error

    def nothing(self) -> T:
        """Return the payload with nothing set."""
        zero: T = self._shape.zero()
        return zero

    def encode(self, value: T) -> str:
        """Return the annotation's text; equal payloads give equal texts."""
        return dump(self._shape.encode(value))


def dump(value: Any) -> str:
    """Compact JSON with `<`, `>`, `&` escaped as the API's other writers do."""
    return _ENCODER.encode(value).translate(_ESCAPES)
