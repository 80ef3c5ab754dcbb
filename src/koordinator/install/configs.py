"""ConfigMaps and webhook configurations: what components read when they run."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml

from koordinator.api import defaults
from koordinator.descheduler.config import API_VERSION as DESCHEDULER_API
from koordinator.install.values import FailurePolicies, Values
from koordinator.install.workloads import WEBHOOK_SERVICE
from koordinator.manager.webhooks import configuration
from koordinator.manager.webhooks.table import WEBHOOKS
from koordinator.scheduler.config import default_plugins
from koordinator.scheduler.config.config import API_VERSION, KIND

Json = dict[str, Any]

TEMPLATE = configuration.TEMPLATE
"""The annotation of a webhook configuration from which the manager makes its webhooks."""
SCHEDULER_CONFIG = "koord-scheduler-config"
DESCHEDULER_CONFIG = "koord-descheduler-config"
PORT_PLACE = "PORT"
"""Stands for the port where a template puts it in."""
POLICY_OF_RESOURCE: Mapping[str, str] = {
    "pods": "pods",
    "pods/resize": "pods",
    "pods/binding": "podBinding",
    "nodes": "nodes",
    "nodes/status": "nodeStatus",
    "elasticquotas": "elasticquotas",
    "reservations": "reservations",
    "configmaps": "configmaps",
    "tidalpools": "tidalpools",
}
"""Resource → the member of `webhookConfiguration.failurePolicy` that rules its webhooks."""


def slo_controller_config(values: Values) -> Json:
    """Return the manager's ConfigMap."""
    body = defaults.slo_config(values.installation.namespace)
    body["data"] = {key: compact(value) for key, value in values.slo_controller_config.data.items()}
    return body


def scheduler_config(values: Values) -> Json:
    """Return the ConfigMap with the scheduler's configuration file."""
    text = values.scheduler.config or shipped_profile(values.installation.namespace)
    return _config_map(SCHEDULER_CONFIG, values, text)


def descheduler_config(values: Values) -> Json:
    """Return the ConfigMap with the descheduler's configuration file."""
    own = values.descheduler
    text = own.config or shipped_descheduling(values.installation.namespace, str(own.port))
    return _config_map(DESCHEDULER_CONFIG, values, text)


def _config_map(name: str, values: Values, text: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": values.installation.namespace},
        "data": {name: text},
    }


def shipped_descheduling(namespace: str, port: str) -> str:
    """Return the shipped configuration of the descheduler: jobs are carried out; LowNodeLoad has arguments and works
    once it is listed under `balance`."""
    args: dict[str, Json] = {
        "MigrationController": {
            "evictQPS": "10",
            "evictBurst": 1,
            "namespaces": {"exclude": ["kube-system", namespace]},
        },
        "LowNodeLoad": {
            "lowThresholds": {"cpu": 45, "memory": 55},
            "highThresholds": {"cpu": 75, "memory": 80},
        },
    }
    configured = [
        {"name": name, "args": {"apiVersion": DESCHEDULER_API, "kind": f"{name}Args", **own}}
        for name, own in args.items()
    ]
    on = {"enabled": [{"name": "MigrationController"}]}
    body = {
        "apiVersion": DESCHEDULER_API,
        "kind": "DeschedulerConfiguration",
        "leaderElection": _leader_election("koord-descheduler", namespace),
        "healthzBindAddress": f"0.0.0.0:{port}",
        "metricsBindAddress": f"0.0.0.0:{port}",
        "deschedulingInterval": "10s",
        "dryRun": False,
        "profiles": [
            {
                "name": "koord-descheduler",
                "plugins": {"deschedule": {}, "balance": {}, "evict": on, "filter": on},
                "pluginConfig": configured,
            }
        ],
    }
    # A copy, so that nothing is written as a reference to something above.
    text: str = yaml.safe_dump(json.loads(json.dumps(body)), sort_keys=False)
    return text


def shipped_profile(namespace: str) -> str:
    """Return the shipped profile as a configuration file, with the lease in `namespace`."""
    profile = default_plugins.shipped_profile()
    assert profile.plugins is not None
    points = msgspec.to_builtins(profile.plugins)
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "leaderElection": _leader_election("koord-scheduler", namespace),
        "profiles": [
            {
                "schedulerName": profile.scheduler_name,
                "pluginConfig": [
                    {
                        "name": entry.name,
                        "args": {"apiVersion": API_VERSION, "kind": f"{entry.name}Args", **entry.args},
                    }
                    for entry in profile.plugin_config
                ],
                "plugins": {
                    point: {side: [_plugin(ref) for ref in refs] for side, refs in chosen.items() if refs}
                    for point, chosen in points.items()
                    if any(chosen.values())
                },
            }
        ],
    }
    text: str = yaml.safe_dump(body, sort_keys=False)
    return text


def _leader_election(name: str, namespace: str) -> Json:
    return {"leaderElect": True, "resourceName": name, "resourceNamespace": namespace}


def _plugin(ref: Mapping[str, Any]) -> Json:
    return {"name": ref["name"]} | ({"weight": ref["weight"]} if ref["weight"] else {})


def webhook_configurations(values: Values) -> Iterator[Json]:
    """Both configurations, empty, with what the manager fills them from in their annotation `template`.

    An entry without the manager's CA could only fail. So the manager adds the entries itself, once it answers
    (behaviour/manager 12.1); and neither we nor a GitOps tool ever undoes what it wrote.
    """
    settings = values.webhook_configuration
    service = configuration.WebhookService(name=WEBHOOK_SERVICE, namespace=values.installation.namespace)
    for body in configuration.configurations(
        service,
        failure_policies=failure_policies(settings.failure_policy),
        timeout_s=settings.timeout_seconds,
    ):
        entries = body.pop("webhooks")
        body["metadata"]["annotations"] = {TEMPLATE: compact(entries)}
        yield body


def failure_policies(policies: FailurePolicies) -> dict[str, str]:
    """Webhook name → failure policy."""
    chosen = msgspec.to_builtins(policies)
    return {
        webhook.name: chosen[POLICY_OF_RESOURCE[webhook.resource]]
        for webhook in WEBHOOKS
        if not webhook.only_warns
    }


def compact(value: Any) -> str:
    """JSON, always the same text for the same value (and the same as Helm's toRawJson)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
