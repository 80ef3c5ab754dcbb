"""The `koordinator` command: one group whose subcommands are imported only when they are asked for."""

import difflib
import importlib
from typing import Any

import click

from koordinator import __version__
from koordinator.cli import options, running

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the number of SIGINT."""

COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("koordinator.cli.up", "up", "Run a whole cluster in this process; kubectl works on it."),
    "demo": (
        "koordinator.cli.demo",
        "demo",
        "Run a day of a cluster without and with co-location, side by side.",
    ),
    "demo-node": (
        "koordinator.cli.demo_node",
        "demo_node",
        "Show what the node agent does for a service on this machine, with real processes (root).",
    ),
    "explain": (
        "koordinator.cli.explain",
        "main",
        "Explain why a pod is pending or where it is, and what would change that.",
    ),
    "doctor": (
        "koordinator.cli.doctor",
        "main",
        "Find what is wrong with an installation, why it matters, and what to do.",
    ),
    "quota": (
        "koordinator.cli.quota",
        "main",
        "Show the tree of quotas: used, runtime, min, max, and who borrows from whom.",
    ),
    "simulate": (
        "koordinator.cli.simulate",
        "main",
        "Show what co-location would bring, where pods would go, which should move off hot nodes.",
    ),
    "dump": ("koordinator.cli.dump", "dump", "Write a cluster into a file, to ask questions without it."),
    "migrate": ("koordinator.cli.migrate", "migrate", "Carry out a plan of moves off hot nodes."),
    "virtual-node": (
        "koordinator.cli.virtual_node",
        "main",
        "Offer the idle nodes of one cluster to another one.",
    ),
    "install": ("koordinator.cli.install", "install", "Install or upgrade Koordinator on a cluster."),
    "uninstall": ("koordinator.cli.install", "uninstall", "Take Koordinator off a cluster."),
    "crds": ("koordinator.cli.crds", "crds", "Print the CustomResourceDefinitions."),
    "completion": (
        "koordinator.cli.completion",
        "completion",
        "Print the script by which a shell completes this command.",
    ),
}
"""By name: module, the command in it, one line of help."""


class LazyGroup(click.Group):
    """Keeps `koordinator --help` fast: a subcommand's imports happen when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does it; suggest the closest name for an unknown one."""
        alike = difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
        if args[0] not in COMMANDS and alike and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {alike[0]}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand; print an error as one line that says what to do next.

        Ctrl-C exits with 130, as shells expect.
        """
        try:
            with running.one_line_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, _, help_text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings=options.HELP)
@click.version_option(__version__, prog_name="koordinator")
def main() -> None:
    """Koordinator packs services and batch work onto the same Kubernetes nodes and keeps the services fast.

    \b
    Try it:
      koordinator demo              the gain of co-location, in a minute
      koordinator up --nodes 20     a cluster to play with (kubectl works)
    """


if __name__ == "__main__":
    main()
