"""Ask Prometheus, or what speaks its HTTP API (Thanos, Mimir, VictoriaMetrics), what pods used.

Answers are asked for in pieces that neither side has to hold as a whole: a namespace at a time, and of it so many
moments that an answer has at most `SAMPLES_MAX` values. Source: the query API of Prometheus, `/api/v1/query_range`.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import aiohttp
import msgspec
import numpy as np
import numpy.typing as npt

from koordinator.cluster import transport
from koordinator.simulate.whatif.cluster import WhatIfError
from koordinator.simulate.whatif.series import PodSeries, SeriesBuilder

SAMPLES_MAX = 500_000
"""Values of one answer, some 15 MB of JSON."""
POINTS_MAX = 10_000
"""Moments of one answer: Prometheus refuses more than 11,000."""
POINTS_MIN = 12
TRIES = 4
TIMEOUT_S = 120.0
RATE_WINDOW_S = 300
MEMORY_STEP_S = 3_600.0
"""Memory changes slowly: its largest value within each hour is enough."""

CPU = "container_cpu_usage_seconds_total"
MEMORY = "container_memory_working_set_bytes"
_CONTAINERS = 'container!="",container!="POD",pod!=""'

Progress = Callable[[float], Any]
F32 = npt.NDArray[np.float32]


class PrometheusServer(msgspec.Struct, frozen=True):
    """A server: its address, and as whom to ask it. `selector` has more label matchers, such as `cluster="prod"`."""

    url: str
    headers: Mapping[str, str] = {}
    tls: ssl.SSLContext | None = None
    selector: str = ""
    retry_s: float = 2.0
    """Pause before the second try; it doubles with each."""


class Span(msgspec.Struct, frozen=True):
    """Moments, `step_s` apart; the last one is at `end_s` (Unix time)."""

    end_s: float
    step_s: float
    steps: int

    def coarser(self, step_s: float) -> "Span":
        """Return the same time in longer steps."""
        every = max(round(step_s / self.step_s), 1)
        return Span(self.end_s, self.step_s * every, max(self.steps // every, 1))


class UsedBefore(msgspec.Struct, frozen=True, eq=False):
    """The use of pods: cores and bytes. `warnings` are the server's: parts of its data may be missing."""

    cpu: PodSeries
    memory: PodSeries
    warnings: tuple[str, ...]


class _Answer(msgspec.Struct, frozen=True):
    """The body of an answer."""

    status: str = ""
    data: "_Data | None" = None
    error_type: str = msgspec.field(default="", name="errorType")
    error: str = ""
    warnings: list[str] = []


class _Data(msgspec.Struct, frozen=True):
    result: "list[_Line]" = []


