"""Do hooks reach containers before they start: has each node's runtime NRI, and does koordlet join it?"""

import re
from collections.abc import Iterator

from koordinator.doctor.finding import Finding
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot

NRI_SINCE = {"containerd": (1, 7), "cri-o": (1, 26)}
"""Runtimes with NRI, by the name that nodes report."""
_WITHOUT_NRI = ("docker",)
_ONLY_NRI = ("RDMADeviceInject",)
"""Gates of hooks whose answers the runtime proxy cannot carry."""
_RUNTIME = re.compile(r"([a-z-]+)://v?(\d+)\.(\d+)")
_PROXY_STEP = "put koord-runtime-proxy between kubelet and runtime (docs/runtime-proxy.md)"


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Nodes whose containers start without their limits, hooks that reach nobody."""
    koordlet = snapshot.installation.get(ComponentName.KOORDLET)
    if koordlet is None:
        return
    if koordlet.flags.get("enable-nri-runtime-hook") == "false":
        gates = snapshot.installation.agent_gates()
        unreachable = [name for name in _ONLY_NRI if gates is not None and gates.is_on(name)]
        if unreachable:
            yield Finding.error(
                koordlet.obj,
                f"{', '.join(unreachable)} is on, but the agent is no plugin of the runtime",
                why="containers do not get their devices",
                do=("remove --enable-nri-runtime-hook=false from koordlet",),
            )
        return
    old = [node for node in snapshot.nodes if has_no_nri(node.status.node_info.container_runtime_version)]
    if old:
        versions = sorted({node.status.node_info.container_runtime_version for node in old})
        yield Finding.notice(
            ("Node", [node.metadata.name for node in old]),
            f"the container runtime has no NRI ({', '.join(versions)})",
            why="batch containers run up to a second without their limits, until the reconciler has written them",
            do=("update containerd to 1.7 or CRI-O to 1.26 at least, and switch NRI on", _PROXY_STEP),
        )


def has_no_nri(version: str) -> bool:
    """Return whether a runtime, as a node reports it, is known to have no NRI; of others nothing is known."""
    found = _RUNTIME.match(version)
    if found is None:
        return False
    name, major, minor = found[1], int(found[2]), int(found[3])
    return name in _WITHOUT_NRI or (name in NRI_SINCE and (major, minor) < NRI_SINCE[name])
