"""Latency is heard from a real HTTP target; one that is away costs less and less, and is said once."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from koordinator.koordlet.interference.scrape import BODY_BYTES_MAX, LatencyScrapes
from tests.koordlet.qos.acting_node import ActingNode, make_pod

KEY = "koordinator.sh/latency-objective"
NOISE = "".join(f'other_metric_total{{n="{number}"}} 1\n' for number in range(2_000))


class Target:
    """A service whose requests take what `took_ms` says, ten more with each scrape."""

    def __init__(self) -> None:
        self.took_ms = 4.0
        self.scrapes = 0
        self.is_away = False
        self.is_huge = False
        self._counts = {"0.005": 0, "0.05": 0, "+Inf": 0}

    async def answer(self, _: web.Request) -> web.Response:
        self.scrapes += 1
        if self.is_away:
            return web.Response(status=503)
        if self.is_huge:
            return web.Response(body=b"x" * (BODY_BYTES_MAX + 1))
        for end in self._counts:
            if self.took_ms <= float(end.replace("+Inf", "inf")) * 1000:
                self._counts[end] += 10
        lines = [f't_seconds_bucket{{le="{end}"}} {count}\n' for end, count in self._counts.items()]
        return web.Response(text=NOISE + "".join(lines) + NOISE)


class HeardNode(ActingNode):
    """A service whose metrics are real."""

    def __init__(self, root: Path, port: int, **source: Any) -> None:
        super().__init__(root, gates="Interference=true")
        prometheus = {"port": port, "metric": "t_seconds", **source}
        objective = {"targetMilliseconds": 20, "prometheus": prometheus}
        pod = make_pod("web", qos="LS", priority=9500, annotations={KEY: json.dumps(objective)})
        status = msgspec.structs.replace(pod.status, pod_ip="127.0.0.1")
        self.set_pods([msgspec.structs.replace(pod, status=status)])
        self.scrapes = LatencyScrapes(self.shared)

    async def read(self) -> Any:
        await self.scrapes.run()
        target = self.scrapes.targets["web"]
        return target.latency(asyncio.get_running_loop().time())


@pytest.fixture
async def served() -> AsyncIterator[tuple[Target, int]]:
    target = Target()
    app = web.Application()
    app.router.add_get("/metrics", target.answer)
    async with TestServer(app) as server:
        assert server.port is not None
        yield target, server.port


async def test_slack_follows_what_the_target_tells(tmp_path: Path, served: tuple[Target, int]) -> None:
    target, port = served
    node = HeardNode(tmp_path, port)

    assert await node.read() is None  # one reading is no rate
    found = await node.read()
    assert found.now_s <= 0.005
    assert found.slack >= 0.75

    target.took_ms = 40
    asked = target.scrapes
    await node.read()
    assert target.scrapes == asked, "far below its objective: each second round"
    found = await node.read()
    assert 0.02 < found.now_s <= 0.05
    assert found.slack < 0
    node.scrapes.close()


async def test_a_target_that_is_away_is_asked_less_often_and_said_once(
    tmp_path: Path, served: tuple[Target, int]
) -> None:
    target, port = served
    node = HeardNode(tmp_path, port)
    target.is_away = True

    for _ in range(5):
        await node.read()

    assert target.scrapes == 1
    assert node.events.recorded == [("web", "LatencyNotHeard", f"http://127.0.0.1:{port}/metrics: HTTP 503")]

    target.is_away = False
    node.scrapes.targets["web"].due_s = 0.0  # its time has come
    await node.read()
    assert await node.read() is not None
    node.scrapes.close()


async def test_a_pod_that_is_only_starting_is_not_asked_and_nothing_is_said(
    tmp_path: Path, served: tuple[Target, int]
) -> None:
    _, port = served
    node = HeardNode(tmp_path, port)
    (record,) = node.view.pods.values()
    waiting = [msgspec.structs.replace(each, is_running=False) for each in record.containers]
    node.view.pods = {"web": msgspec.structs.replace(record, containers=tuple(waiting))}

    await node.scrapes.run()
    assert not node.scrapes.targets and not node.events.recorded

    node.view.pods = {"web": record}
    await node.scrapes.run()
    assert node.scrapes.targets["web"].is_answering
    node.scrapes.close()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        pytest.param({"metric": "missing"}, "no series of metric missing", id="no such metric"),
        pytest.param({"path": "/nothing"}, "HTTP 404", id="no such page"),
        pytest.param(
            {"unit": "us"}, "the largest bucket ends at 5e-08 s, not above the target", id="blind buckets"
        ),
    ],
)
async def test_what_cannot_be_used_is_said(
    tmp_path: Path, served: tuple[Target, int], source: dict[str, Any], problem: str
) -> None:
    _, port = served
    node = HeardNode(tmp_path, port, **source)

    assert await node.read() is None

    assert problem in node.events.recorded[0][2]
    node.scrapes.close()


async def test_a_body_without_end_is_not_read(tmp_path: Path, served: tuple[Target, int]) -> None:
    target, port = served
    target.is_huge = True
    node = HeardNode(tmp_path, port)

    assert await node.read() is None

    assert node.events.reasons() == [("web", "LatencyNotHeard")]
    node.scrapes.close()
