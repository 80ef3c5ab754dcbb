"""The controllers by the names that `--controllers` knows (spec 02 §2.1)."""

from collections.abc import Callable, Mapping

from koordinator.manager.nodemetric import NodeMetricController
from koordinator.manager.noderesource.controller import NodeResourceController
from koordinator.manager.nodeslo_controller import NodeSLOController
from koordinator.manager.options import is_chosen
from koordinator.manager.parts import ManagerController, Shared
from koordinator.manager.quota.profile_controller import QuotaProfileController

BY_NAME: Mapping[str, Callable[[Shared], ManagerController]] = {
    "nodemetric": NodeMetricController,
    "noderesource": NodeResourceController,
    "nodeslo": NodeSLOController,
    "quotaprofile": QuotaProfileController,
}


def controllers(shared: Shared) -> dict[str, ManagerController]:
    """Those that the options choose, by name."""
    chosen = shared.options.controllers
    return {name: build(shared) for name, build in BY_NAME.items() if is_chosen(name, chosen)}
