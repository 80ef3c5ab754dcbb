"""How fast the scheduler places pods, what waits, and why."""

from koordinator.install.dashboards.panels import (
    BYTES,
    CORES,
    COUNT,
    PER_SECOND,
    SECONDS,
    Panel,
    Query,
    Row,
    dashboard,
)


def _quantiles(metric: str, *, by: str = "", where: str = "") -> tuple[Query, ...]:
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        Query(
            f"histogram_quantile({quantile}, sum by ({labels}) (rate({metric}_bucket{where}[5m])))",
            f"p{int(quantile * 100)}{legend}",
        )
        for quantile in (0.5, 0.99)
    )


DASHBOARD = dashboard(
    "koordinator-scheduler",
    "Koordinator / Scheduler",
    [
        Row(
            "Pods",
            (
                Panel(
                    title="Attempts",
                    what="Per second, by how they end.",
                    unit=PER_SECOND,
                    stacked=True,
                    queries=(
                        Query("sum by (result) (rate(scheduler_schedule_attempts_total[5m]))", "{{result}}"),
                    ),
                ),
                Panel(
                    title="Time until a pod has its node",
                    what="From when the pod came into the queue, all attempts together.",
                    unit=SECONDS,
                    queries=_quantiles("scheduler_pod_scheduling_sli_duration_seconds"),
                ),
                Panel(
                    title="Attempt: deciding and binding",
                    what="One attempt, by how it ends.",
                    unit=SECONDS,
                    queries=_quantiles("scheduler_scheduling_attempt_duration_seconds", by="result"),
                ),
                Panel(
                    title="Deciding alone",
                    what="Looking for the best node.",
                    unit=SECONDS,
                    queries=_quantiles("scheduler_scheduling_algorithm_duration_seconds"),
                ),
            ),
        ),
        Row(
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
                        Query(
                            "sum by (queue, event) (rate(scheduler_queue_incoming_pods_total[5m]))",
                            "{{queue}}: {{event}}",
                        ),
                    ),
                ),
                Panel(
                    title="Preemption",
                    what="Attempts per second, and pods that had to make room.",
                    unit=PER_SECOND,
                    queries=(
                        Query("sum(rate(scheduler_preemption_attempts_total[5m]))", "attempts"),
                        Query("sum(rate(scheduler_preemption_victims_sum[5m]))", "victims"),
                    ),
                ),
            ),
        ),
        Row(
            "Inside",
            (
                Panel(
                    title="Plugins, p99",
                    what="Of cycles that were sampled: the ten slowest.",
                    unit=SECONDS,
                    queries=(
                        Query(
                            "topk(10, histogram_quantile(0.99, sum by (le, plugin, extension_point) "
                            "(rate(scheduler_plugin_execution_duration_seconds_bucket[5m]))))",
                            "{{plugin}} {{extension_point}}",
                        ),
                    ),
                ),
                Panel(
                    title="Requests to the API",
                    what="Per second, by answer.",
                    unit=PER_SECOND,
                    queries=(
                        Query(
                            'sum by (code, method) (rate(rest_client_requests_total{job="koord-scheduler"}[5m]))',
                            "{{method}} {{code}}",
                        ),
                    ),
                ),
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
                Panel(
                    title="CPU",
                    what="Cores, per instance. Placing happens on one.",
                    unit=CORES,
                    queries=(
                        Query('rate(process_cpu_seconds_total{job="koord-scheduler"}[5m])', "{{instance}}"),
                    ),
                ),
                Panel(
                    title="Memory",
                    what="Resident, per instance.",
                    unit=BYTES,
                    queries=(Query('process_resident_memory_bytes{job="koord-scheduler"}', "{{instance}}"),),
                ),
            ),
        ),
    ],
)
