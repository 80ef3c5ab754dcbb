"""Programs built once from published Go modules, into a folder of the user's cache."""

import os
import subprocess
import sys
from pathlib import Path


class Missing(Exception):
    """A program is not there and cannot be made; the message is one line that says what to do."""


def cache_folder(name: str) -> Path:
    """Where programs of one kind are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "koordinator" / name


def module_of(module: str, release: str, folder: Path) -> Path:
    """A module of ours that requires another as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    require = f"require {module} v{release}"
    (folder / "go.mod").write_text(f"module koordinator.test/programs\n\ngo 1.25.0\n\n{require}\n")
    return folder


def run_go(go: str, folder: Path, *arguments: str, uses_c: bool = False) -> str:
    """The output of a go command in a module's folder."""
    environment = {
        **os.environ,
        "GOFLAGS": "-mod=mod",
        "CGO_ENABLED": str(int(uses_c)),
        "GOWORK": "off",
    }
    done = subprocess.run(
        [go, *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


def last_line(error: "subprocess.CalledProcessError") -> str:
    lines = [line for line in error.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"go ended with {error.returncode}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
