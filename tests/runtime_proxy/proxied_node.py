"""What nodes of the proxy's tests have in common: a proxy on a socket, a folder for hook servers, koordlet's hooks."""

import asyncio
import json
from pathlib import Path
from typing import Any

from koordinator.host.syscalls import LinuxSyscalls
from koordinator.koordlet.config import HookServerConfig
from koordinator.koordlet.hook_server import HookServer
from koordinator.runtime_proxy.docker_proxy import DockerProxy
from koordinator.runtime_proxy.proxy import ProxyConfig, RuntimeProxy
from tests.koordlet.hooks.hook_node import BE_ON, HookNode, classes


class ProxiedNode:
    """A proxy before a runtime at `backend`, once it is started."""

    def __init__(self, root: Path, backend: Path) -> None:
        self.root = root
        self.hooks = root / "hookserver.d"
        self.hooks.mkdir()
        self.socket = root / "proxy" / "proxy.sock"
        self._backend = backend
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self, kind: type[RuntimeProxy | DockerProxy]) -> asyncio.Task[Any]:
        """Start a proxy, and wait until it serves. Raises: what ends it before."""
        config = ProxyConfig(
            endpoint=str(self.socket), backend=str(self._backend), hook_directory=str(self.hooks)
        )
        proxy = kind(config, LinuxSyscalls())
        task = asyncio.create_task(proxy.run())
        self._tasks.append(task)
        started = asyncio.create_task(proxy.is_serving.wait())
        await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return task

    async def start_koordlet(self, **options: Any) -> HookNode:
        """The hooks of a node agent with batch resources and bvt, registered with the proxy; a pod has its group."""
        node = HookNode(self.root / "host", gates="GPUEnvInject=true")
        node.hooks.start()
        node.policy(classes(be=BE_ON))
        node.group("kubepods/besteffort/podu1")
        socket = str(self.root / "koordlet.sock")
        config = HookServerConfig(address=socket, host_endpoint=socket, directory=str(self.hooks), **options)
        server = HookServer(config, node.hooks, node.view)
        self._tasks.append(asyncio.create_task(server.run()))
        while not (self.hooks / "koordlet.json").exists():  # noqa: ASYNC110 - written by a task
            await asyncio.sleep(0.01)
        return node

    def register(self, name: str, socket: str, *stages: str, policy: str = "Ignore") -> None:
        """Tell the proxy of another hook server."""
        body = {"remote-endpoint": socket, "failure-policy": policy, "runtime-hooks": stages}
        (self.hooks / f"{name}.json").write_text(json.dumps(body))

    async def end_tasks(self) -> None:
        """End proxies and hook servers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
