"""`koordinator completion SHELL`: the script that lets a shell complete the command."""

import click
from click.shell_completion import get_completion_class

from koordinator.cli import options

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_KOORDINATOR_COMPLETE"
"""Environment variable by which the script asks for completions; click derives it from the command's name."""


@click.command(context_settings=options.HELP)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell for commands, options and their values.

    \b
      source <(koordinator completion bash)        # this session; the line goes into ~/.bashrc for all
      source <(koordinator completion zsh)         # ~/.zshrc
      koordinator completion fish > ~/.config/fish/completions/koordinator.fish
    """
    made = get_completion_class(shell)
    assert made is not None, shell
    click.echo(made(ctx.find_root().command, {}, "koordinator", VARIABLE).source())
