"""Options that several commands share."""

import importlib
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from koordinator.cli.demo import demo
from koordinator.cli.demo_node import demo_node

MEASURING = pytest.mark.parametrize("command", [demo, demo_node])


@MEASURING
def test_a_report_that_has_no_folder_is_refused_before_anything_is_measured(
    tmp_path: Path, command: click.Command
) -> None:
    result = CliRunner().invoke(command, ["--report", str(tmp_path / "nowhere" / "report.html")])

    assert result.exit_code == 2
    assert "nowhere does not exist" in result.output


@MEASURING
@pytest.mark.parametrize("option", ["--report", "--json"])
def test_a_file_on_a_read_only_file_system_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: click.Command, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    allowed = os.access
    target = tmp_path / "there"
    target.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and allowed(path, mode))

    result = CliRunner().invoke(command, [option, str(target)])

    assert result.exit_code == 2
    assert "not allowed to write there" in result.output


@pytest.mark.parametrize("component", ["scheduler", "descheduler", "manager", "koordlet", "runtime_proxy"])
def test_every_component_takes_the_usual_flags_of_logs(component: str) -> None:
    command = importlib.import_module(f"koordinator.cli.{component}").main

    result = CliRunner().invoke(command, ["--logtostderr=true", "--v=4", "--help"])

    assert result.exit_code == 0, result.output
