"""Draw the gain from co-location: used, reclaimable and free by priority; allocation above 100 %."""

from koordinator.install.dashboards.panels import (
    BYTES,
    CORES,
    RATIO,
    Query,
    Variable,
    dashboard,
    graph,
    row,
    stat,
)

_NODE = 'node=~"$node"'
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

DASHBOARD = dashboard(
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
    [Variable("node", "koordlet_start_time")],
)
