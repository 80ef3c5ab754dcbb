"""Whose labels decide whether a webhook hears of a request."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from koordinator.api.meta import Resource
from koordinator.local.admission import rules

LABELS = {"wanted": {"team": "a"}, "other": {"team": "b"}}


class Webhook(msgspec.Struct, frozen=True):
    """Wants namespaces, or objects, of team a; `is_open`: any."""

    is_open: bool = False

    @property
    def namespace_selects(self) -> Any:
        return None if self.is_open else lambda labels: labels.get("team") == "a"

    object_selects = namespace_selects


def labels_of(namespace: str) -> Mapping[str, str]:
    return LABELS[namespace]


def kind(name: str, group: str = "") -> Resource:
    return Resource(group=group, version="v1", kind=name, plural=f"{name.lower()}s")


def labelled(team: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"team": team}}}


@pytest.mark.parametrize(
    ("resource", "namespace", "obj", "old", "selected"),
    [
        pytest.param(kind("Pod"), "wanted", labelled("b"), None, True, id="labels of the namespace count"),
        pytest.param(kind("Pod"), "other", labelled("a"), None, False, id="not those of the object"),
        pytest.param(kind("Node"), "", labelled("b"), None, True, id="without a namespace always"),
        pytest.param(kind("Namespace"), "other", labelled("a"), None, True, id="a namespace: its own"),
        pytest.param(kind("Namespace"), "wanted", labelled("b"), labelled("a"), False, id="the new ones"),
        pytest.param(kind("Namespace"), "", None, labelled("a"), True, id="deleted: the old ones"),
        pytest.param(
            kind("Namespace", "example.com"), "wanted", labelled("b"), None, True, id="only called like one"
        ),
        pytest.param(kind("Namespace"), "", {"metadata": None}, None, False, id="no labels"),
    ],
)
def test_namespaces_are_selected_by_their_labels(
    resource: Resource, namespace: str, obj: Any, old: Any, selected: bool
) -> None:
    assert rules.namespace_selected(Webhook(), resource, namespace, obj, old, labels_of) is selected
    assert rules.namespace_selected(Webhook(is_open=True), resource, namespace, obj, old, labels_of)


@pytest.mark.parametrize(
    ("obj", "old", "selected"),
    [
        (labelled("a"), None, True),
        (labelled("b"), None, False),
        (labelled("b"), labelled("a"), True),
        (None, labelled("a"), True),
        (None, None, False),
    ],
)
def test_objects_are_selected_by_their_labels_of_now_or_before(obj: Any, old: Any, selected: bool) -> None:
    assert rules.object_selected(Webhook(), obj, old) is selected
    assert rules.object_selected(Webhook(is_open=True), obj, old)
