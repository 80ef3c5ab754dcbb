"""The plugins of this package by name; other packages add theirs through entry points."""

from koordinator.cluster import plugin_registry
from koordinator.cluster.plugin_registry import PluginRegistry
from koordinator.descheduler.plugin import ENTRY_POINTS, Plugin
from koordinator.descheduler.plugins.custom_priority import CustomPriority
from koordinator.descheduler.plugins.fragmentation_aware import FragmentationAware
from koordinator.descheduler.plugins.low_node_load.cycle import LowNodeLoad
from koordinator.descheduler.plugins.migration_controller import MigrationController
from koordinator.descheduler.plugins.scale_down_bin_pack import ScaleDownBinPack
from koordinator.descheduler.plugins.stock.default_evictor import DefaultEvictor
from koordinator.descheduler.plugins.stock.strategies import STRATEGIES

_ALL: tuple[type[Plugin], ...] = (
    MigrationController,
    LowNodeLoad,
    CustomPriority,
    FragmentationAware,
    ScaleDownBinPack,
    DefaultEvictor,
    *STRATEGIES,
)
BUILT_IN: dict[str, type[Plugin]] = {plugin.name: plugin for plugin in _ALL}


def installed_plugins() -> PluginRegistry[Plugin]:
    """Return the plugins of this package and those of all installed packages."""
    return plugin_registry.installed(Plugin, BUILT_IN, ENTRY_POINTS)
