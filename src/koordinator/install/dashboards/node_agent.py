"""Draw what the node agents do to protect services: suppression, bursts, evictions; and what that costs."""

from koordinator.install.dashboards import panels
from koordinator.install.dashboards.panels import (
    CORES,
    COUNT,
    MILLISECONDS,
    PER_SECOND,
    Panel,
    PanelRow,
    Query,
    Variable,
    dashboard,
    per_second,
)

_NODE = 'node=~"$node"'

DASHBOARD = dashboard(
    "koordinator-node-agent",
    "Koordinator / Node agents",
    [
        PanelRow(
            "Suppression",
            (
                Panel(
                    title="CPU left to batch",
                    what="What best-effort pods may use right now, by the policy in force (cpuset or cfsQuota).",
                    unit=CORES,
                    queries=(Query(f"koordlet_be_suppress_cpu_cores{{{_NODE}}}", "{{node}} {{type}}"),),
                ),
                Panel(
                    title="CPU used by services and batch",
                    what="What suppression decides on.",
                    unit=CORES,
                    queries=(
                        Query(f"koordlet_be_suppress_ls_used_cpu_cores{{{_NODE}}}", "{{node}} services"),
                        Query(f"koordlet_be_suppress_be_used_cpu_cores{{{_NODE}}}", "{{node}} batch"),
                    ),
                ),
                Panel(
                    title="Batch against its limit",
                    what="Near 100 %: batch would use more; services do not let it.",
                    unit="percentunit",
                    queries=(
                        Query(
                            f"sum by (node) (koordlet_be_suppress_be_used_cpu_cores{{{_NODE}}})"
                            f" / sum by (node) (koordlet_be_suppress_cpu_cores{{{_NODE}}})",
                            "{{node}}",
                        ),
                    ),
                ),
                Panel(
                    title="Containers with a raised CPU quota",
                    what="CPU burst at work: containers whose quota the agent set.",
                    unit=COUNT,
                    queries=(
                        Query(
                            f"count by (node) (koordlet_container_scaled_cfs_quota_us{{{_NODE}}} > 0)",
                            "{{node}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "Eviction",
            (
                Panel(
                    title="Evictions",
                    what="Pods that agents evicted, per hour.",
                    unit=COUNT,
                    stacked=True,
                    queries=(
                        Query(
                            f"sum by (node, reason) (increase(koordlet_pod_eviction{{{_NODE}}}[1h]))",
                            "{{node}} {{reason}}",
                        ),
                    ),
                ),
                Panel(
                    title="Pods evicted most",
                    what="The ten pods with most evictions within the last day.",
                    unit=COUNT,
                    queries=(
                        Query(
                            "topk(10, sum by (pod_namespace, pod_name, reason) "
                            f"(increase(koordlet_pod_eviction_detail{{{_NODE}}}[1d])))",
                            "{{pod_namespace}}/{{pod_name}}: {{reason}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "Interference",
            (
                Panel(
                    title="Cycles per instruction",
                    what="The ten containers with the highest CPI (gate CPICollector). A rise at equal load means "
                    "that neighbours take their caches.",
                    unit="none",
                    queries=(
                        Query(
                            "topk(10, sum by (pod_namespace, pod_name, container_name) "
                            f'(koordlet_container_cpi{{cpi_field="cycles",{_NODE}}})'
                            " / sum by (pod_namespace, pod_name, container_name) "
                            f'(koordlet_container_cpi{{cpi_field="instructions",{_NODE}}}))',
                            "{{pod_namespace}}/{{pod_name}} {{container_name}}",
                        ),
                    ),
                ),
                Panel(
                    title="Pressure",
                    what="The ten pods that waited most for CPU or memory, in percent of the last 10 s (gate "
                    "PSICollector).",
                    unit="percent",
                    queries=(
                        Query(
                            f'topk(10, koordlet_pod_psi{{psi_precision="avg10",psi_degree="some",{_NODE}}})',
                            "{{pod_namespace}}/{{pod_name}} {{psi_resource_type}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "The agents",
            (
                Panel(
                    title="Agents",
                    what="Nodes whose agent answers.",
                    unit=COUNT,
                    stat=True,
                    width=6,
                    queries=(Query(f"count(koordlet_start_time{{{_NODE}}})"),),
                ),
                Panel(
                    title="Predictions that failed",
                    what="Nodes whose agent cannot predict what services will need.",
                    unit=COUNT,
                    stat=True,
                    width=6,
                    limit=1,
                    queries=(Query(f"sum(koordlet_node_resource_priority_reclaimable_status{{{_NODE}}})"),),
                ),
                Panel(
                    title="Writes to the host that failed",
                    what="Per second.",
                    unit=PER_SECOND,
                    queries=(
                        per_second(
                            "koordlet_resource_update_duration_milliseconds_count",
                            "type",
                            where='{status!="success"}',
                        ),
                    ),
                ),
                Panel(
                    title="Requests to the kubelet, p99",
                    what="Milliseconds of 99 of 100 requests.",
                    unit=MILLISECONDS,
                    queries=(
                        Query(
                            "1000 * histogram_quantile(0.99, sum by (le, path) "
                            "(rate(koordlet_kubelet_request_duration_seconds_bucket[5m])))",
                            "{{path}}",
                        ),
                    ),
                ),
                panels.cpu("koordlet", "CPU of the agents", "Cores, per agent."),
                panels.memory("koordlet", "Memory of the agents", "Resident, per agent."),
            ),
        ),
    ],
    [Variable("node", "koordlet_start_time")],
)
