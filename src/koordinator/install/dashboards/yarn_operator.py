"""Draw what YARN is offered and uses of the batch capacity, and how its ResourceManagers answer."""

from koordinator.install.dashboards import panels
from koordinator.install.dashboards.panels import (
    BYTES,
    CORES,
    COUNT,
    PER_SECOND,
    SECONDS,
    Query,
    dashboard,
    graph,
    per_second,
    quantile,
    row,
    stat,
)

DASHBOARD = dashboard(
    "koordinator-yarn-operator",
    "Koordinator / YARN",
    [
        row(
            "Lent to YARN",
            graph(
                "vcores",
                "What YARN may give out of all nodes, and what it has given out.",
                CORES,
                Query("sum by (cluster) (yarn_node_cpu_resource)", "{{cluster}}: offered"),
                Query("sum by (cluster) (yarn_node_cpu_allocated_resource)", "{{cluster}}: used"),
            ),
            graph(
                "Memory",
                "The same.",
                BYTES,
                Query("sum by (cluster) (yarn_node_memory_resource)", "{{cluster}}: offered"),
                Query("sum by (cluster) (yarn_node_memory_allocated_resource)", "{{cluster}}: used"),
            ),
            graph(
                "Overbooked nodes",
                "Nodes on which pods and YARN together hold more than the pool, which has shrunk since.",
                COUNT,
                Query("count by (resource) (yarn_operator_overbooked) or vector(0)", "{{resource}}"),
            ),
            graph(
                "Totals on their way",
                "Nodes whose total in YARN is not yet the wanted one.",
                COUNT,
                Query("yarn_operator_node_total_mismatch", "{{cluster}}"),
            ),
        ),
        row(
            "ResourceManagers",
            graph(
                "Who leads",
                "One per YARN cluster; none: nobody answers.",
                COUNT,
                Query("yarn_operator_active_rm", "{{cluster}}: {{rm}}"),
            ),
            graph(
                "Age of reports",
                "Seconds since nodes were last polled; totals and figures stay as they are meanwhile.",
                SECONDS,
                Query("yarn_operator_report_age_seconds", "{{cluster}}"),
                limit=30,
            ),
            graph(
                "Calls",
                "Per second; refused: the user is not in yarn.admin.acl, or the ResourceManager stands by.",
                PER_SECOND,
                per_second("yarn_operator_rm_calls_total", "method", "result"),
            ),
            graph(
                "Duration, p99",
                "From question to answer.",
                SECONDS,
                quantile(0.99, "yarn_operator_rm_call_seconds"),
            ),
        ),
        row(
            "The operator",
            stat(
                "Leaders",
                "Exactly one. None: YARN keeps the totals that it has.",
                COUNT,
                Query("sum(yarn_operator_is_leader)"),
                limit=2,
            ),
            panels.api_requests("koord-yarn-operator"),
            panels.cpu("koord-yarn-operator"),
            panels.memory("koord-yarn-operator"),
        ),
    ],
)
