"""Trees of quotas as lines of a fixed width: names, bars, amounts, and who borrows from whom."""

import textwrap
from collections.abc import Iterable, Sequence

import msgspec
from rich.text import Text

from koordinator.api import readable
from koordinator.api.quantity import Quantity
from koordinator.scheduler.explain.quota_forest import (
    Forest,
    QuotaNode,
    QuotaResource,
    TreeView,
    is_unreached,
)

BAR_WIDTHS = (24, 16, 10)
"""Bars of the first width for which there is room."""
NOTE_WIDTH_MIN = 24
LENDERS_MAX = 3


class Glyphs(msgspec.Struct, frozen=True):
    """The characters of which trees and bars are drawn."""

    branch: str = "├─ "
    last: str = "└─ "
    through: str = "│  "
    used: str = "█"
    room: str = "░"
    beyond: str = "·"
    above: str = "▓"
    minimum: str = "│"


PLAIN = Glyphs("|- ", "`- ", "|  ", "#", "=", ".", "!", "|")
"""For terminals and files that take ASCII only."""


class TreeDrawing(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a drawing: `width` in characters (None: as wide as it gets), names of resources (none: all
    that count), how deep.
    """

    width: int | None = None
    resources: tuple[str, ...] = ()
    depth: int | None = None
    glyphs: Glyphs = Glyphs()


class Line(msgspec.Struct, frozen=True):
    """One resource of one quota; `name` is empty on all but the quota's first line."""

    name: str
    resource: str
    figures: QuotaResource | None
    scale: int
    note: str
    is_root: bool = False


def tree_lines(found: Forest, trees: Sequence[TreeView], options: TreeDrawing) -> list[Text]:
    """Return the trees, each with its heading, then quotas that are in none."""
    lines: list[Text] = []
    wanted = [name for name in found.resources() if not options.resources or name in options.resources]
    for tree in trees:
        lines += [heading(tree, wanted), *_table(_lines(tree, wanted, options), options), Text()]
    if found.strays and len(trees) == len(found.trees):
        lines.append(Text("Quotas in no tree", style="bold"))
        for each in found.strays:
            lines.append(Text(f"{each.namespace}/{each.name}: {each.reason}", style="red"))
    elif lines:
        lines.pop()
    return lines


def heading(tree: TreeView, wanted: Iterable[str]) -> Text:
    """Return what there is to share, and how that is known."""
    name = f"Tree {tree.tree_id}" if tree.tree_id else "Default tree"
    total = ", ".join(f"{each} {short(each, tree.total[each])}" for each in wanted if each in tree.total)
    if total:
        return Text(f"{name}: {total} ({tree.source})", style="bold")
    return Text(
        f"{name}: what there is to share is not known ({tree.source or 'no nodes are shown'})", "bold"
    )


def _lines(tree: TreeView, wanted: Sequence[str], options: TreeDrawing) -> list[Line]:
    lines: list[Line] = []
    stack = [(top, "", "") for top in reversed(tree.tops)]
    while stack:
        node, lead, below = stack.pop()
        depth = len(node.path)
        children = node.children if options.depth is None or depth < options.depth else []
        lines += _of_quota(node, lead, below, len(children), tree, wanted, options)
        for number, child in reversed(list(enumerate(children))):
            is_last = number == len(children) - 1
            sign = options.glyphs.last if is_last else options.glyphs.branch
            stack.append((child, below + sign, below + ("   " if is_last else options.glyphs.through)))
    return lines


def _of_quota(
    node: QuotaNode,
    lead: str,
    below: str,
    shown_children: int,
    tree: TreeView,
    wanted: Sequence[str],
    options: TreeDrawing,
) -> list[Line]:
    hidden = len(node.children) - shown_children
    shown = [name for name in wanted if name in node.figures] or [""]
    lines = []
    for number, name in enumerate(shown):
        figures = node.figures.get(name)
        said = [_loan_note(name, figures)] if figures is not None and node.path else []
        if number == 0:
            said += node.notes
            if hidden:
                said.append(f"{hidden} quota{'s' if hidden > 1 else ''} below")
        lines.append(
            Line(
                name=lead + node.name
                if number == 0
                else below + (options.glyphs.through.rstrip() if shown_children else ""),
                resource=name,
                figures=figures,
                scale=_scale(figures, tree.total.get(name)) if figures is not None else 0,
                note="; ".join(filter(None, said)),
                is_root=not node.path,
            )
        )
    return lines


def _scale(figures: QuotaResource, total: int | None) -> int:
    """Return what a whole bar stands for: `max`, at most what the tree has."""
    known = [each for each in (figures.max, total) if each is not None]
    return max(min(known, default=0), figures.used, figures.runtime or 0, figures.min if not known else 0)


def _loan_note(name: str, figures: QuotaResource) -> str:
    loan, said = figures.loan, []
    if figures.above:
        said.append(f"{short(name, figures.above)} above its runtime")
    if loan.borrowed:
        said.append(f"borrows {short(name, loan.borrowed)}{_lenders(name, figures)}")
    if loan.lent:
        said.append(f"lends {short(name, loan.lent)}")
    if figures.waiting:
        said.append(f"{short(name, figures.waiting)} waiting")
    if not figures.is_settled and figures.runtime is not None:
        said.append("not settled yet")
    return ", ".join(said)


def _lenders(name: str, figures: QuotaResource) -> str:
    lenders = sorted(figures.loan.lenders.items(), key=lambda pair: (-pair[1], pair[0]))
    if not lenders:
        return ""
    if len(lenders) == 1 and lenders[0][1] == figures.loan.borrowed:
        return f" from {lenders[0][0]}"
    told = [f"{short(name, amount)} from {lender}" for lender, amount in lenders[:LENDERS_MAX]]
    if len(lenders) > LENDERS_MAX:
        told.append(f"{len(lenders) - LENDERS_MAX} more")
    return f" ({', '.join(told)})"


def short(name: str, nanos: int) -> str:
    """Return an amount for a narrow column."""
    return readable.cell(name, Quantity(nanos))


# Columns


def _table(lines: Sequence[Line], options: TreeDrawing) -> list[Text]:
    """Bars shrink and vanish, then figures that the bar would show, before a line gets too long; notes that do
    not fit go below."""
    cells = [_cells(line) for line in lines]
    titles = ("quota", "", "used", "runtime", "min", "max")
    several = len({line.resource for line in lines}) > 1
    columns = [n for n in range(len(titles)) if several or n != 1]
    widths = {n: max([len(titles[n]), *(len(row[n]) for row in cells)]) for n in columns}
    room = options.width if options.width is not None else 10_000
    bar = next((w for w in BAR_WIDTHS if _fixed(widths, w) + NOTE_WIDTH_MIN <= room), 0)
    bar = bar or next((w for w in BAR_WIDTHS[-1:] if _fixed(widths, w) <= room), 0)
    for n in (4, 5):  # min, then max
        if _fixed(widths, bar) > room:
            del widths[n]
    left = room - _fixed(widths, bar) - 2
    out = [_row(titles, " " * bar if bar else "", widths, Text("note") if left >= NOTE_WIDTH_MIN else Text())]
    out[0].stylize("dim")
    for line, row in zip(lines, cells, strict=True):
        drawn = _bar(line, bar, options.glyphs) if bar else Text()
        aside = left >= min(len(line.note), NOTE_WIDTH_MIN) and left > 0
        parts = textwrap.wrap(line.note, left) if aside else []
        out.append(_row(row, drawn, widths, Text(parts[0] if parts else "", style=_style(line))))
        if aside and len(parts) > 1:
            indent = " " * (_fixed(widths, bar) + 2)
            out += [Text(indent + part, style=_style(line)) for part in parts[1:]]
        elif not aside and line.note:
            indent = " " * 6
            wrapped = textwrap.wrap(line.note, max(room - len(indent), 20))
            out += [Text(indent + part, style=_style(line)) for part in wrapped]
    return out


def _fixed(widths: dict[int, int], bar: int) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1) + (bar + 4 if bar else 0)


