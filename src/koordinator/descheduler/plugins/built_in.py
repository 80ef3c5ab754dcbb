"""The plugins of this package by name; other packages add theirs through entry points."""

from koordinator.descheduler import registry
from koordinator.descheduler.plugins.custom_priority import CustomPriority
from koordinator.descheduler.plugins.fragmentation_aware import FragmentationAware
from koordinator.descheduler.plugins.low_node_load.cycle import LowNodeLoad
from koordinator.descheduler.plugins.migration_controller import MigrationController
from koordinator.descheduler.plugins.scale_down_bin_pack import ScaleDownBinPack
from koordinator.descheduler.plugins.stock.default_evictor import DefaultEvictor
from koordinator.descheduler.plugins.stock.strategies import STRATEGIES
from koordinator.descheduler.registry import PluginRegistry, PluginType

_ALL: tuple[PluginType, ...] = (
    MigrationController,
    LowNodeLoad,
    CustomPriority,
    FragmentationAware,
    ScaleDownBinPack,
    DefaultEvictor,
    *STRATEGIES,
)
BUILT_IN: dict[str, PluginType] = {plugin.name: plugin for plugin in _ALL}


def installed_plugins() -> PluginRegistry:
    """Return the plugins of this package and those of all installed packages."""
    return registry.installed(BUILT_IN)
