"""`koord-device-daemon` as a command: flags, environment, configuration file, and what cannot be used."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from koordinator.cli import device_daemon
from koordinator.koordlet.config import CollectConfig
from koordinator.koordlet.device_daemon.daemon import OUTPUT
from tests.koordlet.device_daemon import fake_tools


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, script in fake_tools.TOOLS.items():
        fake_tools.tool(tmp_path / "tools", name, script)
    monkeypatch.setenv("PATH", f"{tmp_path}/tools:/usr/bin:/bin")
    monkeypatch.setenv("TOOLS", str(tmp_path / "tools"))
    fake_tools.bus(tmp_path, "0x1d22")
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(device_daemon.main, arguments)


def test_one_shot_with_flags_of_one_dash(host: Path) -> None:
    result = invoke("-oneshot", "-no-timestamp", f"-prints-output-file={host}/out/f", f"-host-root={host}")

    assert result.exit_code == 0, result.output
    assert [each["vendor"] for each in json.loads((host / "out/f").read_text())] == ["kunlun"]


def test_settings_may_come_from_the_environment(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDD_ONESHOT", "true")
    monkeypatch.setenv("KDD_PRINTS_OUTPUT_FILE", f"{host}/out/env")
    monkeypatch.setenv("KDD_HOST_ROOT", str(host))

    result = invoke()

    assert result.exit_code == 0, result.output
    assert (host / "out/env").exists()


def test_flags_go_before_the_configuration_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("flags:\n  kdd:\n    sleepInterval: 60s\n    oneshot: true\n    printsOutputFile: /a\n")

    config = device_daemon.configure({"config_file": path, "prints_output_file": "/b", "oneshot": None})

    assert (config.sleep_s, config.oneshot, config.output) == (60.0, True, "/b")
    assert device_daemon.configure({}).output == OUTPUT
    assert device_daemon.configure({}).sleep_s == 900.0


@pytest.mark.parametrize("text", ["", "version: v1\n", "version: ''\nflags: {}\n", "flags: {kdd: {}}\n"])
def test_a_configuration_file_may_leave_everything_to_flags_and_defaults(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)

    assert device_daemon.configure({"config_file": path}) == device_daemon.configure({})


def test_environment_variables_without_the_prefix_count_after_those_with_it(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host / "config.yaml").write_text("flags: {kdd: {oneshot: true}}")
    monkeypatch.setenv("CONFIG_FILE", f"{host}/config.yaml")
    monkeypatch.setenv("PRINTS_OUTPUT_FILE", f"{host}/out/plain")

    assert invoke(f"--host-root={host}").exit_code == 0
    assert (host / "out/plain").exists()

    monkeypatch.setenv("KDD_PRINTS_OUTPUT_FILE", f"{host}/out/prefixed")

    assert invoke(f"--host-root={host}").exit_code == 0
    assert (host / "out/prefixed").exists()


def test_the_flags_of_logs_that_other_manifests_give_are_read(host: Path) -> None:
    result = invoke("--v=4", "--logtostderr=true", "--oneshot", f"--prints-output-file={host}/f")

    assert result.exit_code == 0, result.output


def test_without_a_file_devices_are_told_on_standard_output(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(host)
    before = sorted(host.iterdir())

    result = invoke("--oneshot", "--prints-output-file=", f"--host-root={host}")

    assert [each["vendor"] for each in json.loads(result.stdout)] == ["kunlun"]
    assert sorted(host.iterdir()) == before


def test_the_manifest_writes_where_the_agent_reads_and_finds_the_host() -> None:
    folder = Path(__file__).parents[2] / "deploy/device-daemon"
    pod = yaml.safe_load((folder / "daemonset.yaml").read_text())["spec"]["template"]["spec"]
    [container] = pod["containers"]

    with device_daemon.main.make_context("koord-device-daemon", container["args"]) as context:
        config = device_daemon.configure(context.params)

    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert str(Path(config.output).parent) == CollectConfig().xpu_directory.rstrip("/")
    assert paths[mounts[str(Path(config.output).parent)]] == CollectConfig().xpu_directory.rstrip("/")
    assert paths[mounts[config.host_root]] == "/"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("flags: [1]", "expected a mapping"),
        ("{", "config.yaml"),
        ("flags: {kdd: 1}", "expected a mapping"),
        ("version: v2", "version: 'v2': only v1 can be read"),
        ("flags: {kdd: {sleepinterval: 1s}}", "flags.kdd.sleepinterval: no such setting"),
        ("flags: {kdd: {sleepInterval: soon}}", "flags.kdd.sleepInterval: 'soon' is not a duration"),
        ("flags: {kdd: {oneshot: perhaps}}", "flags.kdd.oneshot"),
    ],
)
def test_a_configuration_file_that_cannot_be_used_is_refused_with_its_field(
    tmp_path: Path, text: str, why: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)

    result = invoke(f"--config-file={path}")

    assert result.exit_code == 1
    assert why in result.output
