"""The command line of koord-manager."""

import pytest
from click.testing import CliRunner

from koordinator.cli import flag_settings, manager_flags
from koordinator.cli import manager as command
from koordinator.cli.manager_flags import ManagerSettings
from koordinator.cluster.backoff import Rate
from koordinator.cluster.controller import is_controller_enabled
from koordinator.manager.options import ManagerOptions


def settings(*arguments: str) -> ManagerSettings:
    return read(*arguments)[0]


def read(*arguments: str) -> tuple[ManagerSettings, dict[str, str]]:
    with command.main.make_context("koord-manager", list(arguments)) as context:
        return manager_flags.of(context.params), manager_flags.INERT.given(context.params)


def test_without_flags_everything_is_as_the_reference_has_it() -> None:
    given = settings()
    assert given.options == ManagerOptions()
    assert (given.metrics, given.health, given.profiling) == (("", 8080), ("", 8000), ("", 8090))
    assert given.election is not None
    assert (given.election.namespace, given.election.name) == ("koordinator-system", "koordinator-manager")
    assert (given.election.lease_duration_s, given.election.renew_deadline_s) == (15, 10)
    assert given.rate == Rate(per_s=30, burst=50)
    assert given.gates.is_on("WebhookFramework") and not given.gates.is_on("MultiQuotaTree")
    assert given.remarks == ()


def test_the_shipped_deployments_flags_are_understood() -> None:
    given, inert = read(
        "--enable-leader-election",
        "--metrics-addr=:8080",
        "--health-probe-addr=:8000",
        "--logtostderr=true",
        "--leader-election-namespace=koordinator-system",
        "--config-namespace=koordinator-system",
        "-v=4",
        "--feature-gates=NodeMutatingWebhook=true",
        "--sync-period=0",
        "--disable-no-deepcopy",
    )
    assert given.election is not None and given.gates.is_on("NodeMutatingWebhook")
    assert given.options.resync_s == 0
    assert sorted(inert) == ["--disable-no-deepcopy", "--logtostderr"]


@pytest.mark.parametrize("name", manager_flags.SETTINGS)
def test_each_flag_of_the_table_sets_its_field(name: str) -> None:
    setting = manager_flags.SETTINGS[name]
    before = flag_settings.get(ManagerOptions(), setting.field)
    chosen = {"controllers": "-nodeslo,*", "noderesource-plugins": "MidResource"}
    text = (
        chosen.get(name) or {bool: "true", float: "7", int: "7", str: "other", tuple: "other"}[type(before)]
    )
    text += "s" if setting.kind is flag_settings.time("", "").kind else ""
    assert flag_settings.get(settings(f"--{name}={text}").options, setting.field) != before


def test_what_is_not_limited_by_flags_is_limited_as_upstreams_client() -> None:
    assert settings("--rest-config-qps=0", "--rest-config-burst=-1").rate == Rate(per_s=20, burst=30)


def test_the_burst_of_changed_pods_has_both_names_of_the_documents() -> None:
    for name in ("--colocation-profile-update-pod-qps-burst", "--colocation-profile-update-pod-burst"):
        assert settings(name, "7").options.profile_controller.update_pod_burst == 7


@pytest.mark.parametrize(
    ("text", "seconds", "is_reported"),
    [
        pytest.param("", 36_000, False, id="not given"),
        pytest.param("0", 0, False, id="never"),
        pytest.param("1h30m", 5_400, False, id="a duration"),
        pytest.param("often", 36_000, True, id="no duration"),
        pytest.param("-1s", 36_000, True, id="before now"),
    ],
)
def test_a_sync_period_that_cannot_be_read_is_reported_and_ignored(
    text: str, seconds: float, is_reported: bool
) -> None:
    given = settings(f"--sync-period={text}")
    assert given.options.resync_s == seconds
    assert bool(given.remarks) == is_reported


