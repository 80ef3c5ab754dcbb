"""Decide which pods a selector means: namespaces, labels, or several of both at once. Source: behaviour/scheduler
B9.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koordinator.api import label_selector
from koordinator.api.affinity import LabelSelector, PodAffinityTerm
from koordinator.api.core import Namespace, Pod
from koordinator.api.errors import ProtocolError
from koordinator.api.label_selector import Labels, Predicate

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


ANCHOR_VALUES_MAX = 16
"""Values of an `In` that are worth an anchor each."""


class PodTerm(msgspec.Struct, frozen=True, eq=False):
    """Pods of some namespaces with some labels. Terms with equal `key` mean the same pods.

    `anchor_choices`: under each of them, all pods that match can be found.
    """

    key: tuple[Any, ...]
    namespaces: frozenset[str]
    in_namespace: Predicate | None
    """Further namespaces by their labels."""
    has_labels: Predicate
    anchor_choices: tuple[tuple[Anchor, ...], ...]

    @classmethod
    def of(
        cls,
        selectors: Iterable[LabelSelector | None],
        namespaces: Iterable[str],
        namespace_selector: LabelSelector | None = None,
    ) -> "PodTerm":
        """Return pods that all of the selectors match; an absent one matches nothing."""
        selectors, names = tuple(selectors), frozenset(namespaces)
        within = sorted(names) if namespace_selector is None else [""]
        return cls(
            key=(
                tuple(sorted(names)),
                msgspec.json.encode(namespace_selector),
                msgspec.json.encode(selectors, order="sorted"),
            ),
            namespaces=names,
            in_namespace=None if namespace_selector is None else _compiled(namespace_selector),
            has_labels=_all_of(selectors),
            anchor_choices=tuple(
                tuple((namespace, *label) for namespace in within for label in labels)
                for labels in _label_choices(selectors)
            ),
        )

    @classmethod
    def of_affinity(cls, term: PodAffinityTerm, owner_namespace: str) -> "PodTerm":
        """Return a term of a pod in `owner_namespace`, which it means unless it names others."""
        names: Iterable[str] = term.namespaces
        if not term.namespaces and term.namespace_selector is None:
            names = (owner_namespace,)
        return cls.of((term.label_selector,), names, term.namespace_selector)

    def matches(self, pod: Pod, namespaces: NamespaceLabels) -> bool:
        return self.means(pod.metadata.namespace, pod.metadata.labels, namespaces)

    def means(self, namespace: str, labels: Labels, namespaces: NamespaceLabels) -> bool:
        """Return whether pods of the namespace with such labels match."""
        return self.has_labels(labels) and (
            namespace in self.namespaces
            or (self.in_namespace is not None and self.in_namespace(namespaces.of(namespace)))
        )


def anchors_of(namespace: str, labels: Labels) -> list[Anchor]:
    """Return all anchors under which terms can be found that match pods of the namespace with such labels."""
    found = [ANYWHERE, (namespace, "", "")]
    for key, value in labels.items():
        found.append(("", key, value))
        found.append((namespace, key, value))
    return found


def _label_choices(selectors: Iterable[LabelSelector | None]) -> list[list[tuple[str, str]]]:
    """Sets of labels of which each matching pod has one; an empty pair stands for any label.

    An empty key would stand for any label, too: such a selector is simply asked about every pod.
    """
    present = [selector for selector in selectors if selector is not None]
    found = [[pair] for selector in present for pair in sorted(selector.match_labels.items()) if pair[0]]
    for selector in present:
        for wanted in selector.match_expressions:
            if wanted.operator == "In" and wanted.key and 0 < len(wanted.values) <= ANCHOR_VALUES_MAX:
                found.append([(wanted.key, value) for value in sorted(set(wanted.values))])
    return found or [[("", "")]]


def _all_of(selectors: tuple[LabelSelector | None, ...]) -> Predicate:
    predicates = [_nothing if selector is None else _compiled(selector) for selector in selectors]
    if len(predicates) == 1:
        return predicates[0]
    return lambda labels: all(matches(labels) for matches in predicates)


def _compiled(selector: LabelSelector) -> Predicate:
    """Return the selector as a function. API servers refuse malformed ones; if one gets here, it matches nothing."""
    try:
        return label_selector.compile_selector(selector)
    except ProtocolError as error:
        log.warning("selector matches nothing: %s", error)
        return _nothing


def _nothing(labels: Mapping[str, str]) -> bool:
    return False
