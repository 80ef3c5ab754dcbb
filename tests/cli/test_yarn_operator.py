"""The command line of koord-yarn-operator."""

import asyncio

import pytest
from click.testing import CliRunner

from koordinator.cli import yarn_operator, yarn_operator_process
from koordinator.cli.yarn_operator_flags import Flags
from koordinator.cluster import connect

OFF = ("--metrics-addr=0", "--health-probe-addr=0", "--enable-pprof=false", "--master=http://127.0.0.1:1")


def flags_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Flags:
    found: list[Flags] = []
    monkeypatch.setattr(yarn_operator_process, "start", found.append)
    result = CliRunner().invoke(yarn_operator.main, (*OFF, *arguments))
    assert result.exit_code == 0, result.output
    return found[0]


async def test_without_a_controller_it_stands_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the reference: a Deployment would start it again and again."""
    flags = flags_of(monkeypatch, "--controllers=-yarnresource")
    running = asyncio.create_task(yarn_operator_process._main(flags, connect.load(server=flags.master)))
    done, _ = await asyncio.wait((running,), timeout=0.3)
    assert not done
    running.cancel()
    await asyncio.wait((running,))
