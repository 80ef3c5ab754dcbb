"""Whatever file is given to a command, it ends with one line that names the file, and never with a traceback."""

import functools
import gzip
import os
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from koordinator.api import user_files
from koordinator.cli import up
from koordinator.cli.main import main
from koordinator.simulate import dump

packed = functools.partial(gzip.compress, mtime=0)
"""Without the time: workers of one test run must name cases alike."""

DAMAGED = {
    "no UTF-8": b"a: \xff\xfe\n",
    "cut off gzip": packed(b"kind: List\n" * 500)[:-30],
    "deep JSON": b'{"a":' * 100_000,
    "deep YAML": b"- " * 100_000,
    "deep flow YAML": b"a: " + b"[" * 100_000,
    "an alias bomb": b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%b]\n" % (at + 1, at + 1, b",".join([b"*%c" % at] * 10)) for at in range(97, 105)),
    "bytes": bytes(range(256)) * 20,
    "half of a JSON": b'{"kind": "List", "items": [{"kind": "Node", "metadata"',
    "nothing": b"",
}  # fmt: skip
COMMANDS = {
    "explain --dump": ["explain", "pod", "web", "--dump", "FILE"],
    "explain --config": ["explain", "pod", "web", "--dump", "GOOD", "--config", "FILE"],
    "doctor --kubeconfig": ["doctor", "--kubeconfig", "FILE"],
    "quota --kubeconfig": ["quota", "tree", "--kubeconfig", "FILE"],
    "simulate --nodes": ["simulate", "scheduling", "--nodes", "FILE", "--pods", "GOOD"],
    "simulate --pods": ["simulate", "scheduling", "--nodes", "GOOD", "--pods", "FILE"],
    "simulate table": ["simulate", "scheduling", "--nodes", "FILE.csv", "--pods", "GOOD"],
    "install --values": ["install", "--dry-run", "-f", "FILE"],
    "up --scheduler-config": ["up", "--scheduler-config", "FILE"],
    "up --token-file": ["up", "--token-file", "FILE"],
    "demo --trace": ["demo", "--trace", "FILE"],
    "install --kubeconfig": ["install", "--apply", "--kubeconfig", "FILE"],
}
LARGE = {"zeros": b"", "text": b'a: "', "a JSON text": b'{"items": ["', "a JSON list": b'{"items": [{}, '}
LARGE_BYTES = 300 << 20
PEAK_BYTES_MAX = 80 << 20
FINE = {("install --values", "nothing"), ("simulate --pods", "nothing")}
GOOD = b'{"kind": "List", "items": [{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}}]}'


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that `up` takes fails its test, and keeps no cluster running for ever."""

    def run(*_: object) -> None:
        raise AssertionError("the cluster was started")

    monkeypatch.setattr(up, "_run", run)


def invoke(command: str, content: bytes, folder: Path, size: int = 0) -> Result:
    """Run a command with a file of this content, longer by zeros to `size` bytes (which take no room on a disk)."""
    good = folder / "good.json"
    good.write_bytes(GOOD)
    arguments = []
    for word in COMMANDS[command]:
        if word.startswith("FILE"):
            path = folder / word.lower()
            path.write_bytes(content)
            if size:
                os.truncate(path, size)
            word = str(path)
        arguments.append(str(good) if word == "GOOD" else word)
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_file_ends_a_command_with_one_line(command: str, damage: str, tmp_path: Path) -> None:
    if (command, damage) in FINE:
        return
    done = invoke(command, DAMAGED[damage], tmp_path)

    could_not_look = 3 if command.startswith("doctor") else 1
    assert done.exit_code in (1, 2, could_not_look), (done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    lines = [line for line in done.output.splitlines() if line.strip()]
    assert "Traceback" not in done.output
    assert str(tmp_path) in lines[-1] or damage == "nothing", (
        done.output
    )  # what is empty has no place to name
    assert len(lines[-1]) < 1_000


@pytest.mark.parametrize("start", LARGE)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_300_mb_is_refused_in_one_line_and_never_held(
    command: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, limit in ((dump, "YAML_BYTES_MAX"), (user_files, "VALUE_CHARS_MAX")):
        monkeypatch.setattr(module, limit, 2 << 20)  # fewer than are allowed, so that the test is quick
    tracemalloc.start()
    done = invoke(command, LARGE[start], tmp_path, LARGE_BYTES)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert done.exit_code in (1, 2, 3), (done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    lines = [line for line in done.output.splitlines() if line.strip()]
    assert str(tmp_path) in lines[-1], done.output
    assert len(lines[-1]) < 1_000
    assert peak_bytes < PEAK_BYTES_MAX
