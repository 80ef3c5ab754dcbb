"""Carry out `koordinator quota` once its command line is read."""

import asyncio
import contextlib
import random
import sys
from collections.abc import Sequence

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from koordinator.api.core import Node
from koordinator.api.sigs import ElasticQuota
from koordinator.cli import logs
from koordinator.cli.quota_text import PLAIN, Glyphs, TreeDrawing, tree_lines
from koordinator.cli.tables import print_document
from koordinator.clock import SystemClock, rfc3339
from koordinator.cluster import connect, errors
from koordinator.cluster.informer import Informer
from koordinator.cluster.kube import KubeCluster
from koordinator.cluster.protocol import Cluster
from koordinator.scheduler.explain.quota_forest import Forest, TreeView, forest, to_json
from koordinator.scheduler.serve.explain_service import names_alike
from koordinator.simulate import dump as dumps

NODES_PERIOD_S = 30.0
"""How often `--watch` asks again what the nodes have."""
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
    """Carry out `koordinator quota tree`; the parameters are its options. Raises: UsageError when they contradict
    each other.
    """
    logs.keep_quiet()
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
