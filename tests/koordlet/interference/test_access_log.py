"""A service's access log is heard, whatever else the pod puts into its volume."""

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from koordinator.api.annotations.koordlet import LATENCY_OBJECTIVE
from koordinator.api.errors import ProtocolError
from koordinator.koordlet.interference.latency import Latency
from koordinator.koordlet.interference.scrape import LatencyScrapes
from tests.koordlet.qos.acting_node import ActingNode, make_pod


class LoggingNode(ActingNode):
    """A service that logs into its volume `logs`."""

    def __init__(self, root: Path, **source: Any) -> None:
        super().__init__(root, gates="Interference=true")
        log = {"volume": "logs", "path": "access.log", "unit": "ms", **source}
        objective = {"targetMilliseconds": 20, "percentile": 90, "accessLog": log}
        annotations = {LATENCY_OBJECTIVE.key: json.dumps(objective)}
        self.set_pods([make_pod("web", qos="LS", priority=9500, annotations=annotations)])
        self.volume = root / "var/lib/kubelet/pods/web/volumes/kubernetes.io~empty-dir/logs"
        self.volume.mkdir(parents=True)
        self.scrapes = LatencyScrapes(self.shared)

    async def read(self) -> Latency | None:
        await self.scrapes.run()
        return self.scrapes.targets["web"].latency(asyncio.get_running_loop().time())


async def test_a_file_is_read_from_its_end_on_and_across_rotations(tmp_path: Path) -> None:
    node = LoggingNode(tmp_path)
    log = node.volume / "access.log"
    log.write_text("GET / 900\n" * 50)
    assert await node.read() is None  # what was written before says nothing of now

    with log.open("a") as file:
        file.write("GET / 5\n" * 9 + "half a li")
    found = await node.read()
    assert found is not None
    assert found.now_s == 0.005

    with log.open("a") as file:
        file.write("ne 30\n" * 5)
    log.rename(node.volume / "access.log.1")
    log.write_text("GET / 40\n" * 6)
    found = await node.read()
    assert found is not None
    assert found.now_s == 0.04
    assert found.slack == -1
    node.scrapes.close()


async def test_datagrams_are_taken_by_a_socket_that_goes_with_the_agent(tmp_path: Path) -> None:
    node = LoggingNode(tmp_path, path="log.sock", socket=True, field="took")
    await node.read()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        directory = os.open(node.volume, os.O_RDONLY)
        sender.connect(f"/proc/self/fd/{directory}/log.sock")  # the path itself is too long for an address
        os.close(directory)
        for took in (1, 2, 3, 4, 30, 31, "?"):
            sender.send(json.dumps({"took": took}).encode())
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    found = await node.read()

    assert found is not None
    assert found.now_s == 0.031
    node.scrapes.close()
    assert not (node.volume / "log.sock").exists()


async def test_links_and_what_is_no_file_are_not_followed(tmp_path: Path) -> None:
    node = LoggingNode(tmp_path)
    (tmp_path / "secret").write_text("1\n" * 20)
    (node.volume / "access.log").symlink_to(tmp_path / "secret")

    assert await node.read() is None

    assert node.events.reasons() == [("web", "LatencyNotHeard")]
    node.scrapes.close()


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        pytest.param("../../secret", "no path within the volume", id="out of the volume"),
        pytest.param("/etc/passwd", "no path within the volume", id="absolute"),
        pytest.param("", "no path within the volume", id="none"),
    ],
)
def test_a_path_stays_within_its_volume(path: str, problem: str) -> None:
    text = json.dumps({"targetMilliseconds": 5, "accessLog": {"volume": "logs", "path": path}})

    with pytest.raises(ProtocolError, match=problem):
        LATENCY_OBJECTIVE.decode(text, "pod n/web")
