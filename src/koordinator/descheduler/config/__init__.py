"""Arguments of the plugins: how they are read, completed and checked. Source: behaviour/descheduler 2, 6 to 11.

`read(plugin, raw)` gives the checked arguments of any plugin of ours.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koordinator.api.errors import ProtocolError
from koordinator.descheduler.config import (
    custom_priority,
    fragmentation_aware,
    low_node_load,
    migration,
    scale_down_bin_pack,
)

API_VERSION = "descheduler/v1alpha2"


class PluginArgsKind(msgspec.Struct, frozen=True):
    """Arguments of one plugin: their view, how absent members are filled in, what they must satisfy."""

    view: type[Any]
    complete: Callable[[Any], Any]
    check: Callable[[Any], None]


KINDS: dict[str, PluginArgsKind] = {
    "MigrationController": PluginArgsKind(
        migration.MigrationControllerArgs, migration.complete, migration.check
    ),
    "LowNodeLoad": PluginArgsKind(low_node_load.LowNodeLoadArgs, low_node_load.complete, low_node_load.check),
    "CustomPriority": PluginArgsKind(
        custom_priority.CustomPriorityArgs, custom_priority.complete, custom_priority.check
    ),
    "FragmentationAware": PluginArgsKind(
        fragmentation_aware.FragmentationAwareArgs,
        fragmentation_aware.complete,
        fragmentation_aware.check,
    ),
    "ScaleDownBinPack": PluginArgsKind(
        scale_down_bin_pack.ScaleDownBinPackArgs,
        scale_down_bin_pack.complete,
        scale_down_bin_pack.check,
    ),
}


def completed(plugin: str, raw: Mapping[str, Any]) -> Any:
    """Return the arguments with defaults filled in, not checked. Raises: ProtocolError for what cannot be read."""
    kind = KINDS[plugin]
    members = dict(raw)
    for field, wanted in (("apiVersion", API_VERSION), ("kind", f"{plugin}Args")):
        found = members.pop(field, wanted)
        if found != wanted:
            raise ProtocolError(plugin, field, f"expected {wanted}, got {found!r}")
    unknown = sorted(members.keys() - {field.encode_name for field in msgspec.structs.fields(kind.view)})
    if unknown:
        raise ProtocolError(plugin, unknown[0], "unknown field")
    try:
        return kind.complete(msgspec.convert(_without_nulls(members), kind.view))
    except msgspec.ValidationError as error:
        raise ProtocolError(plugin, "args", str(error)) from error


def read(plugin: str, raw: Mapping[str, Any]) -> Any:
    """Return the completed and checked arguments. Raises: ProtocolError, naming plugin and field."""
    args = completed(plugin, raw)
    try:
        KINDS[plugin].check(args)
    except ProtocolError as error:
        raise error.of(plugin) from error
    return args


def _without_nulls(raw: Any) -> Any:
    """A null is a member that is not set; unknown members stay, so that they are found."""
    if isinstance(raw, list):
        return [_without_nulls(one) for one in raw]
    if isinstance(raw, Mapping):
        return {name: _without_nulls(member) for name, member in raw.items() if member is not None}
    return raw
