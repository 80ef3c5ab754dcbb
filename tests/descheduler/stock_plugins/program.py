"""The plugins of the Kubernetes descheduler as a program, built once from their Go module into the user's cache."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests import go_programs
from tests.go_programs import Missing

SOURCES = [Path(__file__).with_name(name) for name in ("go.mod", "go.sum", "main.go")]


def provide() -> Path:
    """The program, built where it is missing. Raises: Missing."""
    text = b"".join(one.read_bytes() for one in SOURCES)
    folder = go_programs.cache_folder("descheduler") / hashlib.sha256(text).hexdigest()[:16]
    program = folder / "stock-plugins"
    if os.access(program, os.X_OK):
        return program
    go = shutil.which("go")
    if go is None:
        raise Missing(
            "no Go toolchain on the PATH: the plugins of the Kubernetes descheduler cannot be built"
        )
    go_programs.say(
        f"building the plugins of the Kubernetes descheduler into {folder} (the first time: minutes)"
    )
    begun_s = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for one in SOURCES:
        shutil.copy(one, folder)
    unfinished = folder / f".{os.getpid()}"
    try:
        go_programs.run_go(go, folder, "build", "-trimpath", "-o", str(unfinished), ".")
    except subprocess.CalledProcessError as error:
        if "dial tcp" not in error.stderr and "proxy" not in error.stderr:
            raise AssertionError(error.stderr) from error
        raise Missing(f"Go modules cannot be fetched: {go_programs.last_line(error)}") from error
    unfinished.rename(program)
    go_programs.say(f"built them in {time.monotonic() - begun_s:.0f} s")
    return program


@contextlib.contextmanager
def answering(program: Path) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """The running program: what the real plugin does in a case."""
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin is not None
        assert running.stdout is not None

        def ask(case: dict[str, Any]) -> dict[str, Any]:
            print(json.dumps(case), file=running.stdin, flush=True)
            answer: dict[str, Any] = json.loads(running.stdout.readline())
            return answer

        try:
            yield ask
        finally:
            running.stdin.close()