@pytest.mark.parametrize(
    ("text", "is_on", "is_reported"), [("true", True, False), ("false", False, False), ("True", False, True)]
)
def test_only_the_word_true_makes_names_of_strategies_checked(
    text: str, is_on: bool, is_reported: bool
) -> None:
    given = settings(f"--node-strategy-name-need-check={text}")
    assert given.options.node_strategy_name_need_check is is_on
    assert bool(given.remarks) is is_reported


@pytest.mark.parametrize(
    ("entries", "is_on"),
    [
        pytest.param("nodeslo", True, id="named"),
        pytest.param("-nodeslo,*", False, id="taken out of all"),
        pytest.param("*,-nodeslo", False, id="taken out of all, written the other way round"),
        pytest.param("nodeslo,-nodeslo", True, id="the first that names it decides"),
        pytest.param("nodemetric", False, id="not listed"),
        pytest.param("", False, id="nothing listed"),
    ],
)
def test_controllers_are_chosen_by_the_first_entry_that_names_them(entries: str, is_on: bool) -> None:
    assert is_controller_enabled("nodeslo", settings(f"--controllers={entries}").options.controllers) is is_on


def test_an_only_instance_needs_no_election() -> None:
    assert settings("--enable-leader-election=false").election is None


def test_an_address_may_be_switched_off() -> None:
    given = settings("--metrics-addr=0", "--health-probe-addr=", "--enable-pprof=false")
    assert (given.metrics, given.health, given.profiling) == (None, None, None)
    assert settings("--metrics-addr=[::1]:9").metrics == ("::1", 9)


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        (
            "--controllers=nodeslow",
            "--controllers: unknown: nodeslow; known: colocationprofile, nodemetric",
        ),
        (
            "--noderesource-plugins=-Batch",
            "--noderesource-plugins: unknown: -Batch; known: BatchDuration, BatchGPUResource",
        ),
        ("--leader-elect-resource-lock=configmaps", "--leader-elect-resource-lock: 'configmaps'"),
        ("--leader-election-namespace=", "--leader-election-namespace: is empty"),
        (
            "--leader-elect-lease-duration=9s",
            "--leader-elect-renew-deadline: leader election: lease duration 9",
        ),
        (
            "--leader-elect-lease-duration=20500ms",
            "--leader-elect-lease-duration: 20500ms must be whole seconds",
        ),
        ("--leader-elect-retry-period=0s", "--leader-elect-retry-period: must be above 0"),
        ("--metrics-addr=8080", "--metrics-addr: '8080' is not host:port"),
        ("--pprof-addr=:http", "--pprof-addr: ':http' is not host:port"),
        ("--slo-config-name=", "--slo-config-name: is empty"),
        ("--colocation-profile-reconcile-interval=0s", "--colocation-profile-reconcile-interval: 0s must be"),
        ("--quota-update-max-total-jitter=-1s", "--quota-update-max-total-jitter: -1s must not be below 0"),
        ("--quota-update-max-retries=-1", "--quota-update-max-retries"),
        ("--colocation-profile-update-pod-qps=0", "--colocation-profile-update-pod-qps"),
        ("--rest-config-qps=many", "--rest-config-qps"),
        ("--feature-gates=Nope=true", "feature gates: 'Nope=true': no such gate"),
        ("--vmodule=queue", "is not pattern=N"),
        ("--enable-leader-election=perhaps", "perhaps"),
    ],
)
def test_flags_that_cannot_work_are_refused_by_name(argument: str, complaint: str) -> None:
    result = CliRunner().invoke(command.main, [argument])
    assert result.exit_code != 0
    assert complaint in result.output


@pytest.mark.parametrize(
    ("variable", "text", "complaint"),
    [
        ("WEBHOOK_PORT", "https", "WEBHOOK_PORT='https': expected a port number"),
        ("WEBHOOK_CERT_WRITER", "vault", "WEBHOOK_CERT_WRITER='vault': expected secret or fs"),
    ],
)
def test_variables_that_cannot_work_are_refused_by_name(variable: str, text: str, complaint: str) -> None:
    result = CliRunner().invoke(command.main, [], env={variable: text})
    assert result.exit_code == 1
    assert complaint in result.output
