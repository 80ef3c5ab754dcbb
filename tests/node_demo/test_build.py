"""Compiling on the spot."""

import shutil
from pathlib import Path

import pytest

from koordinator.node_demo import build, commands
from koordinator.node_demo.plan import DemoError, ServiceKind

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def test_without_a_compiler_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(DemoError, match="apt-get install gcc"):
        build.build(tmp_path)


@needs_compiler
def test_programs_are_compiled_once(tmp_path: Path) -> None:
    first = build.build(tmp_path)
    born_ns = first.service.stat().st_mtime_ns

    again = build.build(tmp_path)

    assert again == first
    assert again.service.stat().st_mtime_ns == born_ns
    assert not [path for path in first.service.parent.iterdir() if path.name not in build.NAMES]


@needs_compiler
def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho no room on device >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    with pytest.raises(DemoError, match="no room on device"):
        build.build(tmp_path)


@needs_compiler
def test_a_request_is_calibrated_to_this_machine(tmp_path: Path) -> None:
    assert commands.loops_per_request(build.build(tmp_path), ServiceKind.CPU) > 1_000


@pytest.mark.parametrize("reads_disk", [True, False])
def test_a_service_makes_a_file_on_the_disk_only_where_requests_read_it(
    tmp_path: Path, reads_disk: bool
) -> None:
    """Not every file system can be read past the page cache: a service that asks for it in vain ends."""
    programs = build.Programs(service=tmp_path, loadgen=tmp_path, hog=tmp_path)
    made = commands.DemoCommands(
        programs=programs,
        loops={ServiceKind.CPU: 1},
        ports={ServiceKind.CPU: 1},
        metrics_port=2,
        cpus=1,
        work_dir=tmp_path,
        disk_dir=tmp_path,
        reads_disk=reads_disk,
    )

    assert ("--disk-file" in made.service(ServiceKind.CPU)) is reads_disk
