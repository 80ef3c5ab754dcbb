"""The controllers by the names that `--controllers` knows (behaviour/manager 2.1)."""

from collections.abc import Callable, Mapping

from koordinator.manager.noderesource.controller import NodeResourceController
from koordinator.manager.options import is_chosen
from koordinator.manager.parts import ManagerContext, ManagerController
from koordinator.manager.per_node.nodemetric_controller import NodeMetricController
from koordinator.manager.per_node.nodeslo_controller import NodeSLOController
from koordinator.manager.profiles.profile_controller import ColocationProfileController
from koordinator.manager.quota.profile_controller import QuotaProfileController

BY_NAME: Mapping[str, Callable[[ManagerContext], ManagerController]] = {
    "nodemetric": NodeMetricController,
    "noderesource": NodeResourceController,
    "nodeslo": NodeSLOController,
    "quotaprofile": QuotaProfileController,
    "colocationprofile": ColocationProfileController,
}
_GATES = {"colocationprofile": "ColocationProfileController"}
"""Controllers that a feature gate must switch on, too."""


def controllers(shared: ManagerContext) -> dict[str, ManagerController]:
    """Return the controllers that the options choose and feature gates allow, by name."""
    chosen, gates = shared.options.controllers, shared.gates
    return {
        name: build(shared)
        for name, build in BY_NAME.items()
        if is_chosen(name, chosen) and (name not in _GATES or gates.is_on(_GATES[name]))
    }
