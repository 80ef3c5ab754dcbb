"""Puts the report together."""

import html

from koordinator.report.page import body, div, page
from koordinator.simulate import summary
from koordinator.simulate.report import plots
from koordinator.simulate.summary import Comparison, Summary

_STYLE = """
  .verdict { font-size: 1.15rem; border-left: 4px solid #D55E00; padding-left: 1rem; }
  th { text-align: left; font-weight: 500; }
  thead th { font-weight: 700; }
  thead th + th { text-align: right; }
  tr.part th { padding-left: 2rem; color: var(--faint); font-weight: 400; }
"""


def render(comparison: Comparison) -> str:
    """Return the whole page as HTML text, plotting library included."""
    before, after = comparison.before, comparison.after
    old, new = summary.summarise(before), summary.summarise(after)
    text = body(
        __package__,
        scenario=_scenario(comparison),
        verdict=_verdict(old, new),
        table=_table(old, new),
        use_before=div(plots.use_over_time(before)),
        use_after=div(plots.use_over_time(after)),
        cpu_use=div(plots.cpu_use(before, after)),
        queue=div(plots.queue(before, after)),
        latency=div(plots.latency(before, after)),
        utilisation=div(plots.utilisation(before, after)),
        nodes_before=div(plots.nodes_over_time(before)),
        nodes_after=div(plots.nodes_over_time(after)),
        memory=div(plots.memory(before, after)),
        jobs=div(plots.jobs(before, after)),
        held_back=div(plots.held_back(after)),
        slowed=div(plots.slowed(after)),
    )
    return page(f"Co-location on {comparison.scenario.nodes} nodes", text, style=_STYLE)


def _scenario(comparison: Comparison) -> str:
    scenario = comparison.scenario
    load = "the built-in generator"
    if scenario.trace is not None:
        load = f"the trace {html.escape(scenario.trace.name)}"
    facts = [
        f"{scenario.nodes} nodes with {comparison.before.cores:,.0f} cores",
        f"{scenario.hours:g} hours",
        f"service load from {load}",
        f"seed {scenario.seed}",
        f"protection of services: {scenario.protection.value}",
        f"closed loop {'on (beyond the reference, off in the shipped agent)' if scenario.closed_loop else 'off'}",
        f"evictions {'on' if scenario.evictions else 'off'}",
        f"load-aware scheduling {'on' if scenario.load_aware else 'off'}",
    ]
    if not scenario.colocation:
        facts.append("co-location switched off in both runs")
    return ", ".join(facts)


def _verdict(old: Summary, new: Summary) -> str:
    """Return what came out, in one sentence per question."""
    use = new.cpu_use_ratio / old.cpu_use_ratio if old.cpu_use_ratio else 0.0
    work = f"{new.batch_core_hours:,.0f} core-hours of batch work instead of {old.batch_core_hours:,.0f}"
    p99 = (new.latency_p99_ms / old.latency_p99_ms - 1) * 100 if old.latency_p99_ms else 0.0
    alone = (new.latency_p99_ms / new.latency_p99_alone_ms - 1) * 100 if new.latency_p99_alone_ms else 0.0
    return (
        f"Mean CPU use went from {old.cpu_use_ratio * 100:.1f} % to {new.cpu_use_ratio * 100:.1f} % "
        f"(× {use:.2f}): the same machines did {work}. "
        f"The services' p99 latency changed by {p99:+.1f} %; against the same services without any batch on "
        f"their nodes it is {alone:+.1f} %."
    )


def _table(old: Summary, new: Summary) -> str:
    lines = []
    for row in summary.rows(old, new):
        name = html.escape(row.name.strip())
        kind = ' class="part"' if row.name.startswith(" ") else ""
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in (row.before, row.after, row.change))
        lines.append(f"<tr{kind}><th>{name}</th>{cells}</tr>")
    return "\n".join(lines)
