"""Metrics of a component's requests to the API server, under the names of upstream's clients (`rest_client_*`)."""

from typing import TYPE_CHECKING

from koordinator.prometheus import Counter, Histogram, MetricsRegistry

if TYPE_CHECKING:  # aiohttp takes a while to import, which a command's --help does not need
    from koordinator.cluster.transport import Transport

_REQUEST_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


class ClientMetrics:
    """The families of all clients of a process; `count` connects them to one client."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self.requests = Counter(
            "rest_client_requests_total",
            "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
            ("code", "host", "method"),
        )
        self.request_duration = Histogram(
            "rest_client_request_duration_seconds",
            "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
            _REQUEST_S,
            ("verb", "host"),
        )
        self.rate_limiter = Histogram(
            "rest_client_rate_limiter_duration_seconds",
            "[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.",
            _REQUEST_S,
            ("verb", "host"),
        )
        self.request_retries = Counter(
            "rest_client_request_retries_total",
            "[ALPHA] Number of request retries, partitioned by status code, verb, and host.",
            ("code", "verb", "host"),
        )
        registry.add(self.requests, self.request_duration, self.rate_limiter, self.request_retries)

    def count(self, transport: "Transport", server: str) -> None:
        """Count what goes through `transport`, which speaks to `server` (a URL)."""
        host = server.partition("://")[2]

        def answered(method: str, code: str, seconds: float) -> None:
            self.requests.inc(code, host, method)
            self.request_duration.of(method, host).observe(seconds)

        transport.on_answer = answered
        transport.on_limited = lambda method, seconds: self.rate_limiter.of(method, host).observe(seconds)
        transport.on_retry = lambda method, code: self.request_retries.inc(code, method, host)
