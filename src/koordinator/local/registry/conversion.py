"""One stored object, shown in several API versions.

Custom resources (conversion strategy None) differ in `apiVersion` only. Events are stored in their core form;
`events.k8s.io/v1` has other names for the same fields. Autoscalers have a translation of their own.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from koordinator.api.meta import Resource
from koordinator.cluster.backend import ObjectRecord

CACHE_MAX = 1_024
"""Shown records kept; a record is usually read soon after it was written, by all watchers of its version."""

_EVENT_FIELDS = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
"""Core field → `events.k8s.io/v1` field; all others have the same name."""

_CORE_FIELDS = {new: old for old, new in _EVENT_FIELDS.items()}

Translate = Callable[[dict[str, Any]], dict[str, Any]]


class Translation(msgspec.Struct, frozen=True):
    """The conversion of an object besides its `apiVersion`; both functions leave their argument alone."""

    shown: Translate
    stored: Translate


def _renamed(names: dict[str, str]) -> Translate:
    return lambda obj: {names.get(field, field): value for field, value in obj.items()}


EVENTS = Translation(shown=_renamed(_EVENT_FIELDS), stored=_renamed(_CORE_FIELDS))


class Converter:
    """Translates between the stored form of a kind and what is served under `group/version`s."""

    def __init__(self, stored: Resource, translation: Translation | None = None) -> None:
        self._stored = stored
        self._translation = translation
        self._cache: dict[tuple[int, str], ObjectRecord] = {}

    def shown(self, record: ObjectRecord, resource: Resource) -> ObjectRecord:
        """Return the record in the served version `resource`; made once per version and record."""
        if record.obj["apiVersion"] == resource.api_version:
            return record
        key = (record.version, resource.version)
        found = self._cache.get(key) if record.version else None
        if found is None:
            obj = record.obj if self._translation is None else self._translation.shown(record.obj)
            found = ObjectRecord({**obj, "apiVersion": resource.api_version}, record.version)
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            self._cache[key] = found
        return found

    def stored(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return an object of a served version in its stored form."""
        if obj.get("apiVersion") == self._stored.api_version:
            return obj
        if self._translation is not None:
            obj = self._translation.stored(obj)
        return {**obj, "apiVersion": self._stored.api_version}
