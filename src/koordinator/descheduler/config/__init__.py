"""Arguments of the plugins: how they are read, completed and checked. Source: behaviour/descheduler 2, 6 to 11.

`read(plugin, raw)` gives the checked arguments of any plugin of ours.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koordinator.api import config_text
from koordinator.api.errors import ProtocolError
from koordinator.descheduler.config import low_node_load, migration, node_plugins

API_VERSION = "descheduler/v1alpha2"


class PluginArgsKind(msgspec.Struct, frozen=True):
    """Arguments of one plugin: their view, what they must satisfy, how absent members are filled in."""

    view: type[Any]
    check: Callable[[Any], None]
    complete: Callable[[Any], Any] = lambda args: args


KINDS: dict[str, PluginArgsKind] = {
    "MigrationController": PluginArgsKind(
        migration.MigrationControllerArgs, migration.check, migration.complete
    ),
    "LowNodeLoad": PluginArgsKind(low_node_load.LowNodeLoadArgs, low_node_load.check, low_node_load.complete),
    "CustomPriority": PluginArgsKind(
        node_plugins.CustomPriorityArgs,
        node_plugins.check_custom_priority,
        node_plugins.complete_custom_priority,
    ),
    "FragmentationAware": PluginArgsKind(
        node_plugins.FragmentationAwareArgs,
        node_plugins.check_fragmentation_aware,
        node_plugins.complete_fragmentation_aware,
    ),
    "ScaleDownBinPack": PluginArgsKind(
        node_plugins.ScaleDownBinPackArgs,
        node_plugins.check_scale_down_bin_pack,
        node_plugins.complete_scale_down_bin_pack,
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
        return kind.complete(msgspec.convert(config_text.without_nulls(members), kind.view))
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


def without_kind(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without the members that say what they are."""
    return {name: member for name, member in raw.items() if name not in ("apiVersion", "kind")}
