"""Pods for which preemption made room: until they are placed, others must leave that room to them.

Source: behaviour/scheduler B7 (filtering with nominated pods) and C3.
"""

from collections.abc import Iterable

from koordinator.api import gang_labels
from koordinator.api.core import Pod
from koordinator.api.errors import ProtocolError
from koordinator.scheduler.table.pod_info import PodInfo


class Nominations:
    """Nominated pods by node, in order of nomination."""

    def __init__(self) -> None:
        self._node_of: dict[str, str] = {}
        self._pods: dict[str, dict[str, PodInfo]] = {}
        self._of_others: set[str] = set()

    def __len__(self) -> int:
        return len(self._node_of)

    @property
    def nodes(self) -> Iterable[str]:
        return self._pods.keys()

    def node_of(self, uid: str) -> str:
        """Return the node of a nominated pod, "" when it has none."""
        return self._node_of.get(uid, "")

    def set(self, pod: PodInfo, node_name: str, *, by_others: bool = False) -> None:
        """Nominate, or with "" take the nomination back. `by_others`: another scheduler did."""
        self.remove(pod.uid)
        if node_name:
            self._node_of[pod.uid] = node_name
            self._pods.setdefault(node_name, {})[pod.uid] = pod
            if by_others:
                self._of_others.add(pod.uid)

    def refresh(self, pod: PodInfo) -> None:
        """A nominated pod changed: from now on it counts as it is."""
        node_name = self._node_of.get(pod.uid)
        if node_name is not None:
            self._pods[node_name][pod.uid] = pod

    def remove(self, uid: str) -> PodInfo | None:
        """The pod is placed or gone: what was nominated, None when it had no nomination."""
        self._of_others.discard(uid)
        node_name = self._node_of.pop(uid, "")
        if not node_name:
            return None
        pods = self._pods[node_name]
        found = pods.pop(uid)
        if not pods:
            del self._pods[node_name]
        return found

    def on(self, node_name: str) -> tuple[PodInfo, ...]:
        return tuple(self._pods.get(node_name, {}).values())

    def that_count(self, node_name: str, pod: PodInfo) -> tuple[PodInfo, ...]:
        """Return pods nominated to the node that `pod` has to respect: at least as important (those of other schedulers
        more so), not itself, and not of the same job, whose members preempt together."""
        there = self.on(node_name)
        job = job_of(pod.pod) if there else ()
        return tuple(
            other
            for other in there
            if other.uid != pod.uid
            and other.priority >= pod.priority + (other.uid in self._of_others)
            and not (job and job == job_of(other.pod))
        )


def job_of(pod: Pod) -> tuple[str, ...]:
    """Return the gangs that are placed together with the pod's, its own among them; empty when it has none."""
    meta = pod.metadata
    name = gang_labels.gang_name(meta.labels, meta.annotations)
    if not name:
        return ()
    own = f"{meta.namespace}/{name}"
    try:
        groups = gang_labels.groups(meta.annotations)
    except ProtocolError:
        groups = []
    return tuple(sorted({*groups, own}))
