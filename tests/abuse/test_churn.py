"""Pods that come and go by the thousand, and watches that nobody reads: when all are gone, so is their memory."""

import asyncio
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.abuse import sizes
from tests.abuse.client import Answer, Connection
from tests.abuse.server import Server

DEPLOYMENTS, REPLICAS = 8, 40
NODES = 20
SETTLE_S = 30.0
ROUND_S = 900.0
"""For a round of pods to run or to be gone, on a machine that does other things, too."""
DRAIN_S = 300.0
STEADY_S = 60.0
TIMES_MAX = 1.5
PODS = "/api/v1/pods"
PATH = "/apis/apps/v1/namespaces/churn/deployments"


def deployment(name: str) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "main", "image": "web", "resources": {"requests": {"cpu": "10m", "memory": "8Mi"}}}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
    spec = {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


async def pods(connection: Connection) -> list[Any]:
    items: list[Any] = (await connection.get(PODS)).json()["items"]
    return items


async def until(connection: Connection, holds: Any, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not holds(await pods(connection)):
        assert time.monotonic() < deadline, f"not within {within_s:g} s"
        await asyncio.sleep(0.5)


async def churn(server: Server, minutes: float) -> int:
    """Deployments that come, run and go; the number of pods that ran."""
    ends_s = time.monotonic() + minutes * 60
    ran, told_s = 0, time.monotonic()
    async with Connection(server.url) as connection:
        made = await connection.write("POST", "/api/v1/namespaces", {"metadata": {"name": "churn"}})
        assert made.code == 201, made
        round_ = 0
        while time.monotonic() < ends_s or not ran:
            names = [f"web-{round_}-{number}" for number in range(DEPLOYMENTS)]
            for name in names:
                assert (await connection.write("POST", PATH, deployment(name))).code == 201
            await until(connection, all_running, ROUND_S)
            ran += DEPLOYMENTS * REPLICAS
            for name in names:
                assert (await connection.write("DELETE", f"{PATH}/{name}")).code == 200
            await until(connection, lambda found: not found, ROUND_S)
            round_ += 1
            if time.monotonic() - told_s > 30:
                told_s = time.monotonic()
                sizes.progress("churn", f"{ran:,} pods ran, {server.resident_mib():.0f} MiB")
    return ran


def all_running(found: list[Any]) -> bool:
    running = [pod for pod in found if pod["status"].get("phase") == "Running"]
    return len(running) == DEPLOYMENTS * REPLICAS


async def unread_watches(server: Server, count: int) -> float:
    """Open watches and read nothing; the memory with them, after something happened."""
    parts = urlsplit(server.url)
    open_ = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1024)
        writer.write(b"GET /api/v1/configmaps?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        open_.append(writer)
    async with Connection(server.url) as connection:
        for number in range(50):
            body = {"metadata": {"name": f"c{number}"}, "data": {"x": "y" * 10_000}}
            answer: Answer = await connection.write("POST", "/api/v1/namespaces/default/configmaps", body)
            assert answer.code == 201, answer
        await asyncio.sleep(2)
        peak_mib = server.resident_mib()
        for writer in open_:
            writer.close()
        for number in range(50):
            await connection.write("DELETE", f"/api/v1/namespaces/default/configmaps/c{number}")
    return peak_mib


def settled_mib(server: Server) -> float:
    """The memory once the server has given back what it can: when it falls no more, at the latest after `DRAIN_S`."""
    deadline = time.monotonic() + DRAIN_S
    least, fell_s = server.resident_mib(), time.monotonic()
    while (now_s := time.monotonic()) < min(deadline, fell_s + STEADY_S):
        time.sleep(1)
        if (found := server.resident_mib()) < least * 0.99:
            least, fell_s = found, now_s
    return server.resident_mib()


def test_memory_comes_back_when_pods_and_watches_are_gone(tmp_path: Path) -> None:
    with Server(tmp_path, "--nodes", str(NODES)) as server:
        time.sleep(SETTLE_S)
        start_mib = server.resident_mib()
        most_mib = start_mib * TIMES_MAX
        peak_mib = asyncio.run(unread_watches(server, sizes.WATCHES))
        after_watches_mib = settled_mib(server)
        sizes.note(
            "churn", memory_at_the_start=f"{start_mib:.0f} MiB", watches_unread=sizes.WATCHES,
            memory_with_them=f"{peak_mib:.0f} MiB", and_without=f"{after_watches_mib:.0f} MiB",
        )  # fmt: skip
        ran = asyncio.run(churn(server, sizes.CHURN_MINUTES))
        busy_mib = server.resident_mib()
        end_mib = settled_mib(server)
        sizes.note(
            "churn", minutes=sizes.CHURN_MINUTES, pods=f"{ran:,}", memory_after_the_last_pod=f"{busy_mib:.0f} MiB",
            memory_at_the_end=f"{end_mib:.0f} MiB, {end_mib / start_mib:.2f} times the start",
            failures_in_the_log=len(server.failures()),
        )  # fmt: skip

        assert after_watches_mib < most_mib
        assert end_mib < most_mib
        assert not server.failures(), server.failures()[:10]
