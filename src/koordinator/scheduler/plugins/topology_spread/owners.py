"""Which pods belong together: those of the services and the controller that select a pod."""

from collections.abc import Iterable
from typing import Any

import msgspec

from koordinator.api.affinity import LabelSelector
from koordinator.api.apps import ReplicaSet, ReplicationController, StatefulSet
from koordinator.api.core import Pod, Service
from koordinator.api.meta import Object
from koordinator.scheduler.framework import Watch

_OWNERS: tuple[type[Object], ...] = (ReplicaSet, StatefulSet, ReplicationController)


class Owners:
    """Selectors of services and of the controllers that own pods."""

    def __init__(self) -> None:
        # Services by namespace and by the first of their labels, so that a pod need not ask all of them.
        self._services: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
        self._owners: dict[tuple[str, str, str], LabelSelector] = {}

    def watches(self) -> Iterable[Watch[Any]]:
        yield Watch(Service, on_add=self._add, on_update=self._update, on_delete=self._remove)
        for view in _OWNERS:
            yield Watch(view, on_add=self.set, on_update=lambda _, new: self.set(new), on_delete=self.remove)

    def set(self, owner: Any) -> None:
        meta, selector = owner.metadata, owner.spec.selector
        if isinstance(selector, dict):
            selector = LabelSelector(match_labels=selector)
        if selector is not None:
            self._owners[(owner.resource.kind, meta.namespace, meta.name)] = selector

    def remove(self, owner: Any) -> None:
        meta = owner.metadata
        self._owners.pop((owner.resource.kind, meta.namespace, meta.name), None)

    def _add(self, service: Service) -> None:
        if service.spec.selector:
            self._services.setdefault(_anchor(service), {})[service.metadata.name] = service.spec.selector

    def _update(self, old: Service, new: Service) -> None:
        self._remove(old)
        self._add(new)

    def _remove(self, service: Service) -> None:
        if service.spec.selector:
            anchored = self._services[_anchor(service)]
            anchored.pop(service.metadata.name, None)
            if not anchored:
                del self._services[_anchor(service)]

    def selector_of(self, pod: Pod) -> LabelSelector | None:
        """What pods like this one have in common; None when nobody selects it.

        The conditions of all services that select the pod and of its controller, together.
        """
        owner = next((ref for ref in pod.metadata.owner_references if ref.controller), None)
        owned = None
        if owner is not None and self._owners:
            owned = self._owners.get((owner.kind, pod.metadata.namespace, owner.name))
        if owned is None and not self._services:
            return None
        labels = self._service_labels(pod)
        if owned is not None:
            labels = {**labels, **owned.match_labels}
        expressions = owned.match_expressions if owned is not None else []
        return (
            LabelSelector(match_labels=labels, match_expressions=expressions)
            if labels or expressions
            else None
        )

    def _service_labels(self, pod: Pod) -> dict[str, str]:
        found: dict[str, str] = {}
        labels = pod.metadata.labels
        for key, value in labels.items() if self._services else ():
            for selector in self._services.get((pod.metadata.namespace, key, value), {}).values():
                if labels.items() >= selector.items():
                    found.update(selector)
        return found


def _anchor(service: Service) -> tuple[str, str, str]:
    return (service.metadata.namespace, *min(service.spec.selector.items()))


def selector_key(selector: LabelSelector | None) -> bytes:
    """Equal for selectors that say the same in the same order."""
    if selector is None:
        return b""
    ordered = msgspec.structs.replace(selector, match_labels=dict(sorted(selector.match_labels.items())))
    return msgspec.json.encode(ordered)
