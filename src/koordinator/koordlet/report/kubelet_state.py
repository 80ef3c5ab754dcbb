"""Read what the kubelet's CPU manager does: pods that it pinned, and its topology policy.

Source: behaviour/koordlet-observe 9.
"""

from collections.abc import Iterable, Mapping

import msgspec

from koordinator.api import cpuset, qos
from koordinator.api.annotations.node import PodCPUAlloc
from koordinator.api.annotations.placement import RESOURCE_STATUS
from koordinator.api.core import Pod
from koordinator.api.cpuset import CPUSet, CPUSetError
from koordinator.api.errors import ProtocolError
from koordinator.api.qos import QoSClass
from koordinator.koordlet.errors import NodeConfigError

STATE_FILE = "cpu_manager_state"
NO_POLICY = "None"
_POLICIES = {
    "single-numa-node": "SingleNUMANode",
    "restricted": "Restricted",
    "best-effort": "BestEffort",
}
_SCOPES = {"container": "ContainerLevel", "pod": "PodLevel"}
_NEVER_PINNED = (QoSClass.LS, QoSClass.BE)


class _State(msgspec.Struct, rename="camel"):
    """The file; its checksum is not verified, as older and newer kubelets disagree about it."""

    entries: dict[str, dict[str, str]] | None = None


class KubeletAllocations(msgspec.Struct, frozen=True):
    """Pods that the kubelet pinned, by UID, and all their CPUs."""

    pods: tuple[PodCPUAlloc, ...]
    cpus: CPUSet


def allocations(state: str | None, pods: Iterable[Pod]) -> KubeletAllocations:
    """Return what the text of the state file says; None when there is no file.

    Pods of classes that are never pinned, and those whose CPUs our scheduler chose, are left out.
    Raises: NodeConfigError when it is not the file of a kubelet that we know.
    """
    if not state or not state.strip():
        return KubeletAllocations((), frozenset())
    try:
        entries = msgspec.json.decode(state, type=_State).entries or {}
    except msgspec.MsgspecError as error:
        raise NodeConfigError(STATE_FILE, str(error)) from error
    known = {pod.metadata.uid: pod for pod in pods}
    found = []
    everything: CPUSet = frozenset()
    for uid in sorted(entries):
        cpus = _union(entries[uid])
        pod = known.get(uid)
        if cpus and not (pod is not None and _is_ours(pod)):
            everything |= cpus
            found.append(
                PodCPUAlloc(
                    namespace=pod.metadata.namespace if pod is not None else "",
                    name=pod.metadata.name if pod is not None else "",
                    uid=uid,
                    cpuset=cpuset.text_of(cpus),
                    managed_by_kubelet=True,
                )
            )
    return KubeletAllocations(tuple(found), everything)


def topology_policy(policy: str, scope: str) -> str:
    """Return the element of `topologyPolicies` for the kubelet's topology manager."""
    if policy in _POLICIES and scope in _SCOPES:
        return _POLICIES[policy] + _SCOPES[scope]
    return NO_POLICY


def bound_cpus(annotations: Mapping[str, str]) -> CPUSet:
    """Return the CPUs that our scheduler gave a pod; none when absent or malformed."""
    try:
        status = RESOURCE_STATUS.read(annotations)
        return cpuset.parse(status.cpuset) if status is not None else frozenset()
    except (ProtocolError, CPUSetError):
        return frozenset()


def _is_ours(pod: Pod) -> bool:
    return qos.raw(pod) in _NEVER_PINNED or bool(bound_cpus(pod.metadata.annotations))


def _union(texts: Mapping[str, str]) -> CPUSet:
    """Return CPUs of all containers; a list that is malformed is left out."""
    cpus: CPUSet = frozenset()
    for text in texts.values():
        try:
            cpus |= cpuset.parse(text)
        except CPUSetError:
            continue
    return cpus
