"""The dashboards by name: what `deploy/dashboards` and the ConfigMaps of an installation hold."""

from collections.abc import Mapping
from typing import Any

from koordinator.install.dashboards import components, node_agent

DASHBOARDS: Mapping[str, dict[str, Any]] = {
    "colocation": node_agent.COLOCATION,
    "node-agent": node_agent.DASHBOARD,
    "scheduler": components.SCHEDULER,
    "manager": components.MANAGER,
    "descheduler": components.DESCHEDULER,
    "yarn-operator": components.YARN_OPERATOR,
}

__all__ = ["DASHBOARDS"]
