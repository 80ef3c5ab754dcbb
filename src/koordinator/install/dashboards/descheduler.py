"""Draw what the descheduler moves and why not more: evictions, migration jobs, arbitration, cycles, and the process."""

from koordinator.install.dashboards import panels
from koordinator.install.dashboards.panels import (
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
    "koordinator-descheduler",
    "Koordinator / Descheduler",
    [
        row(
            "Evictions",
            graph(
                "Evicted pods",
                "Per hour, by which plugin wanted it; empty: jobs made by hand.",
                COUNT,
                Query(
                    'sum by (strategy) (increase(descheduler_pods_evicted{result="success"}[1h]))',
                    "{{strategy}}",
                ),
                stacked=True,
            ),
            graph(
                "Evicted pods by node",
                "Per hour, the ten nodes that lost most.",
                COUNT,
                Query(
                    'topk(10, sum by (node) (increase(descheduler_pods_evicted{result="success"}[1h])))',
                    "{{node}}",
                ),
            ),
            graph(
                "Evictions that failed",
                "Per hour: refused by a disruption budget, or by the API.",
                COUNT,
                Query(
                    'sum by (strategy) (increase(descheduler_pods_evicted{result="error"}[1h]))',
                    "{{strategy}}",
                ),
            ),
            graph(
                "What plugins ask for",
                "Per hour, by what became of it: limited is a limit of the cycle, refused a gate of migration.",
                COUNT,
                Query(
                    "sum by (plugin, outcome) (increase(koord_descheduler_evictions_total[1h]))",
                    "{{plugin}}: {{outcome}}",
                ),
            ),
        ),
        row(
            "Migration jobs",
            graph(
                "Jobs by phase",
                "Waiting: for arbitration.",
                COUNT,
                Query("max by (phase) (koord_descheduler_migration_jobs)", "{{phase}}"),
                stacked=True,
            ),
            graph(
                "Arbitration",
                "Decisions per second. A job that is refused is judged again in every round.",
                PER_SECOND,
                per_second("koord_descheduler_arbitrations_total", "decision"),
            ),
        ),
        row(
            "Cycles",
            graph(
                "Duration, p99",
                "From its start to its end, evictions included.",
                SECONDS,
                quantile(0.99, "koord_descheduler_cycle_duration_seconds"),
            ),
            graph(
                "Cycles that failed",
                "Per second.",
                PER_SECOND,
                per_second("koord_descheduler_cycle_failures_total"),
            ),
        ),
        row(
            "The descheduler",
            stat(
                "Leaders",
                "Exactly one. None: nothing is moved.",
                COUNT,
                Query("sum(koord_descheduler_is_leader)"),
                limit=2,
            ),
            panels.api_requests("koord-descheduler"),
            panels.cpu("koord-descheduler"),
            panels.memory("koord-descheduler"),
        ),
    ],
)
