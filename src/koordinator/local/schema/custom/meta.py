"""Decoding of `metadata` alone, for custom resources."""

import functools
from typing import Any

from koordinator.local.schema import decode as decoding
from koordinator.local.schema.builtin import models


@functools.cache
def _decoder() -> decoding.Decoder:
    return decoding.decoder_of(models.struct_of("V1ObjectMeta"))


def decode(meta: Any, unknown: list[str]) -> Any:
    """`metadata` by its Go types; paths of unknown fields are added to `unknown`. Raises: decode.Unreadable."""
    found: list[str] = []
    try:
        decoded = _decoder()(meta, found)
    except decoding.Undecodable as error:
        error.struct = error.struct or "Object"
        error.path.insert(0, "metadata")
        raise
    unknown += [f"metadata.{path}" for path in found]
    return decoded


__all__ = ["decode"]
