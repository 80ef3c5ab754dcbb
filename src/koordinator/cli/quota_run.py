"""Carry out `koordinator quota` once its command line is read: trees of quotas as lines of a fixed width, with names,
bars, amounts, and who borrows from whom."""

import asyncio
import contextlib
import random
import sys
import textwrap
from collections.abc import Iterable, Sequence

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from koordinator.api import readable
from koordinator.api.core import Node
from koordinator.api.quantity import Quantity
from koordinator.api.sigs import ElasticQuota
from koordinator.cli.tables import print_document
from koordinator.clock import SystemClock, rfc3339
from koordinator.cluster import connect, errors
from koordinator.cluster.informer import Informer
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.explain.quota_forest import (
    Forest,
    QuotaNode,
    QuotaResource,
    TreeView,
    forest,
    is_unreached,
    to_json,
)
from koordinator.scheduler.serve.explain_service import names_alike
from koordinator.simulate import dump as dumps

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
    """The options of a drawing: `width` in characters (None: as wide as it gets), names of resources (none: all that
    count), how deep."""

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
    loans = [f"{short(name, amount)} from {lender}" for lender, amount in lenders[:LENDERS_MAX]]
    if len(lenders) > LENDERS_MAX:
        loans.append(f"{len(lenders) - LENDERS_MAX} more")
    return f" ({', '.join(loans)})"


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
        "-" if each.runtime is None else short(line.resource, each.runtime),
        short(line.resource, each.min),
        _ceiling(line),
    )


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


NODES_PERIOD_S = 30.0
"""Interval at which `--watch` asks again what the nodes have."""
REDRAW_S = 0.5
"""Changes that come within this time are drawn together."""


class ShownTrees:
    """The part of the trees that is asked for."""

    def __init__(self, root: str, tree_id: str | None, options: TreeDrawing) -> None:
        self.root, self.tree_id, self.options = root, tree_id, options

    def of(self, found: Forest) -> list[TreeView]:
        """Return the trees, or the part below a quota. Raises: ClickException when there is no such thing."""
        trees = found.trees
        if self.tree_id is not None:
            trees = [tree for tree in trees if tree.tree_id == self.tree_id]
            if not trees:
                known = ", ".join(repr(tree.tree_id) for tree in found.trees)
                raise click.ClickException(f"there is no tree {self.tree_id!r}; there are {known}")
        if not self.root:
            return trees
        for tree in trees:
            node = next((n for top in tree.tops for n in top.walk() if n.name == self.root), None)
            if node is not None:
                return [TreeView(tree_id=tree.tree_id, total=tree.total, source=tree.source, tops=[node])]
        stray = next((each for each in found.strays if each.name == self.root), None)
        if stray is not None:
            raise click.ClickException(f"quota {self.root} is in no tree: {stray.reason}")
        alike = names_alike(
            self.root, (node.name for tree in trees for top in tree.tops for node in top.walk())
        )
        hint = f"; there are {', '.join(alike)}" if alike else ""
        raise click.ClickException(f"no quota is called {self.root}{hint}")


def tree(
    root: str,
    tree_id: str | None,
    names: tuple[str, ...],
    depth: int | None,
    dump_files: tuple[str, ...],
    watch: bool,
    kubeconfig: str,
    context: str,
    output: str,
) -> None:
    """Carry out `koordinator quota tree`; the parameters are its options. Raises: UsageError when they contradict each
    other."""
    if watch and dump_files:
        raise click.UsageError("--watch follows a cluster: it goes without --dump")
    if watch and output != "table":
        raise click.UsageError(f"--watch draws tables: it goes without -o {output}")
    shown = ShownTrees(root, tree_id, TreeDrawing(resources=names, depth=depth, glyphs=_glyphs()))
    if dump_files:
        dump = dumps.read(dump_files)
        _write(forest(dump.views(ElasticQuota), dump.views(Node)), shown, output)
    elif watch:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_watch(shown, kubeconfig, context))
    else:
        _write(asyncio.run(_once(kubeconfig, context)), shown, output)


def _glyphs() -> Glyphs:
    """Lines and blocks where they can be shown."""
    try:
        "│█".encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return Glyphs()


def _write(found: Forest, shown: ShownTrees, output: str) -> None:
    if output != "table":
        trees = shown.of(found)
        strays = found.strays if len(trees) == len(found.trees) else []
        print_document(to_json(Forest(trees=trees, strays=strays)), output, ascii_only=False)
        return
    console = Console(highlight=False)
    for line in _drawn(found, shown, console.width if sys.stdout.isatty() else None):
        if sys.stdout.isatty():
            console.print(line, no_wrap=True, overflow="crop", crop=True)
        else:
            click.echo(line.plain)


def _drawn(found: Forest, shown: ShownTrees, width: int | None) -> list[Text]:
    return tree_lines(found, shown.of(found), msgspec.structs.replace(shown.options, width=width))


async def _once(kubeconfig: str, context: str) -> Forest:
    client = connect.load(kubeconfig_file=kubeconfig, context=context)
    async with KubeCluster(client, rng=random.Random(0), component="koordinator-quota") as cluster:
        quotas = await cluster.list(ElasticQuota)
        return forest(quotas.items, await _nodes(cluster))


async def _nodes(cluster: Cluster) -> Sequence[Node]:
    """None where they may not be read: then it is not known what the default tree has."""
    try:
        return (await cluster.list(Node)).items
    except errors.Forbidden:
        return ()


async def _watch(shown: ShownTrees, kubeconfig: str, context: str) -> None:
    """Draw after each change, on a terminal in place, else one table below the other."""
    client = connect.load(kubeconfig_file=kubeconfig, context=context)
    changed = asyncio.Event()
    async with KubeCluster(client, rng=random.Random(0), component="koordinator-quota") as cluster:
        await cluster.list(ElasticQuota)  # says at once what is wrong with the connection
        quotas = Informer(cluster, ElasticQuota, rng=random.Random(0))
        quotas.add_handler(
            on_add=lambda _: changed.set(),
            on_update=lambda _old, _new: changed.set(),
            on_delete=lambda _: changed.set(),
        )
        following = asyncio.create_task(quotas.run(), name="quotas")
        try:
            await quotas.synced.wait()
            await _draw_for_ever(cluster, quotas, changed, shown)
        finally:
            following.cancel()


async def _draw_for_ever(
    cluster: Cluster, quotas: Informer[ElasticQuota], changed: asyncio.Event, shown: ShownTrees
) -> None:
    loop, console = asyncio.get_running_loop(), Console(highlight=False)
    nodes, asked_s, last = await _nodes(cluster), loop.time(), ""
    is_terminal = sys.stdout.isatty()
    live = Live(console=console, screen=True, auto_refresh=False) if is_terminal else contextlib.nullcontext()
    with live as screen:
        while True:
            changed.clear()
            if loop.time() - asked_s >= NODES_PERIOD_S:
                asked_s = loop.time()
                with contextlib.suppress(errors.ApiError):  # what they had before will do
                    nodes = await _nodes(cluster)
            lines = _drawn(forest(quotas.list(), nodes), shown, console.width if is_terminal else None)
            text = Text("\n").join(lines)
            if screen is not None:
                screen.update(text, refresh=True)
            elif text.plain != last:
                click.echo(f"{rfc3339(SystemClock().now())}\n{text.plain}\n")
            last = text.plain
            await asyncio.sleep(REDRAW_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NODES_PERIOD_S):
                    await changed.wait()
