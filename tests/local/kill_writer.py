"""Writes to a data directory and prints each acknowledged name, until it is killed (see test_store_kill)."""

import asyncio
import sys
from pathlib import Path

from koordinator.clock import FixedClock
from koordinator.local import registry
from koordinator.local.registry import ObjectRegistry

WRITERS = 16


async def write(api: ObjectRegistry, prefix: str) -> None:
    """Create, change or delete in turns; print what is promised from now on: `name value` or `name -`."""
    configs = api.resolve("", "v1", "configmaps")
    round_ = 0
    while True:
        name = f"{prefix}-{round_}"
        await api.create(configs, "default", {"metadata": {"name": name}, "data": {"x": "1"}})
        print(name, "1", flush=True)
        if round_ % 3 == 1:
            await api.update(configs, "default", name, {"metadata": {"name": name}, "data": {"x": "2"}})
            print(name, "2", flush=True)
        if round_ % 3 == 2:
            await api.delete(configs, "default", name)
            print(name, "-", flush=True)
        round_ += 1


async def main(data_dir: Path, prefix: str) -> None:
    api = registry.on_disk(FixedClock(), data_dir)
    print("version", api.store.version, flush=True)
    await asyncio.gather(*(write(api, f"{prefix}-{i}") for i in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
