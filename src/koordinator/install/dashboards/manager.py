"""Webhooks: how fast, what they refuse; controllers: what fails; and the manager itself."""

from koordinator.install.dashboards.panels import (
    BYTES,
    CORES,
    COUNT,
    MILLISECONDS,
    PER_SECOND,
    SECONDS,
    Panel,
    Query,
    Row,
    dashboard,
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
        Row(
            "Webhooks",
            (
                Panel(
                    title="Duration, p99",
                    what="Of every step of an admission, by what is admitted.",
                    unit=MILLISECONDS,
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (le, webhook_type, object_type) "
                            f"(rate({_DURATION}_bucket[5m])))",
                            "{{webhook_type}} {{object_type}}",
                        ),
                    ),
                ),
                Panel(
                    title="Slowest steps, p99",
                    what="The ten slowest.",
                    unit=MILLISECONDS,
                    queries=(
                        Query(
                            "topk(10, histogram_quantile(0.99, sum by (le, webhook_type, object_type, plugin_name) "
                            f"(rate({_DURATION}_bucket[5m]))))",
                            "{{webhook_type}} {{object_type}} {{plugin_name}}",
                        ),
                    ),
                ),
                Panel(
                    title="Steps",
                    what="Per second.",
                    unit=PER_SECOND,
                    queries=(
                        Query(
                            f"sum by (webhook_type, object_type, operation) (rate({_DURATION}_count[5m]))",
                            "{{webhook_type}} {{object_type}} {{operation}}",
                        ),
                    ),
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
                        Query(
                            "sum by (decision) "
                            "(rate(koord_manager_webhook_binding_admission_decisions_total[5m]))",
                            "{{decision}}",
                        ),
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
        Row(
            "Controllers",
            (
                Panel(
                    title="Failures",
                    what="Per second, by reason.",
                    unit=PER_SECOND,
                    queries=tuple(
                        Query(
                            f'sum by (reason) (rate({metric}{{status="failed"}}[5m]))',
                            f"{name}: {{{{reason}}}}",
                        )
                        for name, metric in _RECONCILES
                    ),
                ),
                Panel(
                    title="Reconciles",
                    what="Per second.",
                    unit=PER_SECOND,
                    queries=tuple(Query(f"sum(rate({metric}[5m]))", name) for name, metric in _RECONCILES),
                ),
                Panel(
                    title="Plugins of node resources that fail",
                    what="Per second, by stage.",
                    unit=PER_SECOND,
                    queries=(
                        Query(
                            "sum by (plugin, reason) "
                            '(rate(slo_controller_node_resource_run_plugin_status{status="failed"}[5m]))',
                            "{{plugin}} {{reason}}",
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
        Row(
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
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (le, name) "
                            "(rate(workqueue_queue_duration_seconds_bucket[5m])))",
                            "{{name}}",
                        ),
                    ),
                ),
                Panel(
                    title="Tried again",
                    what="Per second. Something refuses what a controller writes.",
                    unit=PER_SECOND,
                    queries=(Query("sum by (name) (rate(workqueue_retries_total[5m]))", "{{name}}"),),
                ),
                Panel(
                    title="Requests to the API",
                    what="Per second, by answer.",
                    unit=PER_SECOND,
                    queries=(
                        Query(
                            'sum by (code, method) (rate(rest_client_requests_total{job="koord-manager"}[5m]))',
                            "{{method}} {{code}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
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
                Panel(
                    title="CPU",
                    what="Cores, per instance.",
                    unit=CORES,
                    queries=(
                        Query('rate(process_cpu_seconds_total{job="koord-manager"}[5m])', "{{instance}}"),
                    ),
                ),
                Panel(
                    title="Memory",
                    what="Resident, per instance.",
                    unit=BYTES,
                    queries=(Query('process_resident_memory_bytes{job="koord-manager"}', "{{instance}}"),),
                ),
            ),
        ),
    ],
)
