"""`--help` of every command answers at once: what the command works with is imported when it works."""

import subprocess
import sys

SLOW_PACKAGES = ("aiohttp", "rich", "kubernetes_asyncio", "plotly", "cryptography")
SLOW_MODULES = (
    "koordinator.scheduler.engine.profile",
    "koordinator.manager.manager",
    "koordinator.koordlet.agent",
    "koordinator.local.cluster",
)
# One process asks all commands, one after the other: whatever one of them imports stays visible at the end.
ASK_ALL = """
import importlib.metadata, sys
from click.testing import CliRunner
from koordinator.cli import main

scripts = importlib.metadata.distribution("koordinator").entry_points.select(group="console_scripts")
asked = [(main.main, [name, "--help"]) for name in main.COMMANDS]
asked += [(main.main, ["explain", "pod", "--help"]), (main.main, ["quota", "tree", "--help"])]
asked += [(each.load(), ["--help"]) for each in scripts]
for command, arguments in asked:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0 and "Usage:" in result.output, (arguments, result.output)
print(*sys.modules)
print(*scripts.names, file=sys.stderr)
"""


def test_no_help_imports_what_takes_long_to_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK_ALL], capture_output=True, text=True, timeout=60, check=True
    )

    assert {"koordinator", "koord-scheduler", "koord-manager", "koordlet"} <= set(done.stderr.split())
    imported = set(done.stdout.split())
    assert sorted(imported.intersection((*SLOW_PACKAGES, *SLOW_MODULES))) == []
