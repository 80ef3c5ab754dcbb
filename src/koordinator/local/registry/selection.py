"""Select the objects of a kind for a list or watch: namespace, labels and fields turned into one test."""

from collections.abc import Callable
from typing import Any

import msgspec

from koordinator.cluster import errors
from koordinator.local import selectors
from koordinator.local.change_log import Matches
from koordinator.local.selectors import FieldRequirement, text_at
from koordinator.local.store import IndexKey

FieldReader = Callable[[dict[str, Any]], str]


def _text_or(path: str, default: str) -> FieldReader:
    """Reads a field whose absence means `default`."""
    read = text_at(path)
    return lambda obj: read(obj) or default


def _event_source(obj: dict[str, Any]) -> str:
    return _SOURCE_COMPONENT(obj) or _REPORTING_COMPONENT(obj)


_SOURCE_COMPONENT = text_at("source.component")
_REPORTING_COMPONENT = text_at("reportingComponent")

_METADATA = {"metadata.name": text_at("metadata.name"), "metadata.namespace": text_at("metadata.namespace")}


def _paths(*paths: str) -> dict[str, FieldReader]:
    return {path: text_at(path) for path in paths}


_EVENT_OBJECT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")

SELECTABLE: dict[str, dict[str, FieldReader]] = {
    "pods": {
        **_paths(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
        "spec.hostNetwork": _text_or("spec.hostNetwork", "false"),
    },
    "nodes": {"spec.unschedulable": _text_or("spec.unschedulable", "false")},
    "namespaces": _paths("status.phase"),
    "secrets": _paths("type"),
    "services": _paths("spec.clusterIP", "spec.type"),
    "replicationcontrollers": {"status.replicas": _text_or("status.replicas", "0")},
    "replicasets.apps": {"status.replicas": _text_or("status.replicas", "0")},
    "jobs.batch": {"status.successful": _text_or("status.succeeded", "0")},
    "certificatesigningrequests.certificates.k8s.io": _paths("spec.signerName"),
    "events": {
        **_paths(*(f"involvedObject.{field}" for field in _EVENT_OBJECT), "reason", "type"),
        **{f"regarding.{field}": text_at(f"involvedObject.{field}") for field in _EVENT_OBJECT},
        "reportingComponent": _event_source,
        "reportingController": _event_source,
        "source": _event_source,
    },
}
"""Fields that a selector may name besides `metadata.name` and `metadata.namespace`, by table."""

INDEXES: dict[str, dict[str, FieldReader]] = {
    "pods": _paths("spec.nodeName"),
    "events": _paths("involvedObject.name"),
}
"""Fields by which objects are found without a scan: a node asks for its own pods, people for one object's events."""


class CompiledSelector(msgspec.Struct, frozen=True):
    """A compiled choice: the test (None: all), an index value that all chosen objects share, a name."""

    matches: Matches | None = None
    index: IndexKey | None = None
    name: str = ""


EVERYTHING = CompiledSelector()


def select(
    namespace: str,
    label_selector: str,
    field_selector: str,
    selectable: dict[str, FieldReader] | None,
    indexes: dict[str, FieldReader],
) -> CompiledSelector:
    """Return the choice that the parts of a query stand for.

    `selectable` are the kind's own selectable fields; None when it has no field selectors of its own.
    Raises: BadRequest with the parser's text.
    """
    if not (namespace or label_selector or field_selector):
        return EVERYTHING
    try:
        by_labels = selectors.labels(label_selector) if label_selector else None
        wanted = selectors.fields(field_selector) if field_selector else ()
    except selectors.SelectorError as error:
        raise errors.BadRequest(str(error)) from None
    tests: list[Matches] = []
    index: IndexKey | None = None
    if namespace:
        index = ("metadata.namespace", namespace)
        tests.append(_in_namespace(namespace))
    name = ""
    for requirement in wanted:
        tests.append(_field_test(requirement, _reader(requirement.field, selectable)))
        if requirement.negative or not requirement.value:
            continue
        if requirement.field == "metadata.name":
            name = requirement.value
            index = ("metadata.name", name)
        elif requirement.field in indexes:
            index = (requirement.field, requirement.value)
    if by_labels is not None:
        label_test = by_labels
        tests.append(lambda record: label_test(record.obj["metadata"].get("labels") or {}))
    if len(tests) == 1:
        return CompiledSelector(tests[0], index, name)
    return CompiledSelector(lambda record: all(test(record) for test in tests), index, name)


def _in_namespace(namespace: str) -> Matches:
    return lambda record: record.obj["metadata"].get("namespace") == namespace


def _reader(field: str, selectable: dict[str, FieldReader] | None) -> FieldReader:
    found = _METADATA.get(field) or (selectable or {}).get(field)
    if found is not None:
        return found
    if selectable is None:
        raise errors.BadRequest(
            f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'
        )
    raise errors.BadRequest(f"field label not supported: {field}")


def _field_test(requirement: FieldRequirement, read: FieldReader) -> Matches:
    value = requirement.value
    if requirement.negative:
        return lambda record: read(record.obj) != value
    return lambda record: read(record.obj) == value
