"""Whatever file is given to a command, it ends with one line that names the file, and never with a traceback."""

import functools
import gzip
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordinator.cli.main import main

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
    "simulate table": ["simulate", "scheduling", "--nodes", "FILE.csv", "--pods", "GOOD"],
    "install --values": ["install", "--dry-run", "-f", "FILE"],
    "up --scheduler-config": ["up", "--scheduler-config", "FILE"],
    "up --token-file": ["up", "--host", "0.0.0.0", "--token-file", "FILE"],
    "demo --trace": ["demo", "--trace", "FILE"],
}
FINE = {("install --values", "nothing")}
GOOD = b'{"kind": "List", "items": [{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}}]}'


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_file_ends_a_command_with_one_line(command: str, damage: str, tmp_path: Path) -> None:
    good = tmp_path / "good.json"
    good.write_bytes(GOOD)
    arguments = []
    for word in COMMANDS[command]:
        if word.startswith("FILE"):
            path = tmp_path / word.lower()
            path.write_bytes(DAMAGED[damage])
            word = str(path)
        arguments.append(str(good) if word == "GOOD" else word)
    if (command, damage) in FINE:
        return
    done = CliRunner().invoke(main, arguments)

    could_not_look = 3 if command.startswith("doctor") else 1
    assert done.exit_code in (1, 2, could_not_look), (done.output, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    lines = [line for line in done.output.splitlines() if line.strip()]
    assert "Traceback" not in done.output
    # As a table of tokens, commas are all that it takes; what is empty has no place to name.
    is_named = str(tmp_path) in lines[-1] or "refusing to listen" in lines[-1]
    assert is_named or damage == "nothing", done.output
    assert len(lines[-1]) < 1_000
