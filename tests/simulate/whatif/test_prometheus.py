"""History from Prometheus: what pods used, in pieces, whatever the server says in between."""

import asyncio
from collections.abc import Callable

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from koordinator.simulate.whatif import prometheus
from koordinator.simulate.whatif.cluster import WhatIfError
from koordinator.simulate.whatif.prometheus import PrometheusHistory, PrometheusServer, Span, UsedBefore
from tests.simulate.whatif.prometheus_server import CPU, MEMORY, FakePrometheus

END_S = 1_700_006_400.0
SPAN = Span(END_S, 300.0, 24)
"""Two hours."""
SCRAPE_S = 60


def counter(
    cores: float, from_s: float = -7_800.0, to_s: float = 0.0, reset_s: float = 1.0
) -> list[tuple[float, float]]:
    """A counter that grows by `cores` a second, relative to the end; it begins again at `reset_s`."""
    found = []
    for second in range(int(from_s), int(to_s) + 1, SCRAPE_S):
        since_s = second - from_s if second < reset_s or reset_s > 0 else second - reset_s
        found.append((END_S + second, cores * since_s))
    return found


def gauge(value: float) -> list[tuple[float, float]]:
    return [(END_S + second, value) for second in range(-7_800, 1, SCRAPE_S)]


async def fetched(server: FakePrometheus, token: str = "", selector: str = "") -> UsedBefore:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with server.serving() as url, aiohttp.ClientSession() as session:
        asked = PrometheusServer(url, headers, selector=selector, retry_s=0.0)
        return await PrometheusHistory(asked, session).fetch(SPAN)


def lines(used: UsedBefore) -> dict[str, list[float]]:
    table = used.cpu.between(0, used.cpu.steps)
    return {name: table[:, row].tolist() for row, name in enumerate(used.cpu.names)}


def shop() -> FakePrometheus:
    server = FakePrometheus()
    for pod, cores in (("web-1", 0.5), ("web-2", 2.0)):
        server.scraped(CPU, counter(cores), pod=pod)
        server.scraped(MEMORY, gauge(cores * 2**30), pod=pod)
    return server


async def test_containers_of_a_pod_are_summed_and_pauses_left_out() -> None:
    server = shop()
    server.scraped(CPU, counter(0.25), pod="web-1", container="sidecar")
    server.scraped(CPU, counter(9.0), pod="web-1", container="")
    server.scraped(CPU, counter(9.0), pod="web-1", container="POD")

    used = await fetched(server)

    assert np.allclose(lines(used)["shop/web-1"], 0.75, rtol=1e-3)
    assert np.allclose(lines(used)["shop/web-2"], 2.0, rtol=1e-3)
    assert used.memory.names == ["shop/web-1", "shop/web-2"]
    assert np.allclose(used.memory.between(0, 2)[:, 1], 2 * 2**30)


async def test_counters_that_begin_again_and_gaps_are_no_spikes() -> None:
    server = FakePrometheus()
    server.scraped(CPU, counter(1.0, reset_s=-3_000.0), pod="restarted")
    server.scraped(CPU, [*counter(1.0, to_s=-5_000.0), *counter(1.0, from_s=-1_000.0)], pod="unseen")

    found = lines(await fetched(server))

    assert max(found["shop/restarted"]) < 1.01 and min(found["shop/restarted"]) > 0.7
    known = ~np.isnan(found["shop/unseen"])
    assert 0 < np.count_nonzero(known) < 24
    assert np.allclose(np.array(found["shop/unseen"])[known], 1.0, rtol=1e-3)


async def test_answers_are_asked_for_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "SAMPLES_MAX", 20)
    monkeypatch.setattr(prometheus, "POINTS_MIN", 5)
    server = shop()

    used = await fetched(server)

    pieces = [each for each in server.asked if "rate" in each["query"]]
    assert len(pieces) == 3
    assert np.allclose(lines(used)["shop/web-1"], 0.5, rtol=1e-3)


async def test_a_server_that_refuses_so_many_samples_is_asked_for_fewer() -> None:
    server = shop()
    server.samples_max = 150

    used = await fetched(server)

    assert len([each for each in server.asked if "rate" in each["query"]]) > 3
    assert np.allclose(lines(used)["shop/web-2"], 2.0, rtol=1e-3)


async def test_a_token_and_more_matchers_go_with_each_question() -> None:
    server = shop()
    server.token = "s3cret"
    server.scraped(CPU, counter(7.0), pod="other", cluster="test")

    used = await fetched(server, token="s3cret", selector='cluster!="test"')

    assert "shop/other" not in used.cpu.names
    with pytest.raises(WhatIfError, match=r"refuses us.*--prometheus-token-file"):
        await fetched(server, token="wrong")


async def test_warnings_of_partial_data_are_handed_on() -> None:
    server = shop()
    server.warnings = ["store 10.0.0.1 is unavailable"]

    assert (await fetched(server)).warnings == ("store 10.0.0.1 is unavailable",)


async def test_passing_failures_are_tried_again() -> None:
    server = shop()
    server.failures = [web.Response(status=502, text="bad gateway"), web.Response(status=429)]

    assert len((await fetched(server)).cpu.names) == 2


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (lambda: web.Response(status=404, text="404 page not found"), "ends before /api/v1"),
        (lambda: web.Response(text="<html>login</html>"), "is no Prometheus"),
        (
            lambda: web.json_response(
                {"status": "error", "errorType": "bad_data", "error": "parse error"}, status=400
            ),
            "bad_data parse error",
        ),
    ],
)
async def test_errors_say_what_to_do(failure: Callable[[], web.Response], words: str) -> None:
    server = shop()
    server.failures = [failure()]

    with pytest.raises(WhatIfError, match=words):
        await fetched(server)


async def test_a_server_that_stays_away_is_named() -> None:
    server = shop()
    server.failures = [web.Response(status=502, text="bad gateway") for _ in range(9)]

    with pytest.raises(WhatIfError, match=r"answers 502: bad gateway \(4 tries\)"):
        await fetched(server)
    async with aiohttp.ClientSession() as session:
        nobody = PrometheusHistory(PrometheusServer("http://127.0.0.1:1", retry_s=0.0), session)
        with pytest.raises(WhatIfError, match=r"127\.0\.0\.1:1: .*port-forward"):
            await nobody.fetch(SPAN)


async def test_what_is_no_address_is_refused_at_once() -> None:
    async with aiohttp.ClientSession() as session:
        nobody = PrometheusHistory(PrometheusServer("prometheus", retry_s=60.0), session)
        with pytest.raises(WhatIfError, match="prometheus is no address of a Prometheus, such as http"):
            await asyncio.wait_for(nobody.fetch(SPAN), 5)


async def test_a_server_without_containers_is_told_from_one_that_fails() -> None:
    with pytest.raises(WhatIfError, match="has no container_cpu_usage_seconds_total"):
        await fetched(FakePrometheus())
