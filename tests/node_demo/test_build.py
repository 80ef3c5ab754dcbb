"""Compiling on the spot."""

import shutil
from pathlib import Path

import pytest

from koordinator.node_demo import build, commands
from koordinator.node_demo.plan import DemoError

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
    assert commands.loops_per_request(build.build(tmp_path)) > 1_000
