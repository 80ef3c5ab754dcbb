"""`koord-yarn-copilot`: the node agent of YARN, with the flags of yarn-copilot-agent."""

from typing import Any

import click

from koordinator import __version__
from koordinator.api import copilot
from koordinator.cli import flag_kinds, flag_settings, options, running
from koordinator.cli.flag_kinds import GoFlagCommand
from koordinator.host.files import HostRoots

_HOST = HostRoots.below("")
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"


@click.command(cls=GoFlagCommand, context_settings=flag_kinds.SETTINGS)
@flag_kinds.text("server-endpoint", copilot.SOCKET, "The unix socket to serve on.")
@flag_kinds.text(
    "yarn-container-cgroup-path",
    "",
    "YARN's group, relative to the root of a controller.  [default: hadoop-yarn below the kubelet's group of "
    "best-effort pods]",
)
@flag_kinds.text("cgroup-root-dir", _HOST.cgroup, "Mount point of the host's cgroup file systems.")
@flag_kinds.text("proc-root-dir", _HOST.proc, "Mount point of the host's proc (not in the reference).")
@flag_kinds.text(
    "node-manager-endpoint",
    "",
    "HOST:PORT of the NodeManager's web service.  [default: that of the pod with label "
    "app.kubernetes.io/component=node-manager, as the kubelet tells; else localhost:8042]",
)
@flag_kinds.switch(
    "sync-memory-cgroup", False, "Make memory groups of containers, for Hadoop 2 on cgroup v1."
)
@flag_kinds.time("sync-cgroup-period", "10s", "Pause between two rounds of --sync-memory-cgroup.")
@flag_kinds.text(
    "metrics-addr",
    "",
    "HOST:PORT at which to serve /metrics and /healthz; none without (not in the reference).",
)
@flag_kinds.text("kubelet-address", "127.0.0.1", "Address of the kubelet (not in the reference).")
@flag_kinds.count(
    "kubelet-port", 10250, "Port of the kubelet; 10255: plain HTTP (not in the reference).", flag_kinds.PORT
)
@flag_kinds.text("kubelet-token-file", _TOKEN, "Token for the kubelet (not in the reference).")
@options.together(*flag_settings.LOGGING)
@click.version_option(__version__, prog_name="koord-yarn-copilot")
def main(**values: Any) -> None:
    """Show koordlet the YARN containers of this node, and end those that must go.

    Needs root, the host's cgroups and its PID namespace. Flags may have one dash or two.
    """
    with running.one_line_errors():
        running.work_of("koordinator.cli.yarn_copilot_process", "start", {"asked": values})


if __name__ == "__main__":
    main()
