"""The answer about co-location as one HTML page that works offline."""

import html

from koordinator.api.readable import percent
from koordinator.report import page
from koordinator.report.page import div, table
from koordinator.simulate.report import whatif_plots as plots
from koordinator.simulate.whatif import summary
from koordinator.simulate.whatif.outcome import HOT_PERCENT
from koordinator.simulate.whatif.summary import StrategyResult, WhatIfAnswer

_NODES_SHOWN = 10
_POOLS_SHOWN = 4
"""Pools whose terms are told: columns of a table."""
_STYLE = """
  .verdict { font-size: 1.15rem; border-left: 4px solid #D55E00; padding-left: 1rem; }
  .notes { color: var(--faint); font-size: .95rem; }
  .tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 1rem; margin: 1.5rem 0; }
  .tile { border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; }
  .tile b { display: block; font-size: 1.25rem; white-space: nowrap; font-variant-numeric: tabular-nums; }
  .tile span { color: var(--faint); font-size: .9rem; }
  .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
  @media (max-width: 55rem) { .pair { grid-template-columns: 1fr; } }
  .pair > * { min-width: 0; }
"""


def render(found: WhatIfAnswer) -> str:
    """Return the whole page as HTML text, plotting library included."""
    best = next(each for each in found.strategies if each.strategy == found.advised)
    text = page.body(
        __package__,
        "whatif.html",
        facts=_facts(found),
        verdict=_verdict(found, best),
        notes="".join(
            f'<p class="notes">{html.escape(note[:1].upper() + note[1:])}.</p>' for note in found.notes
        ),
        tiles=_tiles(found, best),
        table=_table(found),
        strategies=div(plots.strategies(found)),
        steps="".join(f"<li>{_code(step)}</li>" for step in found.first_steps),
        pools=_pools(best),
        advised=html.escape(best.strategy),
        use=div(plots.use_over_time(found, best)),
        ledger_cpu=div(plots.ledger(best, "cores", "cores")),
        ledger_memory=div(plots.ledger(best, "memory_gib", "GiB")),
        ledger=_ledger(best),
        cpu=div(plots.cpu(found, best)),
        memory=div(plots.memory(found, best)),
        latency=div(plots.latency(found)),
        workloads=div(plots.workloads(best)),
        gain=div(plots.gain(found, best)),
        hot=div(plots.hot(best)),
        hot_percent=f"{HOT_PERCENT:.0f}",
        nodes=_nodes(best),
    )
    return page.page(f"Co-location on {found.nodes:,} nodes", text, style=_STYLE)


def _facts(found: WhatIfAnswer) -> str:
    facts = (
        f"{found.nodes:,} nodes with {found.cores:,.0f} cores and {found.memory_gib:,.0f} GiB, "
        f"{found.service_pods:,} service pods of {found.workloads:,} workloads; load: {found.history}; "
        f"batch work: {found.demand}"
    )
    return html.escape(facts)


def _verdict(found: WhatIfAnswer, best: StrategyResult) -> str:
    figures = best.figures
    worth = ""
    if figures.worth_per_month is not None:
        worth = f", worth {figures.worth_per_month:,.0f} a month at {found.price_per_core_hour:g} a core-hour"
    return html.escape(
        f"With the strategy {best.strategy} these machines would use {percent(figures.cpu_use)} of their CPUs instead "
        f"of {percent(figures.cpu_use_before)}: {figures.batch_core_hours_per_day:,.0f} core-hours of batch work a "
        f"day{worth}. The p99 latency of services would grow by {percent(figures.p99_growth)} (90 % sure: between "
        f"{percent(figures.p99_growth_low)} and {percent(figures.p99_growth_high)})."
    )


def _tiles(found: WhatIfAnswer, best: StrategyResult) -> str:
    figures = best.figures
    cores = figures.batch_core_hours_per_day / 24
    tiles = [
        (f"{percent(figures.cpu_use_before)} → {percent(figures.cpu_use)}", "CPU used"),
        (f"{cores:,.0f} cores", "of batch work on machines that are there"),
        (f"{100 * figures.p99_growth:+.1f} %", "p99 of services"),
        (f"{figures.workloads_at_risk:,} of {found.workloads:,}", "workloads slowed by more than 5 %"),
        (f"{figures.evictions:,}", "evictions of batch"),
    ]
    if figures.worth_per_month is not None:
        tiles.insert(2, (f"{figures.worth_per_month:,.0f}", "worth a month"))
    return "".join(
        f'<div class="tile"><b>{html.escape(number)}</b><span>{html.escape(what)}</span></div>'
        for number, what in tiles
    )


def _table(found: WhatIfAnswer) -> str:
    header = ["", *(each.strategy for each in found.strategies)]
    return table(header, [[row.name.strip(), *row.texts] for row in summary.rows(found)])


def _pools(best: StrategyResult) -> str:
    if not best.pools:
        return ""
    rows = [
        [
            each.pool,
            f"{each.nodes:,}",
            f"{each.batch_core_hours:,.0f}",
            percent(each.share),
            f"{100 * each.p99_growth:+.1f} %",
        ]
        for each in best.pools
    ]
    return table(
        ["pool, the best first", "nodes", "batch core-hours", "share of the gain", "p99 of its services"],
        rows,
    )


def _ledger(best: StrategyResult) -> str:
    """Return the terms of what is lent, in the whole cluster and in the first pools; they sum to the last row."""
    terms = [each.term for each in best.ledger]
    pools = best.pools[:_POOLS_SHOWN]
    rows = []
    for at, term in enumerate(terms):
        line = best.ledger[at]
        by_pool = [next((each.cores for each in pool.ledger if each.term == term), 0.0) for pool in pools]
        cells = [f"{each:+,.1f}" for each in (line.cores, *by_pool)]
        rows.append([term, cells[0], f"{line.memory_gib:+,.1f}", *cells[1:], line.why])
    sums = [f"{sum(each.cores for each in pool.ledger):,.1f}" for pool in pools]
    lent = sum(each.cores for each in best.ledger), sum(each.memory_gib for each in best.ledger)
    rows.append(["lent", f"{lent[0]:,.1f}", f"{lent[1]:,.1f}", *sums, "the sum"])
    header = ["", "cores", "memory, GiB", *(f"cores of {pool.pool}" for pool in pools), "what it is"]
    return table(header, rows)


def _nodes(best: StrategyResult) -> str:
    suffer = sorted(best.nodes, key=lambda each: (-each.p99_growth, each.node))[:_NODES_SHOWN]
    rows = [
        [
            each.node,
            f"{each.batch_core_hours:,.0f}",
            f"{percent(each.hot_time_before)} → {percent(each.hot_time)}",
            f"{each.evictions:,}",
            f"{100 * each.p99_growth:+.1f} %",
        ]
        for each in suffer
    ]
    header = ["nodes whose services feel it most", "batch core-hours", "time hot", "evictions", "p99"]
    return table(header, rows)


def _code(text: str) -> str:
    """Escape a text; what stands in backticks is code."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))
