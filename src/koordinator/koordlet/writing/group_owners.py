"""Look up whose a group is, so that what was done to a pod is audited under the pod's name."""

from collections.abc import Callable, Mapping

import msgspec

from koordinator.koordlet.node_pods import PodRecord


class GroupOwner(msgspec.Struct, frozen=True):
    """A pod, or one of its containers."""

    namespace: str
    name: str
    container: str = ""


class GroupOwners:
    """Looks groups up among those of the pods that the kubelet listed last; `pods` returns these by UID."""

    def __init__(self, pods: Callable[[], Mapping[str, PodRecord]]) -> None:
        self._pods = pods
        self._listed: Mapping[str, PodRecord] | None = None
        self._by_group: dict[str, GroupOwner] = {}

    def of(self, group: str) -> GroupOwner | None:
        """Return the pod or container whose group this is, or lies in; None for that of a class, or of nobody known."""
        pods = self._pods()
        if self._listed is not pods:
            self._listed = pods
            self._by_group = dict(pair for record in pods.values() for pair in _groups(record))
        while group:
            found = self._by_group.get(group)
            if found is not None:
                return found
            group = group.rpartition("/")[0]
        return None


def _groups(record: PodRecord) -> list[tuple[str, GroupOwner]]:
    meta = record.pod.metadata
    of_containers = [
        (each.group, GroupOwner(meta.namespace, meta.name, each.name)) for each in record.containers
    ]
    return [(record.group, GroupOwner(meta.namespace, meta.name)), *of_containers]
