"""The ledger of what is lent as one HTML page that works offline: terms, and how they were over the last day."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from koordinator.cli.explain_lent_text import amount_texts, cpu_text, memory_text
from koordinator.report import page
from koordinator.report.page import div, table

Json = Mapping[str, Any]
_RESOURCES = (("cpuMilli", "cores", 1_000), ("memoryBytes", "GiB", 2**30))
_TAKEN, _ADDED, _LENT = "#56B4E9", "#CCCCCC", "#E69F00"
_STYLE = """
  .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
  @media (max-width: 55rem) { .pair { grid-template-columns: 1fr; } }
  .pair > * { min-width: 0; }
"""


def render(about: str, facts: str, answer: Json, hours: Sequence[Json]) -> str:
    """Return the whole page as HTML text.

    `answer` is what `koordinator explain lent -o json` tells of a node, a pool or a cluster, `hours` are the manager's
    answers about the hours before, oldest first.
    """
    services = answer.get("services")
    text = page.body(
        "koordinator.cli",
        "explain_lent.html",
        facts=html.escape(facts),
        kinds="".join(_kind(each, hours) for each in answer["lent"]) or "<p>Nothing is lent.</p>",
        who="Services that lending yields to" if services is not None else "Nodes",
        rows=_services(services) if services is not None else _nodes(answer["nodes"]),
    )
    return page.page(f"What {about} lends", text, style=_STYLE)


def _kind(ledger: Json, hours: Sequence[Json]) -> str:
    """Return one kind of lent resources: the way from capacity to it, as pictures and as a table."""
    name = html.escape(ledger["kind"].capitalize())
    ways = "".join(div(_way(ledger, *each)) for each in _RESOURCES)
    found = f'<h2>{name} resources, term by term</h2><div class="pair">{ways}</div>{_terms(ledger)}'
    past = [
        (each["at"], of_kind)
        for each in hours
        for of_kind in each["lent"]
        if of_kind["kind"] == ledger["kind"]
    ]
    if past:
        days = "".join(div(_day(past, *each)) for each in _RESOURCES)
        found += f'<h2>{name} resources over the last hours</h2><div class="pair">{days}</div>'
    return found


def _way(ledger: Json, amount: str, unit: str, scale: int) -> go.Figure:
    terms = [each for each in ledger["terms"] if each[amount]]
    figure = page.figure(unit, "")
    figure.add_waterfall(
        x=[*(each["name"] for each in terms), "lent"],
        y=[*(each[amount] / scale for each in terms), ledger[amount] / scale],
        measure=["relative"] * len(terms) + ["total"],
        customdata=[*(each["why"] for each in terms), "as decided"],
        hovertemplate="%{x}: %{delta:,.2f}<br>%{customdata}<extra></extra>",
        increasing={"marker": {"color": _ADDED}},
        decreasing={"marker": {"color": _TAKEN}},
        totals={"marker": {"color": _LENT}},
    )
    figure.update_layout(showlegend=False, height=300)
    return figure


def _day(past: Sequence[tuple[str, Json]], amount: str, unit: str, scale: int) -> go.Figure:
    """Return what was lent at each hour, and below it what was taken away before."""
    names = list(dict.fromkeys(term["name"] for _, ledger in past for term in ledger["terms"]))
    times = [at for at, _ in past]
    figure = page.figure(unit, "time (UTC)")
    figure.update_layout(hovermode="x unified", barmode="relative", height=340)
    figure.add_bar(
        x=times, y=[ledger[amount] / scale for _, ledger in past], name="lent", marker={"color": _LENT}
    )
    for name in names:
        values = [
            sum(term[amount] for term in ledger["terms"] if term["name"] == name) / scale
            for _, ledger in past
        ]
        if any(value < 0 for value in values):
            figure.add_bar(x=times, y=values, name=name)
    return figure


def _terms(ledger: Json) -> str:
    rows = [_term(each) for each in ledger["terms"]]
    rows.append(["lent", *amount_texts(ledger), "as decided"])
    unwritten, on_node = ledger["unwritten"], ledger["onNode"]
    if unwritten["cpuMilli"] or unwritten["memoryBytes"]:
        rows.append(_term(unwritten))
    rows.append(
        ["on the node", cpu_text(on_node["cpuMilli"] or 0), memory_text(on_node["memoryBytes"] or 0), ""]
    )
    return table(["", "CPU", "memory", "why"], rows)


def _term(term: Json) -> list[str]:
    return [term["name"], _signed(term, "cpuMilli"), _signed(term, "memoryBytes"), term["why"]]


def _signed(found: Json, amount: str) -> str:
    value = found[amount]
    shown = cpu_text(value) if amount == "cpuMilli" else memory_text(value)
    return f"+{shown}" if value > 0 else shown


def _services(services: Sequence[Json]) -> str:
    return table(
        ["pod", "CPU used", "memory used"], [[each["pod"], *amount_texts(each)] for each in services]
    )


def _nodes(nodes: Sequence[Json]) -> str:
    rows = []
    for node in nodes:
        of_kind = node["lent"]
        by_kind = of_kind if isinstance(of_kind, Mapping) else {each["kind"]: each for each in of_kind}
        cells = [amount_texts(by_kind[kind]) if kind in by_kind else ("", "") for kind in ("batch", "mid")]
        why = "; ".join(node.get("notes", ())) or ("" if by_kind else node.get("state", ""))
        rows.append([node["node"], *cells[0], *cells[1], why])
    return table(["node", "batch CPU", "batch memory", "mid CPU", "mid memory", ""], rows)
