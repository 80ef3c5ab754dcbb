"""Programs built once from published Go modules, into a folder of the user's cache."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""What a program of ours answers to a question."""


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


# Programs of ours, whose module stands in a folder of the tests


def provide(source: Path, kind: str, what: str) -> Path:
    """The program of a folder with main.go, go.mod and go.sum, built where it is missing. Raises: Missing."""
    sources = [source / name for name in ("go.mod", "go.sum", "main.go")]
    text = b"".join(one.read_bytes() for one in sources)
    folder = cache_folder(kind) / hashlib.sha256(text).hexdigest()[:16]
    program = folder / "program"
    if os.access(program, os.X_OK):
        return program
    go = shutil.which("go")
    if go is None:
        raise Missing(f"no Go toolchain on the PATH: {what} cannot be built")
    say(f"building {what} into {folder} (the first time: minutes)")
    begun_s = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for one in sources:
        shutil.copy(one, folder)
    unfinished = folder / f".{os.getpid()}"
    try:
        run_go(go, folder, "build", "-trimpath", "-o", str(unfinished), ".")
    except subprocess.CalledProcessError as error:
        if "dial tcp" not in error.stderr and "proxy" not in error.stderr:
            raise AssertionError(error.stderr) from error
        raise Missing(f"Go modules cannot be fetched: {last_line(error)}") from error
    unfinished.rename(program)
    say(f"built them in {time.monotonic() - begun_s:.0f} s")
    return program


@contextlib.contextmanager
def answering(program: Path, *, is_quiet: bool = False) -> Iterator[Ask]:
    """The running program, which answers a question a line; what a quiet one logs is dropped."""
    pipe, errors = subprocess.PIPE, subprocess.DEVNULL if is_quiet else None
    with subprocess.Popen([program], stdin=pipe, stdout=pipe, stderr=errors, text=True) as running:
        assert running.stdin is not None
        assert running.stdout is not None

        def ask(question: dict[str, Any]) -> dict[str, Any]:
            print(json.dumps(question), file=running.stdin, flush=True)
            answer: dict[str, Any] = json.loads(running.stdout.readline())
            return answer

        try:
            yield ask
        finally:
            running.stdin.close()
