"""A Prometheus in this process: counters and gauges of containers, and answers to the queries that are asked of it.

It does what a server does with them: `rate` over a window with resets of counters, gaps where nothing was scraped, sums
by label, refusals of too many points or samples, tokens, warnings of partial answers.
"""

import contextlib
import itertools
import math
import re
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Json = dict[str, Any]
Labels = dict[str, str]
CPU, MEMORY = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"
POINTS_MAX = 11_000
LOOKBACK_S = 300.0

_MATCHER = re.compile(r'(\w+)(!?=)"([^"]*)"')
_RATE = re.compile(r"^sum by \(namespace, pod\) \(rate\((\w+)\{(.*)\}\[(\d+)s\]\)\)$")
_MAX = re.compile(r"^sum by \(namespace, pod\) \(max_over_time\((\w+)\{(.*)\}\[(\d+)s\]\)\)$")
_COUNT = re.compile(r"^count by \(namespace\) \(last_over_time\((\w+)\{(.*)\}\[(\d+)s\]\)\)$")


class FakePrometheus:
    """`series` are samples (time, value) by labels; switches say what goes wrong."""

    def __init__(self) -> None:
        self.series: list[tuple[Labels, list[tuple[float, float]]]] = []
        self.token = ""
        self.samples_max = 50_000_000
        self.warnings: list[str] = []
        self.failures: list[web.Response] = []
        """Answers to the next requests, whatever they are."""
        self.asked: list[Json] = []

    def scraped(self, name: str, samples: list[tuple[float, float]], **labels: str) -> None:
        """Know a series of a container."""
        self.series.append(({"__name__": name, "container": "main", "namespace": "shop", **labels}, samples))

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Answer on loopback; yields the address."""
        app = web.Application()
        app.router.add_post("/api/v1/query", self._query)
        app.router.add_post("/api/v1/query_range", self._query_range)
        async with TestServer(app) as server:
            yield str(server.make_url("/"))

    async def _query(self, request: web.Request) -> web.Response:
        form, refused = await self._enter(request)
        if refused is not None:
            return refused
        found = _COUNT.match(form["query"])
        assert found is not None, form["query"]
        name, matchers, window = found.groups()
        at_s = float(form["time"])
        counts: dict[str, int] = {}
        for labels, samples in self._matching(name, matchers):
            if any(at_s - float(window) < t <= at_s for t, _ in samples):
                counts[labels["namespace"]] = counts.get(labels["namespace"], 0) + 1
        result = [{"metric": {"namespace": ns}, "value": [at_s, str(n)]} for ns, n in counts.items()]
        return self._success("vector", result)

    async def _query_range(self, request: web.Request) -> web.Response:
        form, refused = await self._enter(request)
        if refused is not None:
            return refused
        start, end, step = (float(form[key]) for key in ("start", "end", "step"))
        points = int((end - start) / step + 1e-9) + 1
        if points > POINTS_MAX:
            return _error(400, "bad_data", "exceeded maximum resolution of 11,000 points per timeseries")
        rate = _RATE.match(form["query"])
        found = rate or _MAX.match(form["query"])
        assert found is not None, form["query"]
        name, matchers, window = found.groups()
        sums: dict[tuple[str, str], dict[int, float]] = {}
        samples_read = 0
        for labels, samples in self._matching(name, matchers):
            own = sums.setdefault((labels["namespace"], labels["pod"]), {})
            for point in range(points):
                at_s = start + point * step
                inside = [(t, v) for t, v in samples if at_s - float(window) < t <= at_s]
                samples_read += len(inside)
                value = _rate(inside) if rate else max((v for _, v in inside), default=math.nan)
                if not math.isnan(value):
                    own[point] = own.get(point, 0.0) + value
        if samples_read > self.samples_max:
            return _error(
                422,
                "execution",
                "query processing would load too many samples into memory in query execution",
            )
        result = [
            {
                "metric": {"namespace": namespace, "pod": pod},
                "values": [[start + point * step, str(value)] for point, value in sorted(values.items())],
            }
            for (namespace, pod), values in sums.items()
            if values
        ]
        return self._success("matrix", result)

    async def _enter(self, request: web.Request) -> tuple[Json, web.Response | None]:
        form = dict(await request.post())
        self.asked.append(form)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return form, web.Response(status=401, text="Unauthorized")
        return form, self.failures.pop(0) if self.failures else None

    def _matching(self, name: str, matchers: str) -> list[tuple[Labels, list[tuple[float, float]]]]:
        wanted = _MATCHER.findall(matchers)
        return [
            (labels, samples)
            for labels, samples in self.series
            if labels["__name__"] == name
            and all((labels.get(key, "") == value) is (how == "=") for key, how, value in wanted)
        ]

    def _success(self, kind: str, result: list[Json]) -> web.Response:
        body: Json = {"status": "success", "data": {"resultType": kind, "result": result}}
        if self.warnings:
            body["warnings"] = self.warnings
        return web.json_response(body)


def _rate(inside: list[tuple[float, float]]) -> float:
    """Per second over the samples of a window; a counter that fell began again at 0."""
    if len(inside) < 2:
        return math.nan
    increase = 0.0
    for (_, before), (_, after) in itertools.pairwise(inside):
        increase += after - before if after >= before else after
    return increase / (inside[-1][0] - inside[0][0])


def _error(status: int, kind: str, text: str) -> web.Response:
    return web.json_response({"status": "error", "errorType": kind, "error": text}, status=status)
