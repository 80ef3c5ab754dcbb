"""The values that the manager keeps on nodes, one plugin per subject, by the names that `--noderesource-plugins`
knows.

A plugin looks at many nodes at once and writes into each node's target what the node should say of the
plugin's own keys. It knows no API and no clock. A plugin that is not chosen does nothing: its keys stay.
"""

from collections.abc import Callable, Mapping

import msgspec

from koordinator.api.slo_config import CPUNormalizationConfig, ResourceAmplificationConfig
from koordinator.manager.noderesource.plugins.amplification import ResourceAmplification
from koordinator.manager.noderesource.plugins.batch import BatchResource
from koordinator.manager.noderesource.plugins.devices import GPUDeviceResource, RDMADeviceResource
from koordinator.manager.noderesource.plugins.mid import MidResource
from koordinator.manager.noderesource.plugins.normalization import CPUNormalization
from koordinator.manager.noderesource.plugins.plugin import NodeResourcePlugin
from koordinator.manager.options import NODE_RESOURCE_PLUGINS, is_chosen

__all__ = ["Configs", "NodeResourcePlugin", "chosen"]


class Configs(msgspec.Struct, frozen=True):
    """Configurations in force, asked for in each round."""

    normalization: Callable[[], CPUNormalizationConfig]
    amplification: Callable[[], ResourceAmplificationConfig]


def chosen(entries: tuple[str, ...], configs: Configs) -> list[NodeResourcePlugin]:
    """Return the plugins that a list of `*`, `name` and `-name` chooses, in the order in which they run."""
    makers: Mapping[str, Callable[[], NodeResourcePlugin]] = {
        CPUNormalization.name: lambda: CPUNormalization(configs.normalization),
        ResourceAmplification.name: lambda: ResourceAmplification(configs.amplification),
        MidResource.name: MidResource,
        BatchResource.name: BatchResource,
        GPUDeviceResource.name: GPUDeviceResource,
        RDMADeviceResource.name: RDMADeviceResource,
    }
    return [makers[name]() for name in NODE_RESOURCE_PLUGINS if is_chosen(name, entries)]
