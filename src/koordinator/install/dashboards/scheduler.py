"""Draw how fast the scheduler places pods, what waits, and why."""

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
    ten_most,
)


def _median_and_p99(metric: str, *by: str) -> tuple[Query, ...]:
    names = "".join(f" {{{{{label}}}}}" for label in by)
    return tuple(quantile(share, metric, *by, legend=f"p{int(share * 100)}{names}") for share in (0.5, 0.99))


DASHBOARD = dashboard(
    "koordinator-scheduler",
    "Koordinator / Scheduler",
    [
        row(
            "Pods",
            graph(
                "Attempts",
                "Per second, by how they end.",
                PER_SECOND,
                per_second("scheduler_schedule_attempts_total", "result"),
                stacked=True,
            ),
            graph(
                "Time until a pod has its node",
                "From when the pod came into the queue, all attempts together.",
                SECONDS,
                *_median_and_p99("scheduler_pod_scheduling_sli_duration_seconds"),
            ),
            graph(
                "Attempt: deciding and binding",
                "One attempt, by how it ends.",
                SECONDS,
                *_median_and_p99("scheduler_scheduling_attempt_duration_seconds", "result"),
            ),
            graph(
                "Deciding alone",
                "Looking for the best node.",
                SECONDS,
                *_median_and_p99("scheduler_scheduling_algorithm_duration_seconds"),
            ),
        ),
        row(
            "Queue",
            graph(
                "Pods that wait",
                "active: about to be tried; backoff: tried, and soon again; unschedulable: until something "
                "changes; gated: not to be tried yet.",
                COUNT,
                Query("max by (queue) (scheduler_pending_pods)", "{{queue}}"),
                stacked=True,
            ),
            graph(
                "Who refuses pods that wait",
                "Unschedulable pods by the plugin that found no node for them.",
                COUNT,
                Query("max by (plugin) (scheduler_unschedulable_pods)", "{{plugin}}"),
            ),
            graph(
                "What brings pods into the queue",
                "Per second, by event.",
                PER_SECOND,
                per_second(
                    "scheduler_queue_incoming_pods_total",
                    "queue",
                    "event",
                    legend="{{queue}}: {{event}}",
                ),
            ),
            graph(
                "Preemption",
                "Attempts per second, and pods that had to make room.",
                PER_SECOND,
                per_second("scheduler_preemption_attempts_total", legend="attempts"),
                per_second("scheduler_preemption_victims_sum", legend="victims"),
            ),
        ),
        row(
            "Inside",
            graph(
                "Plugins, p99",
                "Of cycles that were sampled: the ten slowest.",
                SECONDS,
                ten_most(
                    quantile(
                        0.99,
                        "scheduler_plugin_execution_duration_seconds",
                        "plugin",
                        "extension_point",
                    )
                ),
            ),
            panels.api_requests("koord-scheduler"),
            graph(
                "Nodes and pods known",
                "As the leading scheduler sees them.",
                COUNT,
                Query("max by (type) (scheduler_cache_size)", "{{type}}"),
            ),
            graph(
                "Leading",
                "Exactly one instance has 1.",
                COUNT,
                Query('leader_election_master_status{job="koord-scheduler"}', "{{instance}}"),
            ),
            panels.cpu("koord-scheduler", what="Cores, per instance. Placing happens on one."),
            panels.memory("koord-scheduler"),
        ),
    ],
)
