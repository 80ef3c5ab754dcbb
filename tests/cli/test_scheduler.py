"""The command line of koord-scheduler."""

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordinator.api import upstream_gates
from koordinator.api.feature_gates import FeatureGateError
from koordinator.cli import running, scheduler_flags
from koordinator.cli import scheduler as command
from koordinator.cli import scheduler_process as process
from koordinator.cli.scheduler_flags import Flags
from koordinator.cluster.leader import LeaseLost
from koordinator.scheduler.config import config
from koordinator.scheduler.config.config import SchedulerConfigError
from koordinator.scheduler.plugin.capabilities import ControllerFilter, ControllerFilterError
from koordinator.scheduler.plugins import built_in

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def flags(*arguments: str) -> Flags:
    with command.main.make_context("koord-scheduler", list(arguments)) as context:
        return scheduler_flags.of(context.params)


def test_flags_of_leader_election_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(HEAD + "leaderElection: {leaderElect: true, leaseDuration: 20s, resourceName: mine}\n")

    given = flags("--config", str(file), "--leader-elect=false", "--leader-elect-resource-name", "theirs")
    election = process.read_config(given).leader_election

    assert (election.leader_elect, election.resource_name, election.lease_duration) == (
        False,
        "theirs",
        "20s",
    )


def test_flags_of_leader_election_are_checked_with_the_file() -> None:
    with pytest.raises(SchedulerConfigError, match=r"leaderElection\.leaseDuration"):
        process.read_config(flags("--leader-elect-lease-duration=5s"))


def test_the_shipped_configuration_runs_without_a_file() -> None:
    settings = process.read_config(flags("--kube_api_qps=30", "--profiling=false"))
    assert [each.scheduler_name for each in settings.profiles] == ["koord-scheduler"]
    assert settings.leader_election.resource_name == "koord-scheduler"
    assert (settings.client_connection.requests_per_s, settings.enable_profiling) == (30.0, False)


def test_the_deprecated_flags_are_ignored_beside_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(HEAD)
    settings = process.read_config(flags("--config", str(file), "--kube-api-qps=30"))
    assert settings.client_connection.requests_per_s is None
    assert "flag ignored" in caplog.text


def test_upstreams_gates_are_known_and_cannot_be_switched(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asked = (
        "SchedulerQueueingHints=true,SchedulerPopFromBackoffQ=false,WatchListClient=true,GangScheduling=false"
    )
    gates = process.read_gates(f"{asked},SyncBarrier=true")

    assert gates.is_on("SyncBarrier")
    reported = {record.__dict__["gate"]: record.levelname for record in caplog.records}
    assert reported == {
        "SchedulerQueueingHints": "INFO",
        "SchedulerPopFromBackoffQ": "WARNING",
        "WatchListClient": "WARNING",
        "GangScheduling": "INFO",
    }
    assert "objects are listed in pages" in caplog.text
    with pytest.raises(FeatureGateError, match="no such gate"):
        process.read_gates("NoSuchGate=true")


@pytest.mark.parametrize("name", [name for name, gate in upstream_gates.SCHEDULER.items() if gate.is_refused])
def test_a_gate_without_which_pods_go_elsewhere_is_refused_by_name(name: str) -> None:
    with pytest.raises(FeatureGateError, match=f"'{name}=true': not there: .+\\. Leave the gate out"):
        process.read_gates(f"{name}=true")
    process.read_gates(f"{name}=false")


def test_the_deployments_flags_are_understood() -> None:
    given = flags(
        "--port=10251", "--authentication-skip-lookup=true", "--v=4", "--leader-elect", "-s", "5", "-f", "-d"
    )
    assert (given.port, given.authentication_skip_lookup, given.leader_elect) == (10251, True, True)
    assert process.observing(given).debug == process.DebugOptions(top_scores=5, filters=True, diagnosis=True)


def test_probes_and_prometheus_find_the_insecure_port_without_a_flag() -> None:
    assert (flags().address, flags().port) == ("0.0.0.0", 10251)
    assert flags("--port=0").port == 0


def test_flags_that_say_where_and_when_lines_are_written_change_nothing() -> None:
    given = ["--logtostderr=true", "--stderrthreshold=INFO", "--async-log", "--async-log-queue-length=10000"]
    with command.main.make_context("koord-scheduler", list(given)) as context:
        inert = scheduler_flags.INERT.given(context.params)

    assert sorted(inert) == sorted(flag.partition("=")[0] for flag in given)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(
            ["--enable-workload-auditor", "--workload-auditor-metric-labels=a.b,a/b"],
            "not told apart",
            id="labels that clash",
        ),
        pytest.param(["--feature-gates=Nope=true"], "no such gate", id="gate"),
        pytest.param(["--vmodule=queue"], "is not pattern=N", id="vmodule"),
        pytest.param(["--scheduling-timeout=soon"], "soon", id="duration"),
        pytest.param(["--leader-elect=perhaps"], "perhaps", id="switch"),
    ],
)
def test_flags_that_cannot_work_are_refused(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(command.main, arguments)
    assert result.exit_code != 0
    assert complaint in result.output


def test_the_cause_is_found_in_the_groups_that_it_came_through() -> None:
    lost = LeaseLost("default/mine", "me", "somebody holds it now")
    wrapped = ExceptionGroup("a", [ExceptionGroup("b", [lost])])
    assert running.cause_of(wrapped) is lost
    several = ExceptionGroup("a", [lost, ValueError()])
    assert running.cause_of(several) is several


def test_mistakes_in_the_file_are_reported_with_their_places(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(HEAD + "profiles: [{plugin: 1}]\nparallelism: none\n")
    result = CliRunner().invoke(command.main, ["--config", str(file)])
    assert result.exit_code == 1
    assert 'profiles[0].plugin: unknown field "plugin"' in result.output
    assert "parallelism: Expected `int`" in result.output


def test_the_configuration_in_force_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "effective.yaml"
    result = CliRunner().invoke(command.main, ["--write-config-to", str(path)])
    assert result.exit_code == 0, result.output
    assert config.parse(path.read_bytes()).profiles[0].scheduler_name == "koord-scheduler"


def test_controllers_are_chosen_among_the_plugins_that_there_are() -> None:
    known = built_in.installed_plugins()
    chosen = ControllerFilter.of(flags("--controller-plugins=*,-Reservation").controller_plugins, known)
    assert chosen.allows("ElasticQuota") and not chosen.allows("Reservation")
    with pytest.raises(ControllerFilterError, match="Nonsense"):
        ControllerFilter.of(flags("--controller-plugins=Nonsense").controller_plugins, known)
