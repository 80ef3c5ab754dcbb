"""Whose a group is: so that what was done to a pod is told under the pod's name."""

from collections.abc import Mapping

import msgspec

from koordinator.koordlet.node_pods import PodRecord
from koordinator.koordlet.view import NodeView


class Subject(msgspec.Struct, frozen=True):
    """A pod, or one of its containers."""

    namespace: str
    name: str
    container: str = ""


class Subjects:
    """Groups of the pods that the kubelet listed last, by name."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._listed: Mapping[str, PodRecord] | None = None
        self._by_group: dict[str, Subject] = {}

    def of(self, group: str) -> Subject | None:
        """The pod or container whose group this is, or lies in; None when it is that of a class, or of nobody known."""
        if self._listed is not self._view.pods:
            self._listed = self._view.pods
            self._by_group = dict(pair for record in self._listed.values() for pair in _groups(record))
        while group:
            found = self._by_group.get(group)
            if found is not None:
                return found
            group = group.rpartition("/")[0]
        return None


def _groups(record: PodRecord) -> list[tuple[str, Subject]]:
    meta = record.pod.metadata
    of_containers = [
        (each.group, Subject(meta.namespace, meta.name, each.name)) for each in record.containers
    ]
    return [(record.group, Subject(meta.namespace, meta.name)), *of_containers]
