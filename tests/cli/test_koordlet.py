"""The command line of koordlet."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from koordinator.cli import flag_kinds, flag_settings, koordlet_flags
from koordinator.cli import koordlet as command
from koordinator.cli.koordlet_flags import KoordletSettings
from koordinator.host.files import HostRoots
from koordinator.koordlet.config import AgentConfig, HookServerConfig
from koordinator.koordlet.qos.cpu_evict import CPUEvict

HOST_MODE = {"NODE_NAME": "node-1", "agent_mode": "hostMode"}


def settings(*arguments: str, environment: dict[str, str] | None = None) -> KoordletSettings:
    return read(*arguments, environment=environment)[0]


def read(
    *arguments: str, environment: dict[str, str] | None = None
) -> tuple[KoordletSettings, dict[str, str]]:
    with command.main.make_context("koordlet", list(arguments)) as context:
        settings = koordlet_flags.of(context.params, environment or HOST_MODE)
        return settings, koordlet_flags.INERT.given(context.params)


def test_without_flags_everything_is_as_the_reference_has_it() -> None:
    given = settings()
    on_host = HookServerConfig(
        address="/var/run/koordlet/koordlet.sock", directory="/etc/runtime/hookserver.d"
    )
    assert given.config == AgentConfig(node_name="node-1", hook_server=on_host)
    assert settings(environment={"NODE_NAME": "node-1"}).config == AgentConfig(node_name="node-1")
    assert (given.qps, given.burst, given.is_dry_run) == (20.0, 30, False)
    assert given.gates.is_on("BECPUSuppress") and not given.gates.is_on("CgroupReconcile")


def test_flags_are_written_as_go_has_them() -> None:
    given = settings(
        "-addr=127.0.0.1:9000",
        "-collect-res-used-interval",
        "2s",
        "--only-evict-by-api",
        "-kubelet-sync-timeout=500ms",
        "-cpu-evict-cool-time-seconds=30",
        "-feature-gates=AllAlpha=true,AllBeta=true,PSICollector=false",
        "-v=4",
        "-logtostderr=true",
    )
    assert given.config.http.address == "127.0.0.1:9000"
    assert given.config.collect.used_interval_s == 2.0
    assert given.config.qos.only_evict_by_api
    assert given.config.kubelet.timeout_s == 0.5
    assert CPUEvict.cool_down.of(given.config.qos) == 30.0
    assert given.gates.is_on("CgroupReconcile") and not given.gates.is_on("PSICollector")


def test_a_switch_never_takes_the_next_word() -> None:
    takes_value = {"enable-pprof": False, "addr": True, "v": True}
    written = flag_kinds.double_dashed(
        ["-enable_pprof", "-addr", "-x", "-v", "3", "--", "-addr"], takes_value
    )
    assert written == ["--enable_pprof", "--addr=-x", "--v=3", "--", "-addr"]


def test_paths_follow_the_mode_and_their_flags() -> None:
    assert settings().roots == HostRoots.below("")
    assert settings(environment={"NODE_NAME": "n"}).roots == HostRoots()
    assert settings("-cgroup-root-dir=/mnt/cgroup/").roots.cgroup == "/mnt/cgroup"


def test_every_flag_of_a_setting_changes_its_field() -> None:
    others = {str: "other", bool: "true", float: "77s", int: "7", tuple: "PreCreateContainer"}
    for name, setting in koordlet_flags.SETTINGS.items():
        value = flag_settings.get(AgentConfig(node_name="n"), setting.field)
        text = others[type(value)]
        if name.endswith("-seconds"):
            text = "77"
        text = {
            "enable-node-metric-report": "false",
            "addr": ":1",
            "pprof-addr": ":1",
            "runtime-hooks-plugin-failure-policy": "Fail",
            "runtime-hooks-failure-policy": "Fail",
            "enable-nri-runtime-hook": "false",
            "runtime-hooks-nri-plugin-index": "07",
            "runtime-hooks-nri-backoff-factor": "7",
        }.get(name, text)
        more = ["-disable-query-kubelet-config"] if name == "kubelet-insecure-tls" else []
        changed = flag_settings.get(settings(f"-{name}={text}", *more).config, setting.field)
        assert changed != value, name


def test_flags_of_the_reference_without_effect_are_reported() -> None:
    _, inert = read(
        "-tsdb-path=/x", "-runtime-hooks-nri-backoff-steps=3", "-report-interval=60s", "-log_dir=/x"
    )
    assert list(inert) == [
        "--report-interval",
        "--tsdb-path",
        "--runtime-hooks-nri-backoff-steps",
        "--log-dir",
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-addr=9316"], "addr: '9316' is not host:port"),
        (["-collect-res-used-interval=often"], "often"),
        (["-kubelet-insecure-tls"], "requires --disable-query-kubelet-config"),
        (["-kubelet-sync-timeout=0s"], "must be above 0"),
        (["-feature-gates=Nonsense=true"], "no such gate"),
        (["-prediction-safety-margin-percent=-1"], "-1"),
        (["-runtime-hooks-nri-plugin-index=7"], "must be two digits"),
        (["-no-such-flag"], "no-such-flag"),
        (["serve"], "serve"),
        (["-vmodule=x"], "is not pattern=N"),
    ],
)
def test_flags_that_cannot_work_are_refused(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(command.main, arguments, env=HOST_MODE)
    assert result.exit_code != 0
    assert complaint in result.output


def test_the_name_of_the_node_is_needed() -> None:
    result = CliRunner().invoke(command.main, [], env={"NODE_NAME": ""})
    assert result.exit_code != 0
    assert "NODE_NAME: the environment variable must hold the name of this node" in result.output


def test_a_host_without_groups_is_reported(tmp_path: Path) -> None:
    arguments = [f"-cgroup-root-dir={tmp_path}/none", "-master=http://127.0.0.1:1", "-addr=127.0.0.1:0"]
    result = CliRunner().invoke(command.main, arguments, env=HOST_MODE)
    assert result.exit_code != 0
    assert "cgroup-root-dir" in result.output and "is no cgroup file system" in result.output
