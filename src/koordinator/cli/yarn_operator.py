"""`koord-yarn-operator`: lend batch capacity to Hadoop YARN, with the reference's flags."""

from typing import Any

import click

from koordinator import __version__
from koordinator.cli import flag_kinds, logs, running, yarn_operator_flags


@click.command(context_settings=flag_kinds.SETTINGS)
@yarn_operator_flags.options
@click.version_option(__version__, prog_name="koord-yarn-operator")
def main(**values: Any) -> None:
    """Share the batch capacity of nodes between Kubernetes pods and Hadoop YARN: each NodeManager's total follows what
    pods leave, and what YARN uses is taken off what pods may have.

    $HADOOP_CONF_DIR names a folder with yarn-site.xml (CLUSTER.yarn-site.xml for more clusters).
    """
    with running.one_line_errors():
        flags = yarn_operator_flags.of(values)
        from koordinator.cli import yarn_operator_process  # what it imports, --help does not need

        logs.set_up_by_flags(values, yarn_operator_flags.INERT.given(values))
        yarn_operator_process.start(flags)


if __name__ == "__main__":
    main()
