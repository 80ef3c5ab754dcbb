"""Draw what the node agents do to protect services (suppression, bursts, evictions) and what that costs; and the gain
from co-location: used, reclaimable and free by priority, allocation above 100 %.
"""

from koordinator.install.dashboards import panels
from koordinator.install.dashboards.panels import (
    BYTES,
    CORES,
    COUNT,
    MILLISECONDS,
    PER_SECOND,
    RATIO,
    Query,
    dashboard,
    graph,
    per_hour,
    per_second,
    row,
    stat,
)

_NODE = 'node=~"$node"'
_NODES = f"{{{_NODE}}}"

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
                per_hour("koordlet_pod_eviction", "node", "reason", where=_NODES),
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
            "Isolation",
            graph(
                "Mechanisms without effect",
                "Nodes on which the isolation probe found a mechanism broken (docs/isolation-probe.md).",
                COUNT,
                Query(
                    f"count by (mechanism) (koordlet_isolation_works{{{_NODE}}} == 0)",
                    "{{mechanism}}",
                ),
            ),
        ),
        row(
            "Shadow mode",
            graph(
                "Would have been evicted",
                "Pods that strategies in shadow mode would have evicted, per hour (docs/shadow-mode.md).",
                COUNT,
                per_hour("koordlet_shadow_evictions_total", "node", "strategy", where=_NODES),
                stacked=True,
            ),
            graph(
                "Would have been held back, raised or lent",
                "Cores, by strategies in shadow mode.",
                COUNT,
                Query(
                    f"sum by (strategy, kind) (rate(koordlet_shadow_core_seconds_total{{{_NODE}}}[5m]))",
                    "{{strategy}} {{kind}}",
                ),
            ),
        ),
        row(
            "Runtime hooks",
            graph(
                "Nodes by way to containers",
                "How many nodes each hook reaches containers on before they start (nri, proxy), and within a second "
                "(reconciler).",
                COUNT,
                Query(
                    f"sum by (hook, mode) (koordlet_runtime_hook_delivery{{{_NODE}}})", "{{hook}} {{mode}}"
                ),
            ),
        ),
        row(
            "YARN",
            graph(
                "YARN containers",
                "Containers of the NodeManager in whose groups processes run, and those that were ended, per hour.",
                COUNT,
                Query("sum(yarn_agent_containers)", "running"),
                per_hour("yarn_agent_killed_total", "reason", legend="ended: {{reason}}"),
            ),
            graph(
                "Memory of YARN containers",
                "The ten that use most.",
                BYTES,
                Query('topk(10, yarn_agent_container_used{resource="memory"})', "{{container}}"),
            ),
        ),
        row(
            "Interference",
            graph(
                "Batch follows services",
                "CPU that services and batch may use together, and what is left for the service worst off (gate "
                "InterferenceControl): the ten nodes that are held back most.",
                RATIO,
                Query(
                    f'bottomk(10, koordlet_interference_ceiling_percent{{resource="cpu",{_NODE}}}) / 100',
                    "{{node}} CPU allowed",
                ),
                Query(f"bottomk(10, koordlet_interference_slack_ratio{{{_NODE}}})", "{{node}} slack"),
            ),
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
    {"node": "koordlet_start_time"},
)


_CPU = f'sum(koordlet_node_resource_allocatable{{resource="cpu",{_NODE}}})'
_MEMORY = f'sum(koordlet_node_resource_allocatable{{resource="memory",{_NODE}}})'
_BATCH_CPU = f'sum(koordlet_node_resource_allocatable{{resource="kubernetes.io/batch-cpu",{_NODE}}}) / 1000'
_MID_CPU = f'sum(koordlet_node_resource_allocatable{{resource="kubernetes.io/mid-cpu",{_NODE}}}) / 1000'
_BATCH_MEMORY = f'sum(koordlet_node_resource_allocatable{{resource="kubernetes.io/batch-memory",{_NODE}}})'
_USED_CPU = f"sum(koordlet_node_used_cpu_cores{{{_NODE}}})"
_USED_MEMORY = f"sum(koordlet_node_used_memory_bytes{{{_NODE}}})"
_BATCH_USED_CPU = f"sum(koordlet_be_suppress_be_used_cpu_cores{{{_NODE}}})"


def _requested(resource: str) -> str:
    """Return what pods on nodes request; both schedulers tell it, so each pod counts once."""
    each = f'kube_pod_resource_request{{resource="{resource}",{_NODE},node!=""}}'
    return f"sum(max by (namespace, pod) ({each}))"


