"""koordlet on the test node: a process in the node's namespaces, with the flags that a host installation has."""

import contextlib
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence

from tests.free_ports import free_port
from tests.runtime.node import WAIT_S, RuntimeNode
from tests.runtime.surroundings import FILE, NODE

_LOG = "koordlet"
JOINED = "joined the container runtime"


class RunningAgent:
    """koordlet with its API server and kubelet; it can be killed and started again."""

    def __init__(self, node: RuntimeNode, flags: Sequence[str] = ()) -> None:
        self._node, self.flags = node, tuple(flags)
        self._process: subprocess.Popen[bytes] | None = None
        (node.folder / FILE).unlink(missing_ok=True)
        self._beside = subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.surroundings", str(node.folder)], start_new_session=True
        )
        node.until((node.folder / FILE).exists)
        where = json.loads((node.folder / FILE).read_text())
        self.api, self._kubelet_port = where["api"], where["kubelet_port"]
        self.port = free_port()

    def start(self) -> None:
        """Start it, and wait until it is a plugin of the runtime."""
        said = self.joins()
        self.start_unjoined()
        self._node.until(lambda: self.joins() > said, _LOG)

    def surroundings(self) -> tuple[str, ...]:
        """Flags that lead to its API server and kubelet, and say where it serves."""
        return (
            *(f"-master={self.api}", f"-addr=127.0.0.1:{self.port}"),
            *("-kubelet-insecure-tls", "-disable-query-kubelet-config"),
            *(f"-kubelet-read-only-port={self._kubelet_port}", "-kubelet-sync-interval=1s"),
        )

    def start_unjoined(self) -> None:
        folder = self._node.folder
        arguments = [
            *("-m", "koordinator.cli.koordlet", *self.surroundings()),
            *(f"-prediction-checkpoint-filepath={folder}/checkpoints", f"-audit-log-dir={folder}/audit"),
            *(f"-runtime-hooks-config-path={folder}/hookserver.d", "-feature-gates=AllAlpha=false", "-v=1"),
            *self.flags,
        ]
        environment = {"NODE_NAME": NODE, "agent_mode": "hostMode"}
        self._process = self._node.spawn(_LOG, [sys.executable, *arguments], environment)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def joins(self) -> int:
        """How often it has become a plugin so far."""
        return self._node.log(_LOG).count(JOINED)

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(WAIT_S)

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._beside.kill()
        self._beside.wait(WAIT_S)


@contextlib.contextmanager
def running_agent(node: RuntimeNode, flags: Sequence[str] = ()) -> Iterator[RunningAgent]:
    """koordlet that has joined the node's runtime."""
    agent = RunningAgent(node, flags)
    try:
        agent.start()
        yield agent
    finally:
        agent.close()
