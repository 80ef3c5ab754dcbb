"""List the plugins by name: those of this package and those that installed packages offer (`plugin.ENTRY_POINTS`).

One that cannot be used costs a warning, and stops the descheduler only when the configuration asks for it.
"""

import difflib
import logging
from collections.abc import Iterable, Mapping
from importlib import metadata

import msgspec

from koordinator.cluster.supervise import attempt
from koordinator.descheduler.plugin import ENTRY_POINTS, Plugin

log = logging.getLogger(__name__)

PluginType = type[Plugin]


class PluginRegistry(msgspec.Struct, frozen=True):
    """Plugins by name; `unusable` says of names that installed packages offer why they cannot be used."""

    plugins: Mapping[str, PluginType]
    unusable: Mapping[str, str] = {}

    def why_missing(self, name: str) -> str:
        """Return why a configured plugin cannot be used, with the name that was probably meant."""
        if name in self.unusable:
            return f"plugin {name!r} is installed and cannot be used: {self.unusable[name]}"
        by_lower = {each.lower(): each for each in self.plugins}
        close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
        hint = (
            f"did you mean {by_lower[close[0]]!r}?"
            if close
            else f"packages offer plugins as entry points of the group {ENTRY_POINTS!r}"
        )
        return f"no plugin is called {name!r}; {hint}"


def installed(built_in: Mapping[str, PluginType]) -> PluginRegistry:
    """Return the plugins of this package and those of all installed packages."""
    return read_entries(built_in, metadata.entry_points(group=ENTRY_POINTS))


def read_entries(
    built_in: Mapping[str, PluginType], entries: Iterable[metadata.EntryPoint]
) -> PluginRegistry:
    """Return the plugins that entry points lead to, besides the built-in ones. Of two with one name neither is used."""
    plugins = dict(built_in)
    unusable: dict[str, str] = {}
    for entry in entries:
        found = _load(entry)
        if entry.name in built_in:
            found = f"{entry.value} takes the name of a built-in plugin"
        elif entry.name in plugins:
            del plugins[entry.name]
            found = "several packages offer it"
        if isinstance(found, str):
            log.warning("plugin not usable: %s", found, extra={"plugin": entry.name})
            if entry.name not in built_in:
                unusable[entry.name] = found
        elif entry.name not in unusable:
            plugins[entry.name] = found
    return PluginRegistry(plugins, unusable)


def _load(entry: metadata.EntryPoint) -> PluginType | str:
    """Return the plugin, or what is wrong with it."""
    found = attempt(entry.load)
    if isinstance(found, Exception):
        return f"importing {entry.value} failed: {type(found).__name__}: {found}"
    if not (isinstance(found, type) and issubclass(found, Plugin)):
        return f"{entry.value} is no subclass of koordinator.descheduler.plugin.Plugin"
    name = getattr(found, "name", None)
    if name != entry.name:
        return f"{entry.value} calls itself {name!r}, the entry point {entry.name!r}"
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    return f"{entry.value} lacks {', '.join(missing)}" if missing else found
