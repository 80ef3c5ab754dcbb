"""`koordlet`: the node agent against a real API server and a real kubelet, with the reference's flags."""

import os
from typing import Any

import click

from koordinator import __version__
from koordinator.cli import flag_kinds, koordlet_flags, logs, running
from koordinator.cli.flag_kinds import GoFlagCommand


@click.command(cls=GoFlagCommand, context_settings=flag_kinds.SETTINGS)
@koordlet_flags.options
@click.version_option(__version__, prog_name="koordlet")
def main(**values: Any) -> None:
    """Watch this node, protect its services, report to the cluster: the Koordinator node agent.

    The environment variable NODE_NAME names the node; agent_mode=hostMode means that the agent runs on the host and not
    in a container with the host mounted. Flags may have one dash or two.
    """
    with running.one_line_errors():
        settings = koordlet_flags.of(values, os.environ)
        from koordinator.cli import koordlet_process  # seconds of imports, which --help does not need

        logs.set_up_by_flags(values, koordlet_flags.INERT.given(values))
        koordlet_process.start(settings)


if __name__ == "__main__":
    main()
