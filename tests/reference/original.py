"""Builds programs that answer the questions of areas by Koordinator's own functions (Go), and runs them.

A folder beside this file is a group of areas and one program. Each of its Go files names in its first line the package
that it belongs to (`// in pkg/…`): there it is put into a copy of the published module, so that it can call what the
package keeps to itself, and says which areas it answers (`answering.go`). One that begins with
`// instead of MODULE PACKAGE` stands in for a library that cannot be built everywhere.
"""

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
from tests.go_programs import Ask, Missing

MODULE = "github.com/koordinator-sh/koordinator"
RELEASE = "1.8.0"
HERE = Path(__file__).parent
GROUPS = tuple(sorted({path.parent.name for path in HERE.glob("*/*.go")}))
CACHE = go_programs.cache_folder("koordinator") / f"v{RELEASE}"
HARDWARE_EVENTS = HERE / "hardware_events.go"
"""Stands in for a package that needs a library in C."""
_PLACE = "// in "
_INSTEAD = "// instead of "
_COMMON = "pkg/answering"


def program_of(group: str) -> Path:
    """The program of a group, built where it is missing. Raises: Missing."""
    sources = [HARDWARE_EVENTS, *sorted((HERE / group).glob("*.go"))]
    text = b"".join(path.read_bytes() for path in (HERE / "answering.go", *sources))
    folder = CACHE / group
    program = folder / hashlib.sha256(text).hexdigest()[:16]
    if os.access(program, os.X_OK):
        return program
    shutil.rmtree(folder, ignore_errors=True)  # programs of other sources
    return _built(program, f"functions of {group}", "answering", lambda module: _put(sources, module))


def command(name: str) -> Path:
    """One of Koordinator's own programs, built where it is missing. Raises: Missing."""
    return found_command(name) or _built(CACHE / "bin" / name, name, name, lambda _: None)


def found_command(name: str) -> Path | None:
    """The same where it was built already."""
    program = CACHE / "bin" / name
    return program if os.access(program, os.X_OK) else None


def _built(program: Path, what: str, package: str, change: Callable[[Path], None]) -> Path:
    """`change` is given the copy of the module before `cmd/PACKAGE` of it is built."""
    go = shutil.which("go")
    if go is None:
        raise Missing(f"no Go toolchain on the PATH: Koordinator's {what} cannot be built")
    go_programs.say(f"building Koordinator {RELEASE}'s {what} (the first time: minutes)")
    begun_s, module = time.monotonic(), program.with_name(f"source-{package}")
    shutil.rmtree(module, ignore_errors=True)
    try:
        _copy_module(go, module)
        change(module)
        _build(go, module, program, package)
    except subprocess.CalledProcessError as error:
        if "dial tcp" not in error.stderr and "proxy" not in error.stderr:
            raise AssertionError(error.stderr) from error
        raise Missing(f"Go modules cannot be fetched: {go_programs.last_line(error)}") from error
    shutil.rmtree(module)
    go_programs.say(f"built it in {time.monotonic() - begun_s:.0f} s")
    return program


def _copy_module(go: str, source: Path) -> None:
    asked = (go, "mod", "download", "-json", f"{MODULE}@v{RELEASE}")
    done = subprocess.run(asked, check=True, capture_output=True, text=True)
    shutil.copytree(json.loads(done.stdout)["Dir"], source, ignore=shutil.ignore_patterns("*_test.go"))
    for path in (source, *source.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)  # modules are kept read-only


def _put(sources: list[Path], source: Path) -> None:
    """Put our files into their packages, and one that starts the program."""
    packages = set()
    for path in sources:
        place = path.read_text().partition("\n")[0].removeprefix(_PLACE)
        if place.startswith(_INSTEAD):
            _put_instead(path, source, *place.removeprefix(_INSTEAD).split())
            continue
        assert (source / place).is_dir(), f"{path}: its first line must be `{_PLACE}PACKAGE`"
        shutil.copy(path, source / place / f"answering_{path.name}")
        packages.add(place)
    (source / _COMMON).mkdir()
    shutil.copy(HERE / "answering.go", source / _COMMON)
    imports = "".join(f'\t_ "{MODULE}/{place}"\n' for place in sorted(packages))
    main = f'package main\n\nimport (\n\t"{MODULE}/{_COMMON}"\n{imports})\n\nfunc main() {{ answering.Serve() }}\n'
    (source / "cmd/answering").mkdir()
    (source / "cmd/answering/main.go").write_text(main)


def _put_instead(path: Path, source: Path, library: str, package: str) -> None:
    """Replace a library by one that has this file only."""
    folder = source / "answering_libraries" / library
    (folder / package).mkdir(parents=True)
    shutil.copy(path, folder / package)
    (folder / "go.mod").write_text(f"module {library}\n")
    with (source / "go.mod").open("a") as modules:
        modules.write(f"\nreplace {library} => ./{folder.relative_to(source)}\n")


def _build(go: str, source: Path, program: Path, package: str) -> None:
    arguments = (go, "build", "-trimpath", "-ldflags=-s -w", "-o", str(program), f"./cmd/{package}")
    subprocess.run(
        arguments,
        cwd=source,
        env={**os.environ, "GOWORK": "off", "CGO_ENABLED": "0"},
        check=True,
        capture_output=True,
        text=True,
    )


@contextlib.contextmanager
def answering(group: str) -> Iterator[Ask]:
    """The running program of a group. Raises: Missing."""
    with go_programs.answering(program_of(group), is_quiet=True) as ask:
        yield ask


def areas_of(group: str) -> tuple[str, ...]:
    """The areas that a group's files answer."""
    found: list[str] = []
    for path in sorted((HERE / group).glob("*.go")):
        for line in path.read_text().splitlines():
            found += [part.split('"')[1] for part in line.split("answering.Area(")[1:]]
    return tuple(found)


def answer_of(ask: Ask, area: str, given: dict[str, Any]) -> Any:
    """The original's answer. Raises: Refused."""
    reply = ask({"area": area, "input": given})
    if reply.get("refused"):
        raise Refused(reply["refused"])
    return reply["answer"]


class Refused(Exception):
    """The original has no answer: the question cannot be asked, or it crashes."""
