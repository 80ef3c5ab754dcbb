"""A runtime, or the hook server of an agent, as a process of its own: for benchmarks and damage from outside.

python -m tests.runtime_proxy.endpoints runtime FOLDER | hooks FOLDER
"""

import asyncio
import sys
from pathlib import Path

from koordinator.cli import running
from koordinator.cluster import garbage
from koordinator.koordlet.config import HookServerConfig
from koordinator.koordlet.hook_server import HookServer
from tests.koordlet.hooks.hook_node import BE_ON, HookNode, classes
from tests.runtime_proxy.fake_runtime import PARENT, FakeRuntime

RUNTIME, HOOKS, REGISTRY, PROXY = "runtime.sock", "koordlet.sock", "hookserver.d", "proxy.sock"


async def runtime(folder: Path) -> None:
    """A runtime that keeps nothing."""
    while True:
        made = FakeRuntime(folder / RUNTIME)
        made.on_call = made.forget
        await made.start()
        while made.path.exists():  # noqa: ASYNC110 - gRPC ends with a method that is no text, and nobody tells
            await asyncio.sleep(0.05)


async def hooks(folder: Path) -> None:
    """The hooks of koordlet over a tree of files."""
    node = HookNode(folder / "host")
    node.hooks.start()
    node.policy(classes(be=BE_ON))
    node.group(PARENT.strip("/"))
    garbage.set_aside()  # as the agent does
    socket = str(folder / HOOKS)
    config = HookServerConfig(address=socket, host_endpoint=socket, directory=str(folder / REGISTRY))
    await HookServer(config, node.hooks, node.view).run()


if __name__ == "__main__":
    if sys.argv[1] == "runtime":
        asyncio.run(runtime(Path(sys.argv[2])))
    else:
        running.run(hooks(Path(sys.argv[2])))  # on the loop that the agent has
