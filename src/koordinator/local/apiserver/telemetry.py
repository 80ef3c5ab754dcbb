"""The server's own metrics, in the Prometheus text format.

Counted per verb, resource and code; durations in one histogram per verb. Written by hand because two
dictionaries and a page of text do not need a client library.
"""

import bisect
from collections import Counter

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_VERBS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Telemetry:
    """The server's counts so far."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str, int]] = Counter()
        self._durations: dict[str, list[float]] = {}
        self.in_flight = 0
        self.panics = 0

    def record(self, verb: str, group: str, resource: str, code: int, duration_s: float) -> None:
        """One finished request."""
        verb = verb if verb in _VERBS else "OTHER"
        self._requests[verb, group, resource, code] += 1
        row = self._durations.get(verb)
        if row is None:
            # One count per bucket, one for +Inf, then the sum.
            row = self._durations[verb] = [0.0] * (len(_BUCKETS_S) + 2)
        row[bisect.bisect_left(_BUCKETS_S, duration_s)] += 1
        row[-1] += duration_s

    def exposition(self, *, watches: int, cut_off: int) -> str:
        """Return the text of `/metrics`."""
        lines = _head(
            "apiserver_request_total", "counter", "Requests by verb, group, resource and HTTP code."
        )
        for (verb, group, resource, code), requests in sorted(self._requests.items()):
            labels = f'code="{code}",group="{_label(group)}",resource="{_label(resource)}",verb="{verb}"'
            lines.append(f"apiserver_request_total{{{labels}}} {requests}")
        name = "apiserver_request_duration_seconds"
        lines += _head(
            name, "histogram", "Time from the request's head to the answer's end, without watches."
        )
        for verb, row in sorted(self._durations.items()):
            total = 0.0
            for bound, count in zip((*_BUCKETS_S, "+Inf"), row[:-1], strict=True):
                total += count
                lines.append(f'{name}_bucket{{verb="{verb}",le="{bound}"}} {int(total)}')
            lines.append(f'{name}_sum{{verb="{verb}"}} {row[-1]:.6f}')
            lines.append(f'{name}_count{{verb="{verb}"}} {int(total)}')
        for gauge, kind, words, number in (
            (
                "apiserver_current_inflight_requests",
                "gauge",
                "Requests being answered, without watches.",
                self.in_flight,
            ),
            ("apiserver_longrunning_requests", "gauge", "Open watches.", watches),
            (
                "apiserver_terminated_watchers_total",
                "counter",
                "Watches cut off because the client fell behind.",
                cut_off,
            ),
            (
                "apiserver_request_panics_total",
                "counter",
                "Requests that ended in an error of our own.",
                self.panics,
            ),
        ):
            lines += [*_head(gauge, kind, words), f"{gauge} {number}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, words: str) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
