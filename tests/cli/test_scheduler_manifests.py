"""The manifests in deploy/scheduler fit the scheduler that they run."""

from koordinator.cli import scheduler as command
from koordinator.cli import scheduler_flags
from koordinator.scheduler.config import config, default_plugins
from tests.cli.deployed import Deployed

DEPLOYED = Deployed("scheduler")


def test_the_config_map_holds_the_shipped_profile() -> None:
    found = config.parse(DEPLOYED.of_kind("ConfigMap")["data"]["koord-scheduler-config"])
    shipped = default_plugins.shipped_config()
    assert found.profiles[0].plugins == shipped.profiles[0].plugins
    assert found.leader_election == shipped.leader_election
    args = {
        entry.name: {key: value for key, value in entry.args.items() if key not in ("apiVersion", "kind")}
        for entry in found.profiles[0].plugin_config
    }
    assert args == {entry.name: entry.args for entry in shipped.profiles[0].plugin_config}


def test_the_deployments_command_line_is_understood() -> None:
    arguments = [each for each in DEPLOYED.container()["args"] if not each.startswith("--config=")]
    with command.main.make_context("koord-scheduler", arguments) as context:
        flags, inert = scheduler_flags.of(context.params), scheduler_flags.INERT.given(context.params)
    assert (flags.port, flags.address, inert) == (10251, "0.0.0.0", {})
