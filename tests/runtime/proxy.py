"""koord-runtime-proxy on the test node, with the koordlet that it asks."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.runtime.agent import RunningAgent
from tests.runtime.cri import CRIClient
from tests.runtime.node import WAIT_S, RuntimeNode

LOG = "proxy"


class RunningProxy:
    """The proxy and koordlet on a node; each can be killed and started again."""

    def __init__(self, node: RuntimeNode, *flags: str) -> None:
        self.node = node
        self._flags = flags
        self.hooks = node.folder / "hookserver.d"
        (node.run / "koordlet").mkdir()
        self.agent = RunningAgent(node, ("-enable-nri-runtime-hook=false",))
        self.cri = CRIClient(str(self.socket))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """What a kubelet talks to, as others see it."""
        return self.node.run / "koord-runtimeproxy/runtimeproxy.sock"

    @property
    def file(self) -> Path:
        """The file by which koordlet registers."""
        return self.hooks / "koordlet.json"

    def start_agent(self, policy: str = "Ignore") -> None:
        self.file.unlink(missing_ok=True)
        self.agent.flags = ("-enable-nri-runtime-hook=false", f"-runtime-hooks-failure-policy={policy}")
        self.agent.start_unjoined()
        self.node.until(self.file.exists, "koordlet")

    def start(self) -> None:
        before = self._said()
        arguments = ["-m", "koordinator.cli.runtime_proxy", f"-hook-server-directory={self.hooks}", "-v=1"]
        self._process = self.node.spawn(LOG, [sys.executable, *arguments, *self._flags])
        self.node.until(lambda: self._said() > before, LOG)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self.wait_killed()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait_killed(self) -> None:
        """Somebody else has killed it."""
        assert self._process is not None
        self._process.wait(WAIT_S)

    def loaded(self) -> int:
        """How often it has read koordlet's file."""
        return self.node.log(LOG).count("hook server loaded")

    def _said(self) -> int:
        return self.node.log(LOG).count("runtime proxy started")

    def close(self) -> None:
        self.cri.close()
        self.kill()
        self.agent.close()
