"""`koordinator doctor`: what is wrong with an installation, why that matters, and what to do."""

from typing import Any

import click
from click.shell_completion import CompletionItem

from koordinator.cli import options, running


class CheckName(click.ParamType):  # type: ignore[type-arg] # generic in newer releases only
    """The name of a check; the checks are imported only where one is named."""

    name = "check"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._choice().convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return self._choice().shell_complete(ctx, param, incomplete)

    @staticmethod
    def _choice() -> "click.Choice[str]":
        from koordinator.doctor.checks.all import CHECKS

        return click.Choice([check.name for check in CHECKS])


@click.command(context_settings=options.HELP)
@click.option("-n", "--namespace", default="koordinator-system", help="Namespace of the installation.")
@click.option(
    "--check",
    "checks",
    multiple=True,
    metavar="NAME",
    type=CheckName(),
    help="Run only this check; may be given several times. --list-checks names them.",
)
@click.option("--list-checks", is_flag=True, help="List all checks and exit.")
@options.dump("`kubectl get … -o json` or `kubectl cluster-info dump`")
@click.option(
    "--no-trial",
    is_flag=True,
    help="Do not call the webhooks with two dry-run pods.",
)
@options.on_a_cluster
@options.output("text", "json", "yaml")
def main(**asked: Any) -> None:
    """Find what is wrong with this installation, why it matters, and what to do.

    \b
    Try:
      koordinator doctor
      koordinator doctor --check config --check profiles
      kubectl get nodes,pods,configmaps -A -o json | koordinator doctor --dump -

    Ends with 0 when all is well (notices do not count), 1 with warnings, 2 with errors, 3 when the cluster
    does not answer. It changes nothing.
    """
    running.work_of("koordinator.cli.doctor_run", "main", asked)
