"""The configuration in force, with everything that was filled in: `/configz` and `--write-config-to`."""

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from koordinator.scheduler.config import default_plugins, plugin_args
from koordinator.scheduler.config.config import API_VERSION, SchedulerConfig
from koordinator.scheduler.engine.profile import read_plugins
from koordinator.scheduler.engine.registry import PluginType


def effective(config: SchedulerConfig, registry: Mapping[str, PluginType]) -> dict[str, Any]:
    """Return a JSON object that is itself a configuration: the merged plugins of each extension point, the
    arguments of each plugin with their defaults.

    Raises: ConfigError.
    """
    profiles = config.profiles or [default_plugins.shipped_profile()]
    body: dict[str, Any] = _without_nulls(msgspec.to_builtins(config))
    body["profiles"] = []
    for profile, (points, args) in zip(profiles, read_plugins(profiles, registry), strict=True):
        plugins: dict[str, Any] = {
            _camel(point): {
                "enabled": [
                    {"name": ref.name} | ({"weight": ref.weight} if point == "score" else {}) for ref in refs
                ],
                "disabled": [{"name": "*"}],
            }
            for point, refs in points.items()
        }
        plugins["multiPoint"] = {"disabled": [{"name": "*"}]}
        used = {ref.name for refs in points.values() for ref in refs} | args.keys()
        entry: dict[str, Any] = {
            "schedulerName": profile.scheduler_name,
            "plugins": plugins,
            "pluginConfig": [
                {"name": name, "args": _args(name, args.get(name), registry)} for name in sorted(used)
            ],
        }
        if profile.percentage_of_nodes_to_score is not None:
            entry["percentageOfNodesToScore"] = profile.percentage_of_nodes_to_score
        body["profiles"].append(entry)
    return body


def as_yaml(config: SchedulerConfig, registry: Mapping[str, PluginType]) -> str:
    """The same as a file. Raises: ConfigError."""
    text: str = yaml.safe_dump(effective(config, registry), sort_keys=False, allow_unicode=True)
    return text


def _args(name: str, given: Any, registry: Mapping[str, PluginType]) -> dict[str, Any]:
    kind = registry[name].args if name in registry else plugin_args.ARGS[name]
    body = _without_nulls(msgspec.to_builtins(kind() if given is None else given))
    return {"apiVersion": API_VERSION, "kind": f"{name}Args", **body}


def _without_nulls(body: Any) -> Any:
    if isinstance(body, dict):
        return {key: _without_nulls(part) for key, part in body.items() if part is not None}
    if isinstance(body, list | tuple):
        return [_without_nulls(part) for part in body]
    return body


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
