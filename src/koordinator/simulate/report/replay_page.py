"""A replay as one HTML page that works offline."""

import html

import plotly.graph_objects as go

from koordinator.report.page import div, page, stack, table
from koordinator.report.page import figure as new_figure
from koordinator.simulate.gpu_course import GpuReport
from koordinator.simulate.replay_report import BINS, ReplayReport

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")


def render(found: ReplayReport) -> str:
    """Return the whole page as HTML text, plotting library included."""
    speed = found.speed
    facts = (
        f"{found.placed:,} of {found.pods:,} pods were placed on {found.nodes:,} nodes in {speed.placing_s:.2f} s "
        f"({speed.pods_per_s:,.0f} pods/s)."
    )
    if found.gpu_pods_left_out:
        facts += f" {found.gpu_pods_left_out:,} pods that ask for GPUs are left out."
    parts = [
        f'<p class="facts">{html.escape(facts)}</p>',
        _gpu(found.gpu) if found.gpu is not None else "",
        f"<h2>Allocation and fragmentation</h2>{_resources(found)}",
        f"<h2>Nodes by allocation</h2>{div(_histogram(found))}",
        f"<h2>Over time</h2>{div(_over_time(found))}" if found.samples else "",
        f"<h2>Not placed</h2>{_left_over(found)}",
    ]
    return page(f"Scheduling {found.pods:,} pods on {found.nodes:,} nodes", "\n".join(parts))


def _gpu(found: GpuReport) -> str:
    full, bound = found.allocated_percent_at_full_arrivals, found.bound_percent_at_full_arrivals
    rows = [
        [f"{found.arrived_percent:.1f} %", f"{found.allocated_percent:.2f} %", f"{found.bound_percent:.2f} %"]
    ]
    if full is not None and bound is not None:
        rows.insert(0, ["100.0 %", f"{full:.2f} %", f"{bound:.2f} %"])
    summary = table(["GPU requested so far", "allocated", "at most"], rows)
    return f"<h2>GPUs while pods arrive</h2>{summary}{div(_course(found))}"


def _course(found: GpuReport) -> go.Figure:
    """Stack what is allocated, and what is left by why a pod of the list cannot use it."""
    figure = new_figure("% of all GPU", "GPU requested so far, % of all")
    arrived = [each.arrived_percent for each in found.course]
    layers = (
        ([each.allocated_percent for each in found.course], "allocated"),
        ([each.left.too_small for each in found.course], "left: parts too small"),
        ([each.left.no_cpu for each in found.course], "left: no CPU"),
        ([each.left.no_memory for each in found.course], "left: no memory"),
        ([each.left.wrong_model for each in found.course], "left: wrong model"),
        ([each.left.usable for each in found.course], "left: of use"),
    )
    stack(figure, arrived, [(*layer, colour) for layer, colour in zip(layers, _COLOURS, strict=True)])
    figure.update_yaxes(range=[0, 100])
    return figure


def _resources(found: ReplayReport) -> str:
    header = ["resource", "allocatable", "wanted", "allocated", "share", "unusable", "stranded"]
    rows = [
        [
            use.resource,
            use.allocatable,
            use.wanted,
            use.allocated,
            *(f"{100 * r:.1f} %" for r in (use.allocated_ratio, use.unusable_ratio, use.stranded_ratio)),
        ]
        for use in found.resources
    ]
    return table(header, rows)


def _left_over(found: ReplayReport) -> str:
    if not found.left_over:
        return "<p>Every pod was placed.</p>"
    rows = [[", ".join(each.reasons), f"{each.pods:,}", ", ".join(each.examples)] for each in found.left_over]
    return table(["reasons", "pods", "for example"], rows)


def _histogram(found: ReplayReport) -> go.Figure:
    width = 100 // BINS
    bands = [f"{width * i}–{width * (i + 1)} %" for i in range(BINS)]
    figure = new_figure("nodes", "share of the node that is allocated")
    for colour, (name, counts) in zip(_COLOURS, found.histogram.items(), strict=False):
        figure.add_bar(x=bands, y=counts, name=name, marker={"color": colour})
    figure.update_layout(barmode="group")
    return figure


def _over_time(found: ReplayReport) -> go.Figure:
    start_s = found.samples[0].at_s
    hours = [(each.at_s - start_s) / 3_600 for each in found.samples]
    figure = new_figure("% allocated", "hours since the first arrival")
    for number, (colour, use) in enumerate(zip(_COLOURS, found.resources, strict=False)):
        shares = [100 * each.allocated[number] for each in found.samples]
        figure.add_scatter(
            x=hours, y=shares, name=use.resource, mode="lines", line={"color": colour, "shape": "hv"}
        )
    return figure