class _Line(msgspec.Struct, frozen=True):
    """A series: pairs of a moment and a number as text."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class _TooMuch(WhatIfError):
    """The server does not answer so much at once."""


class PrometheusHistory:
    """Asks one server."""

    def __init__(self, server: PrometheusServer, session: aiohttp.ClientSession) -> None:
        self._server, self._session = server, session
        self._warnings: dict[str, None] = {}

    async def fetch(self, span: Span, progress: Progress | None = None) -> UsedBefore:
        """Return what pods used in a span. Raises: WhatIfError that says what to do."""
        selector = ",".join(filter(None, (_CONTAINERS, self._server.selector)))
        counts = await self._namespaces(selector, span)
        total, done = 2 * sum(counts.values()), 0

        def moved(by: float) -> None:
            nonlocal done
            done += int(by)
            if progress is not None:
                progress(done / max(total, 1))

        cpu, memory = SeriesBuilder(), SeriesBuilder()
        hours = span.coarser(MEMORY_STEP_S)
        for namespace, series in counts.items():
            own = f'{selector},namespace="{namespace}"'
            rate = f"sum by (namespace, pod) (rate({CPU}{{{own}}}[{RATE_WINDOW_S}s]))"
            used = f"max_over_time({MEMORY}{{{own}}}[{hours.step_s:.0f}s])"
            for builder, query, times in (
                (cpu, rate, span),
                (memory, f"sum by (namespace, pod) ({used})", hours),
            ):
                for name, values in (await self._lines(query, times, series)).items():
                    builder.add(name, values)
                moved(series)
        return UsedBefore(cpu.built(), memory.built(), tuple(self._warnings))

    async def _namespaces(self, selector: str, span: Span) -> dict[str, int]:
        """Return the namespaces that had pods at any time, and about how many series each has."""
        window = f"{max(int(span.step_s * span.steps), RATE_WINDOW_S)}s"
        query = f"count by (namespace) (last_over_time({CPU}{{{selector}}}[{window}]))"
        answer = await self._ask("query", {"query": query, "time": f"{span.end_s:.3f}"})
        found = {
            line.metric.get("namespace", ""): int(float(line.value[1]))
            for line in answer
            if line.value is not None
        }
        found.pop("", None)
        if not found:
            raise WhatIfError(
                f"Prometheus at {self._server.url} has no {CPU} with the labels namespace and pod in this time: is it "
                "the one of this cluster (--prometheus-selector), does it scrape the kubelets' cAdvisor, does it keep "
                "data so long (--days)?"
            )
        return dict(sorted(found.items()))

    async def _lines(self, query: str, span: Span, series: int) -> dict[str, F32]:
        """Return the values of each pod, (steps,), NaN where there are none."""
        found: dict[str, F32] = {}
        points = max(min(SAMPLES_MAX // max(series, 1), POINTS_MAX), POINTS_MIN)
        first = 0
        begin_s = span.end_s - (span.steps - 1) * span.step_s
        while first < span.steps:
            last = min(first + points, span.steps) - 1
            params = {
                "query": query,
                "start": f"{begin_s + first * span.step_s:.3f}",
                "end": f"{begin_s + last * span.step_s:.3f}",
                "step": f"{span.step_s:.3f}",
            }
            try:
                answer = await self._ask("query_range", params)
            except _TooMuch:
                if points <= 1:
                    raise
                points = max(points // 4, 1)
                continue
            for line in answer:
                name = f"{line.metric.get('namespace', '')}/{line.metric.get('pod', '')}"
                values = found.setdefault(name, np.full(span.steps, np.nan, np.float32))
                for at, value in _numbers(line, begin_s, span):
                    values[at] = value
            first = last + 1
        return found

    async def _ask(self, path: str, params: Mapping[str, str]) -> list[_Line]:
        """Return the series of an answer; what may pass is tried again. Raises: WhatIfError."""
        server = self._server
        address = f"{server.url.rstrip('/')}/api/v1/{path}"
        reason = ""
        for number in range(TRIES):
            if number:
                await asyncio.sleep(server.retry_s * 2 ** (number - 1))
            try:
                async with self._session.post(
                    address,
                    data=params,
                    headers=server.headers,
                    ssl=True if server.tls is None else server.tls,
                    timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                ) as response:
                    body, status = await response.read(), response.status
            except aiohttp.InvalidURL as error:
                raise WhatIfError(
                    f"{server.url} is no address of a Prometheus, such as http://localhost:9090"
                ) from error
            except (aiohttp.ClientError, TimeoutError) as error:
                reason = transport.reason_of(error)
                continue
            if status in (429, 500, 502, 504) or (status == 503 and not _is_timeout(body)):
                reason = f"answers {status}: {_reason(body)}"
                continue
            return self._read(status, body)
        raise WhatIfError(
            f"Prometheus at {server.url}: {reason} ({TRIES} tries); is the address right, and reachable from here "
            "(kubectl port-forward)?"
        )

    def _read(self, status: int, body: bytes) -> list[_Line]:
        url = self._server.url
        if status in (401, 403):
            raise WhatIfError(
                f"Prometheus at {url} refuses us ({status}): give a token that may query with --prometheus-token-file"
            )
        if status == 404:
            raise WhatIfError(
                f"no Prometheus API at {url} (404 for /api/v1): the address ends before /api/v1, some servers have a "
                "prefix such as /prometheus"
            )
        if status >= 400 and _is_too_much(status, body):
            raise _TooMuch(f"Prometheus at {url} answers {status}: {_reason(body)}: ask for fewer --days")
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except msgspec.DecodeError as error:
            raise WhatIfError(
                f"what answers at {url} is no Prometheus ({status}): {_reason(body)}"
            ) from error
        if answer.status != "success" or answer.data is None:
            what = answer.error or f"status {status}"
            raise WhatIfError(f"Prometheus at {url} does not answer the query: {answer.error_type} {what}")
        self._warnings.update(dict.fromkeys(answer.warnings))
        return answer.data.result


def _numbers(line: _Line, begin_s: float, span: Span) -> Iterator[tuple[int, float]]:
    """Yield which step each value belongs to; what is no number, or negative, is not known."""
    for at_s, text in line.values:
        step, value = round((at_s - begin_s) / span.step_s), float(text)
        if 0 <= step < span.steps and 0 <= value < float("inf"):
            yield step, value


def _is_timeout(body: bytes) -> bool:
    return b'"timeout"' in body


def _is_too_much(status: int, body: bytes) -> bool:
    return (status == 503 and _is_timeout(body)) or b"too many samples" in body or b"exceeded maximum" in body


def _reason(body: bytes) -> str:
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.DecodeError:
        return body[:200].decode(errors="replace").strip() or "nothing"
    return answer.error or answer.status
