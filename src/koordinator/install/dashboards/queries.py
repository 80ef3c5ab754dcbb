"""PromQL that dashboards ask again and again."""

from koordinator.install.dashboards.panels import Query

WINDOW = "5m"
"""Over which rates are taken: several scrapes, also where they are a minute apart."""


def per_second(metric: str, *by: str, where: str = "", legend: str = "") -> Query:
    """Return how fast a counter grows by the named labels; `where` narrows its series (`{job="x"}`)."""
    return Query(_sum(by, f"rate({metric}{where}[{WINDOW}])"), legend or _legend(by))


def quantile(share: float, metric: str, *by: str, where: str = "", legend: str = "") -> Query:
    """Below this `share` (0 to 1) of what a histogram counted lately, by the named labels; in the metric's unit."""
    buckets = _sum(("le", *by), f"rate({metric}_bucket{where}[{WINDOW}])")
    return Query(f"histogram_quantile({share}, {buckets})", legend or _legend(by))


def ten_most(query: Query) -> Query:
    """Its ten highest lines."""
    return Query(f"topk(10, {query.expression})", query.legend)


def _sum(by: tuple[str, ...], what: str) -> str:
    return f"sum by ({', '.join(by)}) ({what})" if by else f"sum({what})"


def _legend(by: tuple[str, ...]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in by)
