"""`pip install .` without extras: which processes start with what it brings, and what the others say."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITH_THE_BASE = (
    *("scheduler_process", "manager_process", "descheduler_process", "koordlet_process"),
    *("yarn_operator_process", "yarn_copilot_process", "device_daemon"),
    *("explain_run", "doctor_run", "quota_run", "install_run", "dump_run"),
)
"""Modules of `koordinator.cli` with all that a process, or a command that asks a cluster, works with."""
# What the interpreter finds of other distributions is not there, as after an installation without extras.
WITHOUT_EXTRAS = "import sys\nsys.modules |= dict.fromkeys({extras!r})\n"


def needed(requirement: str) -> str:
    """Return the name in a requirement, normalized; empty when it is one of an extra."""
    text, _, marker = requirement.partition(";")
    name = text
    for sign in "<>=!~[( ":
        name = name.partition(sign)[0]
    return "" if "extra ==" in marker else name.strip().lower().replace("_", "-")


def brought() -> set[str]:
    """Distributions that the base dependencies bring with them, directly or not."""
    found: set[str] = set()
    waiting = {
        needed(each)
        for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    }
    while waiting:
        name = waiting.pop()
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system, or another version of Python
        found.add(name)
        waiting |= {needed(each) for each in requirements} - found - {""}
    return found


def extras() -> set[str]:
    """Importable names that only other distributions have."""
    own = brought() | {"koordinator"}
    return {
        module
        for module, names in importlib.metadata.packages_distributions().items()
        if not {name.lower().replace("_", "-") for name in names} & own
    }


def run(code: str) -> "subprocess.CompletedProcess[str]":
    begin = WITHOUT_EXTRAS.format(extras=extras())
    return subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, timeout=120)


def test_processes_and_commands_that_ask_a_cluster_need_no_extra() -> None:
    assert {"kubernetes_asyncio", "plotly", "grpc", "jwt"} <= extras(), "the test hides what extras bring"
    imports = "\n".join(f"import koordinator.cli.{name}" for name in WITH_THE_BASE)

    done = run(imports)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("main", "arguments", "package", "extra"),
    [
        ("main", ["up"], "kubernetes_asyncio", "local"),
        ("runtime_proxy", ["--backend-runtime-mode=Containerd"], "hpack", "node"),
    ],
)
def test_what_needs_an_extra_says_in_one_line_which(
    main: str, arguments: list[str], package: str, extra: str
) -> None:
    done = run(f"from koordinator.cli import {main}\n{main}.main({arguments!r})")

    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert line == (
        f"Error: this needs the package {package}: in the checkout of koordinator, pip install '.[{extra}]'"
    )
