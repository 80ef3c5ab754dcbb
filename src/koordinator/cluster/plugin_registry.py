"""List the plugins of a component by name: its own, and those that installed packages offer.

A package offers a plugin as an entry point of the component's group; the entry's name is the plugin's. One that cannot
be used costs a warning, and stops the component only when its configuration asks for it.
"""

import difflib
import functools
import logging
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import TypeVar

from koordinator.cluster.supervise import attempt

log = logging.getLogger(__name__)

P = TypeVar("P")


class PluginRegistry(dict[str, type[P]]):
    """Plugins by name. `unusable` says of names that installed packages offer why they cannot be used."""

    def __init__(self, plugins: Mapping[str, type[P]], unusable: Mapping[str, str]) -> None:
        super().__init__(plugins)
        self.unusable = unusable


def why_missing(name: str, registry: Mapping[str, type[P]], group: str) -> str:
    """Return why a configured plugin cannot be used, with the name that was probably meant."""
    if isinstance(registry, PluginRegistry) and name in registry.unusable:
        return f"plugin {name!r} is installed and cannot be used: {registry.unusable[name]}"
    by_lower = {each.lower(): each for each in sorted(registry)}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    hint = (
        f"did you mean {by_lower[close[0]]!r}?"
        if close
        else f"packages offer plugins as entry points of the group {group!r}"
    )
    return f"no plugin is called {name!r}; {hint}"


def installed(base: type[P], built_in: Mapping[str, type[P]], group: str) -> PluginRegistry[P]:
    """Return the plugins of this package and those of all installed packages; each is a `base`."""
    return read_entries(base, built_in, _offered(group))


@functools.cache
def _offered(group: str) -> metadata.EntryPoints:
    """Read once: it looks into all folders that Python imports from."""
    return metadata.entry_points(group=group)


def read_entries(
    base: type[P], built_in: Mapping[str, type[P]], entries: Iterable[metadata.EntryPoint]
) -> PluginRegistry[P]:
    """Return the plugins that entry points lead to, besides the built-in ones.

    An entry cannot be used when it does not import, leads to no plugin of its name, or has a name that is
    taken: by this package, or by another one (then neither is).
    """
    plugins = dict(built_in)
    unusable: dict[str, str] = {}
    taken: dict[str, str] = {}
    for entry in entries:
        found, source = _load(base, entry), _source(entry)
        if entry.name in built_in:
            found = f"{source} takes the name of a built-in plugin"
        elif taken.setdefault(entry.name, source) != source:
            found = f"{taken[entry.name]} and {source} both offer it"
            plugins.pop(entry.name, None)
        if isinstance(found, str):
            log.warning("plugin not usable: %s", found, extra={"plugin": entry.name, "source": source})
            if entry.name not in built_in:
                unusable[entry.name] = found
        else:
            plugins[entry.name] = found
    return PluginRegistry(plugins, unusable)


def _load(base: type[P], entry: metadata.EntryPoint) -> type[P] | str:
    """Return the plugin, or what is wrong with it."""
    source = _source(entry)
    found = attempt(entry.load)
    if isinstance(found, Exception):
        return f"{source}: importing it failed: {type(found).__name__}: {found}"
    if not (isinstance(found, type) and issubclass(found, base)):
        return f"{source} is no subclass of {base.__module__}.{base.__qualname__}"
    name = getattr(found, "name", None)
    if name != entry.name:
        return f"{source} calls itself {name!r}, the entry point {entry.name!r}"
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    return f"{source} lacks {', '.join(missing)}" if missing else found


def _source(entry: metadata.EntryPoint) -> str:
    package = entry.dist.name if entry.dist is not None else ""
    return f"{entry.value} of package {package}" if package else entry.value
