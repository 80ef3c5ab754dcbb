"""Draw what the node agents do to protect services: suppression, bursts, evictions; and what that costs."""

from koordinator.install.dashboards import panels
from koordinator.install.dashboards.panels import (
    CORES,
    COUNT,
    MILLISECONDS,
    PER_SECOND,
    Query,
    Variable,
    dashboard,
    graph,
    per_second,
    row,
    stat,
)

_NODE = 'node=~"$node"'

DASHBOARD = dashboard(
    "koordinator-node-agent",
    "Koordinator / Node agents",
    [
        row(
            "Suppression",
            graph(
                "CPU left to batch",
                "What best-effort pods may use right now, by the policy in force (cpuset or cfsQuota).",
                CORES,
                Query(f"koordlet_be_suppress_cpu_cores{{{_NODE}}}", "{{node}} {{type}}"),
            ),
            graph(
                "CPU used by services and batch",
                "What suppression decides on.",
                CORES,
                Query(f"koordlet_be_suppress_ls_used_cpu_cores{{{_NODE}}}", "{{node}} services"),
                Query(f"koordlet_be_suppress_be_used_cpu_cores{{{_NODE}}}", "{{node}} batch"),
            ),
            graph(
                "Batch against its limit",
                "Near 100 %: batch would use more; services do not let it.",
                "percentunit",
                Query(
                    f"sum by (node) (koordlet_be_suppress_be_used_cpu_cores{{{_NODE}}})"
                    f" / sum by (node) (koordlet_be_suppress_cpu_cores{{{_NODE}}})",
                    "{{node}}",
                ),
            ),
            graph(
                "Containers with a raised CPU quota",
                "CPU burst at work: containers whose quota the agent set.",
                COUNT,
                Query(
                    f"count by (node) (koordlet_container_scaled_cfs_quota_us{{{_NODE}}} > 0)",
                    "{{node}}",
                ),
            ),
        ),
        row(
            "Eviction",
            graph(
                "Evictions",
                "Pods that agents evicted, per hour.",
                COUNT,
                Query(
                    f"sum by (node, reason) (increase(koordlet_pod_eviction{{{_NODE}}}[1h]))",
                    "{{node}} {{reason}}",
                ),
                stacked=True,
            ),
            graph(
                "Pods evicted most",
                "The ten pods with most evictions within the last day.",
                COUNT,
                Query(
                    "topk(10, sum by (pod_namespace, pod_name, reason) "
                    f"(increase(koordlet_pod_eviction_detail{{{_NODE}}}[1d])))",
                    "{{pod_namespace}}/{{pod_name}}: {{reason}}",
                ),
            ),
        ),
        row(
            "Interference",
            graph(
                "Cycles per instruction",
                "The ten containers with the highest CPI (gate CPICollector). A rise at equal load means "
                "that neighbours take their caches.",
                "none",
                Query(
                    "topk(10, sum by (pod_namespace, pod_name, container_name) "
                    f'(koordlet_container_cpi{{cpi_field="cycles",{_NODE}}})'
                    " / sum by (pod_namespace, pod_name, container_name) "
                    f'(koordlet_container_cpi{{cpi_field="instructions",{_NODE}}}))',
                    "{{pod_namespace}}/{{pod_name}} {{container_name}}",
                ),
            ),
            graph(
                "Pressure",
                "The ten pods that waited most for CPU or memory, in percent of the last 10 s (gate "
                "PSICollector).",
                "percent",
                Query(
                    f'topk(10, koordlet_pod_psi{{psi_precision="avg10",psi_degree="some",{_NODE}}})',
                    "{{pod_namespace}}/{{pod_name}} {{psi_resource_type}}",
                ),
            ),
        ),
        row(
            "The agents",
            stat(
                "Agents", "Nodes whose agent answers.", COUNT, Query(f"count(koordlet_start_time{{{_NODE}}})")
            ),
            stat(
                "Predictions that failed",
                "Nodes whose agent cannot predict what services will need.",
                COUNT,
                Query(f"sum(koordlet_node_resource_priority_reclaimable_status{{{_NODE}}})"),
                limit=1,
            ),
            graph(
                "Writes to the host that failed",
                "Per second.",
                PER_SECOND,
                per_second(
                    "koordlet_resource_update_duration_milliseconds_count",
                    "type",
                    where='{status!="success"}',
                ),
            ),
            graph(
                "Requests to the kubelet, p99",
                "Milliseconds of 99 of 100 requests.",
                MILLISECONDS,
                Query(
                    "1000 * histogram_quantile(0.99, sum by (le, path) "
                    "(rate(koordlet_kubelet_request_duration_seconds_bucket[5m])))",
                    "{{path}}",
                ),
            ),
            panels.cpu("koordlet", "CPU of the agents", "Cores, per agent."),
            panels.memory("koordlet", "Memory of the agents", "Resident, per agent."),
        ),
    ],
    [Variable("node", "koordlet_start_time")],
)
