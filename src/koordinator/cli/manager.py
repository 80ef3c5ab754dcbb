"""`koord-manager`: the manager against a real API server, with the reference's flags."""

from typing import Any

import click

from koordinator import __version__
from koordinator.cli import flag_kinds, logs, manager_flags, running


@click.command(context_settings=flag_kinds.SETTINGS)
@manager_flags.options
@click.version_option(__version__, prog_name="koord-manager")
def main(**values: Any) -> None:
    """Compute what each node lends to batch pods and how its agent protects services, and serve the admission
    webhooks for pods, quotas and configuration: the Koordinator manager.

    Run two: one leads and runs the controllers, both answer webhooks. Settings for the whole cluster are in the
    ConfigMap slo-controller-config, not in flags.
    """
    with running.one_line_errors():
        settings = manager_flags.of(values)
        from koordinator.cli import manager_process  # seconds of imports, which --help does not need

        logs.set_up_by_flags(values, manager_flags.INERT.given(values))
        manager_process.start(settings)


if __name__ == "__main__":
    main()
