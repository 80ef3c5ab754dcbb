"""Draw the gain from co-location: used, reclaimable and free by priority; allocation above 100 %."""

from koordinator.install.dashboards.panels import (
    BYTES,
    CORES,
    RATIO,
    Panel,
    PanelRow,
    Query,
    Variable,
    dashboard,
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
        PanelRow(
            "At a glance",
            (
                Panel(
                    title="CPU in use",
                    what="Of all CPU of the chosen nodes, by services and batch together.",
                    unit=RATIO,
                    stat=True,
                    width=6,
                    queries=(Query(f"{_USED_CPU} / {_CPU}"),),
                ),
                Panel(
                    title="CPU allocated",
                    what="Requests of services plus requests of batch, of all CPU. Above 100 % batch runs on what "
                    "services requested but do not use.",
                    unit=RATIO,
                    stat=True,
                    width=6,
                    queries=(Query(_ALLOCATED_CPU),),
                ),
                Panel(
                    title="CPU lent to batch",
                    what="Cores that batch pods may request now.",
                    unit=CORES,
                    stat=True,
                    width=6,
                    queries=(Query(_BATCH_CPU),),
                ),
                Panel(
                    title="Memory lent to batch",
                    what="Memory that batch pods may request now.",
                    unit=BYTES,
                    stat=True,
                    width=6,
                    queries=(Query(_BATCH_MEMORY),),
                ),
            ),
        ),
        PanelRow(
            "Used, reclaimable, free",
            (
                Panel(
                    title="CPU: used by services, used by batch, free",
                    what="Stacked: together all CPU of the nodes. The system's own use counts as services'.",
                    unit=CORES,
                    stacked=True,
                    queries=(
                        Query(f"{_USED_CPU} - ({_BATCH_USED_CPU} or vector(0))", "services (prod, mid)"),
                        Query(_BATCH_USED_CPU, "batch (BE)"),
                        Query(f"{_CPU} - {_USED_CPU}", "free"),
                    ),
                ),
                Panel(
                    title="CPU that can be reclaimed, by priority",
                    what="batch, mid: what pods of that priority may request (the manager's answer). prod: what the "
                    "node agent predicts that services will not need for long.",
                    unit=CORES,
                    queries=(
                        Query(_BATCH_CPU, "batch"),
                        Query(_MID_CPU, "mid"),
                        Query(
                            "sum by (priority) "
                            f'(koordlet_node_priority_resource_reclaimable{{resource="cpu",{_NODE}}})',
                            "{{priority}} (predicted)",
                        ),
                    ),
                ),
                Panel(
                    title="Memory: used, free",
                    what="Stacked: together all memory of the nodes.",
                    unit=BYTES,
                    stacked=True,
                    queries=(Query(_USED_MEMORY, "used"), Query(f"{_MEMORY} - {_USED_MEMORY}", "free")),
                ),
                Panel(
                    title="Memory that can be reclaimed",
                    what="As for CPU.",
                    unit=BYTES,
                    queries=(
                        Query(_BATCH_MEMORY, "batch"),
                        Query(
                            "sum by (priority) "
                            f'(koordlet_node_priority_resource_reclaimable{{resource="memory",{_NODE}}})',
                            "{{priority}} (predicted)",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "Allocation above 100 %",
            (
                Panel(
                    title="CPU requested, of all CPU",
                    what="Stacked by priority. What is above the line was possible only by lending.",
                    unit=RATIO,
                    stacked=True,
                    limit=1,
                    queries=(
                        Query(f"{_REQUESTED_CPU} / {_CPU}", "services"),
                        Query(f"{_REQUESTED_MID_CPU} / {_CPU}", "mid"),
                        Query(f"{_REQUESTED_BATCH_CPU} / {_CPU}", "batch"),
                    ),
                ),
                Panel(
                    title="Memory requested, of all memory",
                    what="As for CPU.",
                    unit=RATIO,
                    stacked=True,
                    limit=1,
                    queries=(
                        Query(f"{_REQUESTED_MEMORY} / {_MEMORY}", "services"),
                        Query(f"{_REQUESTED_BATCH_MEMORY} / {_MEMORY}", "batch"),
                    ),
                ),
                Panel(
                    title="Allocated against used",
                    what="The gap between the two is what co-location can still bring.",
                    unit=RATIO,
                    queries=(
                        Query(_ALLOCATED_CPU, "CPU allocated"),
                        Query(f"{_USED_CPU} / {_CPU}", "CPU used"),
                        Query(_ALLOCATED_MEMORY, "memory allocated"),
                        Query(f"{_USED_MEMORY} / {_MEMORY}", "memory used"),
                    ),
                ),
                Panel(
                    title="Batch CPU: lent, requested, used",
                    what="Requested above lent: the node lends less than when the pods came; they are held back.",
                    unit=CORES,
                    queries=(
                        Query(_BATCH_CPU, "lent"),
                        Query(_REQUESTED_BATCH_CPU, "requested"),
                        Query(_BATCH_USED_CPU, "used"),
                    ),
                ),
            ),
        ),
    ],
    [Variable("node", "koordlet_start_time")],
)
