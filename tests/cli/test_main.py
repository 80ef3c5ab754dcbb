"""The `koordinator` command itself: help without imports, and what it says when a package is missing."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordinator.cli import main as cli


def test_help_lists_every_command_without_importing_any() -> None:
    before = set(sys.modules)

    result = CliRunner().invoke(cli.main, ["--help"])

    assert result.exit_code == 0
    assert all(name in result.output for name in cli.COMMANDS)
    modules = {module for module, _, _ in cli.COMMANDS.values()}
    assert not modules & (set(sys.modules) - before)


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(cli.main, [name, "--help"])

    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_a_package_of_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "koordinator.cli.demo", raising=False)

    result = CliRunner().invoke(cli.main, ["demo"])

    assert result.exit_code == 1
    assert "this needs the package rich" in result.output
    assert "pip install '.[all]'" in result.output
    assert "Traceback" not in result.output


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(cli.main, ["dmeo"])

    assert result.exit_code == 2
    assert "No such command" in result.output


def test_up_names_what_is_wrong_with_a_scheduler_configuration(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nparallelism: many\n"
    )

    result = CliRunner().invoke(cli.main, ["up", "--scheduler-config", str(path)])

    assert result.exit_code == 1
    assert "parallelism" in result.output
    assert "Traceback" not in result.output
