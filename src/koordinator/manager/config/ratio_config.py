"""Keeping a configuration of one cluster strategy and node entries up to date (behaviour/manager 3.1, 3.2).

For the keys whose consumers have an own copy and no value checks: CPU normalization and amplification.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from koordinator.api import slo_config
from koordinator.api.annotations.codec import Annotation
from koordinator.api.errors import ProtocolError
from koordinator.api.slo_config import CPUNormalizationConfig, ResourceAmplificationConfig
from koordinator.manager.config.overlay import overlay

C = TypeVar("C", CPUNormalizationConfig, ResourceAmplificationConfig)

_CONFIG_MAP = f"ConfigMap {slo_config.CONFIG_NAME}"


class RatioSync(msgspec.Struct, Generic[C], frozen=True):
    """The configuration in force after a ConfigMap was read; `problem` is empty when it was understood."""

    config: C
    problem: str = ""


def sync(codec: Annotation[C], default: C, old: C, data: Mapping[str, str] | None) -> RatioSync[C]:
    """Return the next configuration, node entries on top of the cluster's; one that is not understood keeps `old`.

    Without the key, or without a ConfigMap (`data` None), it is `default`; empty text is not understood.
    """
    text = (data or {}).get(codec.key)
    if text is None:
        return RatioSync(default)
    try:
        parsed = codec.decode(text, _CONFIG_MAP)
    except ProtocolError as error:
        return RatioSync(old, str(error))
    cluster = overlay(default, parsed)
    entries = [overlay(overlay(entry, cluster), entry) for entry in parsed.node_configs]
    return RatioSync(msgspec.structs.replace(cluster, node_configs=entries))
