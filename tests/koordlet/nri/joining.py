"""A plugin on a tree of files, and its way to a runtime."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

from koordinator.koordlet.config import NRIConfig
from koordinator.koordlet.nri.plugin import NRIPlugin
from tests.koordlet.hooks.hook_node import HookNode

QUICK = NRIConfig(backoff_s=0.02, backoff_max_s=0.05, connect_timeout_s=5)


def new_plugin(node: HookNode, config: NRIConfig = QUICK, **options: Any) -> NRIPlugin:
    given = {"disabled_stages": (), **options}
    return NRIPlugin(config, node.hooks, var_run=str(node.root), rng=random.Random(1), **given)


@contextlib.asynccontextmanager
async def running(plugin: NRIPlugin) -> AsyncIterator[None]:
    """It looks for its runtime."""
    task = asyncio.create_task(plugin.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
