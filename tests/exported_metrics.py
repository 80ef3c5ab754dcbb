"""All metrics that components tell, with everything switched on that adds some."""

from collections.abc import Mapping

from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.cli import component
from koordinator.clock import FixedClock
from koordinator.descheduler.metrics import DeschedulerMetrics
from koordinator.health import SliMetrics
from koordinator.host.host import tree_host
from koordinator.koordlet.metrics import AgentMetrics
from koordinator.manager.metrics import ManagerMetrics
from koordinator.prometheus import MetricFamily, MetricsRegistry
from koordinator.scheduler.auditor.auditor import AuditOptions
from koordinator.scheduler.scheduler import Scheduler
from koordinator.scheduler.serve.http import ResourceMetrics, add_gauges
from koordinator.virtual_node.metrics import VirtualNodeMetrics
from koordinator.yarn.copilot.agent import CopilotMetrics
from koordinator.yarn.copilot.groups import ContainerGroups
from koordinator.yarn.metrics import OperatorMetrics
from tests.scheduler.fake_cluster import FakeCluster


def by_component() -> Mapping[str, list[MetricFamily]]:
    """Families of each component; `every component` tells what each process says of itself."""
    clock = FixedClock()
    agent, manager = AgentMetrics("n", clock), ManagerMetrics(clock)
    manager.show_config_problems(dict)
    descheduler = DeschedulerMetrics()
    descheduler.show_jobs(dict)
    scheduler = Scheduler(FakeCluster(clock), auditing=AuditOptions())
    add_gauges(scheduler)
    process = MetricsRegistry()
    component.add_to(process, 0.0)
    component.add_gates(process, FeatureGates.of(Component.SCHEDULER))
    yarn = OperatorMetrics()
    yarn.show(list, dict)
    copilot = CopilotMetrics(ContainerGroups(tree_host("/none"), "yarn"))
    return {
        "every component": process.families(),
        "koordlet": [*agent.internal.families(), *agent.external.families()],
        "koord-manager": [
            *manager.runtime.families(),
            *manager.internal.families(),
            *manager.external.families(),
        ],
        "koord-descheduler": descheduler.registry.families(),
        "virtual-node": VirtualNodeMetrics().registry.families(),
        "koord-yarn-operator": yarn.registry.families(),
        "koord-yarn-copilot": copilot.registry.families(),
        "koord-scheduler": [
            *scheduler.metrics.registry.families(),
            *ResourceMetrics().families(),
            *SliMetrics().families(),
        ],
    }