def _cells(line: Line) -> tuple[str, ...]:
    each = line.figures
    if each is None:
        return (line.name, line.resource, "", "", "", "")
    return (
        line.name,
        line.resource,
        short(line.resource, each.used),
        _or_dash(line.resource, each.runtime),
        short(line.resource, each.min),
        _ceiling(line),
    )


def _or_dash(name: str, nanos: int | None) -> str:
    return "-" if nanos is None else short(name, nanos)


def _ceiling(line: Line) -> str:
    assert line.figures is not None, line
    ceiling = line.figures.max
    if ceiling is None:
        return "-"
    return "none" if is_unreached(ceiling) else short(line.resource, ceiling)


def _row(cells: Sequence[str], bar: Text | str, widths: dict[int, int], note: Text) -> Text:
    row = Text()
    for n, width in widths.items():
        row.append(cells[n].ljust(width) if n < 2 else cells[n].rjust(width))
        row.append("  ")
        if bar and n == max(k for k in widths if k < 2):
            row.append("[" if isinstance(bar, Text) else " ")
            row.append(bar)
            row.append("]  " if isinstance(bar, Text) else "   ")
    row.append(note)
    row.rstrip()
    return row


def _style(line: Line) -> str:
    return "red" if line.figures is not None and line.figures.above else "dim"


def _bar(line: Line, width: int, glyphs: Glyphs) -> Text:
    """Used, room up to the runtime, what is beyond it up to `max`, and where the minimum is."""
    each = line.figures
    if each is None or line.scale <= 0:
        return Text(" " * width)

    def cells(nanos: int) -> int:
        # Full only when it is; something is seen of anything.
        return min(max(nanos * width // line.scale, 1 if nanos > 0 else 0), width)

    runtime = each.runtime if each.runtime is not None else each.used
    within, used, may = cells(min(each.used, runtime)), cells(each.used), cells(runtime)
    bar = Text()
    bar.append(glyphs.used * within, style="green" if not each.above else "yellow")
    bar.append(glyphs.above * (used - within), style="red")
    bar.append(glyphs.room * max(may - used, 0), style="green dim")
    bar.append(glyphs.beyond * (width - max(used, may)), style="dim")
    if each.min and not line.is_root and each.min < line.scale:
        at = min(each.min * width // line.scale, width - 1)
        bar = Text.assemble(bar[:at], (glyphs.minimum, "bold"), bar[at + 1 :])
    return bar
