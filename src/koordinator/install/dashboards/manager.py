"""Webhooks: how fast, what they refuse; controllers: what fails; and the manager itself."""

from koordinator.install.dashboards import panels
from koordinator.install.dashboards.panels import (
    CORES,
    COUNT,
    MILLISECONDS,
    PER_SECOND,
    SECONDS,
    Query,
    dashboard,
    graph,
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

DASHBOARD = dashboard(
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
                Query(
                    "sum by (webhook_type, object_type, plugin_name) "
                    f'(increase({_DURATION}_count{{status="rejected"}}[1h]))',
                    "{{webhook_type}} {{object_type}} {{plugin_name}}",
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
                Query(
                    "max by (elasticquota_name, resource_name) (koord_manager_webhook_quota_shared_weight)",
                    "{{elasticquota_name}} {{resource_name}}",
                ),
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
            "Queues and the API",
            graph(
                "Waiting in queues",
                "Objects that controllers have still to look at.",
                COUNT,
                Query("max by (name) (workqueue_depth)", "{{name}}"),
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
