"""What `koordinator up --process-node` asks for and starts, without root."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from koordinator.cli import up
from koordinator.cli.main import main
from koordinator.clock import FixedClock

PARENT = """
    import asyncio, sys
    from pathlib import Path
    from koordinator.cli import up

    script = "import os, time; print(os.getpid(), flush=True); time.sleep(120)"
    asyncio.run(up._agent(["-c", script], {}, Path(sys.argv[1])))
"""


def test_without_root_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    result = CliRunner().invoke(main, ["up", "--process-node"])

    assert result.exit_code == 2
    assert "--process-node makes cgroups and so needs root: run it with sudo" in result.output


def test_reserved_amounts_and_tokens_reach_the_node(tmp_path: Path) -> None:
    made = up.node_options(tmp_path, "", "cpu=500m,memory=1Gi", ("secret",), FixedClock())

    assert (made.node.reserved_milli, made.node.reserved_bytes) == (500, 2**30)
    assert made.tokens == ("secret",)
    assert made.node.folder == tmp_path / "node"


@pytest.mark.parametrize("text", ["disk=1", "cpu=much", "cpu"])
def test_reserved_amounts_that_make_no_sense_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(click.UsageError, match="--process-node-reserved"):
        up.node_options(tmp_path, "", text, (), FixedClock())


def test_the_nodes_name_is_one_that_the_api_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "My_Laptop.local-")
    assert up.node_name() == "my-laptop.local"
    monkeypatch.setattr("socket.gethostname", lambda: "___")
    assert up.node_name() == "process-node"


def test_the_node_agent_ends_with_the_cluster_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(PARENT), str(log)])
    pid = 0
    try:
        pid = int(_until(lambda: log.exists() and log.read_text().strip()))

        parent.kill()
        parent.wait()

        _until(lambda: not _runs(pid))
    finally:
        parent.kill()
        if pid and _runs(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _until(holds):  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 30
    while not (value := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value
