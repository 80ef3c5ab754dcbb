"""Files of tests are remembered with what they take, and no test begins after the time is up."""

import subprocess
import sys
from pathlib import Path

from tests.quick.imports import ROOT

SLEEPS = "import time\n\ndef test_first(): time.sleep(0.3)\n\ndef test_second(): assert False\n"


def test_tests_after_the_time_is_up_are_named_and_fail_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(SLEEPS)
    options = ["-q", "-p", "tests.quick.seconds", "-p", "no:cacheprovider", "--budget=0.2"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_two.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "not begun, for want of time:" in done.stdout and "test_two.py (1)" in done.stdout
