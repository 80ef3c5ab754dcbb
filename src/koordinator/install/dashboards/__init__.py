"""The dashboards by name: what `deploy/dashboards` and the ConfigMaps of an installation hold."""

from collections.abc import Mapping
from typing import Any

from koordinator.install.dashboards import colocation, manager, node_agent, scheduler

DASHBOARDS: Mapping[str, dict[str, Any]] = {
    "colocation": colocation.DASHBOARD,
    "node-agent": node_agent.DASHBOARD,
    "scheduler": scheduler.DASHBOARD,
    "manager": manager.DASHBOARD,
}

__all__ = ["DASHBOARDS"]
