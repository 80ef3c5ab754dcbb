"""Find the pods that belong together: those of the services and the controller that select a pod."""

from collections.abc import Iterable
from typing import Any

from koordinator.api.affinity import LabelSelector
from koordinator.api.apps import ReplicaSet, ReplicationController, StatefulSet
from koordinator.api.core import Pod, Service
from koordinator.api.meta import Object
from koordinator.scheduler.plugin.framework import Watch

_OWNERS: tuple[type[Object], ...] = (ReplicaSet, StatefulSet, ReplicationController)
_GROUP_OF_KIND = {view.resource.kind: view.resource.group for view in _OWNERS}


class OwnerSelectors:
    """Selectors of services and of the controllers that own pods."""

    def __init__(self) -> None:
        # Services by namespace and by the first of their labels, so that a pod need not ask all of them.
        self._services: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
        self._owners: dict[tuple[str, str, str], LabelSelector] = {}
        self._versions: dict[str, int] = {}

    def watches(self) -> Iterable[Watch[Any]]:
        yield Watch(Service, on_add=self._add, on_update=self._update, on_delete=self._remove)
        for view in _OWNERS:
            yield Watch(view, on_add=self.set, on_update=lambda _, new: self.set(new), on_delete=self.remove)

    def version(self, namespace: str) -> int:
        """Changes with any selector of the namespace."""
        return self._versions.get(namespace, 0)

    def _changed(self, namespace: str) -> None:
        self._versions[namespace] = self._versions.get(namespace, 0) + 1

    def set(self, owner: Any) -> None:
        meta, selector = owner.metadata, owner.spec.selector
        if isinstance(selector, dict):
            selector = LabelSelector(match_labels=selector)
        if selector is None:
            self.remove(owner)
            return
        key = (owner.resource.kind, meta.namespace, meta.name)
        if self._owners.get(key) != selector:
            self._owners[key] = selector
            self._changed(meta.namespace)

    def remove(self, owner: Any) -> None:
        meta = owner.metadata
        if self._owners.pop((owner.resource.kind, meta.namespace, meta.name), None) is not None:
            self._changed(meta.namespace)

    def _add(self, service: Service) -> None:
        if service.spec.selector:
            self._services.setdefault(_anchor(service), {})[service.metadata.name] = service.spec.selector
            self._changed(service.metadata.namespace)

    def _update(self, old: Service, new: Service) -> None:
        if old.spec.selector != new.spec.selector:
            self._remove(old)
            self._add(new)

    def _remove(self, service: Service) -> None:
        anchored = self._services.get(_anchor(service)) if service.spec.selector else None
        if anchored is not None and anchored.pop(service.metadata.name, None) is not None:
            self._changed(service.metadata.namespace)
            if not anchored:
                del self._services[_anchor(service)]

    def selectors_of(self, pod: Pod) -> tuple[LabelSelector, ...]:
        """Return what pods like this one have in common; () when nobody selects it.

        The conditions of all services that select the pod and of its controller, to be met together.
        """
        owned = self._owner_selector(pod) if self._owners else None
        labels = self._service_labels(pod) if self._services else {}
        found = [LabelSelector(match_labels=labels)] if labels else []
        if owned is not None and (owned.match_labels or owned.match_expressions):
            found.append(owned)
        return tuple(found)

    def _owner_selector(self, pod: Pod) -> LabelSelector | None:
        owner = next((ref for ref in pod.metadata.owner_references if ref.controller), None)
        if owner is None or _GROUP_OF_KIND.get(owner.kind) != owner.api_version.rpartition("/")[0]:
            return None
        return self._owners.get((owner.kind, pod.metadata.namespace, owner.name))

    def _service_labels(self, pod: Pod) -> dict[str, str]:
        found: dict[str, str] = {}
        labels = pod.metadata.labels
        for key, value in labels.items():
            for selector in self._services.get((pod.metadata.namespace, key, value), {}).values():
                if labels.items() >= selector.items():
                    found.update(selector)
        return found


def _anchor(service: Service) -> tuple[str, str, str]:
    return (service.metadata.namespace, *min(service.spec.selector.items()))
