"""The command line of `koord-descheduler`: what it accepts, writes and refuses."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from koordinator.cli import descheduler
from koordinator.descheduler import configuration
from koordinator.install import workloads
from koordinator.install.configs import descheduler_config
from koordinator.install.values import EVERYTHING


def run(*arguments: str) -> Result:
    return CliRunner().invoke(descheduler.main, list(arguments))


def test_the_configuration_in_force_is_written_with_flags_and_defaults(tmp_path: Path) -> None:
    out = tmp_path / "out.yaml"

    done = run("--write-config-to", str(out), "--leader-elect=false", "--port=7", "--dry_run")

    assert done.exit_code == 0, done.output
    written = yaml.safe_load(out.read_text())
    assert (written["healthzBindAddress"], written["dryRun"]) == ("0.0.0.0:7", True)
    assert written["leaderElection"]["leaderElect"] is False
    assert written["profiles"][0]["pluginConfig"][0]["args"]["defaultJobMode"] == "ReservationFirst"


@pytest.mark.parametrize("evictor", ["MigrationController", "DefaultEvictor"])
def test_what_is_written_means_the_same_when_it_is_read(evictor: str, tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{number}.yaml" for number in range(3))
    only = {"disabled": [{"name": "*"}], "enabled": [{"name": evictor}]}
    load = {"lowThresholds": {"cpu": 20}, "highThresholds": {"cpu": 70}, "nodePools": [{"name": "spare"}]}
    profile = {
        "plugins": {
            "evict": only,
            "filter": {"disabled": [{"name": "MigrationController"}]},
            "balance": {"enabled": [{"name": "LowNodeLoad"}, {"name": "RemoveDuplicates"}]},
        },
        "pluginConfig": [{"name": "LowNodeLoad", "args": load}],
    }
    head = {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration"}
    first.write_text(yaml.safe_dump({**head, "deschedulingInterval": "60s", "profiles": [profile]}))

    for source, target in ((first, second), (second, third)):
        done = run("--config", str(source), "--write-config-to", str(target))
        assert done.exit_code == 0, done.output

    plugins = yaml.safe_load(second.read_text())["profiles"][0]["plugins"]
    assert (plugins["evict"]["enabled"], plugins["filter"]["enabled"]) == ([{"name": evictor}], [])
    assert third.read_text() == second.read_text()


def test_a_file_that_cannot_be_used_ends_with_all_that_is_wrong(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\ndryrun: 1\nx: 2\n")

    done = run("--config", str(config))

    assert done.exit_code == 1
    assert "2 problems" in done.output and "dryRun" in done.output


def test_an_address_that_is_none_is_refused() -> None:
    done = run("--address", "here")
    assert done.exit_code == 1 and "--address" in done.output


def test_an_address_of_ipv6_keeps_its_port(tmp_path: Path) -> None:
    out = tmp_path / "out.yaml"

    done = run("--write-config-to", str(out), "--address", "::1", "--port", "1234")

    assert done.exit_code == 0, done.output
    written = yaml.safe_load(out.read_text())["healthzBindAddress"]
    assert configuration.socket_address(written) == ("::1", 1234)


def test_the_command_line_and_file_of_an_installation_are_accepted(tmp_path: Path) -> None:
    [deployment] = [body for body in workloads.descheduler(EVERYTHING) if body["kind"] == "Deployment"]
    [text] = descheduler_config(EVERYTHING)["data"].values()
    config, out = tmp_path / "c.yaml", tmp_path / "out.yaml"
    config.write_text(text)
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    given = [f"--config={config}" if each.startswith("--config=") else each for each in args]

    done = run(*given, "--write-config-to", str(out))

    assert done.exit_code == 0, done.output
    assert yaml.safe_load(out.read_text())["deschedulingInterval"] == "10s"
