"""`koordinator migrate`: carry out a plan of moves by hand."""

from typing import Any

import click

from koordinator.cli import options, running


@click.command(context_settings=options.HELP)
@click.option(
    "--plan",
    "plan_file",
    type=options.EXISTING_FILE,
    required=True,
    help="The plan: what `koordinator simulate descheduling -o yaml` (or json) wrote.",
)
@options.kubeconfig
@options.descheduler_config
@options.scheduler_config()
@click.option(
    "--ttl", default="5m", help="How long one move may take; then its job fails, and nothing more moves."
)
@click.option(
    "--check", "only_check", is_flag=True, help="Say whether the plan still holds, and move nothing."
)
def migrate(**asked: Any) -> None:
    """Move pods as a plan says: one step after the other, each by a PodMigrationJob that reserves room on the planned
    node first. koord-descheduler must be running, since it carries the jobs out.

    Before anything moves, the whole plan is tried on the cluster as it is now; when one move cannot be made any more,
    nothing is done. A job that fails ends it, too.

    \b
    Try:
      koordinator simulate descheduling -o yaml > plan.yaml
      koordinator migrate --plan plan.yaml --check
      koordinator migrate --plan plan.yaml
    """
    running.work_of("koordinator.cli.migrate_run", "migrate", asked)
