"""Pods for which preemption made room: until they are placed, others must leave that room to them."""

from collections.abc import Iterable

from koordinator.scheduler.pod_info import PodInfo


class Nominations:
    """Nominated pods by node, in order of nomination."""

    def __init__(self) -> None:
        self._node_of: dict[str, str] = {}
        self._pods: dict[str, dict[str, PodInfo]] = {}

    def __len__(self) -> int:
        return len(self._node_of)

    @property
    def nodes(self) -> Iterable[str]:
        return self._pods.keys()

    def node_of(self, uid: str) -> str:
        """The node of a nominated pod, "" when it has none."""
        return self._node_of.get(uid, "")

    def set(self, pod: PodInfo, node_name: str) -> None:
        """Nominate, or with "" take the nomination back."""
        self.remove(pod.uid)
        if node_name:
            self._node_of[pod.uid] = node_name
            self._pods.setdefault(node_name, {})[pod.uid] = pod

    def refresh(self, pod: PodInfo) -> None:
        """A nominated pod changed: from now on it counts as it is."""
        node_name = self._node_of.get(pod.uid)
        if node_name is not None:
            self._pods[node_name][pod.uid] = pod

    def remove(self, uid: str) -> PodInfo | None:
        """The pod is placed or gone: what was nominated, None when it had no nomination."""
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
        """Pods nominated to the node that `pod` has to respect: at least as important, and not itself."""
        return tuple(
            other for other in self.on(node_name) if other.priority >= pod.priority and other.uid != pod.uid
        )
