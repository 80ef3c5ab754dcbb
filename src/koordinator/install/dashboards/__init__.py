"""The dashboards by name: what `deploy/dashboards` and the ConfigMaps of an installation hold."""

from collections.abc import Mapping
from typing import Any

from koordinator.install.dashboards import descheduler, manager, node_agent, yarn_operator

DASHBOARDS: Mapping[str, dict[str, Any]] = {
    "colocation": node_agent.COLOCATION,
    "node-agent": node_agent.DASHBOARD,
    "scheduler": manager.SCHEDULER,
    "manager": manager.DASHBOARD,
    "descheduler": descheduler.DASHBOARD,
    "yarn-operator": yarn_operator.DASHBOARD,
}

__all__ = ["DASHBOARDS"]
