"""What a person reads when a command cannot do its work: one line, no words of Python, and what to do next."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordinator.cli import main as cli

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
clusters: [{name: c, cluster: {server: "http://127.0.0.1:%d"}}]
contexts: [{name: here, context: {cluster: c}}]
"""
PYTHON_WORDS = ("Errno", "Traceback", "Error(", "Exception", "ssl:default", "aiohttp", "errno", "<class")


def _last_line(*arguments: str, exit_code: int = 1) -> str:
    result = CliRunner().invoke(cli.main, list(arguments))
    assert result.exit_code == exit_code, result.output
    *_, last = result.output.strip().splitlines()
    assert last.startswith("Error: "), result.output
    assert not [word for word in PYTHON_WORDS if word in result.output], result.output
    return last


@pytest.fixture
def nobody(tmp_path: Path) -> Path:
    """A kubeconfig of a server that does not run."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG % port)
    return path


DENIED = 'nodes is forbidden: User "jane" cannot list resource "nodes" in API group "" at the cluster scope'


class _Refusing(http.server.BaseHTTPRequestHandler):
    """An API server in which nobody may do anything."""

    def do_GET(self) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403}
        body = json.dumps({**status, "reason": "Forbidden", "message": DENIED}).encode()
        self.send_response(403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: tests are quiet."""


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig of a user without any rights."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        path = tmp_path / "kubeconfig"
        path.write_text(KUBECONFIG % server.server_port)
        yield path
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("command", [("explain", "pod", "web"), ("quota", "tree"), ("install", "--apply")])
def test_what_may_not_be_done_is_told_with_who_can_help(command: tuple[str, ...], stranger: Path) -> None:
    last = _last_line(*command, "--kubeconfig", str(stranger))

    told = "somebody with more rights can grant this one (kubectl auth can-i --list shows yours)"
    assert last == f"Error: {DENIED}; {told}"


def test_yaml_that_is_none_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text("kind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: [a\nparallelism: 3\n")

    last = _last_line("up", "--scheduler-config", str(path))

    assert f"{path}" in last and "line 4" in last


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        pytest.param(("doctor",), 3, id="doctor"),
        pytest.param(("explain", "pod", "web"), 1, id="explain"),
        pytest.param(("explain", "lent"), 1, id="lent"),
        pytest.param(("explain", "slow", "web"), 1, id="slow"),
        pytest.param(("explain", "shadow"), 1, id="shadow"),
        pytest.param(("explain", "tidalpool", "night"), 1, id="tidalpool"),
        pytest.param(("quota", "tree"), 1, id="quota"),
        pytest.param(("install", "--apply"), 1, id="install"),
    ],
)
def test_a_server_that_does_not_answer(command: tuple[str, ...], exit_code: int, nobody: Path) -> None:
    last = _last_line(*command, "--kubeconfig", str(nobody), exit_code=exit_code)

    assert "http://127.0.0.1:" in last and "connection refused" in last
    assert "`koordinator up` starts one, --kubeconfig names another" in last


def test_no_cluster_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))

    last = _last_line("doctor", exit_code=3)

    assert (
        f"{tmp_path / 'nothing'} not found" in last
        and "koordinator up" in last
        and "--kubeconfig FILE" in last
    )


def test_a_kubeconfig_that_is_not_there() -> None:
    assert (
        _last_line("doctor", "--kubeconfig", "/none", exit_code=3)
        == "Error: /none: no such file or directory"
    )


def test_a_dump_that_is_not_there() -> None:
    assert _last_line("explain", "pod", "web", "--dump", "/none") == "Error: /none: no such file or directory"


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        pytest.param("MultiQuotaTre=true", "did you mean MultiQuotaTree?", id="almost right"),
        pytest.param("Xyz=true", "there are ", id="nothing like it"),
    ],
)
def test_an_unknown_feature_gate(flag: str, hint: str) -> None:
    assert hint in _last_line("up", "--scheduler-feature-gates", flag)


def test_listening_for_others_names_the_flags_that_make_it_safe(tmp_path: Path) -> None:
    last = _last_line("up", "--host", "0.0.0.0", "--kubeconfig", str(tmp_path / "kubeconfig"))

    assert "add --token, or" in last


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])

        last = _last_line("up", "--port", port, "--kubeconfig", str(tmp_path / "kubeconfig"))

    assert "already in use" in last and "choose another with --port" in last


def test_a_mistyped_command() -> None:
    assert "Did you mean explain?" in _last_line("explan", exit_code=2)


def test_a_file_that_must_not_be_written() -> None:
    assert _last_line("crds", "--output-dir", "/proc/none").startswith("Error: /proc/none: ")


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("koordinator.cli.running.work_of", interrupted)

    result = CliRunner().invoke(cli.main, ["demo"])

    assert (result.exit_code, result.output) == (130, "interrupted\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_those_of_the_shell(shell: str) -> None:
    result = CliRunner().invoke(cli.main, ["completion", shell])

    assert result.exit_code == 0
    assert f"_KOORDINATOR_COMPLETE={shell}_complete" in result.output


def test_the_shell_completes_what_the_scripts_ask_for() -> None:
    asked = {"_KOORDINATOR_COMPLETE": "bash_complete", "COMP_WORDS": "koordinator ex", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", "from koordinator.cli.main import main; main(prog_name='koordinator')"]

    done = subprocess.run(
        command, env={**os.environ, **asked}, capture_output=True, text=True, timeout=30, check=True
    )

    assert done.stdout.split() == ["plain,explain"]
