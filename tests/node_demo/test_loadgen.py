"""The load generator against servers whose answers take a known time."""

import shutil
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from koordinator.node_demo import build, measure
from koordinator.node_demo.measure import Records

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
MS = 1_000_000


@contextmanager
def echo(answer_s: float) -> Iterator[int]:
    """Answer requests of our own service's protocol, one after the other, each after so long; gives the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                while request := connection.recv(8):
                    time.sleep(answer_s)
                    connection.sendall(request)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def measured(folder: Path, port: int, rate_per_s: float, seconds: float) -> Records:
    """Send over one connection, as an ordinary process."""
    out = folder / "records"
    options = {
        "port": port,
        "rate": rate_per_s,
        "seconds": seconds,
        "connections": 1,
        "class": "other",
        "out": out,
    }
    command = [str(build.build(folder).loadgen)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    subprocess.run(command, check=True, timeout=30, capture_output=True)
    return measure.read(out)


def test_an_answer_counts_when_it_came_and_not_when_it_was_read(tmp_path: Path) -> None:
    """It wakes up each 200 ms, to send."""
    with echo(0.02) as port:
        found = measured(tmp_path, port, rate_per_s=5, seconds=2)

    assert len(found.latency_ns) == 10
    assert 20 * MS <= statistics.median(found.latency_ns) < 150 * MS
    assert min(found.latency_ns) > 0


def test_latency_counts_from_the_moment_a_request_was_due_though_all_connections_are_busy(
    tmp_path: Path,
) -> None:
    """Each is due 10 ms after the one before, and takes 30."""
    with echo(0.03) as port:
        found = measured(tmp_path, port, rate_per_s=100, seconds=0.15)

    assert len(found.latency_ns) == 15
    for number, latency_ns in enumerate(found.latency_ns):
        assert latency_ns >= (30 + 20 * number) * MS
    assert statistics.median(found.late_ns) < 20 * MS  # it could not be sent before
