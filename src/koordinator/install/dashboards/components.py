"""Draw the components that a cluster has once, and their processes: how fast the scheduler places pods, what waits,
and why; the manager's webhooks (how fast, what they refuse) and controllers (what fails); what the descheduler moves
and why not more (evictions, migration jobs, arbitration, cycles); what YARN is offered and uses of the batch capacity,
and how its ResourceManagers answer.
"""

from koordinator.install.dashboards import panels
from koordinator.install.dashboards.panels import (
    BYTES,
    CORES,
    COUNT,
    MILLISECONDS,
    PER_SECOND,
    RATIO,
    SECONDS,
    Query,
    dashboard,
    graph,
    highest,
    per_hour,
    per_second,
    quantile,
    row,
    stat,
    ten_most,
)

_DURATION = "koord_manager_webhook_webhook_duration_milliseconds"
_RECONCILES = (
    ("node resources", "slo_controller_node_resource_reconcile_count"),
    ("NodeMetric", "slo_controller_nodemetric_reconcile_count"),
    ("NodeSLO", "slo_controller_nodeslo_reconcile_count"),
)

MANAGER = dashboard(
    "koordinator-manager",
    "Koordinator / Manager",
    [
        row(
            "Webhooks",
            graph(
                "Duration, p99",
                "Of every step of an admission, by what is admitted.",
                MILLISECONDS,
                quantile(0.99, _DURATION, "webhook_type", "object_type"),
            ),
            graph(
                "Slowest steps, p99",
                "The ten slowest.",
                MILLISECONDS,
                ten_most(quantile(0.99, _DURATION, "webhook_type", "object_type", "plugin_name")),
            ),
            graph(
                "Steps",
                "Per second.",
                PER_SECOND,
                per_second(f"{_DURATION}_count", "webhook_type", "object_type", "operation"),
            ),
            graph(
                "Refusals",
                "Per hour, by which step said no.",
                COUNT,
                per_hour(
                    f"{_DURATION}_count",
                    "webhook_type",
                    "object_type",
                    "plugin_name",
                    where='{status="rejected"}',
                ),
            ),
            graph(
                "Bindings",
                "Per second, by decision (gate BindingAdmissionWebhook).",
                PER_SECOND,
                per_second("koord_manager_webhook_binding_admission_decisions_total", "decision"),
            ),
            graph(
                "Shared weight of quotas",
                "As admitted: who gets how much of what others leave.",
                COUNT,
                highest("koord_manager_webhook_quota_shared_weight", "elasticquota_name", "resource_name"),
            ),
        ),
        row(
            "Controllers",
            graph(
                "Failures",
                "Per second, by reason.",
                PER_SECOND,
                *tuple(
                    per_second(metric, "reason", where='{status="failed"}', legend=f"{name}: {{{{reason}}}}")
                    for name, metric in _RECONCILES
                ),
            ),
            graph(
                "Reconciles",
                "Per second.",
                PER_SECOND,
                *tuple(per_second(metric, legend=name) for name, metric in _RECONCILES),
            ),
            graph(
                "Plugins of node resources that fail",
                "Per second, by stage.",
                PER_SECOND,
                per_second(
                    "slo_controller_node_resource_run_plugin_status",
                    "plugin",
                    "reason",
                    where='{status="failed"}',
                ),
            ),
            graph(
                "Batch CPU as calculated",
                "Cores that the manager would lend, all nodes together.",
                CORES,
                Query(
                    "sum by (resource) (slo_controller_node_extended_resource_allocatable_internal"
                    '{resource="kubernetes.io/batch-cpu"})',
                    "{{resource}}",
                ),
            ),
        ),
        row(
            "Tidal pools",
            graph(
                "Nodes",
                "Of each pool, by phase (gate TidalPool).",
                COUNT,
                highest("tidal_nodes", "pool", "phase"),
                Query("max by (pool) (tidal_target)", "{{pool}} should be lent"),
            ),
            graph(
                "Lent cores",
                "Of nodes in batch phase.",
                CORES,
                per_second("tidal_lent_core_seconds_total", "pool"),
            ),
            graph(
                "Changes of phase",
                "Per hour, by cause.",
                COUNT,
                per_hour("tidal_transitions_total", "pool", "to", "reason"),
            ),
            graph(
                "Emergency returns",
                "Nodes per hour that services took back at once.",
                COUNT,
                per_hour("tidal_emergency_returns_total", "pool"),
            ),
            graph(
                "Time until a node is empty, p99",
                "Of nodes that change sides.",
                SECONDS,
                quantile(0.99, "tidal_drain_seconds", "pool", "to"),
            ),
        ),
        row(
            "Queues and the API",
            graph(
                "Waiting in queues",
                "Objects that controllers have still to look at.",
                COUNT,
                highest("workqueue_depth", "name"),
            ),
            graph(
                "Time in queues, p99",
                "How long an object waited.",
                SECONDS,
                quantile(0.99, "workqueue_queue_duration_seconds", "name"),
            ),
            graph(
                "Tried again",
                "Per second. Something refuses what a controller writes.",
                PER_SECOND,
                per_second("workqueue_retries_total", "name"),
            ),
            panels.api_requests("koord-manager"),
        ),
        row(
            "The manager",
            stat(
                "Leaders",
                "Exactly one. None: nothing is reclaimed. Two for longer than a lease: look at the clocks.",
                COUNT,
                Query("sum(koordinator_manager_is_leader)"),
                limit=2,
            ),
            stat("Instances", "That answer.", COUNT, Query("count(koordinator_manager_is_leader)")),
            panels.cpu("koord-manager"),
            panels.memory("koord-manager"),
        ),
    ],
)


