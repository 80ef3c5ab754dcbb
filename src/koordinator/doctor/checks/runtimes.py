"""Do hooks reach containers before they start: has each node's runtime NRI, does koordlet join it, and does it hand the
chosen devices over? Do the kernel mechanisms work on which isolation rests?"""

import re
from collections.abc import Iterator

from koordinator.api import isolation, pod_labels
from koordinator.api.annotations.device import DEVICE_ALLOCATED, DeviceType
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.node_metric import NodeMetric, hook_delivery
from koordinator.doctor.finding import Finding
from koordinator.doctor.installation import ComponentName
from koordinator.doctor.snapshot import ClusterSnapshot

NRI_SINCE = {"containerd": (1, 7), "cri-o": (1, 26)}
"""Runtimes with NRI, by the name that nodes report."""
_WITHOUT_NRI = ("docker",)
_ONLY_NRI = ("RDMADeviceInject",)
"""Gates of hooks whose answers the runtime proxy cannot carry."""
_DEVICE_HOOKS = {
    DeviceType.GPU: ("GPUs", "GPUEnvInject"),
    DeviceType.RDMA: ("RDMA cards", "RDMADeviceInject"),
}
_RUNTIME = re.compile(r"([a-z-]+)://v?(\d+)\.(\d+)")
_PROXY_STEP = "put koord-runtime-proxy between kubelet and runtime (docs/runtime-proxy.md)"


def check(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Nodes whose containers start without their limits, hooks that reach nobody."""
    koordlet = snapshot.installation.get(ComponentName.KOORDLET)
    if koordlet is None:
        return
    yield from _devices_left_to_others(snapshot)
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
    yield from _not_asked(snapshot)


def _not_asked(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield nodes whose agents say that no runtime asks their hooks, where the runtime could."""
    late = [
        node.metadata.name
        for node in snapshot.nodes
        if _has_nri(node.status.node_info.container_runtime_version)
        and _is_asked_by_nobody(snapshot.find(NodeMetric, node.metadata.name))
    ]
    if late:
        yield Finding.notice(
            ("Node", late),
            "the container runtime does not ask koordlet: NRI is off there, or its socket is closed to koordlet",
            why="batch containers run up to a second without their limits, until the reconciler has written them",
            do=(
                "switch NRI on (docs/runtime-hooks.md); koordlet's log says why: hooks are not delivered by NRI",
                "koordinator explain hooks NODE",
            ),
        )


def _has_nri(version: str) -> bool:
    found = _RUNTIME.match(version)
    return found is not None and found[1] in NRI_SINCE and not has_no_nri(version)


def _is_asked_by_nobody(metric: NodeMetric | None) -> bool:
    """Return whether an agent says that it has hooks for runtimes, and that none asks them."""
    every = hook_delivery(metric).values() if metric is not None else ()
    asked = [modes for modes in every if "nri" in modes]
    return bool(asked) and not any(modes["nri"] or modes.get("proxy") for modes in asked)


def _devices_left_to_others(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield pods with devices that no agent hands to their containers."""
    gates = snapshot.installation.agent_gates()
    if gates is None:
        return
    for device_type, (called, gate) in _DEVICE_HOOKS.items():
        if gates.is_on(gate):
            continue
        pods = [each for each in snapshot.of(Pod) if not pod_labels.is_terminated(each)]
        if names := [each.key for each in pods if _has(each, device_type)]:
            yield Finding.notice(
                ("Pod", names),
                f"have {called} that the scheduler chose, and agents do not hand them to containers",
                why="a container gets them only where a device plugin reads scheduling.koordinator.sh/device-allocated",
                do=(
                    f"without such a plugin, add {gate}=true to --feature-gates of koordlet (docs/devices.md)",
                ),
            )


def _has(pod: Pod, device_type: str) -> bool:
    try:
        allocated = DEVICE_ALLOCATED.read(pod.metadata.annotations, f"Pod {pod.key}")
    except ProtocolError:
        return False
    return bool(allocated and allocated.get(device_type))


def has_no_nri(version: str) -> bool:
    """Return whether a runtime, as a node reports it, is known to have no NRI; of others nothing is known."""
    found = _RUNTIME.match(version)
    if found is None:
        return False
    name, major, minor = found[1], int(found[2]), int(found[3])
    return name in _WITHOUT_NRI or (name in NRI_SINCE and (major, minor) < NRI_SINCE[name])


def check_isolation(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Mechanisms that have no effect, by node, as agents with the gate IsolationProbe found."""
    broken: dict[tuple[str, str], list[str]] = {}
    for node in snapshot.nodes:
        try:
            found = isolation.NODE_ISOLATION.read(node.metadata.annotations, f"Node {node.metadata.name}")
        except ProtocolError:
            continue  # only the agent writes it, and does so again
        for name, each in (found.mechanisms if found is not None else {}).items():
            if each.state == isolation.BROKEN:
                broken.setdefault((name, each.why), []).append(node.metadata.name)
    for (name, why), nodes in broken.items():
        yield Finding.error(
            ("Node", nodes),
            f"{name} has no effect: {why}",
            why="strategies that rest on it protect nobody there",
            do=(
                "look for other mounts over the group's files, and for groups above with tighter limits",
                "kubectl describe node shows events IsolationBroken with the strategies (docs/isolation-probe.md)",
            ),
        )
