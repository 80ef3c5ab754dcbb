"""Webhooks: how fast, what they refuse; controllers: what fails; and the manager itself."""

from koordinator.install.dashboards import panels
from koordinator.install.dashboards.panels import (
    CORES,
    COUNT,
    MILLISECONDS,
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
        PanelRow(
            "Webhooks",
            (
                Panel(
                    title="Duration, p99",
                    what="Of every step of an admission, by what is admitted.",
                    unit=MILLISECONDS,
                    queries=(quantile(0.99, _DURATION, "webhook_type", "object_type"),),
                ),
                Panel(
                    title="Slowest steps, p99",
                    what="The ten slowest.",
                    unit=MILLISECONDS,
                    queries=(
                        ten_most(quantile(0.99, _DURATION, "webhook_type", "object_type", "plugin_name")),
                    ),
                ),
                Panel(
                    title="Steps",
                    what="Per second.",
                    unit=PER_SECOND,
                    queries=(per_second(f"{_DURATION}_count", "webhook_type", "object_type", "operation"),),
                ),
                Panel(
                    title="Refusals",
                    what="Per hour, by which step said no.",
                    unit=COUNT,
                    queries=(
                        Query(
                            "sum by (webhook_type, object_type, plugin_name) "
                            f'(increase({_DURATION}_count{{status="rejected"}}[1h]))',
                            "{{webhook_type}} {{object_type}} {{plugin_name}}",
                        ),
                    ),
                ),
                Panel(
                    title="Bindings",
                    what="Per second, by decision (gate BindingAdmissionWebhook).",
                    unit=PER_SECOND,
                    queries=(
                        per_second("koord_manager_webhook_binding_admission_decisions_total", "decision"),
                    ),
                ),
                Panel(
                    title="Shared weight of quotas",
                    what="As admitted: who gets how much of what others leave.",
                    unit=COUNT,
                    queries=(
                        Query(
                            "max by (elasticquota_name, resource_name) (koord_manager_webhook_quota_shared_weight)",
                            "{{elasticquota_name}} {{resource_name}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "Controllers",
            (
                Panel(
                    title="Failures",
                    what="Per second, by reason.",
                    unit=PER_SECOND,
                    queries=tuple(
                        per_second(
                            metric, "reason", where='{status="failed"}', legend=f"{name}: {{{{reason}}}}"
                        )
                        for name, metric in _RECONCILES
                    ),
                ),
                Panel(
                    title="Reconciles",
                    what="Per second.",
                    unit=PER_SECOND,
                    queries=tuple(per_second(metric, legend=name) for name, metric in _RECONCILES),
                ),
                Panel(
                    title="Plugins of node resources that fail",
                    what="Per second, by stage.",
                    unit=PER_SECOND,
                    queries=(
                        per_second(
                            "slo_controller_node_resource_run_plugin_status",
                            "plugin",
                            "reason",
                            where='{status="failed"}',
                        ),
                    ),
                ),
                Panel(
                    title="Batch CPU as calculated",
                    what="Cores that the manager would lend, all nodes together.",
                    unit=CORES,
                    queries=(
                        Query(
                            "sum by (resource) (slo_controller_node_extended_resource_allocatable_internal"
                            '{resource="kubernetes.io/batch-cpu"})',
                            "{{resource}}",
                        ),
                    ),
                ),
            ),
        ),
        PanelRow(
            "Queues and the API",
            (
                Panel(
                    title="Waiting in queues",
                    what="Objects that controllers have still to look at.",
                    unit=COUNT,
                    queries=(Query("max by (name) (workqueue_depth)", "{{name}}"),),
                ),
                Panel(
                    title="Time in queues, p99",
                    what="How long an object waited.",
                    unit=SECONDS,
                    queries=(quantile(0.99, "workqueue_queue_duration_seconds", "name"),),
                ),
                Panel(
                    title="Tried again",
                    what="Per second. Something refuses what a controller writes.",
                    unit=PER_SECOND,
                    queries=(per_second("workqueue_retries_total", "name"),),
                ),
                panels.api_requests("koord-manager"),
            ),
        ),
        PanelRow(
            "The manager",
            (
                Panel(
                    title="Leaders",
                    what="Exactly one. None: nothing is reclaimed. Two for longer than a lease: look at the clocks.",
                    unit=COUNT,
                    stat=True,
                    limit=2,
                    width=6,
                    queries=(Query("sum(koordinator_manager_is_leader)"),),
                ),
                Panel(
                    title="Instances",
                    what="That answer.",
                    unit=COUNT,
                    stat=True,
                    width=6,
                    queries=(Query("count(koordinator_manager_is_leader)"),),
                ),
                panels.cpu("koord-manager"),
                panels.memory("koord-manager"),
            ),
        ),
    ],
)
