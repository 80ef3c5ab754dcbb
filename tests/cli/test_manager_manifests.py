"""The manifests in deploy/manager fit the manager that they run."""

import json
from typing import Any

from koordinator.api import defaults
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.cli import manager as command
from koordinator.cli import manager_flags
from koordinator.manager.webhooks import configuration
from koordinator.manager.webhooks.configuration import WebhookSettings
from koordinator.manager.webhooks.table import GATES_BY_PATH
from tests.cli.deployed import Deployed

DEPLOYED = Deployed("manager")


def test_the_command_line_is_understood_and_probes_reach_it() -> None:
    with command.main.make_context("koord-manager", DEPLOYED.container()["args"]) as context:
        settings, inert = manager_flags.of(context.params), manager_flags.INERT.given(context.params)

    assert inert == {}
    assert settings.options.config_namespace == defaults.NAMESPACE
    assert settings.election is not None and settings.election.namespace == defaults.NAMESPACE
    assert settings.profiling is None
    ports = {port["name"]: port["containerPort"] for port in DEPLOYED.container()["ports"]}
    assert settings.metrics is not None and settings.metrics[1] == ports["metrics"]
    assert settings.health is not None and settings.health[1] == ports["health"]
    assert {
        DEPLOYED.container()[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")
    } == {"health"}


def test_the_webhook_server_is_where_the_service_leads() -> None:
    environment = {
        entry["name"]: entry.get("value", defaults.NAMESPACE) for entry in DEPLOYED.container()["env"]
    }
    settings = WebhookSettings.of(environment)
    service = DEPLOYED.of_kind("Service")

    assert settings.port == service["spec"]["ports"][0]["targetPort"]
    assert settings.service == configuration.WebhookService(
        name=service["metadata"]["name"],
        namespace=service["metadata"]["namespace"],
        port=service["spec"]["ports"][0]["port"],
    )
    mounts = [mount["mountPath"] for mount in DEPLOYED.container()["volumeMounts"]]
    assert any(str(settings.cert_dir).startswith(f"{path}/") for path in mounts), "the root is read-only"


def test_the_manager_makes_its_webhooks_from_what_is_installed() -> None:
    gates = FeatureGates.of(Component.MANAGER)
    paths = {path for path, needed in GATES_BY_PATH.items() if all(map(gates.is_on, needed))}
    made: dict[str, dict[str, Any]] = {}
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        body = DEPLOYED.of_kind(kind)
        assert "webhooks" not in body, "an entry without a CA could only fail"
        found = configuration.wanted(
            body["metadata"]["annotations"],
            [],
            where=configuration.WebhookService(),
            ca_bundle=b"-----BEGIN CERTIFICATE-----",
            paths=paths,
        )
        assert found.problem == ""
        assert found.template == body["metadata"]["annotations"]["template"], "nothing to be applied again"
        made |= {entry["name"]: entry for entry in found.webhooks}

    assert {configuration.path_of(entry) for entry in made.values()} == paths
    assert all(entry["clientConfig"]["caBundle"] for entry in made.values())
    wanted = {
        entry["name"]: entry
        for body in configuration.configurations(configuration.WebhookService(), paths=paths)
        for entry in body["webhooks"]
    }
    assert made.keys() == wanted.keys()
    ours = ("clientConfig", "failurePolicy", "timeoutSeconds")  # these are the installation's choice
    for name, entry in made.items():
        plain = {key: value for key, value in entry.items() if key not in ours}
        assert plain == {key: value for key, value in wanted[name].items() if key not in ours}
    assert json.dumps(made).count("koordinator-webhook-service") == len(made)
