"""Draw how fast the scheduler places pods, what waits, and why."""

from koordinator.install.dashboards import panels
from koordinator.install.dashboards.panels import (
    COUNT,
    PER_SECOND,
    SECONDS,
    Panel,
    PanelRow,
    Query,
    dashboard,
    per_second,
    quantile,
    ten_most,
)


def _median_and_p99(metric: str, *by: str) -> tuple[Query, ...]:
    names = "".join(f" {{{{{label}}}}}" for label in by)
    return tuple(quantile(share, metric, *by, legend=f"p{int(share * 100)}{names}") for share in (0.5, 0.99))


DASHBOARD = dashboard(
    "koordinator-scheduler",
    "Koordinator / Scheduler",
    [
        PanelRow(
            "Pods",
            (
                Panel(
                    title="Attempts",
                    what="Per second, by how they end.",
                    unit=PER_SECOND,
                    stacked=True,
                    queries=(per_second("scheduler_schedule_attempts_total", "result"),),
                ),
                Panel(
                    title="Time until a pod has its node",
                    what="From when the pod came into the queue, all attempts together.",
                    unit=SECONDS,
                    queries=_median_and_p99("scheduler_pod_scheduling_sli_duration_seconds"),
                ),
                Panel(
                    title="Attempt: deciding and binding",
                    what="One attempt, by how it ends.",
                    unit=SECONDS,
                    queries=_median_and_p99("scheduler_scheduling_attempt_duration_seconds", "result"),
                ),
                Panel(
                    title="Deciding alone",
                    what="Looking for the best node.",
                    unit=SECONDS,
                    queries=_median_and_p99("scheduler_scheduling_algorithm_duration_seconds"),
                ),
            ),
        ),
        PanelRow(
            "Queue",
            (
                Panel(
                    title="Pods that wait",
                    what="active: about to be tried; backoff: tried, and soon again; unschedulable: until something "
                    "changes; gated: not to be tried yet.",
                    unit=COUNT,
                    stacked=True,
                    queries=(Query("max by (queue) (scheduler_pending_pods)", "{{queue}}"),),
                ),
                Panel(
                    title="Who refuses pods that wait",
                    what="Unschedulable pods by the plugin that found no node for them.",
                    unit=COUNT,
                    queries=(Query("max by (plugin) (scheduler_unschedulable_pods)", "{{plugin}}"),),
                ),
                Panel(
                    title="What brings pods into the queue",
                    what="Per second, by event.",
                    unit=PER_SECOND,
                    queries=(
                        per_second(
                            "scheduler_queue_incoming_pods_total",
                            "queue",
                            "event",
                            legend="{{queue}}: {{event}}",
                        ),
                    ),
                ),
                Panel(
                    title="Preemption",
                    what="Attempts per second, and pods that had to make room.",
                    unit=PER_SECOND,
                    queries=(
                        per_second("scheduler_preemption_attempts_total", legend="attempts"),
                        per_second("scheduler_preemption_victims_sum", legend="victims"),
                    ),
                ),
            ),
        ),
        PanelRow(
            "Inside",
            (
                Panel(
                    title="Plugins, p99",
                    what="Of cycles that were sampled: the ten slowest.",
                    unit=SECONDS,
                    queries=(
                        ten_most(
                            quantile(
                                0.99,
                                "scheduler_plugin_execution_duration_seconds",
                                "plugin",
                                "extension_point",
                            )
                        ),
                    ),
                ),
                panels.api_requests("koord-scheduler"),
                Panel(
                    title="Nodes and pods known",
                    what="As the leading scheduler sees them.",
                    unit=COUNT,
                    queries=(Query("max by (type) (scheduler_cache_size)", "{{type}}"),),
                ),
                Panel(
                    title="Leading",
                    what="Exactly one instance has 1.",
                    unit=COUNT,
                    queries=(Query('leader_election_master_status{job="koord-scheduler"}', "{{instance}}"),),
                ),
                panels.cpu("koord-scheduler", what="Cores, per instance. Placing happens on one."),
                panels.memory("koord-scheduler"),
            ),
        ),
    ],
)
