"""kill -9 at any moment: what was acknowledged is there afterwards, as it was acknowledged, and nothing twice."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

from tests.abuse import sizes
from tests.abuse.client import Connection
from tests.abuse.server import Server

WRITERS = 12
LIFE_S = (0.3, 2.5)
CONFIGS = "/api/v1/namespaces/default/configmaps"


class Ledger:
    """What the server promised: the last acknowledged state of each object, and all versions that it gave."""

    def __init__(self) -> None:
        self.promised: dict[str, str] = {}
        self.tried: dict[str, set[str]] = {}
        self.uids: dict[str, str] = {}
        self.versions: dict[int, str] = {}
        self.acknowledged = 0

    def asked(self, name: str, value: str) -> None:
        """From now on this may be there, too."""
        self.tried.setdefault(name, set()).add(value)

    def granted(self, name: str, value: str, obj: Any) -> None:
        """The server said that it is."""
        self.promised[name] = value
        self.tried[name] = set()
        self.acknowledged += 1
        if value == "-":
            return
        meta = obj["metadata"]
        version = int(meta["resourceVersion"])
        assert self.versions.setdefault(version, name) == name, f"version {version} given twice"
        assert self.uids.setdefault(name, meta["uid"]) == meta["uid"], f"{name} has another uid"

    def check(self, items: list[Any]) -> None:
        there = {item["metadata"]["name"]: item for item in items}
        assert len(there) == len(items), "a name is listed twice"
        for name, value in self.promised.items():
            item = there.get(name)
            found = "-" if item is None else item["data"]["x"]
            assert found in {value, *self.tried.get(name, ())}, (
                f"{name}: {value} was acknowledged, {found} is there"
            )
            if item is not None:
                assert item["metadata"]["uid"] == self.uids[name], f"{name} has another uid"
            self.promised[name], self.tried[name] = found, set()


async def write(url: str, ledger: Ledger, prefix: str) -> None:
    """Create, change and delete in turns until the server is gone."""
    number = 0
    async with Connection(url) as connection:
        while True:
            name = f"{prefix}-{number}"
            number += 1
            steps = [
                ("POST", CONFIGS, "1"),
                ("PUT", f"{CONFIGS}/{name}", "2"),
                ("DELETE", f"{CONFIGS}/{name}", "-"),
            ]
            for method, path, value in steps[: 1 + number % 3]:
                body = None if value == "-" else {"metadata": {"name": name}, "data": {"x": value}}
                ledger.asked(name, value)
                try:
                    answer = await connection.write(method, path, body)
                except (ConnectionError, TimeoutError, OSError):
                    return
                assert answer.code in (200, 201), answer
                ledger.granted(name, value, answer.json())


async def live_and_die(server: Server, ledger: Ledger, prefix: str, life_s: float) -> None:
    writers = [asyncio.create_task(write(server.url, ledger, f"{prefix}-{each}")) for each in range(WRITERS)]
    await asyncio.sleep(life_s)
    server.kill()
    await asyncio.gather(*writers)


async def listed(url: str) -> list[Any]:
    async with Connection(url) as connection:
        items: list[Any] = (await connection.get(CONFIGS)).json()["items"]
        return [item for item in items if item["metadata"]["name"].startswith("r")]


def test_no_kill_loses_what_was_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(sizes.SEED)
    ledger = Ledger()
    slowest_s = 0.0
    with Server(tmp_path, "--nodes", "1", "--data-dir", str(tmp_path / "data")) as server:
        for round_ in range(sizes.KILLS):
            asyncio.run(live_and_die(server, ledger, f"r{round_}", rng.uniform(*LIFE_S)))
            started_s = time.monotonic()
            server.start()
            slowest_s = max(slowest_s, time.monotonic() - started_s)
            ledger.check(asyncio.run(listed(server.url)))
            if (round_ + 1) % max(1, sizes.KILLS // 10) == 0:
                sizes.progress(
                    "kills", f"{round_ + 1} of {sizes.KILLS}, {ledger.acknowledged:,} acknowledged writes"
                )
        failures = server.failures()
    sizes.note(
        "kills", kills=sizes.KILLS, acknowledged_writes=f"{ledger.acknowledged:,}", lost=0, given_twice=0,
        slowest_restart=f"{slowest_s:.1f} s", failures_in_the_log=len(failures),
    )  # fmt: skip

    assert ledger.acknowledged > sizes.KILLS * 10
    assert not failures, failures[:10]
