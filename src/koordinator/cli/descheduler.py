"""`koord-descheduler`: the descheduler against a real API server, with the flags that the reference's has."""

from typing import Any

import click

from koordinator import __version__
from koordinator.cli import descheduler_flags, flag_kinds, logs, running


@click.command(context_settings=flag_kinds.SETTINGS)
@descheduler_flags.options
@click.version_option(__version__, prog_name="koord-descheduler")
def main(**values: Any) -> None:
    """Move pods off nodes that are too hot, too full or no longer right for them: the Koordinator descheduler.

    Without --config it evicts nothing by itself and carries out the PodMigrationJobs that users create.
    """
    with running.one_line_errors():
        flags = descheduler_flags.of(values)
        from koordinator.cli import descheduler_process  # seconds of imports, which --help does not need

        logs.set_up_by_flags(values, descheduler_flags.INERT.given(values))
        descheduler_process.start(flags)


if __name__ == "__main__":
    main()
