"""Who may try again: quotas that had no room for a pod, and have more now. Source: behaviour/elastic-quota 13.1."""

from collections.abc import Callable

from koordinator.scheduler.plugin.status import Status
from koordinator.scheduler.plugins.elastic_quota.amounts import Nanos
from koordinator.scheduler.plugins.elastic_quota.checks import QuotaChecks
from koordinator.scheduler.plugins.elastic_quota.places import Place
from koordinator.scheduler.plugins.elastic_quota.pods import QuotaRef
from koordinator.scheduler.plugins.elastic_quota.quota import Quota


class Refusals:
    """Quotas that had no room for a pod, and the room that they had.

    `wake` is told the names of quotas whose pods may fit now. Who gives back places of its own must have been refused
    before it took them (`ElasticQuota.room_for`), or it would make the room that it is woken by.
    """

    def __init__(self, checks: QuotaChecks, wake: Callable[[frozenset[str]], None]) -> None:
        self._checks = checks
        self._wake = wake
        self._rooms: dict[QuotaRef, dict[str, Nanos]] = {}
        """Refusing quota → the room of it and its ancestors with a say, the least of all times it was asked."""
        self._depending: dict[str, set[QuotaRef]] = {}
        """Quota → those that it refused for."""

    def add(self, place: Place) -> None:
        """There was no room for a pod."""
        rooms = self._rooms.setdefault(place.ref, {})
        for quota in place.known:
            name = quota.spec.name
            room, known = self._room(quota), rooms.get(name)
            if known is not None:
                room = {each: min(number, known.get(each, number)) for each, number in room.items()}
            rooms[name] = room
            self._depending.setdefault(name, set()).add(place.ref)

    def look_again(self, changed: set[str]) -> None:
        """These quotas use or may use something else than before."""
        refs = {ref for name in changed & self._depending.keys() for ref in self._depending[name]}
        grown: set[str] = set()
        for ref in refs:
            place, rooms = self._checks.place(ref), self._rooms[ref]
            if isinstance(place, Status):
                self._drop(ref)
            elif any(
                number > rooms.get(quota.spec.name, {}).get(name, number)
                for quota in place.known
                for name, number in self._room(quota).items()
            ):
                self._drop(ref)
                grown.add(ref.name)
        if grown:
            self._wake(frozenset(grown))

    def _drop(self, ref: QuotaRef) -> None:
        for name in self._rooms.pop(ref):
            depending = self._depending[name]
            depending.discard(ref)
            if not depending:
                del self._depending[name]

    def _room(self, quota: Quota) -> Nanos:
        used = quota.below.used
        return {name: number - used.get(name, 0) for name, number in self._checks.limit_of(quota).items()}
