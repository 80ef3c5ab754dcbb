"""The node agent as a process of its own, as it runs on every node."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from pathlib import Path

import msgspec

from koordinator.node_demo import commands
from koordinator.node_demo.observe import process_s
from koordinator.node_demo.plan import DemoError
from koordinator.node_demo.stage import Written

_MODULE = "koordinator.cli.koordlet"
_GATES = "AuditEvents=true,BlkIOReconcile=true,CgroupReconcile=true"
_CLOSED_LOOP_GATES = f"{_GATES},Interference=true,InterferenceControl=true"
_WRITE = re.compile(r"update (.+?) to .*", re.DOTALL)
_STOP_S = 10.0
_CALM_S = 20
"""Seconds to wait at most until the agent has started up …"""
_CALM_CORES = 0.1
"""… which it has when it uses no more CPU than this."""
_SHOWN_CHARS = 2_000


class AgentProcess:
    """Starts and stops the agent; keeps what it says in `folder`. `group` is the kubelet's `cgroupRoot`."""

    def __init__(self, folder: Path, kubeconfig: Path, node: str, group: str) -> None:
        self._folder = folder
        self._kubeconfig = kubeconfig
        self._node = node
        self._group = group
        self._process: asyncio.subprocess.Process | None = None
        self._gates = ""
        self._log = folder / "koordlet.log"
        self._audit = folder / "audit"

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return None if self._process is None else self._process.pid

    async def start(self, closed_loop: bool = False) -> None:
        """Start it, unless it runs so already; return when what starting costs is over. The closed loop always begins
        anew, so that no run inherits what it learned in the one before."""
        gates = _CLOSED_LOOP_GATES if closed_loop else _GATES
        if self._process is not None and gates == self._gates and not closed_loop:
            return
        await self.stop()
        self._gates = gates
        command = [
            *(sys.executable, "-m", _MODULE),
            *("--kubeconfig", str(self._kubeconfig)),
            *("--feature-gates", gates),
            *("--addr", f"127.0.0.1:{commands.free_ports(1)[0]}"),
            *("--audit-log-dir", str(self._audit)),
            *("--kubelet-cgroup-root", self._group),
            *("--run-root-dir", str(self._folder)),
            *("--prediction-checkpoint-filepath", str(self._folder / "checkpoints")),
            *("--v", "1"),
            "--restore-on-exit",
        ]
        environment = {**os.environ, "NODE_NAME": self._node, "agent_mode": "hostMode"}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

        await self._calm(self._process.pid)

    async def _calm(self, pid: int) -> None:
        """Wait until it uses little CPU, for a while at most."""
        used_s = 0.0
        for _ in range(_CALM_S):
            await asyncio.sleep(1)
            before_s, used_s = used_s, process_s(pid)
            if 0 < used_s - before_s < _CALM_CORES:
                return

    def check(self) -> None:
        """Raises: DemoError when it has ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            raise DemoError(f"the node agent ended with {self._process.returncode}:\n{self.said()}")

    async def stop(self) -> None:
        """End it; it puts back what it changed."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._process = None

    def said(self) -> str:
        """Return the end of its log."""
        try:
            return self._log.read_text(encoding="utf-8", errors="replace")[-_SHOWN_CHARS:]
        except OSError:
            return ""

    def written(self) -> list[Written]:
        """Return what it wrote to groups until it was stopped, by its audit log, oldest first."""
        found = []
        for path in sorted(self._audit.glob("audit*.log"), key=lambda each: each.stat().st_mtime):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.MsgspecError):
                    event = msgspec.json.decode(line, type=_Event)
                    if write := _WRITE.fullmatch(event.message):
                        found.append(Written(write[1], event.message, event.reason))
        return found


class _Event(msgspec.Struct):
    """A line of the audit log."""

    message: str = ""
    reason: str = ""
