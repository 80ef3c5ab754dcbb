"""Find the cluster that a command line means."""

import os
from pathlib import Path

from koordinator.clock import Clock, SystemClock
from koordinator.cluster import config, kubeconfig
from koordinator.cluster.config import ClientConfig


def load(
    *,
    server: str = "",
    kubeconfig_file: str = "",
    context: str = "",
    clock: Clock | None = None,
) -> ClientConfig:
    """Return the first that is there: `server` (a URL), `kubeconfig_file`, the files of `$KUBECONFIG`,
    `~/.kube/config`, the pod that we run in.

    Raises: ClusterConfigError, which says what was looked for.
    """
    clock = clock or SystemClock()
    if server:
        return config.from_url(server)
    if kubeconfig_file:
        return kubeconfig.load([Path(kubeconfig_file)], context=context, clock=clock)
    named = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    candidates = named or [Path.home() / ".kube" / "config"]
    present = [path for path in candidates if path.is_file()]
    if present:
        return kubeconfig.load(present, context=context, clock=clock)
    if not named and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return config.in_cluster()
    looked_for = ", ".join(str(path) for path in candidates)
    raise config.ClusterConfigError(
        "kubeconfig",
        "",
        f"no cluster is configured: {looked_for} not found; name its kubeconfig with --kubeconfig FILE, "
        "or start a cluster on this machine: koordinator up",
    )
