"""Compiles the demonstration's programs on the spot, once per source, compiler and machine."""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import msgspec

from koordinator.node_demo import programs
from koordinator.node_demo.plan import DemoError

NAMES = ("service", "loadgen", "hog")
_SHARED = ("common.h", "histogram.h", "protocols.h")
_FLAGS = ("-O2", "-pthread")
_COMPILE_S_MAX = 60


class Programs(msgspec.Struct, frozen=True):
    """The paths of the compiled programs."""

    service: Path
    loadgen: Path
    hog: Path


def build(cache: Path) -> Programs:
    """Return the compiled programs below `cache`; compiles what is not there yet. Raises: DemoError without a compiler,
    or when it fails; the message says what to do."""
    sources = {name: _source(name) for name in (*_SHARED, *(f"{name}.c" for name in NAMES))}
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise DemoError(
            "the service and its load are C programs, and there is no compiler (cc, gcc or clang). "
            "Install one: apt-get install gcc libc6-dev, dnf install gcc glibc-devel, or apk add gcc musl-dev"
        )
    folder = cache / _fingerprint(sources, compiler)
    if not all((folder / name).exists() for name in NAMES):
        _compile(sources, compiler, folder)
    return Programs(*(folder / name for name in NAMES))


def cache_dir() -> Path:
    """Return where programs are kept between runs, as the XDG base directory specification has it."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "koordinator" / "node-demo"


def _source(name: str) -> str:
    return resources.files(programs).joinpath(name).read_text(encoding="utf-8")


def _fingerprint(sources: dict[str, str], compiler: str) -> str:
    parts = (platform.machine(), os.path.realpath(compiler), *_FLAGS, *sources.values())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(sources: dict[str, str], compiler: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for name, text in sources.items():
            Path(scratch, name).write_text(text, encoding="utf-8")
        for name in NAMES:
            command = [compiler, *_FLAGS, "-o", name, f"{name}.c"]
            try:
                done = subprocess.run(
                    command, cwd=scratch, capture_output=True, text=True, timeout=_COMPILE_S_MAX, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise DemoError(f"{' '.join(command)}: {error}") from error
            if done.returncode != 0:
                raise DemoError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
            os.replace(Path(scratch, name), folder / name)  # at once: another run may be looking
