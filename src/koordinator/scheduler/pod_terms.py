"""Which pods a selector means: namespaces, labels, or several of both at once. Source: spec 03, B9."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koordinator.api import label_selector
from koordinator.api.affinity import LabelSelector, PodAffinityTerm
from koordinator.api.core import Namespace, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import Labels, Predicate
from koordinator.scheduler.framework import Watch

log = logging.getLogger(__name__)

Anchor = tuple[str, str, str]
"""(namespace, label key, label value) that a pod must have to match; "" stands for any."""
ANYWHERE: Anchor = ("", "", "")


class NamespaceLabels:
    """Labels of all namespaces. `version` grows with each change."""

    def __init__(self) -> None:
        self.version = 0
        self._labels: dict[str, Labels] = {}

    def of(self, namespace: str) -> Labels:
        return self._labels.get(namespace, {})

    def set(self, namespace: Namespace) -> None:
        name = namespace.metadata.name
        if self._labels.get(name) != namespace.metadata.labels:
            self._labels[name] = namespace.metadata.labels
            self.version += 1

    def remove(self, namespace: Namespace) -> None:
        if self._labels.pop(namespace.metadata.name, None):
            self.version += 1

    def watch(self) -> Watch[Namespace]:
        return Watch(
            Namespace, on_add=self.set, on_update=lambda _, new: self.set(new), on_delete=self.remove
        )


class PodTerm(msgspec.Struct, frozen=True, eq=False):
    """Pods of some namespaces with some labels. Terms with equal `key` mean the same pods."""

    key: tuple[Any, ...]
    namespaces: frozenset[str]
    in_namespace: Predicate | None
    """Further namespaces by their labels."""
    has_labels: Predicate
    anchors: tuple[Anchor, ...]

    @classmethod
    def of(
        cls,
        selectors: Iterable[LabelSelector | None],
        namespaces: Iterable[str],
        namespace_selector: LabelSelector | None = None,
    ) -> "PodTerm":
        """Pods that all of the selectors match; an absent one matches nothing."""
        selectors, names = tuple(selectors), frozenset(namespaces)
        label = _anchor_label(selectors)
        anchored = sorted(names) if namespace_selector is None else [""]
        return cls(
            key=(
                tuple(sorted(names)),
                msgspec.json.encode(namespace_selector),
                msgspec.json.encode(selectors),
            ),
            namespaces=names,
            in_namespace=None if namespace_selector is None else _compiled(namespace_selector),
            has_labels=_all_of(selectors),
            anchors=tuple((namespace, *label) for namespace in anchored),
        )

    @classmethod
    def of_affinity(cls, term: PodAffinityTerm, owner_namespace: str) -> "PodTerm":
        """A term of a pod in `owner_namespace`, which it means unless it names others."""
        names: Iterable[str] = term.namespaces
        if not term.namespaces and term.namespace_selector is None:
            names = (owner_namespace,)
        return cls.of((term.label_selector,), names, term.namespace_selector)

    def matches(self, pod: Pod, namespaces: NamespaceLabels) -> bool:
        meta = pod.metadata
        return self.has_labels(meta.labels) and (
            meta.namespace in self.namespaces
            or (self.in_namespace is not None and self.in_namespace(namespaces.of(meta.namespace)))
        )


def anchors_of(pod: Pod) -> list[Anchor]:
    """All anchors under which terms that match the pod can be found."""
    namespace = pod.metadata.namespace
    found = [ANYWHERE, (namespace, "", "")]
    for key, value in pod.metadata.labels.items():
        found.append(("", key, value))
        found.append((namespace, key, value))
    return found


def _anchor_label(selectors: Iterable[LabelSelector | None]) -> tuple[str, str]:
    for selector in selectors:
        if selector is not None and selector.match_labels:
            # An empty key would stand for any; such a selector is then simply asked about every pod.
            return next(
                ((key, value) for key, value in sorted(selector.match_labels.items()) if key), ("", "")
            )
    return ("", "")


def _all_of(selectors: tuple[LabelSelector | None, ...]) -> Predicate:
    predicates = [_nothing if selector is None else _compiled(selector) for selector in selectors]
    if len(predicates) == 1:
        return predicates[0]
    return lambda labels: all(matches(labels) for matches in predicates)


def _compiled(selector: LabelSelector) -> Predicate:
    """The selector as a function. API servers refuse malformed ones; if one gets here, it matches nothing."""
    try:
        return label_selector.compile_selector(selector)
    except ProtocolError as error:
        log.warning("selector matches nothing: %s", error)
        return _nothing


def _nothing(labels: Mapping[str, str]) -> bool:
    return False
