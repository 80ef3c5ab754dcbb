"""List the plugins by name: those of this package and those that installed packages offer.

A package offers a plugin as an entry point of the group `ENTRY_POINTS`; the entry's name is the plugin's. One
that cannot be used costs a warning, and stops the scheduler only when the configuration asks for it.
"""

import difflib
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from typing import Any

from koordinator.cluster.supervise import attempt
from koordinator.scheduler.plugin.framework import ENTRY_POINTS, Plugin

log = logging.getLogger(__name__)

PluginType = type[Plugin[Any]]


class PluginRegistry(Mapping[str, PluginType]):
    """Plugins by name. `unusable` says of names that installed packages offer why they cannot be used."""

    def __init__(self, plugins: Mapping[str, PluginType], unusable: Mapping[str, str] | None = None) -> None:
        self._plugins = dict(plugins)
        self.unusable = dict(unusable or {})

    def __getitem__(self, name: str) -> PluginType:
        return self._plugins[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._plugins)

    def __len__(self) -> int:
        return len(self._plugins)


def why_missing(name: str, registry: Mapping[str, PluginType], known: Iterable[str] = ()) -> str:
    """Return why a configured plugin cannot be used, with the name that was probably meant."""
    if isinstance(registry, PluginRegistry) and name in registry.unusable:
        return f"plugin {name!r} is installed and cannot be used: {registry.unusable[name]}"
    text = f"no plugin is called {name!r}"
    names = sorted({*registry, *known})
    by_lower = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    if close:
        return f"{text}; did you mean {by_lower[close[0]]!r}?"
    return f"{text}; packages offer plugins as entry points of the group {ENTRY_POINTS!r}"


def installed(built_in: Mapping[str, PluginType]) -> PluginRegistry:
    """Return the plugins of this package and those of all installed packages."""
    return read_entries(built_in, _offered())


@functools.cache
def _offered() -> metadata.EntryPoints:
    """Read once: it looks into all folders that Python imports from."""
    return metadata.entry_points(group=ENTRY_POINTS)


def read_entries(
    built_in: Mapping[str, PluginType], entries: Iterable[metadata.EntryPoint]
) -> PluginRegistry:
    """Return the plugins that entry points lead to, besides the built-in ones.

    An entry cannot be used when it does not import, leads to no plugin of its name, or has a name that is
    taken: by this package, or by another one (then neither is).
    """
    plugins = dict(built_in)
    unusable: dict[str, str] = {}
    taken: dict[str, str] = {}
    for entry in entries:
        found, source = _load(entry), _source(entry)
        if entry.name in built_in:
            found = f"{source} takes the name of a built-in plugin"
        elif taken.setdefault(entry.name, source) != source:
            found = f"{taken[entry.name]} and {source} both offer it"
            plugins.pop(entry.name, None)
        if isinstance(found, str):
            log.warning("plugin not loaded: %s", found, extra={"plugin": entry.name, "source": source})
            if entry.name not in built_in:
                unusable[entry.name] = found
        else:
            plugins[entry.name] = found
    return PluginRegistry(plugins, unusable)


def _load(entry: metadata.EntryPoint) -> PluginType | str:
    """Return the plugin, or what is wrong with it."""
    source = _source(entry)
    found = attempt(entry.load)
    if isinstance(found, Exception):
        return f"{source}: importing it failed: {type(found).__name__}: {found}"
    if not (isinstance(found, type) and issubclass(found, Plugin)):
        return f"{source} is no subclass of koordinator.scheduler.plugin.framework.Plugin"
    name = getattr(found, "name", None)
    if name != entry.name:
        return f"{source} calls itself {name!r}, the entry point {entry.name!r}"
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    return f"{source} lacks {', '.join(missing)}" if missing else found


def _source(entry: metadata.EntryPoint) -> str:
    package = entry.dist.name if entry.dist is not None else ""
    return f"{entry.value} of package {package}" if package else entry.value
