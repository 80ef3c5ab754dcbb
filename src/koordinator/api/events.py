"""Typed view of an event in the form of `events.k8s.io`; the API serves the same objects in both forms."""

from typing import ClassVar

import msgspec

from koordinator.api.core import EventSeries, EventSource
from koordinator.api.meta import Object, ObjectReference, Resource


class Event(Object, frozen=True, kw_only=True):
    """`regarding` and `note` are `involvedObject` and `message` of the core form."""

    resource: ClassVar[Resource] = Resource(
        group="events.k8s.io", version="v1", kind="Event", plural="events", short_names=("ev",)
    )

    regarding: ObjectReference = ObjectReference()
    related: ObjectReference | None = None
    type: str = ""
    reason: str = ""
    note: str = ""
    action: str = ""
    event_time: str | None = None
    series: EventSeries | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    source: EventSource = msgspec.field(name="deprecatedSource", default=EventSource())
    first_timestamp: str | None = msgspec.field(name="deprecatedFirstTimestamp", default=None)
    last_timestamp: str | None = msgspec.field(name="deprecatedLastTimestamp", default=None)
    count: int = msgspec.field(name="deprecatedCount", default=0)
