"""The manifests in deploy/scheduler fit the scheduler that they run."""

from pathlib import Path
from typing import Any

import yaml

from koordinator.cli import scheduler as command
from koordinator.cli import scheduler_flags
from koordinator.scheduler import config, default_plugins

FOLDER = Path(__file__).parents[2] / "deploy" / "scheduler"


def objects() -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return [
        body
        for name in kustomization["resources"]
        for body in yaml.safe_load_all((FOLDER / name).read_text())
    ]


def of_kind(kind: str) -> dict[str, Any]:
    return next(body for body in objects() if body["kind"] == kind)


def test_the_config_map_holds_the_shipped_profile() -> None:
    found = config.parse(of_kind("ConfigMap")["data"]["koord-scheduler-config"])
    shipped = default_plugins.shipped_config()
    assert found.profiles[0].plugins == shipped.profiles[0].plugins
    assert found.leader_election == shipped.leader_election
    args = {
        entry.name: {key: value for key, value in entry.args.items() if key not in ("apiVersion", "kind")}
        for entry in found.profiles[0].plugin_config
    }
    assert args == {entry.name: entry.args for entry in shipped.profiles[0].plugin_config}


def test_the_deployments_command_line_is_understood() -> None:
    [container] = of_kind("Deployment")["spec"]["template"]["spec"]["containers"]
    arguments = [each for each in container["args"] if not each.startswith("--config=")]
    with command.main.make_context("koord-scheduler", arguments) as context:
        flags, inert = scheduler_flags.of(context.params)
    assert (flags.port, flags.address, inert) == (10251, "0.0.0.0", [])
