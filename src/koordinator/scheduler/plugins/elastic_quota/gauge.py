"""The metric that tells how quotas stand. Source: behaviour/elastic-quota 16.

Ten thousand quotas are some 160,000 samples: the text of each is kept, and written anew when the quota has changed
since somebody last asked.
"""

from collections.abc import Iterator

from koordinator.api import labels, resource_list
from koordinator.api.annotations import quota as quota_annotations
from koordinator.api.errors import ProtocolError
from koordinator.api.quantity import QuantityError
from koordinator.prometheus import Gauge
from koordinator.scheduler.plugins.elastic_quota.amounts import Nanos, nanos_per_unit, to_units
from koordinator.scheduler.plugins.elastic_quota.book import QuotaBook
from koordinator.scheduler.plugins.elastic_quota.news import Listener, QuotaNews
from koordinator.scheduler.plugins.elastic_quota.quota import ROOT, Quota


class QuotaGauge:
    """`scheduler_elastic_quota_status`, of all quotas but roots; in milli-cores and whole units."""

    name = "scheduler_elastic_quota_status"
    kind = Gauge.kind
    labels = ("name", "resource", "tree", "is_parent", "parent", "field")

    def __init__(self, book: QuotaBook, news: QuotaNews) -> None:
        self._book = book
        self._news = news
        self._listener: Listener | None = None
        self._gauge = Gauge(
            self.name,
            "What quotas have, ask for and use.",
            self.labels,
        )
        self._texts: dict[str, str] = {}
        """Quota → its lines."""

    def lines(self) -> Iterator[str]:
        """HELP, TYPE, and all lines of a quota at once."""
        if self._listener is None:
            self._listener = self._news.listen()
        self._news.spread()
        touched, drifted = self._listener.take()
        for name in touched | drifted:
            if text := self._text_of(name):
                self._texts[name] = text
            else:
                self._texts.pop(name, None)
        yield from self._gauge.head()
        for name in sorted(self._texts):
            yield self._texts[name]

    def _text_of(self, name: str) -> str:
        found = self._book.find(name)
        if found is None or name == ROOT:
            return ""
        tree, quota = found
        tree.bring_up_to_date(name)
        own = (self._book.forest.tree_ids.get(name, ""), str(quota.spec.is_parent).lower(), quota.spec.parent)
        samples = {
            (name, resource, *own, field): to_units(number, nanos_per_unit(resource))
            for field, nanos in (*fields_of(quota), *self._unschedulable(quota))
            for resource, number in nanos.items()
        }
        return "\n".join(self._gauge.line(number, *values) for values, number in sorted(samples.items()))

    def _unschedulable(self, quota: Quota) -> Iterator[tuple[str, Nanos]]:
        """What the root quota of a tree says of nodes that take no pods."""
        found = self._book.objects.get(quota.spec.name)
        if found is None or labels.QUOTA_UNSCHEDULABLE_RESOURCE not in found.metadata.annotations:
            return
        try:
            told = quota_annotations.UNSCHEDULABLE_RESOURCE.read(found.metadata.annotations, found.key)
            yield (
                "unschedulable-resource",
                {name: each.nanos for name, each in resource_list.of(told or {}).items()},
            )
        except (ProtocolError, QuantityError):
            return


def fields_of(quota: Quota) -> Iterator[tuple[str, Nanos]]:
    """What the metric tells, by field."""
    below = quota.below
    counted = quota.runtime if quota.spec.name == ROOT else quota.max
    yield from (
        ("runtime", {name: number for name, number in quota.runtime.items() if name in counted}),
        ("request", quota.request),
        ("child-request", below.request),
        ("guaranteed", quota.guaranteed),
        ("allocated", quota.allocated),
        ("non-preemptible-request", below.non_preemptible_request),
        ("non-preemptible-used", below.non_preemptible_used),
        ("used", below.used),
        ("min", quota.min),
        ("max", quota.max),
        ("sharedWeight", quota.weight),
    )
