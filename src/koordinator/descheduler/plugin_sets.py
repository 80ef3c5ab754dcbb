"""Choose the plugins that a profile runs. Pure. Source: behaviour/descheduler 2.2."""

from koordinator.api.meta import ViewPart

MIGRATION_CONTROLLER = "MigrationController"


class PluginName(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""


class PluginSet(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plugins switched on and defaults switched off at one extension point."""

    enabled: list[PluginName] = []
    disabled: list[PluginName] = []


class Plugins(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plugin sets by extension point."""

    deschedule: PluginSet = PluginSet()
    balance: PluginSet = PluginSet()
    evict: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()


class Enabled(ViewPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plugins that run, in order, by extension point."""

    deschedule: list[str]
    balance: list[str]
    evict: list[str]
    filter: list[str]


def enabled(plugins: Plugins) -> Enabled:
    """The defaults merged with what a profile says."""
    return Enabled(
        deschedule=_merge([], plugins.deschedule),
        balance=_merge([], plugins.balance),
        evict=_merge([MIGRATION_CONTROLLER], plugins.evict),
        filter=_merge([MIGRATION_CONTROLLER], plugins.filter),
    )


def _merge(defaults: list[str], chosen: PluginSet) -> list[str]:
    """Defaults that are not disabled (those also enabled keep their place), then the enabled ones."""
    disabled = {plugin.name for plugin in chosen.disabled}
    kept = [] if "*" in disabled else [name for name in defaults if name not in disabled]
    return kept + [plugin.name for plugin in chosen.enabled if plugin.name not in kept]
