"""containerd, its shim, ctr and runc: built once from their Go modules, and the program that runs in containers.

python -m tests.runtime.binaries    # build what is missing; prints where they are
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests import go_programs
from tests.go_programs import Missing

CONTAINERD_RELEASE = "2.2.9"
RUNC_RELEASE = "1.3.5"
NAMES = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")
PROBE = "probe"
_CONTAINERD, _RUNC = "github.com/containerd/containerd/v2", "github.com/opencontainers/runc"


class _Recipe(NamedTuple):
    module: str
    release: str
    package: str
    uses_c: bool


def cache_folder() -> Path:
    return go_programs.cache_folder("runtime") / f"containerd-{CONTAINERD_RELEASE}-runc-{RUNC_RELEASE}"


def why_missing() -> str:
    """Empty when all are there; else a line that names what is missing and what helps."""
    missing = [name for name in (*NAMES, PROBE) if not os.access(cache_folder() / name, os.X_OK)]
    if not missing:
        return ""
    return (
        f"no {', '.join(missing)}: install Go and a C compiler and run `make test-runtime`, which builds them"
    )


def provide() -> Path:
    """The folder with all of them, built where they are missing. Raises: Missing."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        if not os.access(folder / name, os.X_OK):
            _build(name, folder)
    _compile_probe(folder)
    return folder


def _build(name: str, folder: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise Missing(why_missing())
    recipe = _recipe(name)
    begun_s = time.monotonic()
    go_programs.say(f"building {name} {recipe.release} into {folder} (the first time: minutes)")
    module = go_programs.module_of(recipe.module, recipe.release, folder / f"build-{recipe.release}")
    unfinished = folder / f".{name}.{os.getpid()}"
    try:
        arguments = ("build", "-trimpath", "-ldflags", "-s -w", "-o", str(unfinished), recipe.package)
        go_programs.run_go(go, module, *arguments, uses_c=recipe.uses_c)
        unfinished.rename(folder / name)
    except subprocess.CalledProcessError as error:
        raise Missing(f"{name} could not be built: {go_programs.last_line(error)}") from error
    go_programs.say(f"built {name} in {time.monotonic() - begun_s:.0f} s")


def _recipe(name: str) -> _Recipe:
    if name == "runc":
        return _Recipe(_RUNC, RUNC_RELEASE, _RUNC, uses_c=True)  # it enters namespaces before Go starts
    return _Recipe(_CONTAINERD, CONTAINERD_RELEASE, f"{_CONTAINERD}/cmd/{name}", uses_c=False)


def _compile_probe(folder: Path) -> None:
    """The static program of all containers; made anew when its source changed."""
    source, program = Path(__file__).with_name("probe.c"), folder / PROBE
    if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
        return
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Missing("no C compiler for the program that runs in containers (Debian: gcc libc6-dev)")
    unfinished = folder / f".{PROBE}.{os.getpid()}"
    command = [compiler, "-static", "-O1", "-Wall", "-Werror", "-o", str(unfinished), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Missing(f"probe.c could not be compiled: {done.stderr.strip().splitlines()[-1]}")
    unfinished.rename(program)


def main() -> int:
    """Provide all."""
    try:
        folder = provide()
    except Missing as error:
        print(error, file=sys.stderr)
        return 1
    for name in (*NAMES, PROBE):
        print(f"{name}: {folder / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
