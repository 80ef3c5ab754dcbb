"""Read what a replay starts from: nodes, pods that are all pending, and whatever plugins look at besides.

Files are tables (`replay_csv`) or dumps (`dump`); both kinds may be mixed.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from koordinator.api import labels, normalization
from koordinator.api.core import Node, Pod, PodStatus
from koordinator.api.device import Device
from koordinator.api.errors import KoordinatorError
from koordinator.api.feature_gates import Component, FeatureGates
from koordinator.api.meta import ObjectMeta
from koordinator.clock import parse_rfc3339
from koordinator.scheduler.plugin.topology_tree import TopologySpecError, TopologyTree
from koordinator.simulate import dump as dumps
from koordinator.simulate import replay_csv
from koordinator.simulate.dump import Dump
from koordinator.simulate.replay_csv import TimedPod
from koordinator.simulate.replay_options import PODS_PER_NODE, Gpu

_ENDED = ("Succeeded", "Failed")


class InputError(KoordinatorError, ValueError):
    """Files that are readable but hold nothing to replay."""


class ReplayInput(msgspec.Struct, frozen=True):
    """`gpu_pods_left_out`, `ended_left_out`: pods of the files that take no part, and why."""

    nodes: list[Node]
    pods: list[TimedPod]
    others: Dump
    gpu_pods_left_out: int = 0
    ended_left_out: int = 0
    devices: list[Device] = []
    """Cards of the nodes of tables."""


def read(
    node_files: Sequence[str], pod_files: Sequence[str], gpu: Gpu, pods_per_node: int = PODS_PER_NODE
) -> ReplayInput:
    """Everything that the files hold. Raises: TableError, DumpError, InputError, OSError."""
    others = dumps.read(dict.fromkeys(name for name in (*node_files, *pod_files) if not _is_table(name)))
    node_dumps = dumps.read(name for name in node_files if not _is_table(name))
    pod_dumps = dumps.read(name for name in pod_files if not _is_table(name))
    nodes = [normalization.normalize_node(node) for node in node_dumps.views(Node)]
    devices: list[Device] = []
    for name in filter(_is_table, node_files):
        listed = replay_csv.read_nodes(Path(name), gpu, pods_per_node)
        devices += filter(None, map(replay_csv.device_of, listed))
        nodes += listed
    _refuse_duplicates("node", [node.metadata.name for node in nodes])
    if not nodes:
        raise InputError(f"there are no nodes in {', '.join(node_files)}{_why_none(gpu)}")
    pods, ended = _pods_of(pod_dumps)
    left_out = 0
    for name in filter(_is_table, pod_files):
        more, without = replay_csv.read_pods(Path(name), gpu)
        pods += more
        left_out += without
    _refuse_duplicates("pod", [each.pod.key for each in pods])
    return ReplayInput(nodes, pods, others, left_out, ended, devices)


def _is_table(name: str) -> bool:
    return replay_csv.is_table(Path(name))


def _why_none(gpu: Gpu) -> str:
    return " (those with GPUs are left out by --gpu cpu-only)" if gpu is Gpu.CPU_ONLY else ""


def _refuse_duplicates(kind: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{kind} {name} comes from two files")
        seen.add(name)


def _own(meta: ObjectMeta) -> dict[str, str]:
    """Return the annotations without what says where the pod was placed."""
    return {key: text for key, text in meta.annotations.items() if key != labels.RESERVATION_ALLOCATED}


def _pods_of(dump: Dump) -> tuple[list[TimedPod], int]:
    """Return pods of a dump as if nobody had placed them yet, and how many have ended already."""
    steps = normalization.PodSteps.of(FeatureGates.of(Component.SCHEDULER))
    pods: list[TimedPod] = []
    ended = 0
    for raw in dump.views(Pod):
        if raw.status.phase in _ENDED:
            ended += 1
            continue
        pod = normalization.normalize_pod(raw, steps)
        meta = pod.metadata
        arrives_s, departs_s = _seconds(meta.creation_timestamp), _seconds(meta.deletion_timestamp)
        fresh = replace(
            pod,
            metadata=replace(meta, uid=meta.uid or pod.key, deletion_timestamp=None, annotations=_own(meta)),
            spec=replace(pod.spec, node_name=""),
            status=PodStatus(phase="Pending"),
        )
        pods.append(TimedPod(fresh, arrives_s, departs_s))
    return pods, ended


def _seconds(text: str | None) -> float | None:
    try:
        return parse_rfc3339(text) if text else None
    except ValueError:
        raise InputError(f"{text!r} is no time as Kubernetes writes it") from None


def network_of(given: ReplayInput) -> TopologyTree | None:
    """Return the network as the files describe it, None when they do not. Raises: InputError."""
    try:
        return dumps.network(given.others, given.nodes)
    except TopologySpecError as error:
        raise InputError(f"ClusterNetworkTopology: {error}") from error
