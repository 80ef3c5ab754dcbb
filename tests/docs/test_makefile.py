"""What the targets that strangers start first install: what they need, and visibly."""

import shutil
import subprocess

import pytest

from tests.docs.pages import ROOT


def planned(target: str, venv: str) -> str:
    """Return the commands of a target in a fresh checkout; nothing is run."""
    command = ["make", "--dry-run", "--always-make", target, f"VENV={venv}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_up_installs_the_cluster_only_and_shows_how_far_it_is() -> None:
    (install,) = [line for line in planned("up", "fresh").splitlines() if "pip install" in line]

    assert install.endswith("-e '.[local]'")
    assert "--progress-bar on" in install and "--quiet" not in install