_REQUESTED_CPU = _requested("cpu")
_REQUESTED_BATCH_CPU = f"{_requested('kubernetes.io/batch-cpu')} / 1000"
_REQUESTED_MID_CPU = f"{_requested('kubernetes.io/mid-cpu')} / 1000"
_REQUESTED_MEMORY = _requested("memory")
_REQUESTED_BATCH_MEMORY = _requested("kubernetes.io/batch-memory")
_ALLOCATED_CPU = f"({_REQUESTED_CPU} + ({_REQUESTED_BATCH_CPU} or vector(0))) / {_CPU}"
_ALLOCATED_MEMORY = f"({_REQUESTED_MEMORY} + ({_REQUESTED_BATCH_MEMORY} or vector(0))) / {_MEMORY}"

COLOCATION = dashboard(
    "koordinator-colocation",
    "Koordinator / Co-location",
    [
        row(
            "At a glance",
            stat(
                "CPU in use",
                "Of all CPU of the chosen nodes, by services and batch together.",
                RATIO,
                Query(f"{_USED_CPU} / {_CPU}"),
            ),
            stat(
                "CPU allocated",
                "Requests of services plus requests of batch, of all CPU. Above 100 % batch runs on what "
                "services requested but do not use.",
                RATIO,
                Query(_ALLOCATED_CPU),
            ),
            stat("CPU lent to batch", "Cores that batch pods may request now.", CORES, Query(_BATCH_CPU)),
            stat(
                "Memory lent to batch", "Memory that batch pods may request now.", BYTES, Query(_BATCH_MEMORY)
            ),
        ),
        row(
            "Used, reclaimable, free",
            graph(
                "CPU: used by services, used by batch, free",
                "Stacked: together all CPU of the nodes. The system's own use counts as services'.",
                CORES,
                Query(f"{_USED_CPU} - ({_BATCH_USED_CPU} or vector(0))", "services (prod, mid)"),
                Query(_BATCH_USED_CPU, "batch (BE)"),
                Query(f"{_CPU} - {_USED_CPU}", "free"),
                stacked=True,
            ),
            graph(
                "CPU that can be reclaimed, by priority",
                "batch, mid: what pods of that priority may request (the manager's answer). prod: what the "
                "node agent predicts that services will not need for long.",
                CORES,
                Query(_BATCH_CPU, "batch"),
                Query(_MID_CPU, "mid"),
                Query(
                    "sum by (priority) "
                    f'(koordlet_node_priority_resource_reclaimable{{resource="cpu",{_NODE}}})',
                    "{{priority}} (predicted)",
                ),
            ),
            graph(
                "Memory: used, free",
                "Stacked: together all memory of the nodes.",
                BYTES,
                Query(_USED_MEMORY, "used"),
                Query(f"{_MEMORY} - {_USED_MEMORY}", "free"),
                stacked=True,
            ),
            graph(
                "Memory that can be reclaimed",
                "As for CPU.",
                BYTES,
                Query(_BATCH_MEMORY, "batch"),
                Query(
                    "sum by (priority) "
                    f'(koordlet_node_priority_resource_reclaimable{{resource="memory",{_NODE}}})',
                    "{{priority}} (predicted)",
                ),
            ),
        ),
        row(
            "Allocation above 100 %",
            graph(
                "CPU requested, of all CPU",
                "Stacked by priority. What is above the line was possible only by lending.",
                RATIO,
                Query(f"{_REQUESTED_CPU} / {_CPU}", "services"),
                Query(f"{_REQUESTED_MID_CPU} / {_CPU}", "mid"),
                Query(f"{_REQUESTED_BATCH_CPU} / {_CPU}", "batch"),
                stacked=True,
                limit=1,
            ),
            graph(
                "Memory requested, of all memory",
                "As for CPU.",
                RATIO,
                Query(f"{_REQUESTED_MEMORY} / {_MEMORY}", "services"),
                Query(f"{_REQUESTED_BATCH_MEMORY} / {_MEMORY}", "batch"),
                stacked=True,
                limit=1,
            ),
            graph(
                "Allocated against used",
                "The gap between the two is what co-location can still bring.",
                RATIO,
                Query(_ALLOCATED_CPU, "CPU allocated"),
                Query(f"{_USED_CPU} / {_CPU}", "CPU used"),
                Query(_ALLOCATED_MEMORY, "memory allocated"),
                Query(f"{_USED_MEMORY} / {_MEMORY}", "memory used"),
            ),
            graph(
                "Batch CPU: lent, requested, used",
                "Requested above lent: the node lends less than when the pods came; they are held back.",
                CORES,
                Query(_BATCH_CPU, "lent"),
                Query(_REQUESTED_BATCH_CPU, "requested"),
                Query(_BATCH_USED_CPU, "used"),
            ),
        ),
    ],
    {"node": "koordlet_start_time"},
)
