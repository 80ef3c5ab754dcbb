"""`koord-scheduler`: the scheduler against a real API server, with kube-scheduler's flags."""

from typing import Any

import click

from koordinator import __version__
from koordinator.cli import flag_kinds, logs, running, scheduler_flags
from koordinator.cluster import garbage


@click.command(context_settings=flag_kinds.SETTINGS)
@scheduler_flags.options
@click.version_option(__version__, prog_name="koord-scheduler")
def main(**values: Any) -> None:
    """Place pods on nodes: the Koordinator scheduler.

    Without --config it runs the default profile of an installation, for pods with
    `schedulerName: koord-scheduler`.
    """
    with running.one_line_errors(), garbage.collected_rarely():
        running.import_meanwhile("aiohttp")
        from koordinator.cli import scheduler_process  # seconds of imports, which --help does not need

        logs.set_up_by_flags(values, scheduler_flags.INERT.given(values))
        scheduler_process.start(scheduler_flags.of(values))


if __name__ == "__main__":
    main()