def _median_and_p99(metric: str, *by: str) -> tuple[Query, ...]:
    names = "".join(f" {{{{{label}}}}}" for label in by)
    return tuple(quantile(share, metric, *by, legend=f"p{int(share * 100)}{names}") for share in (0.5, 0.99))


SCHEDULER = dashboard(
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
                highest("scheduler_pending_pods", "queue"),
                stacked=True,
            ),
            graph(
                "Who refuses pods that wait",
                "Unschedulable pods by the plugin that found no node for them.",
                COUNT,
                highest("scheduler_unschedulable_pods", "plugin"),
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
            "Reservations",
            graph(
                "Reservations by phase",
                "Pending: without a node. Available: hold room. Succeeded and Failed: over, and soon collected.",
                COUNT,
                Query("sum by (phase) (scheduler_reservation_status_phase)", "{{phase}}"),
                stacked=True,
            ),
            graph(
                "CPU held and used",
                "Cores that reservations hold, and what of it their owners use.",
                CORES,
                Query(
                    "sum by (type) (scheduler_reservation_resource"
                    '{resource="cpu",type=~"allocatable|allocated"})',
                    "{{type}}",
                ),
            ),
            graph(
                "Least used",
                "Share of the CPU of a reservation that its owners use: the ten lowest. 0: it holds room for nobody.",
                RATIO,
                Query(
                    "bottomk(10, max by (name) (scheduler_reservation_resource"
                    '{resource="cpu",type="utilization"}))',
                    "{{name}}",
                ),
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
                highest("scheduler_cache_size", "type"),
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

DESCHEDULER = dashboard(
    "koordinator-descheduler",
    "Koordinator / Descheduler",
    [
        row(
            "Evictions",
            graph(
                "Evicted pods",
                "Per hour, by which plugin wanted it; empty: jobs made by hand.",
                COUNT,
                per_hour("descheduler_pods_evicted", "strategy", where='{result="success"}'),
                stacked=True,
            ),
            graph(
                "Evicted pods by node",
                "Per hour, the ten nodes that lost most.",
                COUNT,
                ten_most(per_hour("descheduler_pods_evicted", "node", where='{result="success"}')),
            ),
            graph(
                "Evictions that failed",
                "Per hour: refused by a disruption budget, or by the API.",
                COUNT,
                per_hour("descheduler_pods_evicted", "strategy", where='{result="error"}'),
            ),
            graph(
                "What plugins ask for",
                "Per hour, by what became of it: limited is a limit of the cycle, refused a gate of migration.",
                COUNT,
                per_hour(
                    "koord_descheduler_evictions_total", "plugin", "outcome", legend="{{plugin}}: {{outcome}}"
                ),
            ),
        ),
        row(
            "Migration jobs",
            graph(
                "Jobs by phase",
                "Waiting: for arbitration.",
                COUNT,
                highest("koord_descheduler_migration_jobs", "phase"),
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

YARN_OPERATOR = dashboard(
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
