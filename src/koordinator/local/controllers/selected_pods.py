"""Find which pods each of many selectors selects, kept as pods come and go.

A change of a pod costs what its own labels find, a question what is selected; only a new selector looks at all pods
of its namespace.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from koordinator.api.core import Pod
from koordinator.api.label_selector import Predicate
from koordinator.cluster.informer import Informer, Key, key_of
from koordinator.local import selectors

_Anchor = tuple[str, str] | None
"""A label that every selected pod has, None for selectors that ask for none."""
_EQUALS = re.compile(r"\s*([^\s=!(),<>]+)\s*==?\s*([^\s=!(),<>]+)\s*")


class WorkloadSelector(NamedTuple):
    """A selector: what tells it from others, what it matches, and a label that it asks for."""

    text: str
    matches: Predicate
    anchor: _Anchor


def by_labels(labels: dict[str, str]) -> WorkloadSelector:
    """Return pods that have all of these labels."""
    wanted = labels.items()
    text = ",".join(f"{key}={value}" for key, value in sorted(wanted))
    return WorkloadSelector(text, lambda found: wanted <= found.items(), min(wanted, default=None))


def by_text(text: str) -> WorkloadSelector:
    """Return pods that a selector in the form of a query selects. Raises: SelectorError."""
    test = selectors.labels(text)
    equal = (_EQUALS.fullmatch(part) for part in text.split(","))
    anchor = next(((found[1], found[2]) for found in equal if found is not None), None)
    return WorkloadSelector(text, test if test is not None else lambda _: True, anchor)


Changed = Callable[[Key, Pod | None, Pod | None], None]
"""Called with the selector's key and its pod before and after a change (None: not selected then)."""


class _Selector:
    __slots__ = ("anchor", "matches", "pods", "text")

    def __init__(self, selection: WorkloadSelector) -> None:
        self.text, self.matches, self.anchor = selection
        self.pods: dict[Key, None] = {}


class SelectedPods:
    """Selectors by key, (namespace, name) of what selects; `changed` hears of every change of a selected pod."""

    def __init__(self, pods: Informer[Pod], changed: Changed = lambda key, old, new: None) -> None:
        self._pods = pods
        self._changed = changed
        self._selectors: dict[Key, _Selector] = {}
        self._anchored: dict[str, dict[_Anchor, dict[Key, None]]] = {}
        pods.add_handler(lambda pod: self._moved(None, pod), self._moved, lambda pod: self._moved(pod, None))

    def select(self, key: Key, selection: WorkloadSelector | None) -> None:
        """Keep the pods of `key`'s namespace that are selected; None: none."""
        known = self._selectors.get(key)
        if known is not None and selection is not None and known.text == selection.text:
            return
        self._forget(key)
        if selection is None:
            return
        namespace = key[0]
        added = self._selectors[key] = _Selector(selection)
        self._anchored.setdefault(namespace, {}).setdefault(added.anchor, {})[key] = None
        for pod_key, pod in self._pods.objects.items():
            if pod_key[0] == namespace and added.matches(pod.metadata.labels):
                added.pods[pod_key] = None

    def of(self, key: Key) -> list[Pod]:
        """Return the selected pods, in order of arrival."""
        known = self._selectors.get(key)
        if known is None:
            return []
        found = (self._pods.get(name, namespace) for namespace, name in known.pods)
        return [pod for pod in found if pod is not None]

    def count(self, key: Key) -> int:
        known = self._selectors.get(key)
        return len(known.pods) if known is not None else 0

    def rivals(self, key: Key) -> list[Key]:
        """Other keys of the namespace that select some of the same pods."""
        anchored = self._anchored.get(key[0], {})
        if sum(map(len, anchored.values())) < 2:
            return []
        found: dict[Key, None] = {}
        for pod in self.of(key):
            for anchor in (None, *pod.metadata.labels.items()):
                for other in anchored.get(anchor, ()):
                    if other != key and key_of(pod) in self._selectors[other].pods:
                        found[other] = None
        return sorted(found)

    def _forget(self, key: Key) -> None:
        known = self._selectors.pop(key, None)
        if known is None:
            return
        anchored = self._anchored[key[0]]
        del anchored[known.anchor][key]
        if not anchored[known.anchor]:
            del anchored[known.anchor]
            if not anchored:
                del self._anchored[key[0]]

    def _moved(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        anchored = self._anchored.get(pod.metadata.namespace)
        if not anchored:
            return  # nothing in this namespace selects
        pod_key = key_of(pod)
        before = old.metadata.labels if old is not None else None
        after = new.metadata.labels if new is not None else None
        anchors: dict[_Anchor, None] = {None: None}
        for labels in (before, after if after != before else None):
            anchors.update(dict.fromkeys(labels.items()) if labels else {})
        for anchor in anchors:
            for key in anchored.get(anchor, ()):
                selector = self._selectors[key]
                was = pod_key in selector.pods
                is_now = after is not None and selector.matches(after)
                if is_now and not was:
                    selector.pods[pod_key] = None
                elif was and not is_now:
                    del selector.pods[pod_key]
                if was or is_now:
                    self._changed(key, old if was else None, new if is_now else None)
