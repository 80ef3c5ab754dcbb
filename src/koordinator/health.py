"""Tell whether a component is alive and ready, check by check, in the words of upstream's endpoints."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from koordinator.prometheus import Counter, Gauge, MetricFamily, MetricsRegistry

Check = Callable[[], str]
"""Function that returns why something is not well; empty when it is."""


class SliMetrics:
    """`/metrics/slis`: how checks ended, each time that somebody asked. `name` is the check's, `type` the
    endpoint's."""

    def __init__(self) -> None:
        self._last = Gauge(
            "kubernetes_healthcheck",
            "[STABLE] This metric records the result of a single healthcheck.",
            ("name", "type"),
        )
        self._all = Counter(
            "kubernetes_healthchecks_total",
            "[STABLE] This metric records the results of all healthcheck.",
            ("name", "status", "type"),
        )
        self._registry = MetricsRegistry((self._last, self._all))

    def seen(self, endpoint: str, check: str, is_well: bool) -> None:
        """Note that a check ran."""
        self._last.set(1 if is_well else 0, check, endpoint)
        self._all.inc(check, "success" if is_well else "error", endpoint)

    def families(self) -> list[MetricFamily]:
        """Both families."""
        return self._registry.families()

    def text(self) -> str:
        """In the Prometheus text format."""
        return self._registry.text()


class HealthReport(msgspec.Struct, frozen=True):
    """The answer of a health endpoint."""

    is_well: bool
    text: str


def report(
    name: str, reasons: Mapping[str, str], *, verbose: bool, excluded: Iterable[str] = ()
) -> HealthReport:
    """Return the checks of an endpoint (`healthz`, `livez`, `readyz`) in order. `reasons` say why each fails, empty
    where it is well; they are shown when one fails."""
    left_out = set(excluded)
    lines = []
    is_well = True
    for check, reason in reasons.items():
        if check in left_out:
            lines.append(f"[+]{check} excluded: ok")
            continue
        is_well = is_well and not reason
        lines.append(f"[-]{check} failed: {reason}" if reason else f"[+]{check} ok")
    unknown = sorted(left_out - reasons.keys())
    if unknown:
        named = ", ".join(f'"{each}"' for each in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {named}")
    if is_well and not verbose:
        return HealthReport(True, "ok")
    lines.append(f"{name} check {'passed' if is_well else 'failed'}")
    return HealthReport(is_well, "\n".join(lines) + "\n")


def well() -> str:
    """Return the check of a process that answers."""
    return ""
